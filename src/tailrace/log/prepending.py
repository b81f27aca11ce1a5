"""Putting segments in front of a log: what it had once comes back, with the offsets that it had.

Whoever does so writes them where nobody looks, in `.tailrace/staging/`, with indexes and with the
offsets that they are to have. Then, with the turn to write, they are renamed to segments. They are
below the log's start, so nobody sees them: they are what retention leaves when it is killed between
the new start and the last file that goes, and whoever finds them removes them. Then the start is
lowered, durably. That is the moment from which on they count, all of them, and there is nothing to
complete or to undo. Who fails or is interrupted on the way leaves its turn like one who died, so
that the next one looks where the log starts.

They end where the log's first segment begins. A log without records has none: it goes on behind
them. Its start is raised to there first, and then it is a log like any other. So if that is all
that was done, the log is as empty as before, and its next offset is the one that it was to have.

What others know of files is by name. `fronts` on the board tells them that a name may mean another
file now; and nobody deletes one meanwhile (`retention.deleting`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import NamedTuple

from tailrace.errors import NotWritten, OffsetOutOfRange, OutcomeUnknown
from tailrace.kernel import Draft
from tailrace.log.fs import File, FileSystem, write_all
from tailrace.log.log import Log
from tailrace.log.options import FlushMode, Retention
from tailrace.log.retention import deleting
from tailrace.log.rolling import must_roll_before
from tailrace.log.scan import Facts
from tailrace.log.segments import list_segments, remove_segment, seal_of, segment_path
from tailrace.log.sidefiles import Gap, Seal, side_path
from tailrace.log.staging import discard, staging_path
from tailrace.log.writer import Writer

__all__ = ["Front", "Joint", "Staged", "joint_of", "prepend"]

_AT_ONCE = 8 << 20  # so much is sent to the disk while the next is made
_EXTENSIONS = ("idx", "tix", "seg")  # in the order in which they are put in their place


class Joint(NamedTuple):
    """Where a log can be put something in front of."""

    first: int  # the first segment begins here
    start: int
    end: int
    has_records: bool

    @property
    def seam(self) -> int:
        """What comes in front ends here. Below the start, the first segment may have records that
        are not read any more: they come back with what is before them."""
        return max(self.first, self.start)


class Staged(NamedTuple):
    """Segments that are to come in front, and which offsets between them no record has."""

    seals: list[Seal]
    gaps: list[tuple[int, int]]

    @property
    def records(self) -> int:
        return sum(seal.records for seal in self.seals)

    @property
    def size(self) -> int:
        return sum(seal.size for seal in self.seals)


class Front:
    """Writes batches to segments that are to come in front of a log. Not thread-safe.

    Its folder is named by the transaction. `finish` returns what was written, when it is on the
    disk; `close` removes what nobody has put in its place.
    """

    def __init__(self, log: Log, transaction: str) -> None:
        self._fs = log._fs
        self._folder = log._folder
        self._options = log.options
        self._catalog = log._writing().catalog
        self.transaction = transaction
        self._file: File | None = None
        self._facts: Facts
        self._sent = 0  # how much of the file is on its way to the disk
        self._staged = Staged([], [])
        self._fs.make_dirs(staging_path(self._folder, transaction))

    def add(self, draft: Draft, offset: int) -> None:
        """Write a batch, behind those before it."""
        facts = self._facts if self._file is not None else None
        before = facts.next_offset if facts is not None else self._next_offset()
        if before is not None and offset != before:
            if offset < before:
                raise ValueError(f"offset {offset} is not after {before - 1}")
            self._staged.gaps.append((before, offset))
        if facts is not None and must_roll_before(self._options, facts, draft, offset):
            self._end_file()
        if self._file is None:
            path = _staged_path(self._folder, self.transaction, offset)
            self._file = self._fs.open(path, write=True, create=True)
            self._facts = self._catalog.new_facts(offset)
            self._sent = 0
        facts = self._facts
        write_all(self._file, draft.place(offset), facts.size)
        facts.observe(offset, draft.count, draft.size, draft.max_timestamp)
        unsent = facts.size - self._sent
        if unsent >= _AT_ONCE:
            self._file.part_with(unsent, self._sent)
            self._sent = facts.size

    def _next_offset(self) -> int | None:
        return self._staged.seals[-1].next_offset if self._staged.seals else None

    def _end_file(self) -> None:
        assert self._file is not None
        self._file.sync()
        self._file.close()
        self._file = None
        facts = self._facts
        for extension, data in (
            ("idx", facts.offsets.to_bytes()),
            ("tix", facts.times.to_bytes()),
        ):  # which nobody syncs: they can be made again
            path = _staged_path(self._folder, self.transaction, facts.base, extension)
            with contextlib.closing(self._fs.open(path, write=True, create=True)) as file:
                write_all(file, data, 0)
        self._staged.seals.append(seal_of(facts))

    def finish(self) -> Staged:
        if self._file is not None:
            self._end_file()
        self._fs.sync_dir(staging_path(self._folder, self.transaction))
        return self._staged

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        with contextlib.suppress(OSError):  # whoever sweeps later does it
            discard(self._fs, self._folder, self.transaction)

    def __enter__(self) -> Front:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def joint_of(log: Log) -> Joint:
    """Where the log can be put something in front of, now. What is all below its start goes."""
    writer = log._writing()
    writer.vacuum(Retention())
    with writer.my_turn():
        return _joint(writer)


def prepend(log: Log, front: Front, staged: Staged, first: int, last: int) -> None:
    """Put what was staged in front, so that the log starts at `first`, or the first record that
    there is then. It ends at `last`, which is the joint's seam unless the log has no records.

    `NotWritten` if nothing has come of it, `OffsetOutOfRange` if the log has another start by now.
    """
    writer = log._writing()
    log.flush()  # what is not, is not durable by then: it need not be done with the turn
    with writer.my_turn():
        try:
            _Prepender(writer, front.transaction).put(staged, first, last)
        except OSError as error:
            raise NotWritten(f"{log.path}: nothing was put in front: {error}") from error
    log._observer.refresh()


def _joint(writer: Writer) -> Joint:
    extents, end = writer.tail.extents()
    with_records = [extent for extent in extents if extent.size]
    first = with_records[0].base if with_records else end
    return Joint(first, writer.start_offset, end, bool(with_records))


class _Prepender:
    """With the turn of a writer."""

    def __init__(self, writer: Writer, transaction: str) -> None:
        self._writer = writer
        self._catalog = writer.catalog
        self._fs: FileSystem = writer.catalog.fs
        self._folder = writer.catalog.folder
        self._transaction = transaction

    def put(self, staged: Staged, first: int, last: int) -> None:
        writer = self._writer
        writer.committer.check()
        writer.tail.settle()
        joint = _joint(writer)
        self._check(joint, staged, first, last)
        if staged.seals:
            first = staged.seals[0].base
        elif joint.first > first:
            raise ValueError("there is nothing to put in front")
        writer.tail.announce(*writer.tail.state[1:4])
        with deleting(self._fs, self._folder), writer.turn.in_one_go():
            if writer._start_file.load() != joint.start:  # somebody has failed to raise it
                writer._store_start(joint.start)
            if not joint.has_records and last > joint.end:
                writer._raise_start(last)
                writer.tail.skip_to(last)
                joint = _joint(writer)
            self._mark()
            writer.board.bump_fronts()
            self._place(staged, joint)
            self._have_it_count(min(first, joint.start))
            writer.tail.announce(*writer.tail.state[1:4])

    def _check(self, joint: Joint, staged: Staged, first: int, last: int) -> None:
        behind = staged.seals[-1].next_offset if staged.seals else 0
        limit = joint.first if joint.has_records else last
        fits = last == joint.seam or not joint.has_records
        if not (fits and first <= last and behind <= limit):
            raise OffsetOutOfRange(
                f"{self._folder}: what comes in front has to end at {joint.seam}, where the log "
                f"starts, not at {last}, and to have no record from offset {limit} on",
                offset=last,
                low=joint.start,
                high=joint.end,
            )

    def _mark(self) -> None:
        """The watermark may be in a segment that is gone, of which the name comes again."""
        writer, committer = self._writer, self._writer.committer
        if writer.flush_mode is not FlushMode.NONE:
            committer.flush()
        _file, segment, size, end_offset, _past = writer.tail.state
        if committer.durable >= end_offset or not size:
            with committer.alone():
                committer.advance(segment, size, end_offset, sync=True)

    def _place(self, staged: Staged, joint: Joint) -> None:
        """Everything but that it counts."""
        fs, folder = self._fs, self._folder
        placed: list[int] = []
        try:
            for extent in list_segments(fs, folder):
                if extent.base < joint.first:
                    remove_segment(fs, folder, extent.base)
            for seal in staged.seals:
                placed.append(seal.base)
                for extension in _EXTENSIONS:
                    path = _staged_path(folder, self._transaction, seal.base, extension)
                    fs.rename(path, segment_path(folder, seal.base, extension))
            fs.sync_dir(folder)
            self._outdate_seals(placed)
            self._record(self._gaps(staged, joint))
        except BaseException:
            with contextlib.suppress(OSError):  # who opens the log next does it
                for base in placed:
                    remove_segment(fs, folder, base)
                fs.sync_dir(folder)
            raise
        for seal in staged.seals:
            with contextlib.suppress(OSError):  # a cache
                self._catalog.seals.add(seal)

    def _have_it_count(self, start: int) -> None:
        try:
            self._writer.lower_start(start)
        except OSError as error:  # not of storing it
            raise OutcomeUnknown(
                f"{self._folder}: what was put in front counts from the next turn on: {error}"
            ) from error

    def _outdate_seals(self, bases: Sequence[int]) -> None:
        """What is noted of segments that had these names."""
        seals = self._catalog.seals
        seals.load(set(bases))
        for base in bases:
            seals.void(base)
        with contextlib.suppress(FileNotFoundError):
            path = side_path(self._folder, "seals")
            with contextlib.closing(self._fs.open(path, write=True)) as file:
                file.sync()

    @staticmethod
    def _gaps(staged: Staged, joint: Joint) -> list[tuple[int, int]]:
        if staged.seals and staged.seals[-1].next_offset < joint.first:
            return [*staged.gaps, (staged.seals[-1].next_offset, joint.first)]
        return staged.gaps

    def _record(self, ranges: Sequence[tuple[int, int]]) -> None:
        gaps, now_ms, new = self._writer.gaps, self._writer.wall_ms(), []
        for first, last in ranges:
            while (part := gaps.uncovered(first, last)) is not None:
                new.append(Gap(*part, "skipped", False, "no record was put there", now_ms))
                first = part[1]
        gaps.add(*new)


def _staged_path(folder: str, transaction: str, base: int, extension: str = "seg") -> str:
    name = os.path.basename(segment_path("", base, extension))
    return staging_path(folder, f"{transaction}/{name}")
