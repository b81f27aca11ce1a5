"""How a writer takes in what was staged (`adoption.py`), with its turn."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import NamedTuple

from tailrace.errors import NotWritten, OutcomeUnknown
from tailrace.log.adoption import Adoption, Piece, Plan, as_little, place_in_file
from tailrace.log.board import Note
from tailrace.log.commit import Receipt
from tailrace.log.extents import Extent, Extents
from tailrace.log.fs import write_all
from tailrace.log.inputs import checked_sequence
from tailrace.log.log import Log
from tailrace.log.options import FlushMode, LogOptions
from tailrace.log.producers import Appended, Once
from tailrace.log.segments import segment_path
from tailrace.log.staging import check_whole, pack, placed_path, read_placed, staging_path
from tailrace.log.writer import Writer

__all__ = ["adopt", "is_adopted", "pack_staged"]


def adopt(log: Log, pieces: Sequence[Piece], *, producer: str, sequence: int) -> Receipt:
    """Append what was staged, all of it or nothing, unless this producer's sequence is in the log
    already: then the receipt is that of the first time. The first record of some batch names both,
    in the headers of an idempotent append."""
    if not pieces:
        raise ValueError("there is nothing to adopt")
    once = Once(*checked_sequence(producer, sequence))
    writer = log._writing()
    with writer.my_turn():
        found = writer.producers.find(once, writer.everything())
        if found is None:
            try:
                base = _Adopter(writer, log.options).take_in(pieces)
                found = Appended(base, sum(piece.records for piece in pieces))
                writer.producers.add(once, found, log._wall_ms())
            except BaseException:
                writer.producers.forget()
                raise
    return Receipt(found.offset, found.offset + found.records, found.records, log._committer)


def is_adopted(log: Log, *, producer: str, sequence: int) -> bool:
    """Is this in the log? Only a hint to save work: another process may be about to take it in, and
    `adopt` looks again with the turn to write."""
    return log._writing().find(Once(producer, sequence)) is not None


def pack_staged(log: Log, pieces: Sequence[Piece]) -> list[Piece]:
    """Put small pieces of a transaction together, before they are adopted. Those that are given are
    not to be used any more."""
    return pack(log._fs, log._folder, pieces, log.options)


class _Move(NamedTuple):
    """A staged file, and the segment that it becomes."""

    path: str
    extent: Extent


class _Adopter:
    """With the turn of a writer."""

    def __init__(self, writer: Writer, options: LogOptions) -> None:
        self._writer = writer
        self._tail = writer.tail
        self._catalog = writer.catalog
        self._fs = writer.catalog.fs
        self._folder = writer.catalog.folder
        self._options = options

    def take_in(self, pieces: Sequence[Piece]) -> int:
        """Put the batches at the end; the offset of the first."""
        tail = self._tail
        records = sum(piece.records for piece in pieces)
        tail.settle()
        little = as_little(pieces, self._options, tail.began_ms)
        newest = max(piece.max_timestamp for piece in pieces)
        size, entries_size = (little.size, little.entries_size) if little else (0, 0)
        tail.prepare(size, records, newest, entries_size)
        if not tail.size:  # it has rolled, perhaps
            little = as_little(pieces, self._options)
        plan = Plan.of(pieces, is_little=little is not None, is_empty=not tail.size)
        _file, segment, position, base, past = tail.state
        tail.announce(segment, position, base)  # as we may be about to leave it
        with self._writer.turn.in_one_go():
            try:
                moves = self._place(plan.moved, base + sum(piece.records for piece in plan.copied))
                Adoption(segment, position, base).store(self._fs, self._folder)
                self._writer.bump_layout()  # from here on they see no further
                size = self._copy(plan.copied, position, base)
                for move in moves:
                    self._fs.rename(move.path, segment_path(self._folder, move.extent.base))
                self._fs.sync_dir(self._folder)
            except (OSError, OutcomeUnknown) as error:
                message = f"{self._folder}: cannot take in what was staged: {error}"
                raise NotWritten(message) from error
            new = [Extent(segment, size), *(move.extent for move in moves)]
            self._have_it_count(past.extents, new, base + records)
        with contextlib.suppress(OSError, OutcomeUnknown):  # it is in the log, and durable
            self._make_known(new, base + records)
        return base

    def _place(self, pieces: Sequence[Piece], base: int) -> list[_Move]:
        """Give files that become segments their offsets. They have other names then: whoever is
        killed here has spoilt them."""
        tail = self._tail
        if pieces and tail.flush is not FlushMode.NONE:
            tail.committer.wait(tail.end_offset)
            tail.trim()  # nobody does later
        moves = []
        for piece in pieces:
            staged = staging_path(self._folder, piece.path)
            path = placed_path(staged)
            self._fs.rename(staged, path)
            file = self._fs.open(path, write=True)
            try:
                behind = place_in_file(file, piece.size, base)
                check_whole(piece, file.size(), behind - base)
                file.sync()
            finally:
                file.close()
            moves.append(_Move(path, Extent(base, piece.size)))
            base = behind
        return moves

    def _copy(self, pieces: Sequence[Piece], position: int, base: int) -> int:
        """Behind the last batch; the size of the segment then."""
        file = self._tail.state[0]
        for piece in pieces:
            write_all(file, read_placed(self._fs, self._folder, piece, base), position)
            position += piece.size
            base += piece.records
        if pieces and self._tail.flush is FlushMode.NONE:
            file.sync()
        elif pieces:  # if it fails, what was appended before may be lost as well
            self._tail.committer.force()
        return position

    def _have_it_count(self, before: Extents, new: list[Extent], end_offset: int) -> None:
        """Everything is in its place: go on behind it, as if another writer had written all that.
        Whoever takes over from us once it was announced goes on there as well."""
        tail, last = self._tail, new[-1]
        for extent in new[:-1]:
            before = before.and_then(extent)
        note = Note(*last, end_offset, self._writer.start_offset)
        tail.announce(*note[:3])
        try:
            Adoption.remove(self._fs, self._folder)
            tail.follow(note, before)
        except OSError as error:
            raise OutcomeUnknown(
                f"{self._folder}: what was staged may be in the log, or not ({error}). Try again"
            ) from error
        self._writer.bump_layout()

    def _make_known(self, new: list[Extent], end_offset: int) -> None:
        """What others would find out by themselves, more slowly."""
        tail, last = self._tail, new[-1]
        if tail.flush is not FlushMode.NONE:
            with tail.committer.alone():  # all of it was synced
                tail.committer.advance(*last, end_offset, sync=True)
        for extent in new[:-1]:
            facts = self._catalog.facts(extent, whole=True)
            if not facts.damages and facts.size == extent.size:
                self._catalog.save(facts)
        if tail.flush is not FlushMode.SYNC:
            tail.state[0].truncate(last.size)  # as it is: wakes those who follow
