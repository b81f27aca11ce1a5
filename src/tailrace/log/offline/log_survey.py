"""A close look at a whole log: what the next open would do, and every segment in full.

`verify` turns it into findings, `repair` into actions; so the two never disagree. Nothing is
changed, and bad contents are never an error here. It is meant for a log that nobody writes to.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tailrace.errors import ConfigError
from tailrace.log.extents import Extent
from tailrace.log.fs import FileSystem
from tailrace.log.offline.survey import Missing, SegmentSurvey, SegmentSurveyor
from tailrace.log.options import FlushMode, LogOptions
from tailrace.log.recovery import Cut, Diagnosis, diagnose
from tailrace.log.segments import Catalog, list_segments, segment_path
from tailrace.log.sidefiles import Gap, Gaps, Identity

__all__ = ["LogSurvey", "Progress", "survey_log", "uncovered"]

Progress = Callable[[int, int], object]  # bytes read so far, of how many


@dataclass
class LogSurvey:
    """What a folder holds."""

    folder: str
    diagnosis: Diagnosis
    recorded: list[Gap]
    # Below it another writer may have left offsets out; None: everywhere.
    sparse_below: int | None
    refusal: str | None = None  # why this tailrace would not open it
    segments: list[SegmentSurvey] = field(default_factory=list)
    cuts: list[Cut] = field(default_factory=list)  # what the next open (or recover) cuts off
    # Nobody knows what of the last segment was durable, and there is more behind its damage: an
    # open would cut all of that off.
    salvage: SegmentSurvey | None = None

    @property
    def end_offset(self) -> int:
        """The offset of the next record."""
        last = self.segments[-1].next_offset if self.segments else 0
        return max(last, self.diagnosis.next_offset)

    @property
    def start_offset(self) -> int:
        if self.diagnosis.ours or not self.segments:
            return self.diagnosis.start_offset
        return max(self.segments[0].base, self.diagnosis.start_offset)

    def missing(self) -> Iterator[tuple[str, Missing]]:
        """Offsets of the log that no readable record has, with the file where they should be."""
        expected = self.start_offset
        for i, segment in enumerate(self.segments):
            path = os.path.basename(segment_path(self.folder, segment.base))
            is_last = i + 1 == len(self.segments)
            following = self.end_offset if is_last else self.segments[i + 1].base
            found = list(segment.missing)
            if not i and segment.base > expected:
                found.insert(0, Missing(expected, segment.base, 0, False))
            if segment.next_offset < following:
                damaged = segment.readable_end != segment.size
                found.append(Missing(segment.next_offset, following, segment.size, damaged))
            for missing in found:
                if max(missing.first, expected) < missing.next:
                    yield path, missing._replace(first=max(missing.first, expected))

    def is_loss(self, missing: Missing) -> bool:
        """Is it one, or may another writer have left these offsets out?"""
        return missing.damaged or (
            self.sparse_below is not None and missing.next > self.sparse_below
        )


def uncovered(gaps: list[Gap], first: int, next_offset: int) -> Iterator[tuple[int, int]]:
    """The parts of `first <= offset < next_offset` that no gap accounts for."""
    for gap in sorted(gaps):
        if gap.next <= first or gap.first >= next_offset:
            continue
        if gap.first > first:
            yield first, gap.first
        first = max(first, gap.next)
    if first < next_offset:
        yield first, next_offset


def survey_log(
    fs: FileSystem, folder: str, options: LogOptions, progress: Progress | None = None
) -> LogSurvey:
    """Read everything."""
    listed = list_segments(fs, folder)
    catalog = Catalog(fs, folder, options, read_only=True)
    try:
        found = _diagnosed(fs, catalog, listed)
        leftovers = set(found.diagnosis.leftovers)
        going = {cut.base for cut in found.diagnosis.cuts if cut.whole}
        extents = [
            extent
            for extent in listed
            if extent.base not in going and segment_path(folder, extent.base) not in leftovers
        ]
        _survey_segments(fs, catalog, found, extents, progress)
    finally:
        catalog.close()
    return found


def _diagnosed(fs: FileSystem, catalog: Catalog, listed: tuple[Extent, ...]) -> LogSurvey:
    folder = catalog.folder
    gaps = Gaps(fs, folder)
    refusal = identity = None
    try:
        identity = Identity.load(fs, folder)
        flush = FlushMode(identity.flush) if identity is not None else FlushMode.SYNC
        diagnosis = diagnose(fs, catalog, gaps, flush)
    except (ConfigError, ValueError, TypeError, KeyError) as error:
        refusal = str(error) if isinstance(error, ConfigError) else f"a side file: {error!r}"
        diagnosis = Diagnosis(folder, extents=listed)
    sparse_below = None
    if diagnosis.ours:
        sparse_below = identity.sparse_below if identity is not None else 0
    return LogSurvey(folder, diagnosis, gaps.all(), sparse_below, refusal)


def _survey_segments(
    fs: FileSystem,
    catalog: Catalog,
    found: LogSurvey,
    extents: list[Extent],
    progress: Progress | None,
) -> None:
    diagnosis = found.diagnosis
    keep = {cut.base: cut.keep for cut in diagnosis.cuts}
    last = max((extent.base for extent in extents if extent.size), default=None)
    unknown = diagnosis.watermark is None and diagnosis.poison is None
    total = sum(extent.size for extent in extents)
    done = 0
    for i, extent in enumerate(extents):
        behind = extents[i + 1].base if i + 1 < len(extents) else None
        limit = behind if behind is not None else diagnosis.next_offset or None
        tail_is_unknown = unknown and extent.base == last and extent.base in keep
        if tail_is_unknown:
            size, limit = extent.size, behind
        else:
            size = keep.get(extent.base, extent.size)
        seal = catalog.seals.get(*extent) if size == extent.size else None
        extent = Extent(extent.base, size)
        surveyor = SegmentSurveyor(fs, found.folder, extent, catalog.new_facts(extent.base), seal)
        report = _shifted(progress, done, total)
        survey = surveyor.run(limit, _watched(diagnosis, extent.base), report)
        if tail_is_unknown:
            _separate_tail(found, survey, keep[extent.base])
        found.segments.append(survey)
        done += extents[i].size
    if found.salvage is None:
        found.cuts = list(diagnosis.cuts)


def _separate_tail(found: LogSurvey, survey: SegmentSurvey, keep: int) -> None:
    """Without a watermark, what is not whole at the very end is taken for torn; the rest is
    damage, which an open would take for torn as well."""
    size = survey.size
    if survey.unreadable and survey.unreadable[-1].next_offset is None:
        survey.size = survey.unreadable.pop().position
        found.cuts = [Cut(survey.base, survey.size, size)]
    if survey.readable_end > keep:
        found.salvage = survey
        found.diagnosis.next_offset = survey.next_offset
        found.diagnosis.gaps.clear()


def _watched(diagnosis: Diagnosis, base: int) -> frozenset[int]:
    mark = diagnosis.watermark
    return frozenset([mark.position] if mark is not None and mark.segment == base else [])


def _shifted(progress: Progress | None, done: int, total: int) -> Callable[[int], object] | None:
    if progress is None:
        return None
    return lambda position: progress(done + position, total)
