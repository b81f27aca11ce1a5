"""How much of what is delayed is in no run yet, for those who publish it.

Whoever delivers sorts it away when it fills memory. Where nobody does (no process has upkeep), or
where it cannot keep up, who publishes does so, at twice as much. So whoever is killed when, those
who come next have little to read before they can go on, and to keep in memory.

How many records that are, the offsets tell, and the manifest. Their bytes are a sum on the page
that the processes share, to which each adds what it publishes. It is about right: two who add at
once may lose one of the two, and so may a power cut. Each turn, which has read them all, puts it
right.
"""

from __future__ import annotations

import struct
from typing import Final

from tailrace.queue.schedule import most_unsorted

__all__ = ["Unsorted"]

_BYTES: Final = struct.Struct("<Q")
_BYTES_AT: Final = 24  # on the page, behind the mark of what was delivered
_MOST: Final = 2**63


class Unsorted:
    """Thread-safe, as far as a sum is that may be somewhat too low."""

    def __init__(self, page: memoryview, first: int, end: int) -> None:
        """Records of `incoming` are sorted up to `first`, and it ends at `end`, about."""
        self._page = page
        self._end = end
        self.sorted_to(first)

    @property
    def bytes(self) -> int:
        found: int = _BYTES.unpack_from(self._page, _BYTES_AT)[0]
        return found

    @property
    def is_much(self) -> bool:
        """Is it so much that who publishes has to sort it away?"""
        return self._end >= self._much_at or self.bytes >= self._much_bytes

    def add(self, end: int, size: int) -> None:
        """A message that takes so many bytes was published, behind which `incoming` ends now."""
        self._end = end
        self._store(self.bytes + size)

    def sorted_to(self, first: int) -> None:
        """Somebody has sorted what is below an offset."""
        records, self._much_bytes = most_unsorted()
        self._much_at = first + records

    def correct(self, size: int, before: int) -> None:
        """Who has the turn has read so many bytes. What was published since it began, when the sum
        was `before`, perhaps not."""
        self._store(size + max(self.bytes - before, 0))

    def put_off(self) -> None:
        """It could not be sorted: leave it until as much has come again."""
        records, size = most_unsorted()
        self._much_at = self._end + records
        self._much_bytes = self.bytes + size

    def _store(self, size: int) -> None:
        _BYTES.pack_into(self._page, _BYTES_AT, min(size, _MOST))
