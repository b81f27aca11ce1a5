"""Archiving a queue: what is in full segments, and not in the archive yet, goes there in steps.

    plan → pieces of about 64 MiB → files in the staging folder, by threads or by Spark
         → renamed, and into the manifest, one step after the other → into the table
         → with `delete`: read back and compared with the log → noted at the queue → deleted

Each arrow can be the last thing that a process does: the next one goes on behind the last step that
counts. One process at a time archives a queue, by the lock of the archive.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from tailrace.errors import ConfigError, Corrupt, NotWritten, OffsetOutOfRange, TailraceError
from tailrace.log.cuts import cuts, sealed_end, start_now
from tailrace.log.fs import NO_SPACE
from tailrace.log.retention import VacuumReport
from tailrace.queue.archived import ArchiveNote, archive_folder, check_outside
from tailrace.queue.retaining import awaits_groups
from tailrace.spark.lake.engines import Direct, Engine, Task, in_order
from tailrace.spark.lake.manifest import (
    PARTITIONS,
    Manifest,
    Origin,
    Step,
    Writing,
    archive_around,
    is_gone,
)
from tailrace.spark.lake.placing import place, tidy
from tailrace.spark.lake.tables import FORMATS, Table, TableBehind, formats_in, open_table
from tailrace.spark.lake.verify import is_of, verify
from tailrace.spark.lake.writing import Piece

if TYPE_CHECKING:
    from tailrace.log.log import Log
    from tailrace.queue.looking import Look
    from tailrace.queue.store import Store

__all__ = ["ArchiveReport", "Order", "archive", "archive_queue", "release", "size_to_archive"]

PIECE_BYTES: Final = 64 << 20  # of the log, in a step: a segment, as they are by default
_TABLE_EVERY_S: Final = 10.0
_VERIFYING: Final = 2  # threads
_ALLOWED: Final = ("_tailrace", "lost+found")

Progress = Callable[[int, int], object]


@dataclass(frozen=True)
class Order:
    """What to archive, and how. `None` for `format` and `partition_by` is as the archive has it.
    `drop` deletes what is verified; with it the queue's retention waits for the archive from then
    on. Times are in milliseconds. `is_named`: somebody has named the folder just now, and not a
    note or a configuration, which may have come with a backup."""

    queue: str
    folder: str
    format: str | None = None
    partition_by: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    drop: Callable[[], VacuumReport] | None = None
    is_named: bool = True

    def check(self) -> None:
        if not self.folder:
            raise ConfigError("the archive needs a folder, and its name is empty")
        archive_folder(self.folder)
        if self.format not in (None, *FORMATS):
            raise ConfigError(f"format: {self.format!r} is not one of {', '.join(FORMATS)}")
        if self.partition_by not in (None, "", *PARTITIONS):
            known = ", ".join(PARTITIONS)
            raise ConfigError(f"partition_by: {self.partition_by!r} is not one of {known}")


@dataclass(frozen=True)
class ArchiveReport:
    """What was archived. `first` and `last` are offsets, `first <= o < last`, in which it is;
    `remaining` are offsets of the queue that are not archived, most of them because their segment
    is still written to; `missed` are those that retention has deleted before. `verified` is the
    offset below which everything was compared with the log, if that was asked for. `notice` says
    why nothing was deleted, where that may surprise."""

    queue: str
    folder: str
    engine: str
    steps: int = 0
    files: int = 0
    rows: int = 0
    bytes: int = 0
    log_bytes: int = 0
    first: int | None = None
    last: int | None = None
    table_files: int = 0
    remaining: int = 0
    missed: int = 0
    verified: int | None = None
    deleted_segments: int = 0
    deleted_bytes: int = 0
    notice: str | None = None
    seconds: float = 0.0


def archive(
    look: Look, order: Order, engine: Engine | None = None, progress: Progress | None = None
) -> ArchiveReport:
    """Archive what an order says. `Locked` if somebody else is at it; after any other error what is
    in the archive by then stays, and the next call goes on."""
    order.check()
    began = time.monotonic()
    run = _Run(look, order, engine or Direct(), progress or (lambda done, total: None))
    try:
        report = run.run()
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        raise NotWritten(
            f"{order.folder}: the disk is full ({error.strerror}). What is in the archive is whole;"
            " make room, and archive again"
        ) from error
    return replace(report, seconds=round(time.monotonic() - began, 3))


def archive_queue(
    store: Store, queue: str, folder: str | os.PathLike[str], *, delete: bool = False, **more: Any
) -> ArchiveReport:
    """Archive a queue of an open store, as `tailrace archive` does; `more` is what else `Order`
    takes."""
    from tailrace.queue.stats import look_through

    drop = store.get(queue).drop_archived if delete else None
    return archive(look_through(store), Order(queue, os.fspath(folder), drop=drop, **more))


def size_to_archive(look: Look, order: Order) -> int:
    """About how many bytes of the log there are to archive."""
    manifest = Manifest.find(look.fs, archive_folder(order.folder))
    with look.log(order.queue) as log:
        if log is None:
            return 0
        return sum(piece.size for piece in _pieces(log, manifest, order))


def release(look: Look, queue: str) -> ArchiveNote | None:
    """Have retention no longer wait for the archive; where that is stays known, if it is there.
    What is noted then. Whoever goes on with it compares anew: by then another may be in its
    place."""
    look.settings(queue)

    def edit(note: ArchiveNote | None) -> ArchiveNote | None:
        if note is None or is_gone(look.fs, note.folder(look.layout)):
            return None
        return replace(note, holds=False, verified=0, verified_from=0)

    try:
        return ArchiveNote.change(look.fs, look.layout, queue, edit)
    except Corrupt:
        ArchiveNote.drop(look.fs, look.layout, queue)
        return None


class _Run:
    def __init__(self, look: Look, order: Order, engine: Engine, progress: Progress) -> None:
        self._look = look
        self._fs = look.fs
        self._order = order
        self._engine = engine
        self._progress = progress
        self._folder = archive_folder(order.folder)
        self._settings = look.settings(order.queue)
        self._report = ArchiveReport(order.queue, self._folder, engine.name)
        self._behind: TableBehind | None = None
        if not self._settings.incarnation:
            raise TailraceError(
                f"the queue {order.queue!r} was made by another program, and nobody has opened it "
                "since; open the store for writing once"
            )

    def run(self) -> ArchiveReport:
        self._check_folder()
        # In this order: who writes a note has begun the archive before.
        note = ArchiveNote.load(self._fs, self._look.layout, self._order.queue)
        found = Manifest.find(self._fs, self._folder)
        self._check_note(note, found)
        partition_by = self._order.partition_by
        if partition_by is None:
            partition_by = "" if found is None else found.origin.partition_by
        origin = Origin(self._settings.name, self._settings.incarnation, partition_by)
        if found is not None:  # before anything is loaded
            found.origin.check_is(origin.queue, origin.incarnation, self._folder)
            origin = replace(origin, format=found.origin.format)
        tables = self._open_tables(origin)
        with (
            Writing(self._fs, self._folder, origin) as writing,
            self._look.log(self._order.queue) as log,
        ):
            tidy(self._fs, writing)
            self._catch_up(tables, writing)
            self._check_log(writing.manifest, log)
            self._note(writing.manifest)
            if log is not None:
                with self._staging(writing) as staging:
                    self._archive(writing, log, tables, staging)
                if self._order.drop is not None:
                    self._verify(writing, log)
                self._count_rest(writing.manifest, log)
        if self._order.drop is not None:
            dropped = self._order.drop()
            self._say(deleted_segments=dropped.segments, deleted_bytes=dropped.bytes)
            if awaits_groups(self._look, self._settings):
                self._say(notice="nothing is deleted: no group has begun with this work queue yet")
        if self._behind is not None:
            raise self._behind
        return self._report

    def _say(self, **changes: int | str | None) -> None:
        self._report = replace(self._report, **changes)  # type: ignore[arg-type]

    # --- before -----------------------------------------------------------------------------

    def _check_folder(self) -> None:
        check_outside(self._folder, self._look.layout.root)
        around = archive_around(os.path.dirname(os.path.realpath(self._folder)))
        if around is not None:
            raise ConfigError(
                f"{self._folder} is in {around}, which is an archive; each queue has a folder of "
                "its own, beside those of others"
            )
        try:
            names = set(self._fs.names(self._folder))
        except FileNotFoundError:
            return
        except NotADirectoryError:
            raise ConfigError(f"{self._folder} is a file; name a folder") from None
        strange = sorted(name for name in names - {*_ALLOWED} if not name.startswith("."))
        if strange and Manifest.find(self._fs, self._folder) is None:
            raise ConfigError(
                f"{self._folder} is no archive, and not empty: there is {strange[0]}; name a folder"
                " that is empty, or new"
            )

    def _check_note(self, note: ArchiveNote | None, found: Manifest | None) -> None:
        if note is None or note.incarnation != self._settings.incarnation:
            return
        if not self._goes_on(note):
            return
        folder = note.folder(self._look.layout)
        if note.restored and not self._order.is_named:
            raise ConfigError(
                f"{folder} is the archive of the store that this one was restored from; if that "
                f"one does not go on with it, name it: tailrace archive {self._order.queue} --to "
                f"{folder}; else --release, then --to a new folder"
            )
        if found is None:
            raise ConfigError(
                f"the archive of the queue {self._order.queue!r} is not in {folder} any more; "
                "bring the archive back, or mount its disk; to begin a new one: tailrace archive "
                f"{self._order.queue} --release, then --to"
            )
        if not note.holds:
            return
        reached = max((step.last for step in found.steps), default=0)
        if reached < note.verified:
            raise Corrupt(
                f"{folder}: the manifest ends at offset {reached}, and what is below "
                f"{note.verified} was archived there; bring the archive back, or begin another "
                f"after: tailrace archive {self._order.queue} --release",
                path=folder,
            )

    def _goes_on(self, note: ArchiveNote) -> bool:
        """Whether it is the archive of a note of this queue. `ConfigError` if it is another than
        the one that retention waits for."""
        if note.is_of(self._look.layout, self._folder):
            return True
        if note.holds:
            raise ConfigError(
                f"the archive of the queue {self._order.queue!r} is "
                f"{note.folder(self._look.layout)}, and its retention waits for that one; to begin "
                f"another, let go of it: tailrace archive {self._order.queue} --release"
            )
        return False

    def _check_log(self, manifest: Manifest, log: Log | None) -> None:
        """Refuse a log that went back, as that of a backup does: it gives offsets once more."""
        end = 0 if log is None else log.end_offset
        if not is_of(self._fs, manifest, log, end):
            raise Corrupt(
                f"{self._folder} has other messages than the queue {self._order.queue!r} at the "
                f"same offsets, or more than it: its log, which ends at {end}, went back, as after "
                "a backup was restored. Archive to a new folder: tailrace archive "
                f"{self._order.queue} --release, then --to",
                path=self._folder,
            )

    def _open_tables(self, origin: Origin) -> list[Table]:
        kinds = [self._order.format] if self._order.format else formats_in(self._folder)
        found = [open_table(kind, self._folder, origin) for kind in kinds]
        return [table for table in found if table is not None]

    def _note(self, manifest: Manifest, verified: tuple[int, int] | None = None) -> None:
        """Where the archive is, and which range of it was compared: never more than it has,
        whatever an archive had that was in its place."""
        settings, layout = self._settings, self._look.layout
        place_ = ArchiveNote.place_of(layout, self._folder)

        def edit(note: ArchiveNote | None) -> ArchiveNote:
            is_ours = note is not None and note.incarnation == settings.incarnation
            # Somebody may have begun another archive since that was checked.
            if note is None or not is_ours or not self._goes_on(note):
                note = ArchiveNote(settings.incarnation, place_)
            holds = note.holds or self._order.drop is not None
            first, last = verified or (note.verified_from, note.verified)
            last = min(last, manifest.reaches(first))
            note = replace(note, verified_from=first, verified=last)
            return replace(note, place=place_, holds=holds, restored=False)

        ArchiveNote.change(self._fs, layout, settings.name, edit)

    @contextlib.contextmanager
    def _staging(self, writing: Writing) -> Iterator[str]:
        """A folder of this run, so that a task of an earlier one that goes on is in nobody's
        way."""
        folder = os.path.join(writing.staging, uuid.uuid4().hex)
        self._fs.make_dirs(folder)
        try:
            yield folder
        finally:  # what is left in it, the next who archives removes
            with contextlib.suppress(OSError):
                self._fs.remove_dir(folder)

    # --- archiving --------------------------------------------------------------------------

    def _archive(self, writing: Writing, log: Log, tables: list[Table], staging: str) -> None:
        task = Task(self._look.layout.root, writing.manifest.origin, staging)
        done, due_s = 0, time.monotonic() + _TABLE_EVERY_S
        while True:
            pieces = _pieces(log, writing.manifest, self._order)
            total = done + sum(piece.size for piece in pieces)
            self._progress(done, total)
            try:
                with contextlib.closing(self._engine.run(self._fs, log, task, pieces)) as made:
                    for staged in made:
                        self._count(place(self._fs, writing, staged), staged.piece)
                        done += staged.piece.size
                        self._progress(done, total)
                        if time.monotonic() >= due_s:
                            self._catch_up(tables, writing)
                            due_s = time.monotonic() + _TABLE_EVERY_S
                break
            except OffsetOutOfRange:  # retention was faster: what it left is planned anew
                if not pieces or start_now(log) <= pieces[0].first:
                    raise
        self._catch_up(tables, writing)

    def _count(self, step: Step, piece: Piece) -> None:
        report = self._report
        self._report = replace(
            report,
            steps=report.steps + 1,
            files=report.files + len(step.files),
            rows=report.rows + step.rows,
            bytes=report.bytes + step.size,
            log_bytes=report.log_bytes + piece.size,
            first=step.first if report.first is None else min(report.first, step.first),
            last=step.last if report.last is None else max(report.last, step.last),
        )

    def _catch_up(self, tables: list[Table], writing: Writing) -> None:
        """A table that cannot be changed keeps nothing from being archived: that is told when all
        else is done."""
        for table in list(tables):
            try:
                added = table.catch_up(writing.manifest)
            except TableBehind as error:
                tables.remove(table)
                self._behind = self._behind or error
            else:
                self._say(table_files=self._report.table_files + added)

    def _count_rest(self, manifest: Manifest, log: Log) -> None:
        start, end = start_now(log), log.end_offset
        rest = sum(last - first for first, last in _gaps(manifest, start, end))
        below = [high for _, high in manifest.ranges() if high <= start]
        begun = manifest.ranges()[0][0] if manifest.steps else start
        missed = sum(last - first for first, last in _gaps(manifest, min(begun, start), start))
        self._say(remaining=rest, missed=missed if below else 0)

    # --- verifying --------------------------------------------------------------------------

    def _verify(self, writing: Writing, log: Log) -> None:
        """All that can be verified from the log's beginning on, each step once."""
        manifest, layout = writing.manifest, self._look.layout
        note = ArchiveNote.load(self._fs, layout, self._order.queue)
        begin = first = start_now(log)
        is_here = note is not None and note.is_of(layout, self._folder)
        if note is not None and is_here and note.verified_from <= first <= note.verified:
            begin, first = note.verified_from, self._still_there(manifest, first, note.verified)
            if first < note.verified:  # for retention as well
                self._note(manifest, (begin, first))
        steps = list(manifest.within(first, manifest.reaches(first)))
        total, done = sum(step.size for step in steps), 0

        def check(step: Step) -> Step:
            # Segments that retention let go before are not there to be compared.
            rest = replace(step, first=max(step.first, start_now(log)))
            verify(self._fs, log, self._folder, manifest.origin, rest)
            return step

        checked = in_order(steps, check, _VERIFYING)
        with contextlib.closing(checked):
            for step in checked:
                first = step.last
                self._note(manifest, (begin, first))
                done += step.size
                self._progress(done, total)
        self._say(verified=first)

    def _still_there(self, manifest: Manifest, first: int, last: int) -> int:
        """Below which offset the files of a range are there that was verified before: whoever
        tidies the table may have removed some."""
        for step in manifest.within(first, last):
            for file in step.files:
                try:
                    found = self._fs.stat(os.path.join(self._folder, file.path)).size
                except (FileNotFoundError, NotADirectoryError):
                    found = None
                if found != file.size:
                    return max(step.first, first)
        return last


