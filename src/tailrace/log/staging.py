"""Batches on their way to a log (`adoption.py`): written where nobody looks, by anybody.

Each transaction has a folder below `.tailrace/staging/`, with files of batches whose offsets begin
at 0. Whoever writes one holds no lock, and may be on another machine: it has a name of its own.
What was abandoned is removed when it is old (`sweep`).
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Iterable, Sequence

from tailrace.errors import Corrupt
from tailrace.kernel import HEADER_SIZE, Draft
from tailrace.log.adoption import Piece, place, place_in_file
from tailrace.log.fs import File, FileSystem, read_exactly, remove_tree, write_all
from tailrace.log.options import LogOptions
from tailrace.log.rolling import must_roll_before
from tailrace.log.scan import Facts
from tailrace.log.sidefiles import side_path

__all__ = ["Stage", "discard", "pack", "placed_path", "staging_path", "sweep", "withdraw"]

_AT_ONCE = 8 << 20  # so much is sent to the disk while the next is made
ABANDONED_MS = 24 * 3_600_000


def staging_path(folder: str, name: str = "") -> str:
    """A file, by its name in a log's staging folder; or that folder."""
    return os.path.join(side_path(folder, "staging"), name).rstrip("/")


def placed_path(staged: str) -> str:
    """Where a staged file is that has its offsets and is about to become a segment."""
    return f"{staged}.placed"


