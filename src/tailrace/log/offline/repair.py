"""Put a log in order: everything that opening it does, and what opening leaves to a person.

Opening cuts off a torn tail and goes on; damage below it stays where it is, and readers stop there.
`recover` accepts the loss. It keeps the damaged bytes in the quarantine, takes them out of their
segment, records the missing offsets as lost and acknowledged, and makes indexes and seals right.
Afterwards every segment holds whole batches and nothing else, so that FluxMQ opens it, too.

A segment `A x B x C`, with `x` for damage, becomes three: `A` keeps the name, and the others are
named by their first offset. It is done from the end: `C` is copied to a file of its own, which is
synced and given its name; then the old file is cut in front of the damage before `C`; then `B`. If
that is interrupted, the log has `C` twice, once behind damage in the old file and once by itself;
the offsets are the same and the contents, too, so nobody reads one twice, and the next `recover`
cuts off the copy that reaches into the next segment. The log's end is never operated on: if damage
is there, the log first rolls, so that everything damaged is below the watermark.

Every step may be the last one; running it again completes what is not done.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tailrace.errors import ConfigError
from tailrace.log.fs import File, FileSystem, pieces, replace_file, write_all
from tailrace.log.manner import Manner, system_ms
from tailrace.log.offline.alone import alone
from tailrace.log.offline.findings import Finding
from tailrace.log.offline.log_survey import LogSurvey, Progress, survey_log, uncovered
from tailrace.log.offline.side_check import check_side_files, is_whole_gap, read_side_file
from tailrace.log.offline.survey import Run, SegmentSurvey
from tailrace.log.offline.verify import watermark_fault
from tailrace.log.offline.words import counted, offsets
from tailrace.log.options import FlushMode, LogOptions
from tailrace.log.recovery import keep_aside
from tailrace.log.scan import scan
from tailrace.log.segments import Catalog, list_segments, remove_segment, segment_path
from tailrace.log.sidefiles import (
    Gap,
    Gaps,
    Identity,
    StartOffset,
    Watermark,
    WatermarkFile,
    side_path,
)
from tailrace.log.writer import Writer

__all__ = ["Action", "RecoveryReport", "recover"]


class Action(NamedTuple):
    """One thing to do, or done. `kind` is cut, split, lost, gap, acknowledge, index, seal, file or
    remove; of a store's groups: export."""

    kind: str
    path: str  # from the log's folder
    message: str
    first_offset: int | None = None
    next_offset: int | None = None


@dataclass
class RecoveryReport:
    """What `recover` did, or would do."""

    folder: str
    applied: bool = False
    actions: list[Action] = field(default_factory=list)
    quarantined: list[str] = field(default_factory=list)  # files, from the log's folder


def recover(
    fs: FileSystem,
    folder: str,
    options: LogOptions | None = None,
    apply: bool = False,
    progress: Progress | None = None,
) -> RecoveryReport:
    """List what has to be done to a log, and do it if `apply` says so.

    Raises `Locked` when `apply` finds somebody writing, and `ConfigError` when the log holds what
    only a newer tailrace can judge.
    """
    # Whatever the log promises its writers, a repair is made to last.
    options = replace(options or LogOptions(), flush=FlushMode.SYNC)
    if not apply:
        survey = _examine(fs, folder, options, progress)
        return RecoveryReport(folder, actions=list(_actions(fs, survey)))
    fs.make_dirs(side_path(folder, "").rstrip("/"))
    with alone(fs, folder):
        survey = _examine(fs, folder, options, progress)
        report = RecoveryReport(folder, applied=True, actions=list(_actions(fs, survey)))
        if not report.actions:
            return report
        _declare_durable(fs, survey)
    damaged = {segment.base for segment in survey.segments if not segment.whole}
    report.quarantined += _reopen(fs, folder, options, damaged)
    with alone(fs, folder):
        survey = _examine(fs, folder, options, progress)
        _Operation(fs, folder, options, survey, report).run()
    return report


def _examine(
    fs: FileSystem, folder: str, options: LogOptions, progress: Progress | None
) -> LogSurvey:
    survey = survey_log(fs, folder, options, progress)
    refusal = survey.refusal
    for segment in survey.segments:
        if refusal is None and segment.newer is not None:
            path = segment_path(folder, segment.base)
            refusal = f"{path}: {segment.newer}: upgrade tailrace to repair this log"
    if refusal is not None:
        raise ConfigError(refusal)
    return survey


# --- what is to be done ---------------------------------------------------------------------


def _actions(fs: FileSystem, survey: LogSurvey) -> Iterator[Action]:
    yield from _tail_actions(survey)
    for segment in survey.segments:
        yield from _segment_actions(survey, segment)
    for gap in _gaps_to_record(survey):
        kind = "lost" if gap.kind == "lost" else "gap"
        message = f"record that there is nothing at {offsets(gap.first, gap.next)}: {gap.reason}"
        yield Action(kind, ".tailrace/gaps", message, gap.first, gap.next)
    for gap in _unacknowledged(survey.recorded):
        message = f"acknowledge the loss of {offsets(gap.first, gap.next)}: {gap.reason}"
        yield Action("acknowledge", ".tailrace/gaps", message, gap.first, gap.next)
    for finding in _bad_side_files(fs, survey):
        yield Action("file", finding.path, f"make it anew: {finding.message}")


