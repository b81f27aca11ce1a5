"""What the segments of a log take on the disk, with their indexes.

A segment that is sealed stays as it is, so it is measured once. Not thread-safe, though two who
look at once find the same.
"""

from __future__ import annotations

from tailrace.log.extents import Extent, Extents
from tailrace.log.fs import FileSystem
from tailrace.log.segments import base_in, segment_paths

__all__ = ["Footprint"]

_FEW = 16  # segments whose files are looked at one by one


class Footprint:
    def __init__(self, fs: FileSystem, folder: str) -> None:
        self._fs = fs
        self._folder = folder
        self._sealed = Extents()

    def measure(self, segments: Extents) -> Extents:
        """Of each of the segments that a log has, the last of which may be growing; `size` is that
        of all its files."""
        if not segments:
            return segments
        sealed, known = segments[:-1], self._sealed
        known = known[known.index_of(sealed[0].base) :] if sealed else known[:0]
        # None comes before another: if the first and the last are the same, so are all between.
        is_same = known and len(known) <= len(sealed) and known[0].base == sealed[0].base
        if not is_same or known[-1].base != sealed[len(known) - 1].base:
            known = known[:0]
        new = sealed[len(known) :]
        sizes = self._list() if len(new) > _FEW else {}
        for extent in new:
            size = sizes.get(extent.base) if sizes else self._look(extent.base)
            known = known.and_then(Extent(extent.base, size or 0))
        self._sealed = known
        active = segments[-1].base
        return known.ending_with(Extent(active, self._look(active)))

    def _list(self) -> dict[int, int]:
        sizes: dict[int, int] = {}
        for entry in self._fs.list(self._folder):
            base = base_in(entry.name)
            if base is not None:
                sizes[base] = sizes.get(base, 0) + entry.size
        return sizes

    def _look(self, base: int) -> int:
        size = 0
        for path in segment_paths(self._folder, base):
            try:
                size += self._fs.stat(path).size
            except FileNotFoundError:
                continue  # retention was faster, or nobody needs an index
        return size
