"""Check everything in a store: the registry, every queue's log, every group, what is delayed.

Nothing is changed, and no contents are too bad to be reported. The store should not be used
meanwhile: what is just being written may look torn. If it is, the report says by whom.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from tailrace.log.fs import FileSystem
from tailrace.log.members import Member, Members
from tailrace.log.offline.findings import Finding
from tailrace.log.offline.log_survey import Progress, survey_segments
from tailrace.log.offline.segment import SegmentCheck
from tailrace.log.offline.survey import SegmentSurvey
from tailrace.log.offline.verify import LogCheck, VerifyReport
from tailrace.log.offline.words import counted
from tailrace.log.sidefiles import FOLDER, side_path
from tailrace.queue import archived, dropped
from tailrace.queue.journal import parse_line
from tailrace.queue.ledger import Ledger
from tailrace.queue.offline.delayed_check import check_delayed, logs_of_delayed
from tailrace.queue.offline.group_survey import GroupSurvey, Kind, survey_group
from tailrace.queue.offline.saved_check import check_saved
from tailrace.queue.offline.tree import QueuePlace, Tree, entries, read_all
from tailrace.queue.stream_ledger import StreamLedger

__all__ = [
    "GroupReport",
    "QueueCheck",
    "QueueReport",
    "StoreCheck",
    "StoreReport",
    "logs_of",
    "verify_store",
]

_REGISTRY = os.path.join("config", "queues.json")


@dataclass
class GroupReport:
    """A group; `None` where its files do not tell."""

    id: str
    cursor: int | None
    committed: int | None
    pending: int


@dataclass
class QueueReport:
    """A queue with its log, if it has one, and its groups. `type` is `None` if the registry does
    not know the queue."""

    name: str
    folder: str
    type: str | None
    log: VerifyReport | None = None
    groups: list[GroupReport] = field(default_factory=list)


@dataclass
class StoreReport:
    """What `verify_store` found, and what it looked at. Paths are from `folder`."""

    folder: str
    findings: list[Finding] = field(default_factory=list)
    queues: list[QueueReport] = field(default_factory=list)

    @property
    def problems(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == "problem"]

    @property
    def notes(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == "note"]

    @property
    def ok(self) -> bool:
        return not self.problems

    @property
    def logs(self) -> list[VerifyReport]:
        return [queue.log for queue in self.queues if queue.log is not None]

    @property
    def writers(self) -> list[Member]:
        """Who writes to any of the logs; each process once."""
        found = {(each.pid, each.host): each for log in self.logs for each in log.writers}
        return list(found.values())


def logs_of(fs: FileSystem, root: str) -> list[str]:
    """The folders of a store's logs."""
    folders = (os.path.join(queue.folder, "segments") for queue in Tree(fs, root).queues())
    return [folder for folder in folders if entries(fs, folder)] + logs_of_delayed(fs, root)


class StoreCheck:
    """A store that is being checked. For each of its `queues`: `begin`, make the checks of its log,
    here or elsewhere, and `finish`; then ask for the report."""

    def __init__(self, fs: FileSystem, root: str) -> None:
        self._fs = fs
        self._tree = Tree(fs, root)
        self.places = self._tree.queues()
        self.queues = [QueueCheck(fs, self._tree, place) for place in self.places]

    def report(self) -> StoreReport:
        """Once every queue is finished."""
        fs, tree = self._fs, self._tree
        report = StoreReport(tree.root)
        report.findings += _registry(fs, tree, self.places)
        surveys: dict[tuple[str, str], GroupSurvey] = {}
        for queue in self.queues:
            report.queues.append(queue.report)
            report.findings += queue.findings
            surveys |= {(queue.report.name, survey.id): survey for survey in queue.surveys}
        report.findings += check_saved(fs, tree, surveys)
        report.findings += check_delayed(fs, tree)
        report.findings += _leftovers(fs, tree)
        return report