def _tail_actions(survey: LogSurvey) -> Iterator[Action]:
    for cut in survey.cuts:
        if cut.spare:
            continue
        end = counted(cut.size - cut.keep, "byte")
        message = f"cut off its end ({end}) and keep that in the quarantine"
        if cut.whole:
            message = f"move it ({end}) to the quarantine: the log ends before it"
        yield Action("cut", _name(cut.base), message)
    for path in survey.diagnosis.leftovers:
        yield Action("remove", os.path.relpath(path, survey.folder), "remove what is left over")


def _segment_actions(survey: LogSurvey, segment: SegmentSurvey) -> Iterator[Action]:
    name = _name(segment.base)
    if not segment.whole:
        kept = sum(run.end - run.position for run in segment.runs)
        damaged = counted(segment.size - kept, "damaged byte")
        message = f"move {damaged} to the quarantine"
        if segment.overlap is not None:
            message = f"cut off what is not whole or in the next segment, from byte {kept} on"
        new = [_name(run.first_offset) for run in _moved(segment)]
        if new:
            message += f"; what follows goes to {', '.join(new)}"
        yield Action("split", name, message, segment.base, segment.next_offset)
        return
    if segment is survey.segments[-1] and not survey.diagnosis.clean:
        return  # the writer makes these files anew in any case
    for extension, faults in segment.index_faults.items():
        if any(segment.sealed or not fault.harmless for fault in faults):
            message = f"make it anew: it {faults[0].message}"
            yield Action("index", _name(segment.base, extension), message)
    if segment.seal_is_wrong:
        yield Action("seal", ".tailrace/seals", f"correct what it says of segment {segment.base}")


def _moved(segment: SegmentSurvey) -> list[Run]:
    """The parts that do not stay at the beginning of their file."""
    return [run for run in segment.runs if run.position]


def _unacknowledged(gaps: list[Gap]) -> list[Gap]:
    return [gap for gap in gaps if gap.kind == "lost" and not gap.acknowledged]


def _gaps_to_record(survey: LogSurvey) -> list[Gap]:
    """Offsets that are missing without a word."""
    found = list(survey.diagnosis.gaps)
    now_ms = system_ms()
    for path, missing in survey.missing():
        if survey.is_loss(missing):
            reason = f"{path} is damaged" if missing.damaged else f"they are missing in {path}"
            parts = list(uncovered(survey.recorded + found, missing.first, missing.next))
            found += [Gap(*part, "lost", False, reason, now_ms) for part in parts]
    return found


def _bad_side_files(fs: FileSystem, survey: LogSurvey) -> list[Finding]:
    found = [f for f in check_side_files(fs, survey.folder) if f.severity == "problem"]
    fault = watermark_fault(fs, survey)
    if fault is not None:
        found.append(Finding("problem", ".tailrace/watermark", None, None, fault))
    return found


def _name(base: int, extension: str = "seg") -> str:
    return os.path.basename(segment_path("", base, extension))


# --- doing it -------------------------------------------------------------------------------


def _declare_durable(fs: FileSystem, survey: LogSurvey) -> None:
    """Nothing says how much of the last segment was durable, and there is more behind its damage:
    make it durable now, and say so, before opening the log would cut it off."""
    folder, segment = survey.folder, survey.salvage
    if segment is None:
        return
    with _opened(fs, segment_path(folder, segment.base)) as file:
        file.sync()
    if Identity.load(fs, folder) is None:
        Identity(FlushMode.SYNC, 0).store(fs, folder)
    watermark_file = WatermarkFile(fs, folder)
    watermark_file.load()
    try:
        mark = Watermark(segment.next_offset, segment.base, segment.readable_end, fs.boot_id())
        watermark_file.store(mark, sync=True)
    finally:
        watermark_file.close()


def _reopen(fs: FileSystem, folder: str, options: LogOptions, damaged: set[int]) -> list[str]:
    """Open the log for writing, which does all that opening does, and close it, which leaves it
    clean. No damaged segment is then the one that grows. Returns what went to the quarantine."""
    writer = Writer(fs, folder, options, Manner("exclusive", upkeep=False))
    try:
        if writer.tail.base in damaged and writer.tail.size:
            writer.tail.roll()
    except BaseException:
        writer.abandon()
        raise
    writer.close()
    assert writer.diagnosis is not None  # nobody else was there
    return [os.path.relpath(path, folder) for path in writer.diagnosis.kept_aside]


