"""`tailrace.open`, with a configuration."""

from __future__ import annotations

import importlib
import logging
import os
from typing import TYPE_CHECKING, Any, Final

from tailrace.queue.store import Store

if TYPE_CHECKING:
    from tailrace.config.model import Config

__all__ = ["open_store"]

logger = logging.getLogger("tailrace")

_SCHEDULED: Final = "tailrace.spark.lake.scheduled"


def open_store(
    path: str | os.PathLike[str],
    *,
    config: str | os.PathLike[str] | Config | None = None,
    **options: Any,
) -> Store:
    """Open the store in a directory, which is made if it does not exist: `tailrace.open`.

    `flush` and other options of queues are defaults for those that are created here. Takes what
    `Store` takes. `config` is a configuration, or its file: its queues are made, or changed to what
    it says; options that are given here come before its own.
    """
    if config is None:
        return Store(path, **options)
    from tailrace.config.model import Config, load

    if not isinstance(config, Config):
        config = load(config)
    given = {key: value for key, value in options.items() if value is not None}
    store = Store(path, **{**config.store_options(), **given})
    try:
        config.apply(store)
        if store.upkeep and any(archive.every_s for archive in config.archives):
            _archive(store, config)
    except BaseException:
        store.close()
        raise
    return store


def _archive(store: Store, config: Config) -> None:
    """Have queues archived every so often, as long as the store is open. That takes pyarrow, which
    this layer does not know: what does it is looked up by its name."""
    try:
        scheduled = importlib.import_module(_SCHEDULED)
    except ImportError as error:
        text = "%s: queues are not archived, because %s is missing: pip install 'tailrace[arrow]'"
        logger.warning(text, config.path, error.name, extra={"path": store.path})
        return
    store.employ(scheduled.chores(store, config.archives))
