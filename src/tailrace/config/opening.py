"""`tailrace.open`, with a configuration."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from tailrace.queue.store import Store

if TYPE_CHECKING:
    from tailrace.config.model import Config

__all__ = ["open_store"]


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
    except BaseException:
        store.close()
        raise
    return store
