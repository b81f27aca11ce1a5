"""From whatever a crash left to a log that can be written: first `diagnose`, then `treat`.

`diagnose` only reads. After a clean close it believes the marker; otherwise it scans from the
segment of the watermark on, and draws one line:

  at or behind the watermark   what is not whole was being written: it is cut off, the bytes are
                               kept in quarantine, and nobody misses anything that was promised;
  below the watermark, or in   was durable, or lost by a log that does not care; so this is damage:
  a segment that was sealed    the bytes stay, the missing range is recorded as lost, what follows
                               stays readable.

An `async` log goes on in a new segment before the last one is durable. After a power cut all that
is behind its watermark, over however many segments, counts as being written: it ends at the first
batch that is missing.

The next offset is above everything that anybody may have seen: above the watermark, and after a
power cut above what an `async` log had reserved. A jump is recorded as a gap and starts a segment.

`treat` may be killed at any point and run again: every step either repeats harmlessly or is no
longer found to be needed.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from tailrace.errors import ConfigError
from tailrace.kernel import COMPLETE, HEADER_SIZE, MAX_SECTION, crc32c
from tailrace.kernel.layout import CRC_START, MAGIC_BYTES, VERSION
from tailrace.log.extents import Extent, Extents
from tailrace.log.fs import File, FileSystem, is_zeros, pieces, read_exactly, write_all
from tailrace.log.options import FlushMode
from tailrace.log.scan import Damage, Facts, scan
from tailrace.log.segments import (
    Catalog,
    list_orphans,
    list_segments,
    remove_segment,
    segment_path,
    segment_paths,
)
from tailrace.log.sidefiles import (
    FOLDER,
    CleanMarker,
    Gap,
    Gaps,
    Poison,
    Reserved,
    StartOffset,
    Watermark,
    WatermarkFile,
    side_path,
)

__all__ = ["Cut", "Diagnosis", "count_unbroken", "diagnose", "durable_size", "treat"]


class Cut(NamedTuple):
    """A segment that keeps its first `keep` of `size` bytes; or goes as a whole, because the log
    ends before it. What is cut may be `spare`: zeros, room for what would have come."""

    base: int
    keep: int
    size: int
    whole: bool = False
    spare: bool = False


@dataclass
class Diagnosis:
    """What a log's folder holds, and what has to be done to write to it."""

    folder: str
    extents: Sequence[Extent] = ()  # segments with records, as they will be
    tail: Facts | None = None  # of the last of them
    empty: int | None = None  # the base of an empty segment behind them
    start_offset: int = 0
    next_offset: int = 0
    watermark: Watermark | None = None
    poison: Poison | None = None
    ours: bool = False  # we wrote to it before, so there are no gaps but those we recorded
    clean: bool = False
    synced: bool = False  # and everything was durable then
    cuts: list[Cut] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)  # to be recorded
    leftovers: list[str] = field(default_factory=list)  # files to be removed
    kept_aside: list[str] = field(default_factory=list)  # by the treatment, in the quarantine
    stale_seals: list[int] = field(default_factory=list)  # bases


def diagnose(fs: FileSystem, catalog: Catalog, gaps: Gaps, flush: FlushMode) -> Diagnosis:
    """Look at a log, without changing anything."""
    folder = catalog.folder
    found = Diagnosis(folder)
    listed = list_segments(fs, folder)
    found.leftovers = [os.path.join(folder, name) for name in list_orphans(fs, folder, listed)]
    found.leftovers += _unfinished_files(fs, os.path.join(folder, FOLDER))
    catalog.seals.load({extent.base for extent in listed}, alone=True)
    gaps.load()
    found.start_offset = StartOffset(fs, folder).load()
    found.watermark = WatermarkFile(fs, folder).load()
    found.ours = _exists(fs, side_path(folder, "watermark"))
    found.poison = Poison.load(fs, folder, found.watermark)
    found.extents = _without_deleted(found, listed)
    marker = CleanMarker.load(fs, folder)
    if found.poison is None and marker is not None and _fits(marker, listed, fs):
        found.clean = True
        found.synced = not marker.boot_id
        found.next_offset = marker.end_offset
        if not found.extents[-1].size:
            found.empty = found.extents[-1].base
        found.extents = tuple(extent for extent in found.extents if extent.size)
        if found.extents:
            found.tail = catalog.facts(found.extents[-1])
        return found
    _Examination(fs, catalog, gaps, flush, found).run()
    return found


