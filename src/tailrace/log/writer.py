"""A log that is open for writing: joining the others, recovery, turns, retention, leaving."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from functools import partial

from tailrace.errors import Closed, NotWritten, OffsetOutOfRange, OutcomeUnknown
from tailrace.kernel import Draft
from tailrace.log import opening
from tailrace.log.adoption import Adoption, tidy_up
from tailrace.log.board import ATTENTION, POISONED, Board, Note
from tailrace.log.commit import Committer, Written
from tailrace.log.extents import Extent, Extents
from tailrace.log.fs import FileSystem
from tailrace.log.manner import Manner
from tailrace.log.members import Members
from tailrace.log.options import FlushMode, LogOptions, Retention
from tailrace.log.producer_table import ProducerTable
from tailrace.log.producers import Appended, Once
from tailrace.log.reader import Reader, View
from tailrace.log.recovery import Diagnosis, diagnose, treat
from tailrace.log.retention import VacuumReport, count_expired, delete_before
from tailrace.log.sealed import Sealed
from tailrace.log.segments import Catalog
from tailrace.log.sidefiles import (
    CleanMarker,
    Gaps,
    Identity,
    Poison,
    Reserved,
    StartOffset,
    Watermark,
    WatermarkFile,
    side_path,
)
from tailrace.log.tail import Tail
from tailrace.log.turn import FlushTurn, Turn, keeper
from tailrace.log.upkeep import Chore, Upkeep, flush_chores

__all__ = ["Writer"]


class Writer:
    """One of the writers of a log. Thread-safe: `lock` orders what this handle does to the log,
    `turn` what all of them do; flushes run outside of both. Whoever calls `tail.append` has the
    lock and the turn."""

    def __init__(self, fs: FileSystem, folder: str, options: LogOptions, manner: Manner) -> None:
        self._fs, self._folder, self._options, self._manner = fs, folder, options, manner
        self.lock = threading.Lock()
        self._closed, self.wall_ms = False, manner.wall_ms
        self._upkeep: Upkeep | None = None
        self._flush_lock = threading.Lock()  # of a log that is not flushed by itself
        self._seen: Written | None = None  # the state, when the keeper looked last
        self.diagnosis: Diagnosis | None = None  # if we were the first
        fs.make_dirs(side_path(folder, "").rstrip("/"))
        self._resources = contextlib.ExitStack()  # the turn goes last
        try:
            self._open()
        except BaseException:
            self._resources.close()
            raise
        if manner.upkeep:
            self._start_upkeep()

    # --- open and close ---------------------------------------------------------------------

    def _open(self) -> None:
        fs, folder = self._fs, self._folder
        self.board = Board(fs, folder)
        self._resources.callback(self.board.close)
        self.turn = Turn(fs, folder, self.board, self._manner.mode)
        self._resources.callback(self.turn.close)
        self._members = Members(fs, folder, self._manner.mode)
        self._resources.callback(self._members.close)
        self._flush_turn = FlushTurn(fs, folder, self.board)
        self._resources.callback(self._flush_turn.close)
        self.turn.take()
        alone = self._members.join()
        identity = Identity.load(fs, folder)
        self.log_flush, self.flush_mode = opening.FlushModes.decide(folder, identity, self._options)
        syncs = self.flush_mode is not FlushMode.NONE
        self.catalog = Catalog(fs, folder, self._options, seals=syncs)
        self._resources.callback(self.catalog.close)
        self._sealed = Sealed(self.catalog)
        self.gaps = Gaps(fs, folder)
        self._start_file = StartOffset(fs, folder)
        self._resources.callback(self._start_file.close)
        self._reserved: Reserved | None = None
        if self.log_flush is FlushMode.ASYNC:
            self._reserved = Reserved(fs, folder)
            self._resources.callback(self._reserved.close)
        self.tail = Tail(
            self.catalog,
            self._options,
            flush=self.flush_mode,
            log_flush=self.log_flush,
            reserved=self._reserved,
        )
        self._resources.callback(self.tail.close)
        self._watermark_file = WatermarkFile(fs, folder)
        self._resources.callback(self._watermark_file.close)
        if alone or not self.board.is_set_up or self.board.poisoned:
            with self._flush_turn:
                self._recover(identity)
        else:
            assert identity is not None
            self._attach(identity.sparse_below)
        self._resources.callback(self.committer.close)
        self._layout, self._fronts = self.board.layout, self.board.fronts
        self.tail.announce = self._announce
        self.end_turn()
        if self.turn.exclusive:
            self.turn.give()

    def _recover(self, identity: Identity | None) -> None:
        """Nobody else is here, or they cannot go on: whatever there is, make a log of it."""
        fs, folder = self._fs, self._folder
        if Adoption.load(fs, folder) is not None:
            tidy_up(fs, folder)
        found = diagnose(fs, self.catalog, self.gaps, self.log_flush)
        if not found.clean and self.flush_mode is not FlushMode.NONE:
            opening.sync_side_files(fs, folder)
        treat(fs, self.catalog, self.gaps, found)
        self.diagnosis = found
        self._start_offset = self._start_file.load()
        if identity is None or not found.ours:
            # From here on it is ours; what is there may have gaps, and a start of its own.
            sparse_below = 0 if found.ours else found.next_offset
            identity = Identity(self.log_flush, sparse_below)
            identity.store(fs, folder)
        first = found.extents[0].base if found.extents else found.next_offset
        if not found.ours and first > self._start_offset:
            self._store_start(first)
        self._begin_tail(found)
        if found.poison is not None:
            Poison.remove(fs, folder)
        CleanMarker.remove(fs, folder)
        _file, segment, size, next_offset, _past = self.tail.written()
        self.board.set_up(Note(segment, size, next_offset, self._start_offset))
        self._flush_turn.incarnation = self.board.incarnation
        self._set_producers(identity.sparse_below)

    def _begin_tail(self, found: Diagnosis) -> None:
        facts = found.tail
        is_new = facts is None or not opening.can_go_on(facts, found)
        if facts is None or is_new:
            facts = self.catalog.new_facts(found.next_offset)
        self.tail.begin(facts, Extents(e for e in found.extents if e.base != facts.base))
        if is_new or not found.clean:
            self.tail.rewrite_indexes()
        if is_new:
            self._fs.sync_dir(self._folder)
        syncs = self.flush_mode is not FlushMode.NONE
        if syncs and not found.synced:
            opening.make_durable(self._fs, self._folder, found, self.tail.extents()[0])
        written = self.tail.written()[1:4] if syncs else None
        boot_id = self._fs.boot_id()
        watermark = opening.first_watermark(found, self._start_offset, written, boot_id)
        self._watermark_file.load()
        self._watermark_file.store(watermark, sync=not found.synced)
        self._set_committer(watermark)

    def _set_committer(self, watermark: Watermark) -> None:
        self.committer = self.tail.committer = Committer(
            self._fs, self._folder, self._written, self._watermark_file, watermark, self._flush_turn
        )

    def _set_producers(self, sparse_below: int) -> None:
        reader = Reader(self.catalog, self.gaps, sparse_below, lambda: self._start_offset)
        expiry_ms, end_offset = self._options.producer_expiry_ms, self.tail.end_offset
        self.producers = ProducerTable(
            self._fs, self._folder, reader, expiry_ms, end_offset, self.wall_ms
        )

    def _attach(self, sparse_below: int) -> None:
        """Others write already: go on where they are."""
        self._watermark_file.open()
        watermark = self._watermark_file.load()
        note = self.board.note()
        self._start_offset = note.start_offset
        self.gaps.load()
        sealed = self._sealed.list(note)
        assert watermark is not None
        self.tail.attach(note, sealed, watermark.segment)
        self._flush_turn.incarnation = self.board.incarnation
        self._set_committer(watermark)
        self._set_producers(sparse_below)
        self.tail.announce = self._announce
        if self.board.is_being_written:
            self.producers.has_news = True
            self._take_over()
        self.board.begin()
        if self.log_flush is FlushMode.NONE and self.flush_mode is not FlushMode.NONE:
            # Nobody has ever flushed this log, and we are to: begin with what there is.
            with self.committer.alone():
                self._fs.sync_dir(self._folder)
                opening.sync_segments(self._fs, self._folder, sealed, watermark.segment)
                self.committer.advance(note.segment, 0, note.segment)

    def _take_over(self) -> None:
        """Somebody died in its turn, or left it so: before all was there, or durable, or told."""
        start = self._start_file.load()
        self._raise_start(start)
        if start < self._start_offset:  # it had put segments in front
            self.lower_start(start)
        tidy_up(self._fs, self._folder, self.board.note().next_offset)
        self.tail.take_over()
        if not self.tail.size and self.tail.end_offset < self._start_offset:  # it was about to
            self.tail.skip_to(self._start_offset)
        self.bump_layout()

    def _start_upkeep(self) -> None:
        options, chores = self._options, list[Chore]()
        if self.flush_mode is FlushMode.ASYNC:
            interval_s = options.flush_interval_ms / 1000
            chores += flush_chores(interval_s, self.flush_left, self._manner.along)
        if options.retention or self._start_offset > self.tail.extents()[0][0].base:
            chores += [Chore("retention", options.retention_check_interval_ms / 1000, self.vacuum)]
        if chores:
            lock = self._fs.lock(side_path(self._folder, "lock.upkeep"))
            upkeep = self._upkeep = Upkeep(self._folder, chores, lock)
            if self.flush_mode is FlushMode.ASYNC:
                self.tail.hurry = partial(upkeep.hurry, "flush")

    def close(self) -> None:
        """Make durable what we appended. The last one spares the next open a scan."""
        self.tail.stop()
        if self._upkeep is not None:
            self._upkeep.stop()
        with self.lock:
            if self._closed:
                return
            try:
                if self.committer.failure is None:
                    self._leave()
            finally:
                self._closed = True
                self._resources.close()

    def _leave(self) -> None:
        try:
            if not self.turn.held:
                self.take_turn()
        except NotWritten:
            if self.committer.failure is None:
                raise
            return  # the others know of a flush that failed, or have recovered the log since
        self.tail.settle()
        if self.flush_mode is not FlushMode.NONE:
            self.committer.flush()
        if self._members.leave():
            self._close_cleanly()
            self.board.take_down()
        else:
            self.store_producers()
            self.end_turn()

    def disown(self) -> None:
        """We are in a forked child, and the handle is the parent's: let go of it, and touch
        nothing. The locks are made anew because a thread that is not here may have held them."""
        self._closed = True
        self._upkeep = None
        self.lock = threading.Lock()
        if hasattr(self, "committer"):
            self.tail.stop()
            self.committer.disown()
            self.catalog.disown()
        self._resources.close()

    def abandon(self) -> None:
        """Let go of everything without writing anything, as a crash would."""
        if self._upkeep is not None:
            self._upkeep.stop()
        with self.lock:  # who appends just now gets to the end of it
            self._closed = True
            self.committer.abandon()
            self.tail.stop()
            self._resources.close()

    def _close_cleanly(self) -> None:
        if synced := self.flush_mode is not FlushMode.NONE:
            self.tail.trim()
            self.store_producers()
        self.tail.finish()
        _file, segment, position, end_offset, _past = self.tail.written()
        boot_id = "" if synced else self._fs.boot_id().hex()
        marker = CleanMarker(segment, position, end_offset, boot_id)
        # The records are safe by now. Without the marker the next open scans the last segment.
        with contextlib.suppress(OSError, OutcomeUnknown):
            if synced:
                with self.committer.alone():
                    self.committer.advance(segment, position, end_offset, sync=True)
                if self._reserved is not None and self._reserved.load(cache_lost=True):
                    self._reserved.store(0)  # whoever had reserved some
            marker.store(self._fs, self._folder)

    # --- turns ------------------------------------------------------------------------------

    def take_turn(self) -> None:
        """Wait for the turn, and catch up with what others did in theirs. Under `lock`."""
        turn = self.turn
        try:
            if not turn.lock.acquire_now():  # `turn.take()`, without its call
                turn.wait()
            turn.held = True
            if not self.board.notes.enter():  # somebody else was here
                self._catch_up()
            elif turn.memory[POISONED] and self.committer.failure is None:
                self._check_others()
        except BaseException as error:
            self._check_open()
            turn.drop()
            if isinstance(error, OSError | OutcomeUnknown):
                raise NotWritten(f"{self._folder}: cannot take its turn: {error}") from error
            raise
        if turn.exclusive:
            turn.give()  # as ever: the turn is ours, and the lock is free
        elif not turn.shares:
            # Nobody wants it: keep it for a while.
            self._seen = None
            self.board.keeper = os.getpid()
            keeper.add(self)

    def _catch_up(self) -> None:
        """Others have written, or died while they did."""
        board, adopted = self.board, self.board.notes.adopt()
        self.turn.disturbed()
        self.producers.has_news = True
        if adopted is not None and adopted[4] == self._layout and not board.poisoned:
            segment, size, next_offset, self._start_offset, _layout = adopted
            if self.tail.go_on(segment, size, next_offset):
                return
        self._check_others()
        note, layout = board.note(), board.layout
        has_moved = note.segment != self.tail.base or layout != self._layout
        self._start_offset = note.start_offset
        if self._fronts != board.fronts:
            self._list_anew(note)
        else:
            sealed = self._sealed.since(self.tail.extents()[0], note) if has_moved else None
            self.tail.follow(note, sealed)
        self._layout = layout
        if adopted is None:
            self._take_over()
            board.begin()

    def _check_others(self) -> None:
        """Raise if a flush of theirs has failed."""
        failure = self._flush_turn.failure()
        if failure is not None:
            self.committer.failure = self.committer.failure or failure
            raise NotWritten(f"{self._folder}: {failure}; reopen the log")

    def end_turn(self) -> None:
        """Tell the others how far the log is written, and let them have the turn, unless we may
        keep it. Under `lock`."""
        turn = self.turn
        _file, segment, size, next_offset, _past = self.tail.state
        keeps = not turn.shares
        if turn.memory[ATTENTION]:
            keeps = False
            if self.committer.failure is None:
                self.committer.failure = self._flush_turn.failure()
        self.board.notes.put(segment, size, next_offset, self._start_offset, self._layout, keeps)
        if not keeps:
            turn.give()

    def break_off(self) -> None:
        """End a turn in which something failed. What is left of an append is looked at before the
        next one: if it is all there, that one comes behind it."""
        if not self.turn.held:
            self.turn.give_again()
        elif self.tail.is_settled:
            self.end_turn()
        elif self.turn.exclusive:
            with contextlib.suppress(OSError, OutcomeUnknown):
                self.tail.settle()
        else:
            self.turn.disturbed()
            self.turn.give()

    @contextlib.contextmanager
    def my_turn(self) -> Iterator[None]:
        """The lock and the turn, for what is not done often."""
        with self.lock:
            self._check_open()
            try:
                if not self.turn.held:
                    self.take_turn()
                yield
                self.end_turn()
            except BaseException:
                self.break_off()
                raise

    def look(self) -> bool:
        """Give the turn back if it is wanted or idle; true while it is kept. The keeper asks."""
        if not self.lock.acquire(blocking=False):
            return True  # somebody appends, and looks then
        try:
            if self._closed or not self.turn.held:
                return False
            state, seen = self.tail.state, self._seen
            if state is not seen and not self.board.memory[ATTENTION]:
                self._seen = state
                self.end_turn()  # which keeps it, and tells the others how far we are
                return self.turn.held
            self.turn.disturbed()
            self.end_turn()
            return False
        finally:
            self.lock.release()

    def _announce(self, segment: int, size: int, next_offset: int) -> None:
        # First the note: who finds the new layout has to find the new segment, too.
        self._layout = self.board.layout + 1
        self.board.notes.put(segment, size, next_offset, self._start_offset, self._layout, True)
        self.board.bump_layout()

    def bump_layout(self) -> None:
        """The set of segments has changed. The note says so, too: who compares it has to notice."""
        self.board.bump_layout()
        self._layout = self.board.layout

    def _written(self) -> Written:
        """How far the active segment is written, by whomever."""
        file, segment, _size, next_offset, past = state = self.tail.state
        note = self._peek()
        if note is not None and note.segment == segment and note.next_offset > next_offset:
            return (file, segment, note.size, note.next_offset, past)
        return state

    @property
    def end_offset(self) -> int:
        """The offset that the next record gets, as far as one can tell without the turn."""
        note, end_offset = self._peek(), self.tail.end_offset
        return end_offset if note is None else max(end_offset, note.next_offset)

    @property
    def start_offset(self) -> int:
        note = self._peek()
        return self._start_offset if note is None else note.start_offset

    def _peek(self) -> Note | None:
        """What others may have written since our last turn."""
        return None if self.turn.held or self._closed else self.board.peek()

    # --- append -----------------------------------------------------------------------------

    def append(self, draft: Draft) -> int:
        with self.lock:
            try:
                if not self.turn.held:
                    self.take_turn()
                offset = self.tail.append(draft)
                if self.turn.shares or self.turn.memory[ATTENTION]:
                    self.end_turn()
            except BaseException:
                self.break_off()
                raise
            return offset

    def append_once(self, draft: Draft, once: Once, now_ms: int) -> Appended:
        """Append, unless this producer's sequence is in the log already."""
        with self.my_turn():
            if (found := self.producers.find(once, self.everything())) is not None:
                return found
            base = self.tail.base
            try:
                found = Appended(self.tail.append(draft), draft.count)
                self.producers.add(once, found, now_ms)
            except BaseException:
                self.producers.forget()  # interrupted between the two: the log knows
                raise
            # Rolled: bounds what the next one has to read. An `async` log does it with a flush.
            if self.tail.base != base and self.flush_mode is not FlushMode.ASYNC:
                self.store_producers()
            return found

    def find(self, once: Once) -> Appended | None:
        """Where this producer's sequence is in the log; `None` if it is new."""
        with self.my_turn():
            return self.producers.find(once, self.everything())

    def everything(self) -> View:
        extents, end_offset = self.tail.extents()
        return View(extents, self._start_offset, end_offset)

    def store_producers(self) -> None:
        self.producers.store(self.everything(), self.committer.durable)

    # --- durability -------------------------------------------------------------------------

    def flush(self) -> None:
        """Make everything durable that was appended so far, by whomever."""
        self._check_open()
        if not self.turn.held:
            with self.my_turn():  # catches up with the others, of whom one may keep its turn
                pass
        if self.flush_mode is not FlushMode.NONE:
            self.flush_own()
            return
        # First: what is rolled from here on has to wait.
        _file, segment, position, end_offset, past = self._written()
        extents = past.extents.ending_with(Extent(segment, position))
        sync = partial(opening.sync_segments, self._fs, self._folder, extents)
        with self._flush_lock:
            self.committer.sync_by(sync, segment, position, end_offset)

    def flush_left(self) -> None:
        """Make durable what we appended, and what is left of one who rolled or was killed."""
        note = self._peek()
        if note is not None and (note.segment != self.tail.base or self.board.is_being_written):
            with self.my_turn():
                pass
        self.flush_own()

    def flush_own(self) -> None:
        """Make durable what we appended, and what we know of the others."""
        segment = self.committer.watermark.segment
        self.committer.flush()
        if self.flush_mode is FlushMode.ASYNC and self.committer.watermark.segment != segment:
            with contextlib.suppress(Closed), self.my_turn():  # who closes it stores them, too
                self.store_producers()

    # --- deletion ---------------------------------------------------------------------------

    def truncate_before(self, offset: int) -> None:
        """Raise the log start offset, durably; whole segments go with the next vacuum."""
        with self.my_turn():  # catches up with the others
            low, high = self._start_offset, self.tail.end_offset
        if not 0 <= offset <= high:
            message = f"{self._folder}: cannot start at {offset}; the log ends at {high}"
            raise OffsetOutOfRange(message, offset=offset, low=low, high=high)
        if self.flush_mode is not FlushMode.NONE:
            self.committer.wait(offset)
        with self.my_turn():
            self._raise_start(offset)
        if self._manner.upkeep and self._upkeep is None:  # segments may have to go now
            self._start_upkeep()

    def _raise_start(self, offset: int) -> None:
        if offset > self._start_offset:
            self.producers.keep(self.everything(), offset, self.committer.durable)
            self._store_start(offset)

    def _store_start(self, offset: int) -> None:
        opening.store_start(self._start_file, self._folder, offset)
        self._start_offset = offset

    def lower_start(self, offset: int) -> None:
        """What comes in front of the log is in its place (`prepending.py`): have it count."""
        self._store_start(offset)
        _file, segment, size, next_offset, _past = self.tail.state
        self._list_anew(Note(segment, size, next_offset, offset))

    def _list_anew(self, note: Note) -> None:
        """Segments were put in front, perhaps under the names of some that we knew."""
        self.catalog.start_over()
        self.tail.follow(note, self._sealed.list(note))
        self._fronts = self.board.fronts

    def vacuum(
        self, given: Retention | None = None, below: int | None = None, start_was: int = 0
    ) -> VacuumReport:
        """Delete the segments that retention lets go, ours if none is given, below an offset;
        nothing if the log starts lower than it did when that was decided."""
        board = self.board
        with self.my_turn():
            extents, end_offset = self.tail.extents()
            if not extents[-1].size:
                extents = extents[:-1]  # the active one; each of the others has records
            start, now_ms = self._start_offset, self.wall_ms()
            limits = self._options.retention if given is None else given
            expired = count_expired(self.catalog, extents, end_offset, start, limits, now_ms, below)
            if start < start_was:  # what came back may be nowhere else
                expired = 0
            if expired:
                if self.flush_mode is not FlushMode.NONE:
                    self.committer.flush()  # what is kept instead must not go with a power cut
                if expired == len(extents) and extents[-1].base == self.tail.base:
                    self.tail.roll()
                survivors = extents[expired:]
                # The start moves before the first file goes: a crash in between leaves files that
                # the next vacuum removes, never a log that starts below what it has.
                self._raise_start(survivors[0].base if survivors else self.tail.base)
                self._sealed.let_go(extents[:expired], self._start_offset)
                self.tail.drop(expired)
                self.bump_layout()
        doomed, start = self._sealed.doomed, self._start_offset
        return delete_before(self.catalog, doomed, start, lambda: board.fronts == self._fronts)

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"{self._folder} is closed")
