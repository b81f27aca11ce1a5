"""The records of a log in order, for a group that mostly goes on from where it was.

With the group's turn one only has to know which offsets have records: reading happens before, and
decoding after it, as far as that can be foreseen.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from tailrace.errors import Corrupt, OffsetOutOfRange
from tailrace.kernel import Record
from tailrace.log.log import Log
from tailrace.log.picks import Picks
from tailrace.log.portions import Portions, Promise
from tailrace.log.reader import Reader, View

__all__ = ["Feed"]

_NOWHERE = 2**63  # above every offset


class Feed:
    """Records from wherever one says. Not thread-safe: the group's lock guards it.

    The tailing is ahead: everything below its position is in `_ahead`, in `_portions`, or was taken
    or leapt over.
    """

    def __init__(self, log: Log, special: tuple[bytes, ...] = ()) -> None:
        """Nothing is promised where a record has one of the headers `special`."""
        self._special = special
        self.path = log.path
        self._tailing = log.tail("first")
        self._tailing.read_with(self._begin)
        self._picks = Picks(self._tailing.look)
        self._next = self._tailing.position  # where the next one is expected to go on
        self._ahead: deque[Record] = deque()  # decoded, and not asked for yet
        self._portions: Portions | None = None  # what follows them
        self.lost: list[tuple[int, int]] = []  # ranges that could not be read, as they are met

    def _begin(self, reader: Reader, view: View, first: int, last: int) -> Iterator[Record]:
        """The tailing has come to a range: it goes on behind it, and we read it by and by."""
        self._portions = Portions(reader, view, first, last, self._special)
        return iter(())

    def take(self, first: int, limit: int, *, is_read: bool = False) -> tuple[list[Record], int]:
        """Up to `limit` records from the offset `first` on, fewer only if there are no more now;
        and the offset from which to go on, which is behind what is deleted, lost or was never
        written. `is_read`: everything was read a moment ago, as `promise` has said."""
        if first != self._next:
            self._go_to(first)
        ahead = self._ahead
        while not is_read and len(ahead) < limit:
            is_read = not self._read(limit - len(ahead))
        if len(ahead) <= limit:
            taken = list(ahead)
            ahead.clear()
            portions = self._portions
            self._next = self._tailing.position if portions is None else portions.position
        else:
            taken = [ahead.popleft() for _ in range(limit)]
            self._next = ahead[0].offset  # type: ignore[assignment]
        return taken, self._next

    def promise(self, first: int, limit: int) -> tuple[Sequence[Promise], int, bool]:
        """The same without decoding them, as far as nobody has to look at them first: perhaps not
        at all, perhaps only some of those that there are. And has everything been read, so that
        `take` has nothing to look for?"""
        if first != self._next:
            self._go_to(first)
        promises: list[Promise] = []
        is_read = False
        try:
            while self._next < first + limit and not self._ahead:
                portions = self._portions
                if portions is None:
                    is_read = not self._read(limit)
                    if is_read:
                        break
                    continue
                if portions.position != self._next:
                    break
                promise = portions.promise(first + limit)
                if promise is None:
                    break
                if portions.position == portions.last:
                    self._portions = None
                promises.append(promise)
                self._next = promise.behind
        except (OffsetOutOfRange, Corrupt):  # `take` meets it again
            is_read = False
        return promises, self._next, is_read

    def prepare(self, hint: int) -> None:
        """Without the turn, before it: read what is needed if the group is as far as the hint says.
        It may be wrong in any way."""
        if self._next == _NOWHERE:
            return
        try:
            if hint > self._next:
                self._go_to(hint)
            if self._portions is not None and not self._ahead:
                self._portions.prepare()
        except (OSError, OffsetOutOfRange, Corrupt):  # with the turn we meet it again
            self.reset()
        except BaseException:
            self.reset()
            raise

    def reset(self) -> None:
        """Begin anew: perhaps an exception came in the middle of reading."""
        self._next = _NOWHERE
        self._picks.drop()

    def _go_to(self, first: int) -> None:
        ahead, portions, tailing = self._ahead, self._portions, self._tailing
        if first < self._next or tailing.position < first:
            ahead.clear()
            self._portions = None
            tailing.seek(first)
        else:
            while ahead and ahead[0].offset < first:  # type: ignore[operator]
                ahead.popleft()
            if portions is not None and portions.position < first:
                portions.leap(first)
        self._next = first

    def _read(self, want: int) -> bool:
        """Read on; false if that was all there is."""
        tailing = self._tailing
        try:
            portions = self._portions
            if portions is not None:
                records = portions.take(want)
                if portions.position == portions.last:
                    self._portions = None
                self._ahead += records
                return True
            found = tailing.poll_tip()
            if found is not None:
                self._ahead += found
                return False
            before = len(self._ahead)
            self._ahead += tailing.poll()
        except OffsetOutOfRange as error:
            if error.low <= self._position:
                raise
            self._skip_to(error.low)
            return True
        except Corrupt as error:
            position = self._position
            if error.next_offset is None or error.next_offset <= position:
                raise
            self.lost.append((position, error.next_offset))
            self._skip_to(error.next_offset)
            return True
        return len(self._ahead) > before or self._portions is not None

    @property
    def _position(self) -> int:
        return self._tailing.position if self._portions is None else self._portions.position

    def _skip_to(self, offset: int) -> None:
        self._portions = None
        self._tailing.seek(offset)

    def read_at(self, offsets: Sequence[int]) -> list[Record]:
        """The records at some offsets, which rise: those that are still there."""
        return self._picks.read(offsets)

    def close(self) -> None:
        self._portions = None
        self._ahead.clear()
        self._picks.drop()
        self._tailing.close()