def count_unbroken(
    catalog: Catalog, gaps: Gaps, extents: Sequence[Extent], mark: Watermark, start_offset: int
) -> int:
    """How many segments of an `async` log are left after a power cut: those up to the first batch
    behind the watermark that is missing, which may be in the last of them."""
    end = max(mark.durable, start_offset)
    for i, extent in enumerate(extents):
        # A segment goes on where the records before it end, or where a gap does that was stepped
        # over. If it starts inside one, a recovery had meant to drop it.
        goes_on = gaps.uncovered(end, extent.base) is None and not gaps.is_skipped(extent.base)
        if extent.base > mark.segment and not goes_on:
            return i
        durable = durable_size(extent, mark)
        if durable < extent.size:
            facts = catalog.new_facts(extent.base)
            with catalog.files.use(segment_path(catalog.folder, extent.base)) as file:
                status = scan(file, facts, extent.size, durable_size=durable, contiguous=True)
            if status != COMPLETE:
                return i + 1
            end = max(end, facts.next_offset)
    return len(extents)


def durable_size(extent: Extent, mark: Watermark | Poison | None) -> int:
    """How much of a segment the watermark vouches for."""
    if mark is None or extent.base > mark.segment:
        return 0
    return extent.size if extent.base < mark.segment else mark.position


def _exists(fs: FileSystem, path: str) -> bool:
    try:
        fs.stat(path)
    except FileNotFoundError:
        return False
    return True


def _unfinished_files(fs: FileSystem, folder: str) -> list[str]:
    """Files whose writer was killed before they could mean anything."""
    try:
        entries = fs.list(folder)
    except FileNotFoundError:
        return []
    return [os.path.join(folder, entry.name) for entry in entries if entry.name.endswith(".tmp")]


def _without_deleted(found: Diagnosis, extents: tuple[Extent, ...]) -> Extents:
    """Drop (and remove) what retention had decided to delete when it was interrupted."""
    kept = Extents(extents).from_offset(found.start_offset)
    for extent in extents[: len(extents) - len(kept)]:
        found.leftovers += segment_paths(found.folder, extent.base)
    return kept


def _fits(marker: CleanMarker, extents: tuple[Extent, ...], fs: FileSystem) -> bool:
    if not extents or extents[-1] != (marker.segment, marker.size):
        return False
    return marker.boot_id in ("", fs.boot_id().hex())


