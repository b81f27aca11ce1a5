"""The end of the log: the segment that is being written.

`Tail.append` puts one batch at the end and gives it its offset; it does not make it durable
(`commit.py` does). It is called with the turn to write and is the hottest path of the package, so
the usual case makes one comparison per rule and everything rare is in `prepare`.

A failed or interrupted write, or a writer that was killed, leaves bytes behind the last batch that
is known. Whoever has the turn next settles them, by the rule of recovery: whole batches are taken
in, for somebody may have seen them, and what is not whole is cut off.

A writer that is alone keeps the indexes of its segment in memory and mirrors them into the files.
Once another process has appended to the segment it is *blind*: it leaves the indexes alone, and
whoever rolls makes them from the bytes.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Final

from tailrace.errors import Closed, NotWritten, OutcomeUnknown
from tailrace.kernel import Draft
from tailrace.log.board import Note
from tailrace.log.commit import Committer, Past, Rolled, Written
from tailrace.log.extents import Extent, Extents
from tailrace.log.fs import File, is_zeros, write_all
from tailrace.log.index import IndexFile, TimeIndex
from tailrace.log.options import RELATIVE_OFFSET_MAX, FlushMode, LogOptions
from tailrace.log.recovery import keep_aside
from tailrace.log.rolling import POSITION_MAX, index_room, must_roll
from tailrace.log.scan import Facts, header_at, scan
from tailrace.log.segments import Catalog, remove_segment, segment_path
from tailrace.log.sidefiles import Reserved

if sys.version_info >= (3, 12):
    from collections.abc import Buffer
else:
    from typing_extensions import Buffer

__all__ = ["NEXT_OFFSET", "Tail"]

NEXT_OFFSET: Final = 3  # in Tail.state

_NEVER = 1 << 63

# How many offsets are reserved at a time. After a power cut the log steps over what was left.
_RESERVED_OFFSETS = 1 << 20

# How many segments an `async` log may be ahead of the disk before a roll waits. At half of that it
# is time to flush, whatever the interval: one half goes to the disk while the other fills.
_ROLLED_MAX = 16
_ROLLED_MANY = _ROLLED_MAX // 2


# How far the file of a `sync` log is made longer than what is in it. A file that grows has its new
# size written with every sync, which then takes a third longer. Zeros behind the last batch are cut
# off by a roll, a close, or recovery.
_AHEAD = 1 << 20


class Tail:
    """The active segment with its two index files. Not thread-safe but for `written` and `end`,
    which readers and flushes may look at any time."""

    def __init__(
        self,
        catalog: Catalog,
        options: LogOptions,
        *,
        flush: FlushMode,
        log_flush: FlushMode,
        reserved: Reserved | None,
    ) -> None:
        """`flush` is the mode of the handle, `log_flush` the log's own; `reserved` is there if
        readers see records before they are durable. Then `begin` or `attach`."""
        self._catalog = catalog
        self._options = options
        self.flush = flush
        self._log_flush = log_flush
        self._reserved = reserved
        self.committer: Committer  # set by the log, which ties the two together
        self.hurry: Callable[[], object] | None = None  # has somebody else flush now
        # Tells the other writers of a new segment, before it takes a record.
        self.announce: Callable[[int, int, int], object] = lambda base, size, next_offset: None
        # What others may look at any time is changed by one assignment. Nothing is kept beside it,
        # so an interrupt cannot leave two truths.
        self.state: Written
        self._unmirrored: int  # index entries that the files lack
        self._index_files: tuple[IndexFile, ...] = ()
        self._facts: Facts
        self._blind = False
        self._extended: int  # as far as the file is long enough
        self._index_due: int  # the size of the segment with which the next index entry comes
        self._closed = False
        self._unsettled = False

    def begin(self, facts: Facts, sealed: Extents) -> None:
        """Go on in the segment of which `facts` tells all."""
        self._start(self._open_files(facts.base), facts, Past(sealed, (), named=True))

    def attach(self, note: Note, sealed: Extents, durable_segment: int) -> None:
        """Join others, who may not have flushed what is from `durable_segment` on."""
        unflushed = sealed[sealed.index_of(durable_segment) :]
        rolled = self._open_rolled(unflushed, note.segment)
        self._start_blind(note, Past(sealed, rolled, self._log_flush is FlushMode.SYNC))

    # --- what others see --------------------------------------------------------------------

    @property
    def base(self) -> int:
        return self.state[1]

    @property
    def size(self) -> int:
        return self.state[2]

    @property
    def began_ms(self) -> int | None:
        """The time from which the age of the segment counts, if there is something in it."""
        return self._facts.first_timestamp if self.size else None

    @property
    def end_offset(self) -> int:
        """The offset of the next record. It changes under the append lock only."""
        return self.state[NEXT_OFFSET]

    def written(self) -> Written:
        return self.state

    def extents(self) -> tuple[Extents, int]:
        """Every segment, the active one as far as it is written, and the end offset then."""
        _file, base, size, next_offset, past = self.state
        return past.extents.ending_with(Extent(base, size)), next_offset

    def drop(self, count: int) -> None:
        """Forget the first segments, whose files are about to go."""
        file, base, size, next_offset, past = self.state
        behind = tuple(segment for segment in past.rolled if not self._is_done_with(segment))
        self.state = (file, base, size, next_offset, Past(past.extents[count:], behind, past.named))
        self._retire(past.rolled, behind)

    # --- other writers ----------------------------------------------------------------------

    def go_on(self, segment: int, size: int, next_offset: int) -> bool:
        """Go on where another writer has left the segment, if we are blind to it already: what
        writers do who take turns. True if there is nothing else to do."""
        file, base, known_size, _next_offset, past = self.state
        if segment != base or not self._blind or not known_size:
            return False
        self.state = (file, base, size, next_offset, past)
        return True

    def follow(self, note: Note, sealed: Extents | None) -> None:
        """Go on where another writer has left the log; `sealed` are the segments before the active
        one, if they have changed. Doing it twice does no harm."""
        file, base, size, _next_offset, past = self.state
        extents = past.extents if sealed is None else sealed
        if note.segment == base:
            if note.size != size and not self._blind:
                self._catalog.remember(self._update_facts())
                self._go_blind()
            if note.size and not size:  # the first batch is another's
                self._facts = self._facts_of(file, base, note.size)
                self._roll_position = -1
            past = Past(extents, past.rolled, past.named)
            self.state = (file, base, note.size, note.next_offset, past)
            return
        between = extents[extents.index_of(base) :]
        rolled = past.rolled
        if between and between[0].base == base:
            end_offset = between[1].base if len(between) > 1 else note.segment
            rolled = (*rolled, Rolled(end_offset, file))
            between = between[1:]
        else:  # retention has taken it already
            self.committer.retire(file)
        rolled += self._open_rolled(between, note.segment)
        behind = tuple(segment for segment in rolled if not self._is_done_with(segment))
        self._go_blind()
        self._start_blind(note, Past(extents, behind, self._log_flush is FlushMode.SYNC))
        self._retire(rolled, behind)

    def _open_rolled(self, extents: Extents, end_offset: int) -> tuple[Rolled, ...]:
        """The files of segments that others may not have flushed. In a `sync` log they have."""
        if self.flush is FlushMode.NONE or self._log_flush is FlushMode.SYNC:
            return ()
        ends = [*(extent.base for extent in extents), end_offset][1:]
        rolled = []
        for extent, end in zip(extents, ends, strict=True):
            with contextlib.suppress(FileNotFoundError):  # retention was faster
                path = segment_path(self._catalog.folder, extent.base)
                rolled.append(Rolled(end, self._catalog.fs.open(path, write=True)))
        return tuple(rolled)

    def _start_blind(self, note: Note, past: Past) -> None:
        path = segment_path(self._catalog.folder, note.segment)
        file = self._catalog.fs.open(path, write=True)
        self._roll_position = -1
        self._extended = 0
        self._facts = self._facts_of(file, note.segment, note.size)
        self._catalog.active = note.segment
        self._blind = True
        self._index_due = self._time_index_due = _NEVER if note.size else 0
        self.state = (file, note.segment, note.size, note.next_offset, past)

    def _facts_of(self, file: File, base: int, size: int) -> Facts:
        """What a blind writer needs to know of a segment: when it began."""
        facts = self._catalog.new_facts(base)
        header = header_at(file, 0, size)
        if header is not None:
            facts.first_timestamp = facts.max_timestamp = header.max_timestamp
        return facts

    def _go_blind(self) -> None:
        """Somebody else has written to the segment, or may have."""
        self._catalog.live = None
        self._blind = True
        self._index_due = self._time_index_due = _NEVER
        files, self._index_files = self._index_files, ()
        for index in files:
            index.close()

    # --- append -----------------------------------------------------------------------------

    def append(self, draft: Draft) -> int:
        """Write the batch and return the offset of its first record."""
        offset = self.state[NEXT_OFFSET]
        self.write(draft.place(offset), draft.size, draft.count, draft.max_timestamp)
        return offset

    def write(self, data: Buffer, size: int, count: int, timestamp: int) -> None:
        """Write a batch that was placed at the end offset; `timestamp` is its greatest."""
        file, base, position, offset, past = self.state
        if (
            position + size > self._roll_position
            or timestamp > self._roll_timestamp
            or offset + count > self._offset_bound
            or self._unsettled
            or self.committer.failure is not None
        ):
            self.prepare(size, count, timestamp)
            file, base, position, offset_now, past = self.state
            if offset_now != offset:
                raise NotWritten(
                    f"{self._where()}: the append before was interrupted, and turns out to be in "
                    "the log; repeat this one"
                )
        self._unsettled = True
        try:
            written = file.pwrite(data, position)
            if written != size:
                write_all(file, memoryview(data)[written:], position + written)
        except OSError as error:
            self._settle_failed(error)
            return  # it is in the file all the same
        end = position + size
        if end >= self._index_due or timestamp >= self._time_index_due:
            self._index(offset, position, size, timestamp)
        if timestamp > self._facts.max_timestamp:
            self._facts.max_timestamp = timestamp
        self.state = (file, base, end, offset + count, past)
        self._unsettled = False

    def _index(self, offset: int, position: int, size: int, timestamp: int) -> None:
        """Give the batch its index entries, if it is due for any."""
        facts = self._facts
        first = not position
        if first:
            facts.first_timestamp = facts.max_timestamp = timestamp
        if self._blind:  # only the first batch comes here
            self._index_due = self._time_index_due = _NEVER
            self._roll_position = -1
            return
        if position + size >= self._index_due:
            facts.offsets.add(offset, position)
            self._index_due = position + size + facts.offsets.interval
        facts.times.observe(offset, timestamp)
        self._time_index_due = facts.times.next_timestamp
        self._unmirrored += 1
        if first or self._unmirrored == IndexFile.BLOCK:
            for index in self._index_files:
                index.catch_up()
            self._unmirrored = 0
        if first:
            self._roll_position = -1  # the bounds of an empty segment were others

    def _update_facts(self) -> Facts:
        """The facts, with what `append` leaves to be derived."""
        _file, _base, size, next_offset, _past = self.state
        facts = self._facts
        facts.records += next_offset - facts.next_offset
        facts.size, facts.next_offset = size, next_offset
        return facts

    def _settle_failed(self, error: OSError) -> None:
        """What is left of a write that failed? Returns if it is all there."""
        before = self.end_offset
        try:
            self._settle(keep=False)
        except OSError as second:
            raise OutcomeUnknown(
                f"{self._where()}: {error}; what was written cannot be taken back: {second}"
            ) from error
        if self.end_offset == before:
            raise NotWritten(f"{self._where()}: {error}") from error

    def _settle(self, *, keep: bool = True) -> None:
        """Take in the whole batches behind the end, and cut off what is not whole; `keep` says
        that its bytes go to the quarantine."""
        file, base, size, next_offset, past = self.state
        facts = self._catalog.new_facts(base)
        facts.size, facts.next_offset = size, next_offset
        stop = file.size()
        scan(file, facts, stop, durable_size=0, contiguous=True)
        # An index entry may be there for what is not, or the other way round.
        self._go_blind()
        self.state = (file, base, facts.size, facts.next_offset, past)
        if facts.size < stop and not is_zeros(file, facts.size, stop):
            if keep:
                keep_aside(self._catalog.fs, self._catalog.folder, self._where(), facts.size, stop)
            file.truncate(facts.size)
            self._extended = 0
            self._roll_position = -1
            if self.flush is not FlushMode.NONE:
                self.committer.force()  # or a power cut might bring it back
        self._unsettled = False

    def prepare(self, size: int, count: int, timestamp: int, entries_size: int = 0) -> None:
        """The rare cases before an append, of one batch or of more with so many bytes of entries in
        the indexes. None of them changes the end offset."""
        if self._closed:
            raise Closed(f"{self._catalog.folder} is closed")
        if self.committer.failure is not None:
            raise NotWritten(
                f"{self._catalog.folder}: a flush failed ({self.committer.failure}) and nothing "
                "can be appended; reopen the log"
            )
        try:
            if self._facts.base != self.base:
                self._undo_roll()
            if self._unsettled:
                self._settle(keep=False)
            if self._must_roll(size, count, timestamp, entries_size):
                self.roll()
            self._extend(self.size + size)
            end = self.end_offset + count
            if self._reserved is not None and end > self._reserved.offset:
                self._reserved.store(end + _RESERVED_OFFSETS)
        except (OSError, OutcomeUnknown) as error:  # of what was appended before
            raise NotWritten(f"{self._where()}: {error}") from error
        self._set_bounds()

    def _extend(self, end: int) -> None:
        """Make the file longer than `end`, if that helps."""
        if end <= self._extended:
            return
        self._extended = POSITION_MAX
        if self._log_flush is FlushMode.SYNC and end + _AHEAD <= self._options.segment_bytes:
            with contextlib.suppress(OSError):  # it does without
                self.state[0].truncate(end + _AHEAD)
                self._extended = end + _AHEAD

    def _must_roll(self, size: int, count: int, timestamp: int, entries_size: int) -> bool:
        """The roll rule. An empty segment never rolls."""
        return bool(self.size) and must_roll(
            self._options,
            self.size + size,
            timestamp - self._facts.first_timestamp,
            self.end_offset + count - self.base,
            lambda: self._index_room() - entries_size,
        )

    def _index_room(self) -> int:
        """How many bytes of entries the fuller index has left, the next one not counted."""
        facts, options = self._facts, self._options
        if self._blind:
            # At worst each record is a batch, and each batch has an entry.
            most = self.end_offset - self.base
            times_size = TimeIndex.HEADER.size + most * TimeIndex.ENTRY.size
            room = index_room(options, 0, times_size)
            if room >= 0:
                return room
            facts = self._catalog.facts(Extent(self.base, self.size))
        return index_room(options, facts.offsets.file_size, facts.times.file_size)

    def _set_bounds(self) -> None:
        """Fold the roll rule into the numbers that `append` compares with. They hold whoever
        appends."""
        facts, options = self._facts, self._options
        if not self._blind:
            self._update_facts()
        self._roll_position = min(options.segment_bytes, POSITION_MAX, self._extended)
        self._roll_timestamp = facts.first_timestamp + options.segment_age_ms
        if not self.size:
            self._roll_position = POSITION_MAX
            self._roll_timestamp = _NEVER
        records = max(self._index_room(), 0) // TimeIndex.ENTRY.size
        self._offset_bound = min(self.base + RELATIVE_OFFSET_MAX + 1, self.end_offset + records)
        if self._reserved is not None:
            self._offset_bound = min(self._offset_bound, self._reserved.offset)

    def adopt(self, options: LogOptions) -> None:
        """Go on with other limits. With the lock."""
        self._options = options
        self._roll_position = -1  # the next append looks, and sets the bounds

    # --- segments ---------------------------------------------------------------------------

    def roll(self) -> None:
        """Seal the active segment and go on in a new one.

        A `sync` log is durable up to here before it goes on. An `async` one is not, or it would be
        no faster than the disk: the segment is left to the next flush, within limits.
        """
        file, base, size, end_offset, past = self.state
        if self.flush is FlushMode.SYNC:
            # Never beside another flush: if that one fails, a success here would prove nothing.
            self.committer.wait(end_offset)
            self.trim()
        elif len(past.rolled) >= _ROLLED_MAX:
            self.committer.wait(past.rolled[0].end_offset)
        old, old_files = self._complete_indexes(), self._index_files
        rolled = (*past.rolled, Rolled(end_offset, file))
        behind = tuple(segment for segment in rolled if not self._is_done_with(segment))
        named = self.flush is not FlushMode.ASYNC
        self._create(end_offset, Past(past.extents.and_then(Extent(base, size)), behind, named))
        for index in old_files:
            index.close()
        self._retire(rolled, behind)
        if old is not None:
            self._catalog.remember(old)
            self._catalog.seal(old)
        if self.hurry is not None and len(behind) >= _ROLLED_MANY:
            self.hurry()

    def skip_to(self, offset: int) -> None:
        """Go on at a higher offset, in a log that has no records; the old segment is not its
        any more."""
        file, _base, size, end_offset, past = self.state
        assert not size
        assert end_offset < offset
        old_files = self._index_files
        self._create(offset, Past(Extents(), past.rolled, named=True))
        for index in old_files:
            index.close()
        self.committer.retire(file)

    def _complete_indexes(self) -> Facts | None:
        """Write what the index files lack. `None` if the segment is damaged: it is not sealed."""
        if not self._blind:
            for index in self._index_files:
                index.finish()
            return self._update_facts()
        extent = Extent(self.base, self.size)
        facts = self._catalog.facts(extent, whole=True)  # writers that died were taken over
        if facts.damages or facts.size != extent.size:
            return None
        with contextlib.suppress(OSError):  # whoever needs them makes them
            self._catalog.store_indexes(facts)
        return facts

    def trim(self) -> None:
        """Cut off what is behind the last batch, durably."""
        file, _base, size, _next_offset, _past = self.state
        if file.size() > size:
            file.truncate(size)
            self._extended = 0
            self.committer.force()

    def _is_done_with(self, segment: Rolled) -> bool:
        """Has nobody to sync it any more?"""
        return self.flush is FlushMode.NONE or segment.end_offset <= self.committer.durable

    def _retire(self, rolled: tuple[Rolled, ...], behind: tuple[Rolled, ...]) -> None:
        for segment in rolled:
            if segment not in behind:
                self.committer.retire(segment.file)

    def _create(self, base: int, past: Past) -> None:
        facts = self._catalog.new_facts(base)
        try:
            files = self._open_files(base)
            try:
                if files[0].size():
                    path = segment_path(self._catalog.folder, base)
                    raise FileExistsError(f"{path} exists and is not empty")
                write_all(files[1], facts.offsets.to_bytes(), 0)
                write_all(files[2], facts.times.to_bytes(), 0)
                if past.named:
                    self._catalog.fs.sync_dir(self._catalog.folder)
            except BaseException:
                for file in files:
                    file.close()
                raise
        except BaseException:
            # The old segment may still take appends, and then this name would be in the middle of
            # its offsets.
            self._discard_empty(base)
            raise
        self._start(files, facts, past)

    def _discard_empty(self, base: int) -> None:
        """Remove a segment without records; what stays of it does no harm, an open removes it."""
        with contextlib.suppress(OSError):
            fs, folder = self._catalog.fs, self._catalog.folder
            if fs.stat(segment_path(folder, base)).size == 0:
                remove_segment(fs, folder, base)

    def _open_files(self, base: int) -> list[File]:
        fs, folder = self._catalog.fs, self._catalog.folder
        files: list[File] = []
        try:
            for extension in ("seg", "idx", "tix"):
                path = segment_path(folder, base, extension)
                files.append(fs.open(path, write=True, create=True))
        except OSError:
            for file in files:
                file.close()
            raise
        return files

    def _start(self, files: list[File], facts: Facts, past: Past) -> None:
        """Go on in a segment. The state comes last: after an interrupt in here the facts are not
        those of the state's segment, and the next append sees that."""
        segment, idx, tix = files
        self._roll_position = -1  # the next append looks, and sets the bounds
        self._extended = 0
        self._facts = self._catalog.live = facts
        self._catalog.active = facts.base
        self._blind = False
        self._index_files = (IndexFile(idx, facts.offsets), IndexFile(tix, facts.times))
        self._index_due = facts.size + facts.offsets.interval if facts.size else 0
        self._time_index_due = facts.times.next_timestamp
        self._unmirrored = 0
        self.announce(facts.base, facts.size, facts.next_offset)
        self.state = (segment, facts.base, facts.size, facts.next_offset, past)

    def _undo_roll(self) -> None:
        """A roll was interrupted half way: go on where it started, and roll again if need be."""
        file, base, size, next_offset, _past = self.state
        self._go_blind()
        self._catalog.active = base
        self._facts = self._facts_of(file, base, size)
        self._roll_position = -1
        self.announce(base, size, next_offset)
        self._discard_empty(next_offset)

    def rewrite_indexes(self) -> None:
        """Make the index files equal to what is in memory."""
        for index in self._index_files:
            index.rewrite()

    @property
    def is_settled(self) -> bool:
        """Is there nothing that an interrupted append, or roll, may have left?"""
        return not self._unsettled and self._facts.base == self.base

    def settle(self) -> None:
        """Deal with what an interrupted append may have left."""
        if self._facts.base != self.base:
            self._undo_roll()
        if self._unsettled:
            self._settle(keep=False)

    def take_over(self) -> None:
        """Deal with what a writer has left that died while it had the turn."""
        self._settle()
        self._extended = 0  # the file may have been cut behind the last batch
        self._roll_position = -1
        if self.end_offset != self.base:
            self._discard_empty(self.end_offset)  # a roll that was not announced

    def stop(self) -> None:
        """Refuse further appends."""
        self._closed = True
        self._roll_position = -1

    def finish(self) -> None:
        """Complete and seal the indexes."""
        facts = self._complete_indexes()
        if facts is not None:
            self._catalog.seal(facts)

    def close(self) -> None:
        """Let go of the files."""
        for index in self._index_files:
            index.close()
        if not hasattr(self, "state"):  # it could not be opened
            return
        for file in (self.state[0], *(segment.file for segment in self.state[4].rolled)):
            file.close()

    def _where(self) -> str:
        return segment_path(self._catalog.folder, self.base)
