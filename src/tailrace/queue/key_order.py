"""Which pending messages have to wait for others of their key."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from itertools import compress

__all__ = ["KeyOrder"]

_NO_KEY = -1  # of what is not pending any more; keys are not negative
_FEW = 1024  # such that are not worth tidying up
_LONG = 64  # a line that is worth a deque, whose first one goes without a move of the others


class KeyOrder:
    """The pending messages of each key, in the order of their offsets: only the first of a line may
    be claimed. Keys are numbers here, as the journal has them. Mostly a message is the only one of
    its key, and there are many: so what is kept of each is small. Not thread-safe."""

    __slots__ = ("_keys", "_offsets", "_unused", "lines")

    def __init__(self) -> None:
        self.lines: dict[int, int | list[int] | deque[int]] = {}  # by key; most are of one
        self._offsets = array("q")  # rising
        self._keys = array("q")  # of these
        self._unused = 0  # of these

    @property
    def waiting(self) -> int:
        """How many are not the first."""
        return len(self._offsets) - self._unused - len(self.lines)

    @property
    def heads(self) -> set[int]:
        return {line if isinstance(line, int) else line[0] for line in self.lines.values()}

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Offsets and keys."""
        for offset, key in zip(self._offsets, self._keys, strict=True):
            if key != _NO_KEY:
                yield offset, key

    def key_of(self, offset: int) -> int | None:
        index = self._find(offset)
        return None if index is None else self._keys[index]

    def _find(self, offset: int) -> int | None:
        """Where it is, if it is pending."""
        index = bisect_left(self._offsets, offset)
        if index == len(self._offsets) or self._offsets[index] != offset:
            return None
        return None if self._keys[index] == _NO_KEY else index

    def add(self, offset: int, key: int) -> bool:
        """At the end of its line: is it the first?"""
        self._note(offset, key)
        line = self.lines.get(key)
        if line is None:
            self.lines[key] = offset
            return True
        if isinstance(line, int):
            self.lines[key] = [line, offset]
        else:
            if len(line) == _LONG:
                line = self.lines[key] = deque(line)
            line.append(offset)
        return False

    def _note(self, offset: int, key: int) -> None:
        offsets, keys = self._offsets, self._keys
        if not offsets or offset > offsets[-1]:
            offsets.append(offset)
            keys.append(key)
            return
        index = bisect_left(offsets, offset)  # the journal was damaged, or has something twice
        if offsets[index] == offset:
            self._unused -= keys[index] == _NO_KEY
            keys[index] = key
        else:
            offsets.insert(index, offset)
            keys.insert(index, key)

    def remove(self, offset: int) -> int | None:
        """The one that is the first of its line now; `None` if there is none, or it has no key."""
        index = self._find(offset)
        if index is None:
            return None
        key = self._keys[index]
        self._keys[index] = _NO_KEY
        self._unused += 1
        if self._unused > _FEW + len(self._keys) // 2:
            self._tidy()
        line = self.lines[key]
        if isinstance(line, int):
            del self.lines[key]
            return None
        line.remove(offset)
        if len(line) == 1:
            self.lines[key] = line[0]
        return line[0]

    def _tidy(self) -> None:
        """Each time after as many were removed as it takes."""
        used = [key != _NO_KEY for key in self._keys]
        self._offsets = array("q", compress(self._offsets, used))
        self._keys = array("q", compress(self._keys, used))
        self._unused = 0

    def clear(self) -> None:
        self.lines.clear()
        self._offsets, self._keys, self._unused = array("q"), array("q"), 0