class _Operation:
    """What is done to a log that is closed, clean, and locked by us."""

    def __init__(
        self,
        fs: FileSystem,
        folder: str,
        options: LogOptions,
        survey: LogSurvey,
        report: RecoveryReport,
    ) -> None:
        self._fs = fs
        self._folder = folder
        self._survey = survey
        self._report = report
        self._catalog = Catalog(fs, folder, options, read_only=False)
        self._catalog.seals.load({segment.base for segment in survey.segments})

    def run(self) -> None:
        survey = self._survey
        try:
            self._mend_gaps()
            damaged = [segment for segment in survey.segments if not segment.whole]
            for segment in damaged:
                self._quarantine(segment)
            self._acknowledge()
            touched = {a.path.partition(".")[0] for a in self._index_actions()}
            bases = {int(name) for name in touched}
            for segment in damaged:
                self._split(segment)
                bases |= {segment.base, *(run.first_offset for run in _moved(segment))}
            self._make_indexes(bases)
            self._mend_side_files()
        finally:
            self._catalog.close()

    def _index_actions(self) -> Iterator[Action]:
        for segment in self._survey.segments:
            for action in _segment_actions(self._survey, segment):
                if action.kind == "index":
                    yield action
                elif action.kind == "seal":
                    yield action._replace(path=_name(segment.base))

    # --- gaps -------------------------------------------------------------------------------

    def _mend_gaps(self) -> None:
        """Drop lines that are damaged: what they said is found out anew."""
        data = read_side_file(self._fs, self._folder, "gaps")
        if data is None:
            return
        lines = [line for line in data.split(b"\n") if line]
        whole = [line for line in lines if is_whole_gap(line)]
        if whole != lines:
            contents = b"".join(line + b"\n" for line in whole)
            replace_file(self._fs, side_path(self._folder, "gaps"), contents)

    def _acknowledge(self) -> None:
        gaps = Gaps(self._fs, self._folder)
        gaps.load()
        found = _unacknowledged(gaps.all()) + _gaps_to_record(self._survey)
        gaps.add(*(gap._replace(acknowledged=True) for gap in found))

    # --- segments ---------------------------------------------------------------------------

    def _quarantine(self, segment: SegmentSurvey) -> None:
        """Keep everything that is not in a readable batch."""
        path = segment_path(self._folder, segment.base)
        position = 0
        for run in [*segment.runs, Run(segment.size, segment.size, 0, 0)]:
            if position < run.position:
                target = keep_aside(self._fs, self._folder, path, position, run.position)
                if target is not None:
                    self._report.quarantined.append(os.path.relpath(target, self._folder))
            position = run.end

    def _split(self, segment: SegmentSurvey) -> None:
        """Give each readable part a file of its own, the last one first."""
        path = segment_path(self._folder, segment.base)
        self._catalog.forget(segment.base)
        runs = list(segment.runs)
        while runs and runs[-1].position:
            run = runs.pop()
            end = runs[-1].end if runs else 0
            self._move(path, run)
            if run.first_offset == segment.base:
                return  # the new file took the place of the old one
            self._truncate(path, end)
        if runs:
            self._truncate(path, runs[-1].end)
        else:
            self._remove(segment.base)

    def _move(self, path: str, run: Run) -> None:
        """Copy a part of a segment to the segment of its first offset, all or nothing."""
        target = segment_path(self._folder, run.first_offset)
        temporary = side_path(self._folder, os.path.basename(target) + ".tmp")
        with _opened(self._fs, path) as source, _opened(self._fs, temporary, create=True) as copy:
            copy.truncate(0)
            for position, data in pieces(source, run.position, run.end):
                write_all(copy, data, position - run.position)
            copy.sync()
        self._fs.rename(temporary, target)
        self._fs.sync_dir(self._folder)

    def _truncate(self, path: str, size: int) -> None:
        with _opened(self._fs, path) as file:
            file.truncate(size)
            file.sync()

    def _remove(self, base: int) -> None:
        remove_segment(self._fs, self._folder, base)
        self._fs.sync_dir(self._folder)

    def _make_indexes(self, bases: set[int]) -> None:
        for extent in list_segments(self._fs, self._folder):
            if extent.base in bases:
                facts = self._catalog.new_facts(extent.base)
                with _opened(self._fs, segment_path(self._folder, extent.base)) as file:
                    scan(file, facts, extent.size)
                self._catalog.store_indexes(facts)
                self._catalog.seal(facts)

    # --- side files -------------------------------------------------------------------------

    def _mend_side_files(self) -> None:
        """What opening the log did not make anew."""
        for finding in _bad_side_files(self._fs, self._survey):
            match os.path.basename(finding.path):
                case "start":
                    start = StartOffset(self._fs, self._folder)
                    start.store(self._survey.start_offset)
                    start.close()
                case "poisoned" | "reserved" as name:  # everything is durable by now
                    self._fs.unlink(side_path(self._folder, name))
                    self._fs.sync_dir(side_path(self._folder, "").rstrip("/"))


@contextlib.contextmanager
def _opened(fs: FileSystem, path: str, *, create: bool = False) -> Iterator[File]:
    file = fs.open(path, write=True, create=create)
    try:
        yield file
    finally:
        file.close()
