"""The segments of a log: their names, their open files, and the facts about each.

`Catalog` answers for every segment that the folder holds. Facts come from memory, from the index
files when the segment's seal vouches for them, or from a scan, in this order; what a scan found is
written back so that it is not needed again (unless the log is open read-only).
Thread-safe.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator

from tailrace.errors import Closed
from tailrace.kernel import COMPLETE, crc32c
from tailrace.log.extents import Extent
from tailrace.log.fs import File, FileSystem, read_file, write_all
from tailrace.log.index import OffsetIndex, TimeIndex
from tailrace.log.options import LogOptions
from tailrace.log.scan import Facts, hop, scan
from tailrace.log.sidefiles import Seal, Seals

__all__ = ["Catalog", "OpenFiles", "list_segments", "seal_of", "segment_path"]

_DIGITS = 20  # of a base, in a name
_FACTS_IN_MEMORY = 64  # at most about 10 MiB of indexes
_ROLLS_MOST = 64  # that are followed one by one


def segment_path(folder: str, base: int, extension: str = "seg") -> str:
    return f"{folder}/{base:020d}.{extension}"


def segment_paths(folder: str, base: int) -> list[str]:
    """The files of a segment, in the order in which they are removed."""
    return [segment_path(folder, base, extension) for extension in ("idx", "tix", "seg")]


def remove_segment(fs: FileSystem, folder: str, base: int) -> bool:
    """Remove what there is of a segment; the names are not gone durably before a sync. False if it
    was gone."""
    was_there = False
    for path in segment_paths(folder, base):  # the segment itself is the last
        try:
            fs.unlink(path)
            was_there = True
        except FileNotFoundError:
            was_there = False
    return was_there


def list_segments(fs: FileSystem, folder: str) -> tuple[Extent, ...]:
    """The segments in a folder, by base offset. Other files are none of our business."""
    found = []
    for entry in fs.list(folder, ending=".seg"):
        base = base_in(entry.name)
        if base is not None:
            found.append(Extent(base, entry.size))
    return tuple(sorted(found))


def list_orphans(fs: FileSystem, folder: str, extents: Iterable[Extent]) -> list[str]:
    """Index files whose segment is gone."""
    bases = {extent.base for extent in extents}
    indexes = [name for name in fs.names(folder) if name.endswith((".idx", ".tix"))]
    return [name for name in indexes if (base := base_in(name)) is not None and base not in bases]


def base_in(name: str) -> int | None:
    """The base of the segment that a file belongs to, by its name; it may be any file's."""
    digits = name[:-4]
    is_ours = len(digits) == _DIGITS and digits.isascii() and digits.isdecimal()
    return int(digits) if is_ours else None


def seal_of(facts: Facts) -> Seal:
    """What is true of a segment, and of the index files that belong to it."""
    idx, tix = facts.offsets.to_bytes(), facts.times.to_bytes()
    return Seal(
        base=facts.base,
        size=facts.size,
        next_offset=facts.next_offset,
        records=facts.records,
        first_timestamp=facts.first_timestamp,
        max_timestamp=facts.max_timestamp,
        idx_size=len(idx),
        idx_crc=crc32c(idx),
        tix_size=len(tix),
        tix_crc=crc32c(tix),
    )