def verify_store(fs: FileSystem, root: str, progress: Progress | None = None) -> StoreReport:
    """Check a store. `progress` is told how many bytes of its logs were read, of how many."""
    check = StoreCheck(fs, root)
    advance = _progress_of(fs, check.places, progress)
    for queue in check.queues:
        queue.finish(survey_segments(fs, queue.begin(), advance()))
    return check.report()


def _progress_of(
    fs: FileSystem, places: list[QueuePlace], progress: Progress | None
) -> Callable[[], Progress | None]:
    """What to give to the next log's check."""
    sizes = [
        sum(
            entry.size
            for entry in entries(fs, os.path.join(place.folder, "segments"))
            if entry.name.endswith(".seg")
        )
        for place in places
    ]
    total, done = sum(sizes), [0]

    def advance() -> Progress | None:
        before = done[0]
        done[0] += sizes.pop(0)
        if progress is None:
            return None
        return lambda position, _: progress(before + position, total)

    return advance


def _registry(fs: FileSystem, tree: Tree, places: list[QueuePlace]) -> Iterator[Finding]:
    config = tree.config
    if config.is_missing and places:
        message = "is missing: nobody knows of the queues, nor what is set on them"
        yield Finding("problem", _REGISTRY, None, None, message)
    elif config.fault is not None:
        message = f"the store cannot be opened: {config.fault}"
        yield Finding("problem", _REGISTRY, config.position, None, message)
    path = os.path.join(FOLDER, "board")
    board = read_all(fs, os.path.join(tree.root, path))
    if board is not None and len(board) >= 8 and board[0] & 1:
        message = "the queues were being changed; who looks reads them anew each time, until the "
        yield Finding("note", path, 0, None, f"{message}next change")


class QueueCheck:
    """One queue. The groups are read before the log, so that what is claimed meanwhile does not
    look as if it were not there."""

    def __init__(self, fs: FileSystem, tree: Tree, place: QueuePlace) -> None:
        self._fs = fs
        self._tree = tree
        self._place = place
        self._folder = os.path.join(place.folder, "segments")
        self._log: LogCheck | None = None
        kind: Kind | None = None
        if place.settings is not None:
            kind = "stream" if place.settings.type == "stream" else "classic"
        self._kind = kind
        self.report = QueueReport(place.name, place.folder, kind)
        self.findings: list[Finding] = []
        self.surveys: list[GroupSurvey] = []

    def begin(self) -> list[SegmentCheck]:
        """Look at the groups, and find out what there is to be checked of the log."""
        self._judge_folder()
        held = bool(Members.find(self._fs, self._folder))
        for group in self._tree.groups(self._place):
            path = self._tree.relative(group.folder)
            self.surveys.append(
                survey_group(self._fs, group.folder, path, group.id, self._kind, held=held)
            )
        if entries(self._fs, self._folder):
            self._log = LogCheck(self._fs, self._folder)
        return [] if self._log is None else self._log.checks

    def finish(self, surveys: Iterable[SegmentSurvey]) -> None:
        """With what the checks came to, in their order."""
        report = self.report
        if self._log is not None:
            report.log = self._log.report(surveys)
            above = self._tree.relative(self._folder)
            for finding in report.log.findings:
                path = os.path.normpath(os.path.join(above, finding.path))
                self.findings.append(finding._replace(path=path))
        for survey in self.surveys:
            self.findings += survey.findings
            self.findings += _compare(survey, report.log)
            self.findings += _side_files(self._fs, self._tree, survey)
            report.groups.append(
                GroupReport(survey.id, survey.cursor, survey.committed, survey.pending)
            )

    def _judge_folder(self) -> None:
        place, path = self._place, self._tree.relative(self._place.folder)
        mark = read_all(self._fs, side_path(place.folder, "deleted"))
        if place.settings is None and mark is not None:
            message = "is left of a queue that was deleted; it goes when one of its name is made"
            self._note(path, message)
        elif place.settings is None and self._tree.config.fault is None:
            self._note(path, f"is no queue's: {_REGISTRY} does not name it")
        elif mark is not None:
            message = "the queue was about to be deleted, and is still there"
            self._note(os.path.join(path, FOLDER, "deleted"), message)
        archive = read_all(self._fs, side_path(place.folder, archived.NAME))
        if archive is not None and parse_line(archive.removesuffix(b"\n")) is None:
            message = "the note of the archive is damaged, so retention deletes nothing"
            name = os.path.join(path, FOLDER, archived.NAME)
            self.findings.append(Finding("problem", name, 0, None, message))
        count = read_all(self._fs, side_path(place.folder, dropped.NAME))
        if count is not None and not dropped.is_whole(count):
            message = "how much was dropped to make room is not known; counting begins anew"
            self._note(os.path.join(path, FOLDER, dropped.NAME), message)
        for entry in entries(self._fs, os.path.join(place.folder, "consumers")):
            if entry.name.startswith(".deleted-"):
                message = "is left of a group that was deleted; it can be removed"
                self._note(os.path.join(path, "consumers", entry.name), message)

    def _note(self, path: str, message: str) -> None:
        self.findings.append(_note(path, message))


