"""Check everything in a log's folder: every batch and record, every index, every side file.

Nothing is changed, and no contents are too bad to be reported. The log should not be written to
meanwhile: what is just being appended would look torn. If it is, the report says by whom, and notes
about what is unfinished say that it is being written.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tailrace.log.fs import FileSystem
from tailrace.log.members import Member, Members
from tailrace.log.offline.findings import Finding, Severity
from tailrace.log.offline.index_check import IndexFault
from tailrace.log.offline.log_survey import (
    LogPlan,
    LogSurvey,
    Progress,
    survey_segments,
    uncovered,
)
from tailrace.log.offline.segment import SegmentCheck
from tailrace.log.offline.side_check import check_side_files, read_document, read_side_file
from tailrace.log.offline.survey import Fault, SegmentSurvey, Unreadable
from tailrace.log.offline.words import byte_range, counted, offsets, offsets_are
from tailrace.log.options import LogOptions
from tailrace.log.segments import segment_path
from tailrace.log.sidefiles import FOLDER, side_path

__all__ = ["Finding", "LogCheck", "VerifyReport", "verify", "watermark_fault"]


@dataclass
class VerifyReport:
    """What `verify` found, and how much it looked at."""

    folder: str
    findings: list[Finding] = field(default_factory=list)
    segments: int = 0
    batches: int = 0
    records: int = 0
    bytes: int = 0
    start_offset: int = 0
    end_offset: int = 0
    writers: tuple[Member, ...] = ()  # who wrote to it meanwhile

    @property
    def problems(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == "problem"]

    @property
    def notes(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == "note"]

    @property
    def ok(self) -> bool:
        return not self.problems


class LogCheck:
    """A log that is being checked: make the `checks`, here or elsewhere, then ask for the
    report."""

    def __init__(self, fs: FileSystem, folder: str) -> None:
        self._fs = fs
        self.folder = folder
        self._writers = Members.find(fs, folder)
        self._plan = LogPlan(fs, folder, LogOptions())

    @property
    def checks(self) -> list[SegmentCheck]:
        return self._plan.checks

    def report(self, surveys: Iterable[SegmentSurvey]) -> VerifyReport:
        """With what the checks came to, in their order; once."""
        fs, folder = self._fs, self.folder
        survey = self._plan.complete(surveys)
        writers = self._writers or Members.find(fs, folder)
        held = bool(writers)
        report = VerifyReport(
            folder,
            segments=len(survey.segments),
            batches=sum(segment.batches for segment in survey.segments),
            records=sum(segment.records for segment in survey.segments),
            bytes=sum(segment.size for segment in survey.segments),
            start_offset=survey.start_offset,
            end_offset=survey.end_offset,
            writers=tuple(writers),
        )
        report.findings = [
            *_refusal(survey),
            *check_side_files(fs, folder),
            *_segments(survey, held),
            *_torn(survey, held),
            *_missing(survey),
            *_recorded_gaps(survey),
            *_disagreements(fs, survey, held),
            *_leftovers(survey, held),
        ]
        return report


def verify(fs: FileSystem, folder: str, progress: Progress | None = None) -> VerifyReport:
    """Check a log. `progress` is told how many bytes were read, of how many."""
    check = LogCheck(fs, folder)
    return check.report(survey_segments(fs, check.checks, progress))


def _problem(
    path: str, message: str, position: int | None = None, offset: int | None = None
) -> Finding:
    return Finding("problem", path, position, offset, message)


def _note(
    path: str, message: str, position: int | None = None, offset: int | None = None
) -> Finding:
    return Finding("note", path, position, offset, message)


def _refusal(survey: LogSurvey) -> Iterator[Finding]:
    if survey.refusal is not None:
        yield _problem("", f"this tailrace cannot open it: {survey.refusal}")


# --- segments and their indexes -------------------------------------------------------------


def _segments(survey: LogSurvey, held: bool) -> Iterator[Finding]:
    for segment in survey.segments:
        name = _file_name(segment.base)
        for damage in segment.unreadable:
            yield _unreadable(name, damage)
        for fault in segment.faults:
            yield _fault(name, fault)
        if segment.overlap is not None:
            message = "the batches from here on are in the next segment as well"
            yield _problem(name, message, segment.overlap)
        lenient = segment is survey.segments[-1] and not survey.diagnosis.clean
        for extension, faults in segment.index_faults.items():
            for index_fault in faults:
                yield _index(_file_name(segment.base, extension), index_fault, lenient, held)
        if segment.seal_is_wrong:
            message = f"what it says of segment {segment.base} is not so"
            yield _problem(os.path.join(FOLDER, "seals"), message)


def _unreadable(name: str, damage: Unreadable) -> Finding:
    what = "of a newer tailrace" if damage.newer else "damaged"
    message = f"{byte_range(damage.position, damage.end)} {what}: {damage.why}"
    if damage.next_offset is None:
        message += f"; nothing from offset {damage.first_offset} on can be read here"
    elif damage.next_offset > damage.first_offset:
        message += f"; {offsets(damage.first_offset, damage.next_offset)} cannot be read"
    return _problem(name, message, damage.position, damage.first_offset)


def _fault(name: str, fault: Fault) -> Finding:
    info = fault.info
    # A header that promises too much costs time; one that promises too little hides records.
    harmless = fault.greatest is not None and info.max_timestamp > fault.greatest
    severity: Severity = "note" if harmless else "problem"
    message = f"the batch of {offsets(info.base_offset, info.next_offset)}: {fault.why}"
    return Finding(severity, name, info.position, info.base_offset, message)


def _index(name: str, fault: IndexFault, lenient: bool, held: bool) -> Finding:
    message = fault.message
    if lenient and held:
        message += "; the segment is being written"
    elif lenient:
        message += "; the next open makes it anew"
    elif not fault.harmless:
        message += "; 'tailrace recover' makes it anew"
    severity: Severity = "note" if lenient or fault.harmless else "problem"
    return Finding(severity, name, fault.position, None, message)


def _file_name(base: int, extension: str = "seg") -> str:
    return os.path.basename(segment_path("", base, extension))


# --- what is not there ----------------------------------------------------------------------


def _torn(survey: LogSurvey, held: bool) -> Iterator[Finding]:
    for cut in survey.cuts:
        if cut.spare:
            continue
        if cut.whole:
            message = "the log ends before it: the next open moves it to the quarantine"
            yield _note(_file_name(cut.base), message)
            continue
        end = f"its end ({counted(cut.size - cut.keep, 'byte')})"
        if survey.diagnosis.poison:
            message = f"{end} will be cut off by the next open: a flush failed"
        elif held:
            message = f"{end} is not whole; the segment is being written"
        else:
            message = f"{end} will be cut off by the next open: it is not whole"
        yield _note(_file_name(cut.base), message, cut.keep)
    if survey.salvage is not None:
        message = (
            "how much of it was durable is not known, and an open would cut off everything after "
            "the first damage; run 'tailrace recover --apply' before that"
        )
        yield _problem(_file_name(survey.salvage.base), message)


def _missing(survey: LogSurvey) -> Iterator[Finding]:
    """Offsets that are not there and of which nothing says why. Where bytes are damaged, that was
    reported."""
    coming = survey.diagnosis.gaps
    for path, missing in survey.missing():
        if missing.damaged:
            continue
        for first, following in uncovered(survey.recorded + coming, missing.first, missing.next):
            message = f"{offsets_are(first, following)} not there, and no gap is recorded"
            severity: Severity = "problem" if survey.is_loss(missing) else "note"
            yield Finding(severity, path, missing.position, first, message)
    for gap in coming:
        if gap.kind == "lost":
            yield _problem(
                "", f"{offsets_are(gap.first, gap.next)} lost: {gap.reason}", None, gap.first
            )
        else:
            message = f"{offsets(gap.first, gap.next)} will be left out by the next open"
            yield _note("", message, None, gap.first)


def _recorded_gaps(survey: LogSurvey) -> Iterator[Finding]:
    path = os.path.join(FOLDER, "gaps")
    for gap in survey.recorded:
        if gap.kind == "lost" and not gap.acknowledged:
            message = f"{offsets_are(gap.first, gap.next)} lost ({gap.reason}), and nobody has"
            yield _problem(path, f"{message} acknowledged it", None, gap.first)


# --- do the files agree? --------------------------------------------------------------------


def watermark_fault(fs: FileSystem, survey: LogSurvey) -> str | None:
    """What is wrong with the watermark, other than damage, if anything is."""
    mark = survey.diagnosis.watermark
    has_records = any(segment.size for segment in survey.segments)
    if mark is None:
        written = read_side_file(fs, survey.folder, "log.json") is not None
        lost = read_side_file(fs, survey.folder, "watermark") is None
        return "is missing" if has_records and written and lost else None
    if mark.durable > survey.end_offset:
        return f"says that offset {mark.durable - 1} is durable; the log ends before it"
    if mark.durable <= survey.start_offset or survey.diagnosis.poison is not None:
        return None
    for segment in survey.segments:
        if segment.base == mark.segment and segment.whole and mark.position <= segment.size:
            there = segment.ends.get(mark.position) if mark.position else segment.base
            if there != mark.durable:
                return f"says that offset {mark.durable} is at byte {mark.position}; it is not"
    return None


def _disagreements(fs: FileSystem, survey: LogSurvey, held: bool) -> Iterator[Finding]:
    folder, end = survey.folder, survey.end_offset
    fault = watermark_fault(fs, survey)
    if fault is not None:
        yield _problem(os.path.join(FOLDER, "watermark"), fault)
    if survey.diagnosis.start_offset > end:
        message = f"the log starts at {survey.diagnosis.start_offset}, beyond its end"
        yield _note(os.path.join(FOLDER, "start"), message)
    if read_document(fs, side_path(folder, "clean")) and not survey.diagnosis.clean:
        then = "that is being written" if held else "the next open scans that"
        message = f"does not fit the last segment; {then}"
        yield _note(os.path.join(FOLDER, "clean"), message)
    document = read_document(fs, side_path(folder, "producers")) or {}
    counted = document.get("next_offset")
    if isinstance(counted, int) and counted > end:
        message = f"counts up to offset {counted}, beyond the log's end; it is not used"
        yield _note(os.path.join(FOLDER, "producers"), message)


def _leftovers(survey: LogSurvey, held: bool) -> Iterator[Finding]:
    what = "is being written, or left over" if held else "is left over"
    for path in survey.diagnosis.leftovers:
        name = os.path.relpath(path, survey.folder)
        yield _note(name, f"{what}; the next open removes it")
