"""Which pending messages have to wait for others of their key."""

from __future__ import annotations

from collections import deque

__all__ = ["KeyOrder"]


class KeyOrder:
    """The pending messages of each key, in the order of their offsets: only the first of a line may
    be claimed. Keys are numbers here, as the journal has them. Not thread-safe."""

    __slots__ = ("_lines", "keys")

    def __init__(self) -> None:
        self.keys: dict[int, int] = {}  # by offset
        self._lines: dict[int, deque[int]] = {}

    def __contains__(self, key: int) -> bool:
        return key in self._lines

    @property
    def waiting(self) -> int:
        """How many are not the first."""
        return len(self.keys) - len(self._lines)

    @property
    def heads(self) -> set[int]:
        return {line[0] for line in self._lines.values()}

    def add(self, offset: int, key: int) -> bool:
        """At the end of its line: is it the first?"""
        self.keys[offset] = key
        if key in self._lines:
            self._lines[key].append(offset)
            return False
        self._lines[key] = deque((offset,))
        return True

    def remove(self, offset: int) -> int | None:
        """The one that is the first of its line now; `None` if there is none, or it has no key."""
        key = self.keys.pop(offset, None)
        if key is None:
            return None
        line = self._lines[key]
        line.remove(offset)
        if line:
            return line[0]
        del self._lines[key]
        return None

    def clear(self) -> None:
        self.keys.clear()
        self._lines.clear()
