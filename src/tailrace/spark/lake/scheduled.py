"""Archives that a configuration asks for: as orders, and as chores of an open store.

A chore keeps the store only by a weak reference: one that nobody closes is collected all the same.
Whoever closes a store waits for the step that is being written, not for all that there is to do.

When a chore was last done to its end is in the archive, `_tailrace/ran`: so it is done as often as
it is to be, however often the store is opened anew.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import pyarrow.parquet  # noqa: F401  whoever imports this finds out now that it is missing

from tailrace.errors import Closed
from tailrace.log.fs import read_file, replace_file
from tailrace.log.upkeep import Chore
from tailrace.queue.stats import look_through
from tailrace.spark.lake.archive import Order, archive
from tailrace.spark.lake.manifest import side_of

if TYPE_CHECKING:
    from tailrace.config.model import ArchiveConfig
    from tailrace.queue.store import Store

__all__ = ["chores", "order_of"]

logger = logging.getLogger("tailrace")

_SOON_S: Final = 1.0  # after a store is opened: some are only open for a moment
_LARGEST: Final = 64  # bytes of a stamp


def order_of(wanted: ArchiveConfig, store: Store) -> Order:
    return Order(
        wanted.queue,
        wanted.folder,
        wanted.format,
        wanted.partition_by,
        drop=store.get(wanted.queue).drop_archived if wanted.delete else None,
        is_named=False,
    )


def chores(store: Store, wanted: Sequence[ArchiveConfig]) -> list[Chore]:
    """One for each queue that is archived every so often."""
    known = weakref.ref(store)
    return [
        Chore(
            f"archiving of {each.queue}",
            each.every_s,
            _Archiving(known, each).run,
            _first_s(store, each),
        )
        for each in wanted
        if each.every_s
    ]


def _first_s(store: Store, wanted: ArchiveConfig) -> float:
    """How long from now on: what never ran to its end, or should have run by now, is due soon."""
    soon_s = min(_SOON_S, wanted.every_s)
    try:
        ran_ms = int(read_file(store.fs, _stamp(wanted), _LARGEST) or b"")
    except (OSError, ValueError):
        return soon_s
    due_s = (ran_ms - store.clock.wall_ms()) / 1000 + wanted.every_s
    return min(max(due_s, soon_s), wanted.every_s)  # the clock may have been put back


def _stamp(wanted: ArchiveConfig) -> str:
    return os.path.join(side_of(wanted.folder), "ran")


class _Archiving:
    def __init__(self, store: weakref.ref[Store], wanted: ArchiveConfig) -> None:
        self._store = store
        self._wanted = wanted

    def run(self) -> None:
        store = self._store()
        if store is None:
            return
        report = archive(look_through(store), order_of(self._wanted, store), progress=self._go_on)
        replace_file(store.fs, _stamp(self._wanted), b"%d\n" % store.clock.wall_ms())
        if report.rows or report.deleted_segments:
            logger.info(
                "%s: %d messages archived to %s, %d segments deleted",
                report.queue,
                report.rows,
                report.folder,
                report.deleted_segments,
                extra={"queue": report.queue, "count": report.rows},
            )

    def _go_on(self, done: int, total: int) -> None:
        """What a step has come to stays; a store that is being closed does not wait for more."""
        store = self._store()
        if store is None:
            raise Closed("the store is gone")
        store.check_open()
