"""The end of the log: the segment that is being written.

`Tail.append` puts one batch at the end and gives it its offset; it does not make it durable
(`commit.py` does). It is called under the log's append lock and is the hottest path of the package,
so the usual case makes one comparison per rule and everything rare is in `_prepare`.

A failed or interrupted write leaves bytes behind the last whole batch. They are cut off at once, or
if that fails before the next append; nobody reads behind `end`, so nobody sees them.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Final

from tailrace.errors import Closed, NotWritten, OutcomeUnknown
from tailrace.kernel import Draft
from tailrace.log.commit import Committer, Past, Rolled, Written
from tailrace.log.fs import File, write_all
from tailrace.log.index import IndexFile
from tailrace.log.options import RELATIVE_OFFSET_MAX, FlushMode, LogOptions
from tailrace.log.scan import Facts
from tailrace.log.segments import Catalog, Extent, remove_segment, segment_path
from tailrace.log.sidefiles import Reserved

if sys.version_info >= (3, 12):
    from collections.abc import Buffer
else:
    from typing_extensions import Buffer

__all__ = ["NEXT_OFFSET", "Tail"]

NEXT_OFFSET: Final = 3  # in Tail.state

_NEVER = 1 << 63
_POSITION_MAX = 2**32 - 1  # a position in `.idx` has 32 bits

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
        facts: Facts,
        sealed: tuple[Extent, ...],
        *,
        flush: FlushMode,
        reserved: Reserved | None,
    ) -> None:
        """`reserved` is there if readers see records before they are durable."""
        self._catalog = catalog
        self._options = options
        self._flush = flush
        self._reserved = reserved
        self.committer: Committer  # set by the log, which ties the two together
        self.hurry: Callable[[], object] | None = None  # has somebody else flush now
        # What others may look at any time is changed by one assignment. Nothing is kept beside it,
        # so an interrupt cannot leave two truths.
        self.state: Written
        self._unmirrored: int  # index entries that the files lack
        self._index_files: tuple[IndexFile, IndexFile]
        self._facts: Facts
        self._extended: int  # as far as the file is long enough
        self._index_due: int  # the size of the segment with which the next index entry comes
        self._closed: str | None = None
        self._unsettled = False
        self._start(self._open_files(facts.base), facts, Past(sealed, (), named=True))

    # --- what others see --------------------------------------------------------------------

    @property
    def base(self) -> int:
        return self.state[1]

    @property
    def size(self) -> int:
        return self.state[2]

    @property
    def end_offset(self) -> int:
        """The offset of the next record. It changes under the append lock only."""
        return self.state[NEXT_OFFSET]

    def written(self) -> Written:
        return self.state

    def extents(self) -> tuple[tuple[Extent, ...], int]:
        """Every segment, the active one as far as it is written, and the end offset then."""
        _file, base, size, next_offset, past = self.state
        return (*past.extents, Extent(base, size)), next_offset

    def drop(self, count: int) -> None:
        """Forget the first segments, whose files are about to go."""
        file, base, size, next_offset, past = self.state
        behind = tuple(segment for segment in past.rolled if not self._is_done_with(segment))
        self.state = (file, base, size, next_offset, Past(past.extents[count:], behind, past.named))
        self._retire(past.rolled, behind)

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
            self._prepare(size, count, timestamp)
            file, base, position, _same_offset, past = self.state
        self._unsettled = True
        try:
            written = file.pwrite(data, position)
            if written != size:
                write_all(file, memoryview(data)[written:], position + written)
        except OSError as error:
            self._settle(error)
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
            self._roll_position = -1  # let `_prepare` look at the next append

    def _update_facts(self) -> Facts:
        """The facts, with what `append` leaves to be derived."""
        _file, _base, size, next_offset, _past = self.state
        facts = self._facts
        facts.records += next_offset - facts.next_offset
        facts.size, facts.next_offset = size, next_offset
        return facts

    def _settle(self, error: OSError) -> None:
        """Take back a write that failed."""
        try:
            self._repair()
        except OSError as second:
            raise OutcomeUnknown(
                f"{self._where()}: {error}; what was written cannot be taken back: {second}"
            ) from error
        raise NotWritten(f"{self._where()}: {error}") from error

    def _repair(self) -> None:
        """Cut what is behind the last whole batch. An interrupted append may have left an index
        entry for it, which the next batch will make true: it starts at the same place."""
        self._facts.offsets.settle()
        self._facts.times.settle()
        file, _base, size, _next_offset, _past = self.state
        file.truncate(size)
        self._extended = 0
        if self._flush is not FlushMode.NONE:
            self.committer.force()  # or a power cut might bring it back
        self._unsettled = False

    def _prepare(self, size: int, count: int, timestamp: int) -> None:
        """The rare cases before an append. None of them changes the end offset."""
        if self._closed is not None:
            raise Closed(f"{self._catalog.folder} {self._closed}")
        if self.committer.failure is not None:
            raise NotWritten(
                f"{self._catalog.folder}: a flush failed ({self.committer.failure}) and nothing "
                "can be appended; reopen the log"
            )
        try:
            if self._facts.base != self.base:
                self._undo_roll()
            if self._unsettled:
                self._repair()
            if self._must_roll(size, count, timestamp):
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
        self._extended = _POSITION_MAX
        if self._flush is FlushMode.SYNC and end + _AHEAD <= self._options.segment_bytes:
            with contextlib.suppress(OSError):  # it does without
                self.state[0].truncate(end + _AHEAD)
                self._extended = end + _AHEAD

    def _must_roll(self, size: int, count: int, timestamp: int) -> bool:
        """The roll rule. An empty segment never rolls."""
        facts, options = self._update_facts(), self._options
        if not facts.size:
            return False
        return (
            facts.size + size > min(options.segment_bytes, _POSITION_MAX)
            or timestamp - facts.first_timestamp > options.segment_age_ms
            or facts.offsets.file_size + facts.offsets.ENTRY.size > options.index_max_bytes
            or facts.times.file_size + 2 * facts.times.ENTRY.size > options.index_max_bytes
            or facts.next_offset + count - 1 - facts.base > RELATIVE_OFFSET_MAX
        )

    def _set_bounds(self) -> None:
        """Fold the roll rule into the numbers that `append` compares with."""
        facts, options = self._update_facts(), self._options
        self._roll_position = min(options.segment_bytes, _POSITION_MAX, self._extended)
        if self._index_is_nearly_full():
            self._roll_position = -1
        self._roll_timestamp = facts.first_timestamp + options.segment_age_ms
        if not facts.size:
            self._roll_position = _POSITION_MAX
            self._roll_timestamp = _NEVER
        self._offset_bound = facts.base + RELATIVE_OFFSET_MAX + 1
        if self._reserved is not None:
            self._offset_bound = min(self._offset_bound, self._reserved.offset)

    def _index_is_nearly_full(self) -> bool:
        """Might the index reach its limit before the next block is mirrored?"""
        block = (IndexFile.BLOCK + 2) * self._facts.times.ENTRY.size
        largest = max(self._facts.offsets.file_size, self._facts.times.file_size)
        return largest + block > self._options.index_max_bytes

    # --- segments ---------------------------------------------------------------------------

    def roll(self) -> None:
        """Seal the active segment and go on in a new one.

        A `sync` log is durable up to here before it goes on. An `async` one is not, or it would be
        no faster than the disk: the segment is left to the next flush, within limits.
        """
        file, _base, _size, end_offset, past = self.state
        if self._flush is FlushMode.SYNC:
            # Never beside another flush: if that one fails, a success here would prove nothing.
            self.committer.wait(end_offset)
            self.trim()
        elif len(past.rolled) >= _ROLLED_MAX:
            self.committer.wait(past.rolled[0].end_offset)
        for index in self._index_files:
            index.finish()
        old, old_files = self._update_facts(), self._index_files
        rolled = (*past.rolled, Rolled(end_offset, file))
        behind = tuple(segment for segment in rolled if not self._is_done_with(segment))
        named = self._flush is not FlushMode.ASYNC
        self._create(old, Past((*past.extents, Extent(old.base, old.size)), behind, named))
        for index in old_files:
            index.close()
        self._retire(rolled, behind)
        self._catalog.seal(old)
        if self.hurry is not None and len(behind) >= _ROLLED_MANY:
            self.hurry()

    def trim(self) -> None:
        """Cut off what is behind the last batch, durably."""
        file, _base, size, _next_offset, _past = self.state
        if file.size() > size:
            file.truncate(size)
            self._extended = 0
            self.committer.force()

    def _is_done_with(self, segment: Rolled) -> bool:
        """Has nobody to sync it any more?"""
        return self._flush is FlushMode.NONE or segment.end_offset <= self.committer.durable

    def _retire(self, rolled: tuple[Rolled, ...], behind: tuple[Rolled, ...]) -> None:
        for segment in rolled:
            if segment not in behind:
                self.committer.retire(segment.file)

    def _create(self, old: Facts, past: Past) -> None:
        base = old.next_offset
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
        self._catalog.remember(old)
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
        self._index_files = (IndexFile(idx, facts.offsets), IndexFile(tix, facts.times))
        self._index_due = facts.size + facts.offsets.interval if facts.size else 0
        self._time_index_due = facts.times.next_timestamp
        self._unmirrored = 0
        self.state = (segment, facts.base, facts.size, facts.next_offset, past)

    def _undo_roll(self) -> None:
        """A roll was interrupted half way: go on where it started, and roll again if need be."""
        file, base, size, next_offset, past = self.state
        self._catalog.live = None
        self._discard_empty(next_offset)
        _new_segment, *indexes = self._open_files(base)
        _new_segment.close()
        self._start([file, *indexes], self._catalog.facts(Extent(base, size)), past)
        self.rewrite_indexes()

    def rewrite_indexes(self) -> None:
        """Make the index files equal to what is in memory."""
        for index in self._index_files:
            index.rewrite()

    def settle(self) -> None:
        """Take back what an interrupted append may have left."""
        if self._facts.base != self.base:
            self._undo_roll()
        if self._unsettled:
            self._repair()

    def stop(self, reason: str = "is closed") -> None:
        """Refuse further appends."""
        self._closed = reason
        self._roll_position = -1

    def finish(self) -> None:
        """Complete and seal the indexes."""
        for index in self._index_files:
            index.finish()
        self._catalog.seal(self._update_facts())

    def close(self) -> None:
        """Let go of the files."""
        for index in self._index_files:
            index.close()
        for file in (self.state[0], *(segment.file for segment in self.state[4].rolled)):
            file.close()

    def _where(self) -> str:
        return segment_path(self._catalog.folder, self.base)