class _Examination:
    """The scan after an unclean end. One instance, one `run`."""

    def __init__(
        self,
        fs: FileSystem,
        catalog: Catalog,
        gaps: Gaps,
        flush: FlushMode,
        found: Diagnosis,
    ) -> None:
        self._fs = fs
        self._catalog = catalog
        self._recorded = gaps
        self._flush = flush
        self._found = found
        # Offsets below these were handed out, though the bytes are to be thrown away: of records
        # that could not be made durable, and of those behind the end of an `async` log.
        self._handed_out = 0
        self._torn_off = 0
        mark, poison = found.watermark, found.poison
        self._durable = max(mark.durable if mark else 0, poison.durable if poison else 0)
        # Where the last good flush ended.
        self._mark = poison if poison and (not mark or poison.durable >= mark.durable) else mark

    def run(self) -> None:
        found = self._found
        if found.poison is not None:
            self._throw_away_unflushed()
        extents = list(found.extents)
        self._drop_behind_tear(extents)
        self._drop_stale_empty(extents)
        end = extents[-1].base if extents else found.start_offset
        if found.ours and extents:
            self._lose(found.start_offset, extents[0].base, "the first segment is missing")
        if extents and not extents[-1].size:
            found.empty = end
        with_records = [extent for extent in extents if extent.size]
        first = self._mark.segment if self._mark else (extents[-1].base if extents else 0)
        for extent, following in pairwise(with_records):
            if extent.base >= first:
                self._examine_sealed(extent, following.base)
        if with_records:
            extent = with_records.pop()
            tail = self._examine_last(extent)
            kept = next((cut.keep for cut in found.cuts if cut.base == extent.base), extent.size)
            if tail.next_offset < end and found.ours:
                self._lose(tail.next_offset, end, "the end of a segment is missing")
            end = max(end, tail.next_offset)
            if kept:
                found.tail = tail
                with_records.append(Extent(extent.base, kept))
            else:
                found.empty = extent.base
        found.extents = tuple(with_records)
        self._decide_next_offset(end)

    def _throw_away_unflushed(self) -> None:
        """A flush failed: what is behind the last good one may not be on the disk, whatever the
        page cache shows."""
        keep = []
        for extent in self._found.extents:
            kept = min(extent.size, durable_size(extent, self._mark))
            is_whole = bool(extent.size) and not kept and extent is not self._found.extents[0]
            if kept < extent.size:
                self._handed_out = max(self._handed_out, self._end_of(extent))
                self._found.cuts.append(Cut(extent.base, kept, extent.size, whole=is_whole))
            if not is_whole:
                keep.append(Extent(extent.base, kept))
        self._found.extents = tuple(keep)

    def _end_of(self, extent: Extent) -> int:
        """The offset behind the last record that can be read."""
        facts = self._catalog.new_facts(extent.base)
        with self._catalog.files.use(self._path(extent)) as file:
            scan(file, facts, extent.size)
        return facts.next_offset

    def _drop_stale_empty(self, extents: list[Extent]) -> None:
        """An empty segment is only good as the last one, where its name gives the next offset; a
        failed roll may have left one behind that the log has since grown past."""
        last = extents[-1] if extents else None
        for extent in [extent for extent in extents if not extent.size]:
            before = [other for other in extents if other.base < extent.base and other.size]
            if extent is last and before:
                if extent.base >= self._catalog.facts(before[-1]).next_offset:
                    continue
            elif extent is last:
                continue
            extents.remove(extent)
            self._found.leftovers += segment_paths(self._found.folder, extent.base)

    def _drop_behind_tear(self, extents: list[Extent]) -> None:
        """After a power cut an `async` log ends at the first batch behind its watermark that is
        missing: drop the segments after that."""
        found = self._found
        is_poisoned = found.poison is not None  # then it ends at its last good flush anyway
        if self._flush is not FlushMode.ASYNC or found.watermark is None or is_poisoned:
            return
        if found.watermark.boot_id == self._fs.boot_id():  # the page cache has it all
            return
        kept = count_unbroken(
            self._catalog, self._recorded, extents, found.watermark, found.start_offset
        )
        for extent in reversed(extents[kept:]):
            self._torn_off = max(self._torn_off, self._end_of(extent))
            found.cuts.append(Cut(extent.base, 0, extent.size, whole=True))
        del extents[kept:]

    def _examine_sealed(self, extent: Extent, following: int) -> None:
        # By its bytes: a seal may be of some that never came to the disk.
        facts = self._catalog.new_facts(extent.base)
        with self._catalog.files.use(self._path(extent)) as file:
            scan(file, facts, extent.size)
        if facts.damages or facts.size < extent.size or facts.next_offset < following:
            self._found.stale_seals.append(extent.base)
        for damage in facts.damages:
            self._lose(damage.first_offset, damage.next_offset, _describe(damage))
        if facts.size < extent.size:
            self._lose(facts.next_offset, following, f"damage from byte {facts.size} on")
        elif facts.next_offset < following and self._found.ours:
            self._lose(facts.next_offset, following, "records or a segment are missing")

    def _examine_last(self, extent: Extent) -> Facts:
        """The facts of the last segment up to where it is cut."""
        facts = self._catalog.new_facts(extent.base)
        durable_size = self._durable_size(extent)
        with self._catalog.files.use(self._path(extent)) as file:
            status = scan(
                file,
                facts,
                extent.size,
                durable_size=durable_size,
                contiguous=self._found.ours,
            )
            for damage in facts.damages:
                self._lose(damage.first_offset, damage.next_offset, _describe(damage))
            if status != COMPLETE:
                self._refuse_newer_format(extent, file, facts.size)
                # What was durable and is behind this point is lost; what was not is cut off.
                keep = max(facts.size, durable_size if self._found.ours else 0)
                if keep < extent.size:
                    spare = is_zeros(file, keep, extent.size)
                    self._found.cuts.append(Cut(extent.base, keep, extent.size, spare=spare))
        return facts

    def _durable_size(self, extent: Extent) -> int:
        """How much of the last segment with records was durable. All of it if another one was
        begun; and of a log that is not ours, so that whole batches behind damage are kept."""
        if self._found.empty is not None or not self._found.ours:
            return extent.size
        return durable_size(extent, self._mark)

    def _refuse_newer_format(self, extent: Extent, file: File, position: int) -> None:
        """A batch that is whole but for its version was written by a newer program."""
        header = file.pread(HEADER_SIZE, position)
        if len(header) < HEADER_SIZE or header[:4] != MAGIC_BYTES or header[25] <= VERSION:
            return
        size = int.from_bytes(header[16:20], "little")
        if size > min(MAX_SECTION, extent.size - position):
            return
        body = header[CRC_START:] + read_exactly(file, size, position + HEADER_SIZE)
        if crc32c(body) == int.from_bytes(header[4:8], "little"):
            raise ConfigError(
                f"{self._path(extent)} has batches of format {header[25]}; this tailrace knows "
                f"format {VERSION}: upgrade tailrace to open it"
            )

    def _decide_next_offset(self, end: int) -> None:
        found = self._found
        lost_below = self._durable
        if self._handed_out and self._flush is FlushMode.ASYNC:
            lost_below = max(lost_below, self._handed_out)  # receipts were complete
        self._lose(end, lost_below, "durable records are missing")
        end = max(end, lost_below)
        next_offset = max(
            end,
            self._handed_out,
            self._torn_off,
            found.start_offset,
            Reserved(self._fs, found.folder).load(cache_lost=found.poison is not None),
            *(gap.next for gap in self._recorded.all()),
        )
        if next_offset > max(end, found.start_offset):
            self._add(end, next_offset, "skipped", "stepped over by recovery")
        found.next_offset = next_offset
        if found.empty is not None and found.empty != next_offset:
            found.leftovers += segment_paths(found.folder, found.empty)
            found.empty = None

    def _lose(self, first: int, next_offset: int, reason: str) -> None:
        self._add(first, next_offset, "lost", reason)

    def _add(self, first: int, next_offset: int, kind: str, reason: str) -> None:
        first = max(first, self._found.start_offset)
        while (part := self._recorded.uncovered(first, next_offset)) is not None:
            now_ms = time.time_ns() // 1_000_000
            self._found.gaps.append(Gap(*part, kind, False, reason, now_ms))
            first = part[1]

    def _path(self, extent: Extent) -> str:
        return segment_path(self._found.folder, extent.base)