class Stage:
    """Writes batches of a transaction to new files, each of which may become a segment by the roll
    rule. Not thread-safe.

    `finish` returns what was written, when it is on the disk. If it is not called nothing comes of
    it. Others of the same transaction remove its folder when they are done, with all that is in it,
    or when they are given up: whoever takes in finds what is missing.
    """

    def __init__(
        self,
        fs: FileSystem,
        folder: str,
        transaction: str,
        options: LogOptions,
        check_room: Callable[[], None] = lambda: None,
    ) -> None:
        """`options` are the log's. `check_room` raises if nothing more is to be written: it is
        asked for each file, and every few megabytes."""
        self._fs = fs
        self._folder = folder
        self._transaction = transaction
        self._options = options
        self._check_room = check_room
        self._file: File | None = None
        self._pieces: list[Piece] = []
        self._path = ""  # of the file, and what is in it
        self._facts = self._new_facts()
        self._unsent: list[tuple[int, int]] = []  # batches of the file, as size and position
        self._sent: list[tuple[int, int]] = []  # those that are on their way to the disk
        fs.make_dirs(staging_path(folder, transaction))

    def add(self, draft: Draft) -> None:
        """Write a batch."""
        is_full = must_roll_before(self._options, self._facts, draft, self._facts.next_offset)
        if self._file is not None and is_full:
            self._end_file()
        if self._file is None:
            self._check_room()
            self._path = f"{self._transaction}/{secrets.token_hex(8)}.seg"
            self._facts = self._new_facts()
            self._file = self._create(staging_path(self._folder, self._path))
        facts = self._facts
        write_all(self._file, draft.place(facts.next_offset), facts.size)
        self._unsent.append((draft.size, facts.size))
        facts.observe(facts.next_offset, draft.count, draft.size, draft.max_timestamp)
        size = facts.size - self._unsent[0][1]
        if size >= _AT_ONCE:
            self._check_room()
            self._part_with(self._sent)  # by now they are there
            self._file.part_with(size, self._unsent[0][1])
            self._sent, self._unsent = self._unsent, []

    def _new_facts(self) -> Facts:
        return Facts(0, self._options.index_interval, self._options.time_index_interval_ms)

    def _create(self, path: str) -> File:
        while True:
            try:
                return self._fs.open(path, write=True, create=True)
            except FileNotFoundError:
                self._fs.list(staging_path(self._folder))  # raises if the log is gone, too
                self._fs.make_dirs(os.path.dirname(path))

    def _part_with(self, batches: list[tuple[int, int]]) -> None:
        """What others read stays in memory instead, and so do the headers: whoever takes the file
        in writes to each, and would have to wait for the disk as often."""
        assert self._file is not None
        for size, position in batches:
            self._file.part_with(size - HEADER_SIZE, position + HEADER_SIZE)
        batches.clear()

    def _end_file(self) -> None:
        assert self._file is not None
        self._file.sync()
        if self._facts.size >= _AT_ONCE:
            self._part_with(self._sent)
            self._part_with(self._unsent)
        self._sent, self._unsent = [], []
        self._file.close()
        self._file = None
        self._pieces.append(self._piece())

    def _piece(self) -> Piece:
        return Piece.of(self._path, self._facts)

    def finish(self) -> list[Piece]:
        if self._file is not None:
            self._end_file()
        try:
            self._fs.sync_dir(staging_path(self._folder, self._transaction))
        except FileNotFoundError:
            self._fs.list(staging_path(self._folder))
        return self._pieces

    def close(self) -> None:
        """Let go of it, finished or not."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def withdraw(self) -> None:
        """Let go of it, and remove what was written."""
        self.close()
        written = [*self._pieces, self._piece()] if self._path else self._pieces
        withdraw(self._fs, self._folder, self._transaction, written)


def pack(fs: FileSystem, folder: str, pieces: Sequence[Piece], options: LogOptions) -> list[Piece]:
    """Copy small pieces to their neighbours, so that none becomes a segment of its own as long as
    that of another may have it in it; the order stays. Of any two that follow one another both are
    a good part of a segment then, or together more than one may have."""
    groups: list[list[Piece]] = []
    wholes: list[Piece] = []  # what they become
    small = options.segment_bytes // 4
    for piece in pieces:
        is_small = groups and min(wholes[-1].size, piece.size) < small
        if is_small and wholes[-1].has_room(piece, options):
            groups[-1].append(piece)
            wholes[-1] = wholes[-1].and_then(piece)
        else:
            groups.append([piece])
            wholes.append(piece)
    return [_joined(fs, folder, group) for group in groups]


def _joined(fs: FileSystem, folder: str, pieces: list[Piece]) -> Piece:
    """Copied behind the first, in its file: that is mostly the largest."""
    first, others = pieces[0], pieces[1:]
    if not others:
        return first
    whole = first
    file = fs.open(staging_path(folder, first.path), write=True)
    try:
        for piece in others:
            copied = _copy(fs, staging_path(folder, piece.path), piece.size, file, whole.size)
            check_whole(piece, copied, piece.records)
            size, records = whole.size, whole.records
            behind = place_in_file(file, size + piece.size, records, size)
            check_whole(piece, copied, behind - records)
            whole = whole.and_then(piece)
        file.sync()
    finally:
        file.close()
    return whole


def _copy(fs: FileSystem, path: str, size: int, target: File, position: int) -> int:
    """Not all of it at once: it may be most of a segment. How much there was."""
    copied = 0
    file = fs.open(path)
    try:
        while part := read_exactly(file, min(_AT_ONCE, size - copied), copied):
            write_all(target, part, position + copied)
            copied += len(part)
    finally:
        file.close()
    return copied


def read_placed(fs: FileSystem, folder: str, piece: Piece, base: int) -> bytearray:
    """The batches of a piece, with offsets from `base` on."""
    file = fs.open(staging_path(folder, piece.path))
    try:
        data = bytearray(read_exactly(file, piece.size, 0))
    finally:
        file.close()
    check_whole(piece, len(data), place(data, base) - base)
    return data


def check_whole(piece: Piece, size: int, records: int) -> None:
    """A file that is not what its writer said was not written to the end, or by somebody else."""
    if (size, records) != (piece.size, piece.records):
        raise Corrupt(
            f"the staged file {piece.path} has {size} bytes and {records} records, and should have "
            f"{piece.size} and {piece.records}"
        )


def discard(fs: FileSystem, folder: str, transaction: str) -> None:
    """Remove what is left of a transaction."""
    remove_tree(fs, staging_path(folder, transaction))


def withdraw(fs: FileSystem, folder: str, transaction: str, pieces: Sequence[Piece]) -> None:
    """Remove what some have staged for a transaction. Others may have staged the same for it, to be
    taken in yet."""
    for piece in pieces:
        staged = staging_path(folder, piece.path)
        for path in (staged, placed_path(staged)):
            with contextlib.suppress(FileNotFoundError):
                fs.unlink(path)
    with contextlib.suppress(OSError):  # it is not empty, or gone
        fs.remove_dir(staging_path(folder, transaction))


def sweep(fs: FileSystem, folder: str, now_ms: int, older_than_ms: int = ABANDONED_MS) -> int:
    """Remove transactions to which nobody has written for long: of writers that died, or were told
    to stop and went on. How many."""
    swept = 0
    with contextlib.suppress(FileNotFoundError):
        for entry in fs.list(staging_path(folder)):
            newest = max([entry.modified_ms, *_modified(fs, staging_path(folder, entry.name))])
            if newest < now_ms - older_than_ms:
                discard(fs, folder, entry.name)
                swept += 1
    return swept


def _modified(fs: FileSystem, path: str) -> Iterable[int]:
    with contextlib.suppress(OSError):
        return [entry.modified_ms for entry in fs.list(path)]
    return []