def _pieces(log: Log, manifest: Manifest | None, order: Order) -> list[Piece]:
    """What is to be done, as of a moment at which retention was not faster."""
    while True:
        start = start_now(log)
        try:
            return list(_plan(log, manifest, order))
        except OffsetOutOfRange:
            if start_now(log) <= start:
                raise


def _plan(log: Log, manifest: Manifest | None, order: Order) -> Iterator[Piece]:
    """Pieces of full segments that are not archived, in order."""
    first, last = start_now(log), sealed_end(log)
    if order.since_ms is not None:
        first = max(first, log.offset_at(order.since_ms))
    if order.until_ms is not None:
        last = min(last, log.offset_at(order.until_ms))
    for low, high in _gaps(manifest, first, last):
        current: Piece | None = None
        for cut in cuts(log, low, high, PIECE_BYTES):
            if current is not None and current.size + cut.size > PIECE_BYTES:
                yield current
                current = None
            if current is None:
                current = Piece(*cut)
            else:
                current = Piece(current.first, cut.last, current.size + cut.size)
        if current is not None:
            yield current


def _gaps(manifest: Manifest | None, first: int, last: int) -> Iterator[tuple[int, int]]:
    """What of a range is not archived."""
    for low, high in [] if manifest is None else manifest.ranges():
        if high <= first:
            continue
        if low >= last:
            break
        if low > first:
            yield first, low
        first = high
    if first < last:
        yield first, last
