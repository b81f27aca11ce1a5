"""The table of producers (`producers.py`) of a log that is open for writing, kept up to date.

It is read from the snapshot and the log when it is first needed; from then on our own appends are
added as they happen, and those of other processes are read from the log.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

from tailrace.errors import Corrupt
from tailrace.kernel import first_headers
from tailrace.log.fs import FileSystem
from tailrace.log.producers import Appended, Producers
from tailrace.log.reader import Reader, View

__all__ = ["ProducerTable"]


class ProducerTable:
    """Used with the turn to write, but for `store`."""

    def __init__(self, fs: FileSystem, folder: str, reader: Reader, expiry_ms: int) -> None:
        self._fs = fs
        self._folder = folder
        self._reader = reader
        self._expiry_ms = expiry_ms
        self._producers: Producers | None = None
        self._store_lock = threading.Lock()
        # Have others appended since we looked? What we append ourselves is added at once.
        self.has_news = False

    def find(self, producer: str, sequence: int, view: View) -> Appended | None:
        """Where this sequence is in the log, if it is. `view` is all of the log."""
        return self._current(view).find(producer, sequence)

    def add(self, producer: str, sequence: int, appended: Appended, now_ms: int) -> None:
        assert self._producers is not None  # it was looked for
        self._producers.add(producer, sequence, appended, now_ms)
        self._producers.next_offset = appended.offset + appended.records

    def forget(self) -> None:
        """Begin again when it is needed: the log knows."""
        self._producers = None

    def _current(self, view: View) -> Producers:
        producers = self._producers
        if producers is None:
            producers = Producers.load(self._fs, self._folder, view.end)
        elif not self.has_news:
            producers.next_offset = view.end
            return producers
        self._producers = None  # if we fail half way, begin again
        first = max(producers.next_offset, view.start)
        while first < view.end:
            try:
                for region in self._reader.regions(view, first, view.end):
                    producers.observe(first_headers(region.data, 0, len(region.data)))
                break
            except Corrupt as error:
                first = error.next_offset or view.end
        producers.next_offset = view.end
        self._expire(producers)
        self._producers, self.has_news = producers, False
        return producers

    def _expire(self, producers: Producers) -> None:
        producers.expire(time.time_ns() // 1_000_000 - self._expiry_ms)

    def snapshot(self, durable: int, end_offset: int) -> dict[str, Any] | None:
        """What is durable, to be stored, so that the next one need not read the log for it."""
        producers = self._producers
        if producers is None:
            return None
        self._expire(producers)
        known = producers.next_offset if self.has_news else end_offset
        return producers.snapshot(min(durable, known))

    def store(self, snapshot: dict[str, Any] | None) -> None:
        """Thread-safe. A snapshot is a cache: one that cannot be written is done without."""
        if snapshot is not None:
            with self._store_lock, contextlib.suppress(OSError):
                Producers.store(self._fs, self._folder, snapshot)