def _describe(damage: Damage) -> str:
    return f"bytes {damage.position} to {damage.end - 1} are damaged"


# --- treatment ------------------------------------------------------------------------------


def treat(fs: FileSystem, catalog: Catalog, gaps: Gaps, found: Diagnosis) -> None:
    """Do what the diagnosis asks for, but for the new active segment (which `Tail` makes)."""
    gaps.add(*found.gaps)  # first: a cut may take away what tells of them
    for base in found.stale_seals:
        catalog.seals.void(base)
        catalog.forget(base)
    for cut in found.cuts:
        kept = _cut(fs, catalog, cut)
        if kept is not None:
            found.kept_aside.append(kept)
    for path in found.leftovers:
        with contextlib.suppress(FileNotFoundError):
            fs.unlink(path)
    if found.cuts or found.leftovers:
        fs.sync_dir(found.folder)


def _cut(fs: FileSystem, catalog: Catalog, cut: Cut) -> str | None:
    """Returns where the bytes are now."""
    path = segment_path(catalog.folder, cut.base)
    catalog.seals.void(cut.base)
    catalog.forget(cut.base)
    file = fs.open(path, write=True)
    try:
        kept = keep_aside(fs, catalog.folder, path, cut.keep, cut.size)
        file.truncate(cut.keep)
        if not cut.spare:  # zeros that come back do no harm
            file.sync()
    finally:
        file.close()
    if cut.whole:
        remove_segment(fs, catalog.folder, cut.base)
    return kept


def keep_aside(fs: FileSystem, folder: str, path: str, start: int, stop: int) -> str | None:
    """Copy bytes of a segment to the quarantine, durably. All zeros are not worth keeping."""
    quarantine = side_path(folder, "quarantine")
    base = os.path.basename(path).removesuffix(".seg")
    target = os.path.join(quarantine, f"{base}-{start}-{time.time_ns() // 1_000_000}.cut")
    source = fs.open(path)
    copy = None
    try:
        for position, data in pieces(source, start, stop):
            if copy is None and data.strip(b"\0"):
                fs.make_dirs(quarantine)
                copy = fs.open(target, write=True, create=True)
            if copy is not None:
                write_all(copy, data, position - start)
        if copy is not None:
            copy.sync()
            fs.sync_dir(quarantine)
    finally:
        source.close()
        if copy is not None:
            copy.close()
    return target if copy is not None else None
