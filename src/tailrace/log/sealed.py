"""The segments behind the active one, as a writer knows them beside the others: who rolls or
deletes tells on the board that there is something else now, and the others find out here what.
"""

from __future__ import annotations

from tailrace.log.board import Note
from tailrace.log.extents import Extent, Extents
from tailrace.log.segments import Catalog, list_segments

__all__ = ["Sealed"]


class Sealed:
    """`doomed` are segments whose files are to be deleted once the log starts at an offset. They
    may be gone, or be going just now: each writer remembers them, because whoever let them go may
    have been killed before it had deleted them. With the turn."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self.doomed: dict[Extent, int] = {}

    def list(self, note: Note) -> Extents:
        """Look at the folder."""
        listed = list_segments(self._catalog.fs, self._catalog.folder)
        self._catalog.seals.load({extent.base for extent in listed})
        # One without records is left over from a roll that failed.
        before = Extents(each for each in listed if each.base < note.segment and each.size)
        return self._without_deleted(before, note)

    def since(self, extents: Extents, note: Note) -> Extents:
        """After others have rolled, or let some go; the last of those that were was active."""
        new = self._catalog.sealed_between(extents[-1].base, note.segment)
        if new is None:
            return self.list(note)
        known = extents[:-1]
        for extent in new:
            known = known.and_then(extent)
        return self._without_deleted(known, note)

    def _without_deleted(self, sealed: Extents, note: Note) -> Extents:
        start = note.start_offset
        kept = sealed.from_offset(start) if start < note.segment else Extents()
        first = kept[0].base if kept else note.segment
        for extent in [each for each in self.doomed if each.base >= first]:
            self.doomed.pop(extent, None)  # another file of that name was put there
        self.let_go(sealed[: len(sealed) - len(kept)], start)
        return kept

    def let_go(self, extents: Extents, start_offset: int) -> None:
        """Nobody needs them if the log starts there, and it is about to."""
        self.doomed |= dict.fromkeys(extents, start_offset)
