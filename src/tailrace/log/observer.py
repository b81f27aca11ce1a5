"""The reading side of a log: nothing is locked or repaired.

What can be seen follows from the files alone, whoever writes them. In a `sync` log the watermark is
the end, as long as it is of this boot; a watermark from before a restart of the machine may be
behind, but then nobody has written since, and every whole batch on the disk is as good as durable.
In the other modes every whole batch counts, up to the first that is not whole.

As long as the board is up (`board.py`) it tells when the segments have changed, and nobody lists
the folder in between.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Sequence

from tailrace.kernel import COMPLETE
from tailrace.kernel.layout import MAX_OFFSET
from tailrace.log.adoption import Adoption
from tailrace.log.board import Board, Note
from tailrace.log.extents import Extent, Extents
from tailrace.log.footprint import Footprint
from tailrace.log.fs import File, FileSystem
from tailrace.log.options import FlushMode
from tailrace.log.reader import Reader, View
from tailrace.log.recovery import count_unbroken, durable_size
from tailrace.log.scan import Facts, scan
from tailrace.log.segments import Catalog, list_segments, segment_path
from tailrace.log.sidefiles import (
    Gaps,
    Identity,
    Poison,
    StartOffset,
    Watermark,
    WatermarkFile,
)

__all__ = ["Observer"]

_ATTEMPTS = 8  # to look at what retention does not delete meanwhile


class Observer:
    """Looks at the files for each view. Thread-safe."""

    def __init__(
        self,
        fs: FileSystem,
        folder: str,
        catalog: Catalog,
        own_mark: Callable[[], Watermark] | None = None,
    ) -> None:
        """`own_mark` is a watermark that this process knows of, whether or not it could be
        written."""
        self.fs = fs
        self.folder = folder
        self._own_mark = own_mark
        if not fs.stat(folder).is_dir:  # or not there: an error now, not at the first read
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), folder)
        self.flush_mode = FlushMode.ASYNC  # until it is known whose log it is
        self.catalog = catalog
        self.gaps = Gaps(fs, folder)
        self.reader = Reader(
            self.catalog, self.gaps, MAX_OFFSET, lambda: self.start_offset, lambda: self.fronts
        )
        self._is_known = False
        self._lock = threading.RLock()
        self._board: Board | None = None
        self._incarnation = self._fronts = 0
        self._watermark_file = WatermarkFile(fs, folder)
        self._footprint = Footprint(fs, folder)
        # All of this is as of this edition, and not older than the stamp.
        self._edition: bytes | None = None
        self._stamp: bytes | None = None
        self._extents = Extents()  # those without records, if any, are the last
        self._start = 0
        self._mark: Watermark | None = None
        self._adoption: Adoption | None = None
        self._tail: Facts | None = None
        self._unbroken: tuple[object, int] = (None, 0)
        self._last_view = View(Extents(), 0, 0)
        self._closed = False
        self._identify()

    def _identify(self) -> None:
        """Learn what the log is. The folder may be somebody else's, or that of a log to be."""
        identity = Identity.load(self.fs, self.folder)
        if identity is not None:
            self.flush_mode = FlushMode(identity.flush)
            self.reader.sparse_below = identity.sparse_below
            self._is_known = True

    def footprint(self) -> tuple[View, Extents]:
        """What readers may see now, and of each segment what it takes on the disk."""
        with self._lock:
            view = self.view()
            return view, self._footprint.measure(self._extents)

    # --- what may be seen -------------------------------------------------------------------

    def view(self) -> View:
        """What readers may see now."""
        with self._lock:
            if self._closed:
                return self._last_view
            self._find_board()
            for _attempt in range(_ATTEMPTS):
                edition = self.edition()
                if edition is None or edition != self._edition:
                    self._look_around(edition)
                extents = self._extents
                with contextlib.suppress(FileNotFoundError):
                    view, is_all_there = self._view(edition is not None)
                    if not is_all_there and self._has_moved(edition, extents):
                        # A writer was faster. What was noted before the last look is all there.
                        view, _ = self._view(self._edition is not None, is_noted=True)
                    if self._is_undisturbed():
                        self._last_view = view
                        return view
                    self._forget_tail()
                    continue
                if not self._has_moved(edition, extents):
                    break
            self._last_view, _ = self._view(self._edition is not None, is_noted=True)
            self._forget_tail()
            return self._last_view

    def _find_board(self) -> None:
        if self._board is None:
            self._board = Board.find(self.fs, self.folder)

    def _stamp_now(self) -> bytes | None:
        return None if self._board is None else self._board.stamp()

    def _is_undisturbed(self) -> bool:
        """May what was seen since the last look around began be shown? Not if somebody has begun to
        take in what counts later, or never (`adoption.py`): a part of it may be in the listing.

        The stamp comes before the adoption is loaded, that before the files are looked at, and the
        stamp again last. Whoever takes something in changes the stamp before the first byte is
        where we look, after the adoption is stored: who comes first, by setting the board up, and
        each by the layout. So with the same stamp it began before the first look at it, and then
        the adoption was there to bound us; or it was gone, and all is in its place or was put back,
        whether its writer lives or not. Nobody is missed for having gone since: numbers only rise.
        """
        self._find_board()  # somebody may have made one
        return self._stamp_now() == self._stamp

    def _forget_tail(self) -> None:
        """What we know of it may be of batches that are put back, and others in their place."""
        if self._tail is not None:
            self.catalog.forget(self._tail.base)
            self._tail = None

    def _has_moved(self, edition: bytes | None, extents: Extents) -> bool:
        """Look again: has a writer moved on? Otherwise a file is missing."""
        now = self.edition()
        self._look_around(now, closely=True)
        return self._extents != extents or now != edition

    def edition(self) -> bytes | None:
        """What the board says of the set of segments: while it says the same, they are the same.
        `None` while no writer keeps it up to date, or nobody has looked for it yet. Takes no lock,
        and does not wait."""
        board = self._board
        try:
            return None if board is None else board.edition()
        except ValueError:  # closed meanwhile
            return None

    def _look_around(self, edition: bytes | None, *, closely: bool = False) -> None:
        """Take in everything that changes rarely; `closely` lists the folder in any case.

        Where the log starts and which segments there are is seen in two looks. Whoever deletes
        raises the start first, so the higher of the starts before and after the listing fits it;
        and whoever puts segments in front lowers it last. That both have happened in between, the
        board tells, and then it is done again.
        """
        for _attempt in range(_ATTEMPTS):
            fronts = self.fronts
            self._look_once(edition, closely)
            if self.fronts == fronts:
                break

    def _look_once(self, edition: bytes | None, closely: bool) -> None:
        self._stamp = self._stamp_now()  # first (`_is_undisturbed`)
        incarnation = self._board.incarnation if self._board is not None else 0
        fronts = self.fronts
        if (incarnation, fronts) != (self._incarnation, self._fronts):
            closely = True  # files of the same name may be others
            self._incarnation, self._fronts = incarnation, fronts
            self.catalog.start_over()
            self._tail = None
            self._is_known = False  # it may promise more than it did
        if not self._is_known:
            self._identify()
        # A listing is not one moment: a size in it may be older than a name behind it. What was
        # noted before it began is complete in it, so what is newer is left out; the edition that
        # comes with that has us look again.
        mark = self.watermark()
        note = self._board.peek() if edition is not None and self._board is not None else None
        self._adoption = Adoption.load(self.fs, self.folder)
        start = self._load_start()
        closely = closely or start < self._start
        known, extents = self._extents, None
        if note is not None and self._edition is not None and not closely:
            extents = self._go_on(note)
        if extents is None:
            extents = self._list(note)
        if extents and extents[0].base > start:  # else nobody has deleted meanwhile
            start = max(start, self._load_start())
        self._start = start
        self._extents = extents = extents.from_offset(start)  # the others are about to be deleted
        self.catalog.active = extents[-1].base if extents else None
        if known:
            for extent in extents[extents.index_of(known[-1].base) :]:
                # A roll that failed may have left it, and made anew.
                self.catalog.files.forget(segment_path(self.folder, extent.base))
            gone = known.index_of(extents[0].base) if extents else len(known)
            for extent in known[:gone]:
                self.catalog.forget(extent.base)
        self.gaps.load()
        self._mark = mark
        self._edition = edition

    def _go_on(self, note: Note) -> Extents | None:
        """What has come since the last look, after which the same writers have gone on."""
        known = self._extents
        count = _count_with_records(known)
        if not count:
            return None
        new = self.catalog.sealed_between(known[count - 1].base, note.segment)
        if new is None:
            return None
        try:
            size = self.fs.stat(segment_path(self.folder, note.segment)).size
        except FileNotFoundError:
            return None
        extents = known[: count - 1]
        for extent in new:
            extents = extents.and_then(extent)
        return extents.ending_with(Extent(note.segment, size))

    def _list(self, note: Note | None) -> Extents:
        listed = list_segments(self.fs, self.folder)
        if note is not None:
            listed = tuple(extent for extent in listed if extent.base <= note.segment)
        self.catalog.seals.load({extent.base for extent in listed})
        # An empty one with records behind it is left over from a roll that failed.
        count = _count_with_records(listed)
        found = [*(extent for extent in listed[:count] if extent.size), *listed[count:]]
        return Extents(found[:-1]).ending_with(found[-1]) if found else Extents()

    def _load_start(self) -> int:
        return StartOffset(self.fs, self.folder).load()

    def _view(self, is_live: bool, *, is_noted: bool = False) -> tuple[View, bool]:
        """The view, and whether the segments that it needs are there. With a board that is up,
        `is_live`, nothing else can have changed than the start, the watermark, and the size of the
        last segment. `is_noted` goes by the watermark as of the last look around."""
        start = self._start
        if is_live and self._board is not None:
            note = self._board.peek()
            start = self._load_start() if note is None else max(start, note.start_offset)
        if self.flush_mode is FlushMode.SYNC and not is_noted:
            self._mark = self.watermark()
        extents, mark = self._extents, self._mark
        if mark is None and extents:
            start = max(start, extents[0].base)
        bound = self._bound(mark) if not is_live or self.flush_mode is FlushMode.SYNC else None
        if self._adoption is not None and (bound is None or bound.durable > self._adoption.durable):
            bound = self._adoption
        if bound is None:
            is_there = mark is None or not extents or mark.segment <= extents[-1].base
            return self._whole_batches(extents, start), is_there
        index = extents.index_of(bound.segment)
        is_there = index < len(extents) and extents[index].base == bound.segment
        visible = extents[: min(index, _count_with_records(extents))]
        if is_there:
            visible = visible.ending_with(Extent(bound.segment, bound.position))
        return View(visible, start, max(bound.durable, start), self._fronts), is_there

    def _bound(self, mark: Watermark | None) -> Watermark | Poison | Adoption | None:
        """The last good flush, if nothing behind it may be seen."""
        poison = None
        if self._edition is None:  # else the board would say so
            poison = Poison.load(self.fs, self.folder, mark)
        if poison is not None:
            return poison if mark is None or poison.durable >= mark.durable else mark
        if self.flush_mode is FlushMode.SYNC and mark is not None:
            return mark if mark.boot_id == self.fs.boot_id() else None
        return None

    def _whole_batches(self, extents: Extents, start: int) -> View:
        mark = self._mark
        if mark is not None and self._is_cut_off(mark):
            extents = extents[: self._count_unbroken(extents, mark, start)]
        end = extents[-1].base if extents else start
        last, size = len(extents) - 1, 0
        while last >= 0:  # the last one grows, or one before it if a roll failed
            size = self._size_now(extents[last])
            if size:
                break
            last -= 1
        with_records = extents[: max(last, 0)]
        if last >= 0:
            extent, facts = self._tail_facts(Extent(extents[last].base, size))
            vouched_for = min(durable_size(extent, self._mark), extent.size)
            extent = Extent(extent.base, max(facts.size, vouched_for))
            with_records = with_records.ending_with(extent)
            end = max(end, facts.next_offset)
        if self._mark is not None:
            end = max(end, self._mark.durable)  # if that much is not there, readers are to be told
        return View(with_records, start, max(start, end), self._fronts)

    def _size_now(self, extent: Extent) -> int:
        with self.catalog.files.use(segment_path(self.folder, extent.base)) as file:
            return file.size()

    def _is_cut_off(self, mark: Watermark) -> bool:
        """Has a power cut hit an `async` log that no writer has opened since?"""
        return self.flush_mode is FlushMode.ASYNC and mark.boot_id != self.fs.boot_id()

    def _count_unbroken(self, extents: Extents, mark: Watermark, start: int) -> int:
        """What recovery will keep; looked up once, as it reads all that is behind the watermark."""
        known, count = self._unbroken
        if known != (extents, mark, start):
            count = count_unbroken(self.catalog, self.gaps, extents, mark, start)
            self._unbroken = ((extents, mark, start), count)
        return count

    def _tail_facts(self, extent: Extent) -> tuple[Extent, Facts]:
        """The last segment, as far as recovery would keep it."""
        is_cut_off = self._mark is not None and self._is_cut_off(self._mark)
        if not is_cut_off and self.catalog.seals.get(*extent) is not None:
            return extent, self.catalog.facts(extent)
        facts = self._tail
        if facts is None or facts.base != extent.base or facts.size > extent.size:
            facts = self._tail = self.catalog.new_facts(extent.base)
        if facts.size < extent.size:
            path = segment_path(self.folder, extent.base)
            with self.catalog.lock, self.catalog.files.use(path) as file:
                if self._scan(file, facts, extent) != COMPLETE:
                    # Is it being written, or is it damage? The watermark tells; and then the file
                    # is at least as long as that says.
                    self._mark = self.watermark()
                    extent = Extent(extent.base, file.size())
                    self._scan(file, facts, extent)
            self.catalog.remember(facts)
        return extent, facts

    def _scan(self, file: File, facts: Facts, extent: Extent) -> int:
        mark = self._mark
        durable = extent.size if mark is None else durable_size(extent, mark)
        return scan(file, facts, extent.size, durable_size=durable, contiguous=mark is not None)

    @property
    def closed(self) -> bool:
        return self._closed

    def watermark(self) -> Watermark | None:
        with self._lock:
            if self._closed:
                return self._mark
            with contextlib.suppress(FileNotFoundError):
                self._watermark_file.open(write=False)
            mark = self._watermark_file.load()
        if self._own_mark is not None:
            own = self._own_mark()
            if mark is None or own.durable > mark.durable:
                return own
        return mark

    def watermark_now(self) -> Watermark | None:
        """The same, if the file's bytes are in memory and nobody is at work here."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            return None if self._closed else self._watermark_file.load_now()
        finally:
            self._lock.release()

    @property
    def start_offset(self) -> int:
        return self.view().start

    @property
    def end_offset(self) -> int:
        return self.view().end

    @property
    def durable_offset(self) -> int:
        try:
            mark = self.watermark()
        except OSError:
            if self._own_mark is None:
                raise
            mark = self._own_mark()  # which is true, if not the latest
        return mark.durable if mark is not None else 0

    @property
    def fronts(self) -> int:
        """How often segments were put in front of others: files may be others, if it differs."""
        board = self._board
        return board.fronts if board is not None else 0

    def refresh(self) -> None:
        """Let go of what was deleted."""
        with contextlib.suppress(OSError):
            self.view()

    def disown(self) -> None:
        """We are in a forked child, where a thread that is not here may have held the locks."""
        self._lock = threading.RLock()
        self.catalog.disown()
        self.close()

    def close(self) -> None:
        """What was seen last can still be asked for, but not read."""
        with self._lock:
            self._closed = True
            self._watermark_file.close()
            if self._board is not None:
                self._board.close()
                self._board = None
        self.catalog.close()


def _count_with_records(extents: Sequence[Extent]) -> int:
    """Up to the last one that has any."""
    count = len(extents)
    while count and not extents[count - 1].size:
        count -= 1
    return count