def _compare(survey: GroupSurvey, log: VerifyReport | None) -> Iterator[Finding]:
    """Does the group fit the log?"""
    start, end = (log.start_offset, log.end_offset) if log is not None else (0, 0)
    if survey.cursor is not None and survey.cursor > end and not survey.is_deleted:
        message = f"its cursor is {survey.cursor}, and the log ends at {end}: what is published "
        message += "up to there will not be delivered"
        yield Finding("problem", survey.path, None, end, message)
    state = survey.state
    if isinstance(state, Ledger):
        offsets = list(state.pending)
    elif isinstance(state, StreamLedger):
        taken = [*state.back, *(each for ranges in state.taken.values() for each in ranges)]
        offsets = [first for first, _ in taken if first < state.cursor]
        if any(not first < behind <= state.cursor for first, behind in taken):
            message = f"a consumer is at what is not below the cursor, which is {state.cursor}"
            yield Finding("problem", survey.path, None, None, message)
    else:
        return
    above = [offset for offset in offsets if offset >= state.cursor]
    if above:
        message = f"{counted(len(above), 'message')} pending at or above the cursor, which is "
        yield Finding("problem", survey.path, None, above[0], f"{message}{state.cursor}")
    if isinstance(state, Ledger):
        gone = [offset for offset in offsets if offset < start]
        if gone:
            message = f"{counted(len(gone), 'message')} pending below the log's start, which is "
            yield Finding("note", survey.path, None, gone[0], f"{message}{start}")


def _side_files(fs: FileSystem, tree: Tree, survey: GroupSurvey) -> Iterator[Finding]:
    side = os.path.join(tree.root, survey.path, FOLDER)
    for entry in sorted(entries(fs, side)):
        path = os.path.join(survey.path, FOLDER, entry.name)
        if entry.name.startswith("damaged-"):
            message = "a damaged journal was put aside here; remove it when it is not needed"
            yield _note(path, message)
        elif entry.name.startswith("alive-") and _is_free(fs, os.path.join(side, entry.name)):
            yield _note(path, "is left of a process that was killed")


def _is_free(fs: FileSystem, path: str) -> bool:
    """Has nobody the lock? Sharing it for a moment disturbs nobody; if that is not allowed here,
    nothing is known."""
    try:
        lock = fs.lock(path)
    except OSError:
        return False
    try:
        return lock.acquire(shared=True, wait=False)
    finally:
        lock.close()


def _leftovers(fs: FileSystem, tree: Tree) -> Iterator[Finding]:
    for path in tree.temporary():
        name = tree.relative(path)
        then = "the next open removes it" if name.startswith("config") else "it can be removed"
        yield _note(name, f"is left over; {then}")
    trash = os.path.join(FOLDER, "trash")
    for entry in sorted(entries(fs, os.path.join(tree.root, trash))):
        message = "is left of a queue that was deleted; whoever opens the store alone removes it"
        yield _note(os.path.join(trash, entry.name), message)


def _note(path: str, message: str) -> Finding:
    return Finding("note", path, None, None, message)
