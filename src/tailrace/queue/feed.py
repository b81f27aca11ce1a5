"""The records of a log in order, for a group that mostly goes on from where it was."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice

from tailrace.errors import Corrupt, OffsetOutOfRange
from tailrace.kernel import Record
from tailrace.log.log import Log

__all__ = ["Feed"]


class Feed:
    """Records from wherever one says. Not thread-safe: the group's lock guards it."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.path = log.path
        self._tailing = log.tail("first")
        self._next = self._tailing.position  # where the next one is expected to go on
        # Read, and not asked for yet: all that there is between `_next` and the tailing's position.
        self._ahead: deque[Record] = deque()
        self._source: Iterator[Record] | None = None
        self.lost: list[tuple[int, int]] = []  # ranges that could not be read, as they are met

    def take(self, first: int, limit: int) -> tuple[list[Record], int]:
        """Up to `limit` records from the offset `first` on, fewer only if there are no more now;
        and the offset from which to go on, which is behind what is deleted, lost or was never
        written."""
        if first != self._next:
            self._go_to(first)
        ahead = self._ahead
        if len(ahead) < limit:
            self._read(limit - len(ahead))
        if len(ahead) <= limit:
            taken = list(ahead)
            ahead.clear()
            self._next = self._tailing.position
        else:
            taken = [ahead.popleft() for _ in range(limit)]
            self._next = taken[-1].offset + 1  # type: ignore[operator]
        return taken, self._next

    def _go_to(self, first: int) -> None:
        ahead, tailing = self._ahead, self._tailing
        if first < self._next:
            ahead.clear()
        while ahead and ahead[0].offset < first:  # type: ignore[operator]
            ahead.popleft()
        if not ahead and (tailing.position < first or first < self._next):
            self._source = None
            tailing.seek(first)
        self._next = first

    def _read(self, count: int) -> None:
        """Read on, so many records if there are as many."""
        tailing, ahead = self._tailing, self._ahead
        enough = len(ahead) + count
        while True:
            has_looked = self._source is None
            if self._source is None:
                self._source = tailing.poll()
            try:
                ahead.extend(islice(self._source, enough - len(ahead)))
            except OffsetOutOfRange as error:
                if error.low <= tailing.position:
                    raise
                self._skip_to(error.low)
                continue
            except Corrupt as error:
                if error.next_offset is None or error.next_offset <= tailing.position:
                    raise
                self.lost.append((tailing.position, error.next_offset))
                self._skip_to(error.next_offset)
                continue
            if len(ahead) >= enough:
                return
            self._source = None
            if has_looked:
                return

    def _skip_to(self, offset: int) -> None:
        self._source = None
        self._tailing.seek(offset)

    def read_one(self, offset: int) -> Record | None:
        """The record at an offset; `None` if there is none any more."""
        try:
            for record in self._log.read(offset, offset + 1):
                return record
        except (OffsetOutOfRange, Corrupt):
            return None
        return None

    def close(self) -> None:
        self._source = None
        self._ahead.clear()
        self._tailing.close()
