"""A close look at a whole log: what the next open would do, and every segment in full.

`verify` turns it into findings, `repair` into actions; so the two never disagree. Nothing is
changed, and bad contents are never an error here. It is meant for a log that nobody writes to.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tailrace.errors import ConfigError
from tailrace.log.extents import Extent
from tailrace.log.fs import FileSystem
from tailrace.log.offline.segment import SegmentCheck, Steps, survey_segment
from tailrace.log.offline.survey import Missing, SegmentSurvey
from tailrace.log.options import FlushMode, LogOptions
from tailrace.log.recovery import Cut, Diagnosis, diagnose
from tailrace.log.segments import Catalog, list_segments, segment_path
from tailrace.log.sidefiles import Gap, Gaps, Identity

__all__ = [
    "LogPlan",
    "LogSurvey",
    "Progress",
    "survey_log",
    "survey_segments",
    "uncovered",
]

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


class LogPlan:
    """What there is to be checked of a log, segment by segment, in any order and anywhere."""

    def __init__(self, fs: FileSystem, folder: str, options: LogOptions) -> None:
        """Look at everything but the segments."""
        listed = list_segments(fs, folder)
        catalog = Catalog(fs, folder, options, read_only=True)
        self._found: LogSurvey
        self._keep: dict[int, int] = {}  # of segments of which nobody knows how much was durable
        self.checks: list[SegmentCheck] = []
        try:
            self._found = _diagnosed(fs, catalog, listed)
            leftovers = set(self._found.diagnosis.leftovers)
            going = {cut.base for cut in self._found.diagnosis.cuts if cut.whole}
            extents = [
                extent
                for extent in listed
                if extent.base not in going and segment_path(folder, extent.base) not in leftovers
            ]
            self._plan_segments(catalog, extents)
        finally:
            catalog.close()

    def _plan_segments(self, catalog: Catalog, extents: list[Extent]) -> None:
        diagnosis = self._found.diagnosis
        keep = {cut.base: cut.keep for cut in diagnosis.cuts}
        last = max((extent.base for extent in extents if extent.size), default=None)
        unknown = diagnosis.watermark is None and diagnosis.poison is None
        for i, extent in enumerate(extents):
            behind = extents[i + 1].base if i + 1 < len(extents) else None
            limit = behind if behind is not None else diagnosis.next_offset or None
            if unknown and extent.base == last and extent.base in keep:
                self._keep[extent.base] = keep[extent.base]
                size, limit = extent.size, behind
            else:
                size = keep.get(extent.base, extent.size)
            seal = catalog.seals.get(*extent) if size == extent.size else None
            watched = _watched(diagnosis, extent.base)
            self.checks.append(
                SegmentCheck(self._found.folder, extent.base, size, limit, watched, seal)
            )

    @property
    def refusal(self) -> str | None:
        """Why this tailrace would not open the log."""
        return self._found.refusal

    @property
    def is_clean(self) -> bool:
        """Was it closed, so that the last segment is as the others?"""
        return self._found.diagnosis.clean

    @property
    def is_synced(self) -> bool:
        """Was it closed with everything on the disk?"""
        return self._found.diagnosis.clean and self._found.diagnosis.synced

    @property
    def durable_segment(self) -> int | None:
        """The segment up to which everything was durable, for sure."""
        mark = self._found.diagnosis.watermark
        return None if mark is None else mark.segment

    def complete(self, surveys: Iterable[SegmentSurvey]) -> LogSurvey:
        """What the log holds, after each of the checks was made; once."""
        found = self._found
        for survey in surveys:
            if survey.base in self._keep:
                _separate_tail(found, survey, self._keep[survey.base])
            found.segments.append(survey)
        if found.salvage is None:
            found.cuts = list(found.diagnosis.cuts)
        return found


def survey_log(
    fs: FileSystem, folder: str, options: LogOptions, progress: Progress | None = None
) -> LogSurvey:
    """Read everything."""
    plan = LogPlan(fs, folder, options)
    return plan.complete(survey_segments(fs, plan.checks, progress))


def survey_segments(
    fs: FileSystem, checks: Sequence[SegmentCheck], progress: Progress | None = None
) -> Iterator[SegmentSurvey]:
    """Make the checks, one after the other."""
    total = sum(check.size for check in checks)
    done = 0
    for check in checks:
        yield survey_segment(fs, check, _shifted(progress, done, total))
        done += check.size
        if progress is not None:
            progress(done, total)


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


def _shifted(progress: Progress | None, done: int, total: int) -> Steps | None:
    if progress is None:
        return None
    position = done

    def step(size: int) -> None:
        nonlocal position
        position += size
        progress(position, total)

    return step
