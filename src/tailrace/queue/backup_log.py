"""A copy of a log that is being written to.

Nobody is locked out: what can be copied is what readers may see (`observer.py`), which follows from
the files alone. In a `sync` log that ends at the watermark; in the others with the last whole
batch, since groups may have seen that far. Bytes that readers may see never change, so a segment is
copied whenever it suits, and the last one a part at a time: `catch_up` copies what has come since.

Retention deletes segments meanwhile, the oldest first. What is copied already stays in the copy. If
there is a segment that was never copied, or not all of it, and is gone, the copy begins anew behind
it; `catch_up` says so, because groups that were copied before may need what is gone.

Beside the segments the copy has:

    log.json, gaps, producers, seals,    read before the segments are looked at, so that none
    and whatever else there is           of them tells of more than the copy has (of gaps: and
                                         once more behind, to see that it is the same)
    .idx, .tix                           of segments that are not the last; the seals tell whether
                                         they can be believed
    watermark                            everything in the copy is durable
    start                                as it was when the copy began

There is no `clean`: to open it is to recover it, with nothing to repair. `reserved` and `poisoned`
tell which offsets were given out to records that are lost: a gap says that in the copy.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from typing import Final, NamedTuple

from tailrace.errors import NotWritten
from tailrace.log.extents import Extent
from tailrace.log.fs import FileSystem, read_exactly
from tailrace.log.observer import Observer
from tailrace.log.options import LogOptions
from tailrace.log.reader import View
from tailrace.log.segments import Catalog, segment_path
from tailrace.log.sidefiles import (
    FOLDER,
    Gap,
    Gaps,
    Poison,
    Reserved,
    StartOffset,
    Watermark,
    WatermarkFile,
    side_path,
)
from tailrace.queue.backup_files import (
    FILES,
    Changed,
    Copy,
    Manifest,
    checksum,
    checksum_if_same,
)

__all__ = ["Links", "LogCopy", "is_log"]

_SEGMENT: Final = re.compile(r"\d{20}\.seg")
_TRIES: Final = 100
_GAPS: Final = "gaps"
_NO_BOOT: Final = bytes(16)

# What says how the log was at another moment than the copy, or is only of use to who has it open.
_ELSEWHERE: Final = {"quarantine", "start", "watermark"}
_NOT_COPIED: Final = _ELSEWHERE | {
    "adoption",
    "board",
    "clean",
    "lock",
    "members",
    "poisoned",
    "reserved",
}


def is_log(fs: FileSystem, folder: str, names: set[str]) -> bool:
    """Is a folder that has these names in it one of a log?"""
    if any(_SEGMENT.fullmatch(name) for name in names):
        return True
    if FOLDER in names:
        for name in ("log.json", "watermark"):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                fs.stat(side_path(folder, name))
                return True
    return False


class Links(NamedTuple):
    """What may be linked instead of copied: segments of the store itself (`own`), and those that
    are the same in an older backup (`since`)."""

    own: bool = False
    since: str | None = None
    old: Manifest | None = None


class _Look(NamedTuple):
    view: View  # its `fronts` tell that files which were copied may be others
    mark: Watermark | None
    is_ours: bool
    reserved: int  # offsets below may have been given out


class LogCopy:
    """The copy of the log in the folder `source`, below `path`. Not thread-safe."""

    def __init__(self, copy: Copy, source: str, path: str, links: Links) -> None:
        self.path = path
        self.start_offset = 0
        self._copy = copy
        self._fs = copy.fs
        self._source = source
        self._links = links
        self._bases: set[int] = set()  # of what is copied, as a whole or in part
        self._last: _Look | None = None  # all that could be seen then is copied
        self._fronts: int | None = None

    @property
    def end_offset(self) -> int:
        return self._last.view.end if self._last is not None else 0

    def catch_up(self) -> bool:
        """Copy what has come since the last time. False if something was gone before it could be
        copied. `FileNotFoundError` if the log itself is gone."""
        is_unbroken = True
        for _ in range(_TRIES):
            look = self._look()
            if look is None:
                continue
            if self._fronts not in (None, look.view.fronts):
                self._start_over()
            self._fronts = look.view.fronts
            if not self._goes_on(look.view):
                is_unbroken = False
                self._forget_before(look.view)
            if self._last is None or not is_unbroken:
                self.start_offset = look.view.start
            try:
                self._copy_segments(look)
            except Changed:
                continue
            self._last = look
            return is_unbroken
        raise NotWritten(
            f"{self._source}: segments are deleted faster than they can be copied, {_TRIES} times "
            "in a row. Try again, or let retention keep more meanwhile"
        )

    def drop(self) -> None:
        """Of a log that is gone, nothing is to be in the copy."""
        self._copy.drop_below(self.path)

    # --- looking ----------------------------------------------------------------------------

    def _look(self) -> _Look | None:
        """What there is now; `None` if that was not one moment."""
        fs, source = self._fs, self._source
        gaps = self._copy_side_files()
        catalog = Catalog(fs, source, LogOptions(), read_only=True)
        observer = Observer(fs, source, catalog)
        try:
            view, mark = observer.view(), observer.watermark()
        finally:
            observer.close()
        poison = Poison.load(fs, source, mark)
        reserved = Reserved(fs, source).load(cache_lost=poison is not None)
        if self._read_side(_GAPS) != gaps:
            return None
        is_ours = mark is not None or f"{self.path}/{FOLDER}/log.json" in self._copy.files
        return _Look(view, mark, is_ours, reserved)

    def _copy_side_files(self) -> bytes | None:
        """Copy what is beside the segments; returns what is in `gaps`."""
        side = os.path.join(self._source, FOLDER)
        gaps = None
        try:
            entries = self._fs.list(side)
        except FileNotFoundError:
            self._fs.list(self._source)  # if that is gone too, the log is
            return None
        for entry in entries:
            name = entry.name
            if name in _NOT_COPIED or name.startswith("lock.") or name.endswith(".tmp"):
                continue
            data = None if entry.is_dir else self._read_side(name)
            if data is not None:
                self._copy.write(f"{self.path}/{FOLDER}/{name}", data)
                gaps = data if name == _GAPS else gaps
        with contextlib.suppress(FileNotFoundError):
            for entry in self._fs.list(os.path.join(side, "quarantine")):
                self._copy_if_new(f"{FOLDER}/quarantine/{entry.name}")
        return gaps

    def _read_side(self, name: str) -> bytes | None:
        try:
            file = self._fs.open(side_path(self._source, name))
        except FileNotFoundError:
            return None
        try:
            return read_exactly(file, file.size(), 0)
        finally:
            file.close()

    def _copy_if_new(self, name: str) -> None:
        path = f"{self.path}/{name}"
        if path not in self._copy.files:
            self._copy.copy(path, os.path.join(self._source, name))

    # --- segments ---------------------------------------------------------------------------

    def _goes_on(self, view: View) -> bool:
        """Is all there that has to come between what is copied and what is to be?"""
        if not self._bases and self._last is None:
            return True
        first = view.extents[0].base if view.extents else view.end
        bases = {extent.base for extent in view.extents}
        return first <= self.end_offset or max(self._bases, default=-1) in bases

    def _forget_before(self, view: View) -> None:
        bases = {extent.base for extent in view.extents}
        for base in sorted(self._bases - bases):
            for extension in ("seg", "idx", "tix"):
                self._copy.drop(self._path(base, extension))
        self._bases &= bases

    def _start_over(self) -> None:
        """Segments were put in front of the log, perhaps under names that are copied already."""
        for base in sorted(self._bases):
            for extension in ("seg", "idx", "tix"):
                self._copy.drop(self._path(base, extension))
        self._bases, self._last = set(), None

    def _path(self, base: int, extension: str = "seg") -> str:
        return segment_path(self.path, base, extension)

    def _copy_segments(self, look: _Look) -> None:
        for base, size in look.view.extents:
            is_last = base == look.view.extents[-1].base
            path = self._path(base)
            have = self._copy.files.get(path)
            if have is not None and have.size > size:  # recovery has cut off what was not durable
                self._copy.drop(path)
                have = None
            if have is None or have.size < size:
                is_durable = look.mark is not None and base < look.mark.segment
                if have is not None or not is_durable or not self._link(base, size):
                    self._extend(base, size)
            self._bases.add(base)
            if not is_last:
                for extension in ("idx", "tix"):
                    self._copy_if_new(os.path.basename(self._path(base, extension)))

    def _extend(self, base: int, size: int) -> None:
        try:
            source = self._fs.open(segment_path(self._source, base))
        except FileNotFoundError:  # retention was faster
            raise Changed(self._path(base)) from None
        try:
            self._copy.extend(self._path(base), source, size)
        finally:
            source.close()

    def _link(self, base: int, size: int) -> bool:
        """Have the whole segment without copying it, if that is wanted and possible. It is read all
        the same: nothing is believed to be the same, or to be whole."""
        links, path, original = self._links, self._path(base), segment_path(self._source, base)
        known = links.old.files.get(path) if links.old is not None else None
        if links.since is not None and known is not None and known.size == size:
            older = os.path.join(links.since, FILES, path)
            same = checksum_if_same(self._fs, original, older, size)
            if same is not None and self._copy.link(path, older, same, must=False):
                self._copy.count(size)
                return True
        if links.own:
            found = checksum(self._fs, original)
            if found is None or found.size != size:
                return False
            try:
                linked = self._copy.link(path, original, found, must=True)
            except FileNotFoundError:
                return False
            if linked:
                self._copy.count(size)
            return linked
        return False

    # --- the end ----------------------------------------------------------------------------

    def finish(self) -> None:
        """Make it a log: say where it starts and ends."""
        look, copy, fs = self._last, self._copy, self._fs
        assert look is not None
        self._complete_indexes(look.view)
        if not look.is_ours:  # another program's, which has no such files
            return
        folder, side = copy.path(self.path), f"{self.path}/{FOLDER}"
        fs.make_dirs(copy.path(side))
        view = look.view
        segment, position = view.extents[-1] if view.extents else (view.end, 0)
        watermark = WatermarkFile(fs, folder)
        watermark.store(Watermark(view.end, segment, position, _NO_BOOT), sync=True)
        watermark.close()
        copy.adopt(f"{side}/watermark")
        if self.start_offset:
            start = StartOffset(fs, folder)
            start.store(self.start_offset)
            start.close()
            copy.adopt(f"{side}/start")
        if look.reserved > view.end:
            gaps = Gaps(fs, folder)
            gaps.load()
            reason = "given out to records that were lost before the backup"
            now_ms = time.time_ns() // 1_000_000
            gaps.add(Gap(view.end, look.reserved, "skipped", False, reason, now_ms))
            copy.adopt(f"{side}/{_GAPS}")

    def _complete_indexes(self, view: View) -> None:
        """Retention removes a segment's indexes first: make those that were gone."""
        catalog = Catalog(self._fs, self._copy.path(self.path), LogOptions(), read_only=True)
        try:
            for base in sorted(self._bases - {extent.base for extent in view.extents[-1:]}):
                paths = [self._path(base, extension) for extension in ("idx", "tix")]
                if all(path in self._copy.files for path in paths):
                    continue
                size = self._copy.files[self._path(base)].size
                facts = catalog.facts(Extent(base, size))
                self._copy.write(paths[0], facts.offsets.to_bytes())
                self._copy.write(paths[1], facts.times.to_bytes())
        finally:
            catalog.close()
