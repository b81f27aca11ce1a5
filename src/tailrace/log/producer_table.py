"""The table of producers (`producers.py`) of a log that is open for writing, kept up to date.

It is read from the snapshot and the log when it is first needed; from then on our own appends are
added as they happen, and those of other processes are read from the log.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable

from tailrace.errors import Corrupt, NotWritten
from tailrace.kernel import first_headers
from tailrace.log.fs import FileSystem
from tailrace.log.producers import Appended, Once, Producers
from tailrace.log.reader import Reader, View

__all__ = ["ProducerTable"]

logger = logging.getLogger("tailrace")


class ProducerTable:
    """Used with the turn to write."""

    def __init__(
        self,
        fs: FileSystem,
        folder: str,
        reader: Reader,
        expiry_ms: int,
        end_offset: int,
        wall_ms: Callable[[], int],
    ) -> None:
        self._wall_ms = wall_ms
        self._fs = fs
        self._folder = folder
        self._reader = reader
        self._expiry_ms = expiry_ms
        self._producers: Producers | None = None
        # What is in the log from here on we have appended ourselves: it was added at once.
        self._ours_from = end_offset
        self.has_news = False  # others have appended since

    def find(self, once: Once, view: View) -> Appended | None:
        """Where this sequence is in the log, if it is. `view` is all of the log."""
        try:
            return self._current(view).find(once)
        except OSError as error:
            raise NotWritten(f"{self._folder}: cannot read the producers: {error}") from error

    def add(self, once: Once, appended: Appended, now_ms: int) -> None:
        assert self._producers is not None  # it was looked for
        self._producers.add(once, appended, now_ms)
        self._producers.next_offset = appended.offset + appended.records

    def forget(self) -> None:
        """Begin again when it is needed: the log knows."""
        self._producers, self.has_news = None, True

    def keep(self, view: View, below: int, durable: int) -> None:
        """Store what is below an offset, because the log will not have it any more.

        On a full disk it may be that this cannot be written, and that what is to be deleted is what
        fills it: then that goes first, and somebody who is killed now is not recognised again.
        """
        try:
            if len(self._current(view, below)) and self._stored_to() < below:
                self._store(view, max(durable, below))
        except OSError as error:
            logger.warning(
                "%s: who appended what is deleted cannot be noted: %s",
                self._folder,
                error,
                extra={"path": self._folder},
            )

    def _current(self, view: View, upto: int | None = None) -> Producers:
        """All that is in the log, or at least what is below `upto`."""
        if self._producers is not None and self._is_complete(self._producers):
            self._producers.next_offset = view.end
            return self._producers
        if self.has_news:
            self._ours_from, self.has_news = view.end, False
        producers, self._producers = self._producers, None  # if we fail half way, begin again
        if producers is None or producers.next_offset < view.start:  # only the snapshot knows then
            producers = Producers.load(self._fs, self._folder, view.end)
        first = max(producers.next_offset, view.start)
        behind = self._ours_from if upto is None else min(upto, self._ours_from)
        while first < behind:
            try:
                for region in self._reader.regions(view, first, behind):
                    producers.observe(first_headers(region.data, 0, len(region.data)))
                break
            except Corrupt as error:
                first = error.next_offset or behind
        producers.next_offset = max(producers.next_offset, behind)
        if self._is_complete(producers):
            producers.next_offset = view.end
        self._expire(producers)
        self._producers = producers
        return producers

    def _is_complete(self, producers: Producers) -> bool:
        return producers.next_offset >= self._ours_from and not self.has_news

    def _expire(self, producers: Producers) -> None:
        producers.expire(self._wall_ms() - self._expiry_ms)

    def store(self, view: View, durable: int) -> None:
        """Store what is durable, so that the next one need not read the log for it. That is a
        cache: where it cannot be written, it is done without."""
        with contextlib.suppress(OSError):
            self._store(view, durable)

    def _store(self, view: View, durable: int) -> None:
        producers = self._producers
        if producers is None:
            return
        self._expire(producers)
        known = min(durable, view.end if self._is_complete(producers) else producers.next_offset)
        if known >= view.start:  # else there is one of somebody who knew more
            Producers.store(self._fs, self._folder, producers.snapshot(known))

    def _stored_to(self) -> int:
        """Where in the log the snapshot ends. Another process may have put an older one in place of
        ours: that is right as long as the log is there."""
        return Producers.load(self._fs, self._folder, sys.maxsize).next_offset