class OpenFiles:
    """Files open for reading, at most `capacity` beyond those in use right now."""

    def __init__(self, fs: FileSystem, capacity: int) -> None:
        self._fs = fs
        self._capacity = capacity
        # One that its thread may take again: the garbage collector may end a reading anywhere.
        self._lock = threading.RLock()
        self._open: OrderedDict[str, _SharedFile] = OrderedDict()
        self._closed = False

    @contextlib.contextmanager
    def use(self, path: str) -> Iterator[File]:
        """The open file, for the length of a `with`; it stays readable even if it is deleted."""
        shared = self._acquire(path)
        try:
            yield shared.file
        finally:
            self._release(shared)

    def _acquire(self, path: str) -> _SharedFile:
        with self._lock:
            if self._closed:
                raise Closed(f"{os.path.dirname(path)} is closed")
            shared = self._open.get(path)
            if shared is None:
                shared = self._open[path] = _SharedFile(self._fs.open(path))
                self._evict()
            else:
                self._open.move_to_end(path)
            shared.users += 1
            return shared

    def _release(self, shared: _SharedFile) -> None:
        with self._lock:
            shared.users -= 1
            if shared.forgotten and not shared.users:
                shared.file.close()
            self._evict()

    def _evict(self) -> None:
        if len(self._open) > self._capacity:
            for path, shared in list(self._open.items())[: -self._capacity]:
                if not shared.users:
                    self._forget(path)

    def forget(self, path: str) -> None:
        """The file is gone or was replaced: whoever asks next gets the new one, or none."""
        with self._lock:
            self._forget(path)

    def forget_all(self) -> None:
        with self._lock:
            for path in list(self._open):
                self._forget(path)

    def _forget(self, path: str) -> None:
        shared = self._open.pop(path, None)
        if shared is not None:
            shared.forgotten = True
            if not shared.users:
                shared.file.close()

    def disown(self) -> None:
        self._lock = threading.RLock()

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self.forget_all()


class _SharedFile:
    __slots__ = ("file", "forgotten", "users")

    def __init__(self, file: File) -> None:
        self.file = file
        self.users = 0
        self.forgotten = False


class Catalog:
    """Facts about segments, by base and size."""

    def __init__(
        self,
        fs: FileSystem,
        folder: str,
        options: LogOptions,
        *,
        read_only: bool = False,
        seals: bool = True,
    ) -> None:
        """Without `seals`, none are written: they would outlive bytes that nobody syncs."""
        self.fs = fs
        self.folder = folder
        self.files = OpenFiles(fs, options.open_files)
        self.seals = Seals(fs, folder, read_only=read_only or not seals)
        self._options = options
        self._read_only = read_only
        self.lock = threading.RLock()  # whoever extends facts holds it
        self._facts: OrderedDict[int, Facts] = OrderedDict()
        # The segment that is being written. Its indexes and timestamps are always up to date, its
        # counts are its writer's business.
        self.live: Facts | None = None
        self.active: int | None = None  # the base of the segment that is being written

    def new_facts(self, base: int) -> Facts:
        return Facts(base, self._options.index_interval, self._options.time_index_interval_ms)

    def remember(self, facts: Facts) -> None:
        with self.lock:
            self._facts[facts.base] = facts
            self._facts.move_to_end(facts.base)
            while len(self._facts) > _FACTS_IN_MEMORY:
                self._facts.popitem(last=False)

    def forget(self, base: int) -> None:
        with self.lock:
            self._facts.pop(base, None)
            self.seals.forget(base)
        self.files.forget(segment_path(self.folder, base))

    def forget_all(self) -> None:
        """Somebody may have put other files in the place of those we know."""
        with self.lock:
            self._facts.clear()
        self.files.forget_all()

    def start_over(self) -> None:
        """The same, and what was noted of those that were deleted may be of others, too."""
        self.forget_all()
        self.seals.forget_all()

    def max_timestamp(self, extent: Extent) -> int:
        seal = self.seals.get(*extent)
        return seal.max_timestamp if seal is not None else self.facts(extent).max_timestamp

    def records(self, extent: Extent, next_base: int) -> int:
        """How many records the segment in front of `next_base` has."""
        seal = self.seals.get(*extent)
        if seal is not None:
            return seal.records
        facts = self.facts(extent)
        return next_base - extent.base if facts is self.live else facts.records

    def sealed_between(self, base: int, active: int) -> list[Extent] | None:
        """The segments from `base` on up to the active one, for who knows all before `base` and
        that nobody has recovered the log since: each tells where the next one begins. `None` if one
        does not, and the folder has to be listed."""
        self.seals.load_more()
        found: list[Extent] = []
        while base < active and len(found) < _ROLLS_MOST:
            try:
                size = self.fs.stat(segment_path(self.folder, base)).size
            except FileNotFoundError:
                return None
            found.append(extent := Extent(base, size))
            facts = self._facts.get(base)
            if facts is not None and facts.size == size and not facts.damages:
                base = facts.next_offset
            elif (seal := self.seals.get(*extent)) is not None:
                base = seal.next_offset
            else:
                return None
        return found if base == active else None

    def facts(self, extent: Extent, *, whole: bool = False) -> Facts:
        """Facts that cover at least `extent.size` bytes, of which `whole` says that no crash has
        left them: then their checksums are not looked at."""
        facts = self.live
        if facts is not None and facts.base == extent.base:
            return facts
        facts = self._facts.get(extent.base)
        if facts is not None and facts.size >= extent.size:
            return facts
        with self.lock:
            facts = self._facts.get(extent.base)
            if facts is None:
                facts = self._load(extent)
            if facts is None or whole:  # an interrupt on the way must not leave half an entry
                facts = self.new_facts(extent.base)
            if facts.size < extent.size:
                self._extend(facts, extent, whole)
            self.remember(facts)
            return facts

    def _extend(self, facts: Facts, extent: Extent, whole: bool) -> None:
        with self.files.use(segment_path(self.folder, extent.base)) as file:
            if whole:
                hop(file, facts, extent.size)
            status = scan(file, facts, extent.size)
        is_closed = not self._read_only and extent.base != self.active
        if is_closed and status == COMPLETE and not facts.damages:
            self.save(facts)

    def save(self, facts: Facts) -> None:
        """Write indexes and seal. Where that fails (a full disk), the next one scans again."""
        with contextlib.suppress(OSError):
            self.store_indexes(facts)
        self.seal(facts)

    def _load(self, extent: Extent) -> Facts | None:
        """From the index files, if the seal says that they are the right ones."""
        seal = self.seals.get(*extent)
        if seal is None:
            return None
        idx = self._read_index(extent.base, "idx", seal.idx_size, seal.idx_crc)
        tix = self._read_index(extent.base, "tix", seal.tix_size, seal.tix_crc)
        if idx is None or tix is None:
            return None
        offsets = OffsetIndex.from_bytes(idx, extent.base)
        times = TimeIndex.from_bytes(tix, extent.base, self._options.time_index_interval_ms)
        if offsets is None or times is None:
            return None
        facts = self.new_facts(extent.base)
        facts.size = seal.size
        facts.next_offset = seal.next_offset
        facts.records = seal.records
        facts.first_timestamp = seal.first_timestamp
        facts.max_timestamp = seal.max_timestamp
        facts.offsets, facts.times = offsets, times
        return facts

    def _read_index(self, base: int, extension: str, size: int, crc: int) -> bytes | None:
        data = read_file(self.fs, segment_path(self.folder, base, extension), size + 1)
        if data is None or len(data) != size or crc32c(data) != crc:
            return None
        return data

    def store_indexes(self, facts: Facts) -> None:
        """Write both index files anew. They are not synced: they can be made again."""
        for extension, data in (
            ("idx", facts.offsets.to_bytes()),
            ("tix", facts.times.to_bytes()),
        ):
            path = segment_path(self.folder, facts.base, extension)
            file = self.fs.open(path, write=True, create=True)
            try:
                write_all(file, data, 0)
                file.truncate(len(data))
            finally:
                file.close()

    def seal(self, facts: Facts) -> None:
        """Note what is true of the segment. Its checksums are those of the indexes in memory: if
        the files differ, they are not taken for good."""
        with contextlib.suppress(OSError):
            self.seals.add(seal_of(facts))

    def disown(self) -> None:
        """Make the locks anew, in a forked child."""
        self.lock = threading.RLock()
        self.files.disown()

    def close(self) -> None:
        self.files.close()
