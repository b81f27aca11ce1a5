"""A log that is open for writing: recovery, the tail, group commit, retention, clean close."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from functools import partial
from typing import Any

from tailrace.errors import (
    Closed,
    ConfigError,
    Corrupt,
    NotWritten,
    OffsetOutOfRange,
    OutcomeUnknown,
)
from tailrace.kernel import Draft, first_headers
from tailrace.log.commit import Committer
from tailrace.log.fs import FileSystem, pieces, write_all
from tailrace.log.options import FlushMode, LogOptions
from tailrace.log.producers import Appended, Producers
from tailrace.log.reader import Reader, View
from tailrace.log.recovery import Diagnosis, diagnose, treat
from tailrace.log.retention import VacuumReport, count_expired
from tailrace.log.scan import Facts
from tailrace.log.segments import Catalog, Extent, remove_segment, segment_path
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
from tailrace.log.upkeep import Chore, Upkeep

__all__ = ["Writer"]

_open_writers: weakref.WeakSet[Writer] = weakref.WeakSet()


def _disown_all() -> None:
    for writer in list(_open_writers):
        writer.disown()


os.register_at_fork(after_in_child=_disown_all)


class Writer:
    """The one writer of a log. Thread-safe: `lock` orders appends, rolls, deletion and close;
    flushes run outside of it. Whoever calls `tail.append` holds it."""

    def __init__(self, fs: FileSystem, folder: str, options: LogOptions, *, upkeep: bool) -> None:
        self._fs = fs
        self._folder = folder
        self._options = options
        self.lock = threading.Lock()
        self._closed = False
        self._upkeep: Upkeep | None = None
        self._producers: Producers | None = None
        self._snapshot_lock = threading.Lock()  # innermost
        fs.make_dirs(side_path(folder, "").rstrip("/"))
        self._resources = contextlib.ExitStack()  # the lock goes last
        _open_writers.add(self)
        self._resources.callback(fs.lock(side_path(folder, "lock")).release)
        try:
            self._open()
        except BaseException:
            self._resources.close()
            raise
        self._wants_upkeep = upkeep
        if upkeep:
            self._start_upkeep()

    # --- open and close ---------------------------------------------------------------------

    def _open(self) -> None:
        fs, folder, options = self._fs, self._folder, self._options
        identity = Identity.load(fs, folder)
        self.log_flush, self.flush_mode = self._flush_modes(identity)
        self.catalog = Catalog(fs, folder, options, seals=self.flush_mode is not FlushMode.NONE)
        self._resources.callback(self.catalog.close)
        self.gaps = Gaps(fs, folder)
        self._start_file = StartOffset(fs, folder)
        self._resources.callback(self._start_file.close)
        self._reserved: Reserved | None = None
        if self.log_flush is FlushMode.ASYNC:
            self._reserved = Reserved(fs, folder)
            self._reserved.load()
            self._resources.callback(self._reserved.close)
        found = diagnose(fs, self.catalog, self.gaps, self.log_flush)
        if not found.clean and self.flush_mode is not FlushMode.NONE:
            self._sync_side_files()
        treat(fs, self.catalog, self.gaps, found)
        self.diagnosis = found
        self._start_offset = self._start_file.load()
        if identity is None or not found.ours:
            # From here on it is ours; what is there may have gaps, and a start of its own.
            sparse_below = 0 if found.ours else found.next_offset
            identity = Identity(self.log_flush, sparse_below)
            identity.store(fs, folder)
        if not found.ours:
            self._raise_start(self._first_base(found))
        self._open_tail(found)
        self.reader = Reader(
            self.catalog, self.gaps, identity.sparse_below, lambda: self._start_offset
        )
        if found.poison is not None:
            Poison.remove(fs, folder)
        CleanMarker.remove(fs, folder)

    @staticmethod
    def _first_base(found: Diagnosis) -> int:
        return found.extents[0].base if found.extents else found.next_offset

    def _flush_modes(self, identity: Identity | None) -> tuple[FlushMode, FlushMode]:
        """The log's own mode, and this handle's, which may be stricter."""
        if identity is None:
            mode = self._options.flush or FlushMode.SYNC
            return mode, mode
        log_mode = FlushMode(identity.flush)
        mode = self._options.flush or log_mode
        if mode.rank > log_mode.rank:
            raise ConfigError(
                f"flush: {self._folder} was created with flush={log_mode.value!r}; a handle may "
                f"be stricter, not looser ({mode.value!r})"
            )
        return log_mode, mode

    def _open_tail(self, found: Diagnosis) -> None:
        facts = found.tail
        is_new = facts is None or not _can_go_on(facts, found)
        if facts is None or is_new:
            facts = self.catalog.new_facts(found.next_offset)
        sealed = tuple(extent for extent in found.extents if extent.base != facts.base)
        self.tail = Tail(
            self.catalog,
            self._options,
            facts,
            sealed,
            flush=self.flush_mode,
            reserved=self._reserved,
        )
        self._resources.callback(self.tail.close)
        if is_new or not found.clean:
            self.tail.rewrite_indexes()
        if is_new:
            self._fs.sync_dir(self._folder)
        mark = found.watermark
        if self.flush_mode is not FlushMode.NONE and not found.synced:
            self._sync_recovered(mark)
        _file, segment, position, durable, _past = self.tail.written()
        if self.flush_mode is FlushMode.NONE:  # only what was durable before is
            durable, segment, position = self._start_offset, self._first_base(found), 0
            if mark is not None:
                durable, segment, position = mark.durable, mark.segment, mark.position
        watermark = Watermark(durable, segment, position, self._fs.boot_id())
        watermark_file = WatermarkFile(self._fs, self._folder)
        self._resources.callback(watermark_file.close)
        watermark_file.load()
        watermark_file.store(watermark, sync=not found.synced)
        self.committer = self.tail.committer = Committer(
            self._fs, self._folder, self.tail.written, watermark_file, watermark
        )
        self._resources.callback(self.committer.close)

    def _sync_recovered(self, mark: Watermark | None) -> None:
        """Recovery read these bytes from the page cache; before they count they must be on disk.

        If they were written in this boot, a flush of them may have failed before, and the cache
        only pretends; so they are written again, which makes a sync mean something.
        """
        first = mark.segment if mark is not None else 0
        try:
            if mark is not None and mark.boot_id == self._fs.boot_id():
                for extent in self.tail.extents()[0]:
                    if extent.base >= first:
                        start = mark.position if extent.base == first else 0
                        self._write_again(extent, start)
            self._fs.sync_dir(self._folder)
            self._sync_segments(first)
        except OSError as error:
            raise OutcomeUnknown(
                f"{self._folder}: what the last writer left cannot be made durable: {error}"
            ) from error

    def _write_again(self, extent: Extent, start: int) -> None:
        file = self._fs.open(segment_path(self._folder, extent.base), write=True)
        try:
            for position, data in pieces(file, start, extent.size):
                write_all(file, data, position)
        finally:
            file.close()

    def _sync_side_files(self) -> None:
        """The same for what recovery goes by: the last writer may have died before its sync."""
        for name in ("log.json", "start", "reserved", "gaps"):
            try:
                file = self._fs.open(side_path(self._folder, name), write=True)
            except FileNotFoundError:
                continue
            try:
                file.sync()
            finally:
                file.close()
        self._fs.sync_dir(side_path(self._folder, "").rstrip("/"))

    def _sync_segments(self, first_base: int) -> None:
        """Sync the segments from `first_base` on."""
        for extent in self.tail.extents()[0]:
            if extent.base >= first_base:
                file = self._fs.open(segment_path(self._folder, extent.base), write=True)
                try:
                    file.sync()
                finally:
                    file.close()

    def _start_upkeep(self) -> None:
        chores = []
        if self.flush_mode is FlushMode.ASYNC:
            chores.append(Chore("flush", self._options.flush_interval_ms / 1000, self.flush))
        if self._options.retention or self._start_offset > self._first_base_now():
            interval = self._options.retention_check_interval_ms / 1000
            chores.append(Chore("retention", interval, self.vacuum))
        if chores:
            self._upkeep = Upkeep(self._folder, chores)
        if self._upkeep is not None and self.flush_mode is FlushMode.ASYNC:
            self.tail.hurry = partial(self._upkeep.hurry, "flush")

    def close(self) -> None:
        """Make everything durable and leave the marker that saves the next open a scan."""
        if self._upkeep is not None:
            self._upkeep.stop()
        with self.lock:
            if self._closed:
                return
            self._closed = True
            self.tail.stop()
        try:
            if self.committer.failure is None:
                self._close_cleanly()
        finally:
            self._resources.close()

    def disown(self) -> None:
        """We are in a forked child, and the log is the parent's: write nothing, ever. The locks
        are made anew because a thread that is not here may have held them."""
        self._closed = True
        self._upkeep = None
        self.lock = threading.Lock()
        if hasattr(self, "committer"):
            self.tail.stop("was opened before a fork; open it anew in this process")
            self.committer.disown()

    def abandon(self) -> None:
        """Let go of everything without writing anything, as a crash would."""
        if self._upkeep is not None:
            self._upkeep.stop()
        self._closed = True
        self.tail.stop()
        self._resources.close()

    def _close_cleanly(self) -> None:
        synced = self.flush_mode is not FlushMode.NONE
        self.tail.settle()
        if synced:
            self.committer.flush()
            self.tail.trim()
            self._store_producers()
        self.tail.finish()
        _file, segment, position, end_offset, _past = self.tail.written()
        boot_id = "" if synced else self._fs.boot_id().hex()
        marker = CleanMarker(segment, position, end_offset, boot_id)
        # The records are safe by now. Without the marker the next open scans the last segment.
        with contextlib.suppress(OSError):
            if synced:
                self.committer.advance(segment, position, end_offset, sync=True)
                if self._reserved is not None and self._reserved.offset:
                    self._reserved.store(0)
            marker.store(self._fs, self._folder)

    # --- append -----------------------------------------------------------------------------

    def append(self, draft: Draft) -> int:
        with self.lock:
            return self.tail.append(draft)

    def append_once(self, draft: Draft, producer: str, sequence: int, now_ms: int) -> Appended:
        """Append, unless this producer's sequence is in the log already."""
        with self.lock:
            try:
                producers = self._known_producers(now_ms)
            except OSError as error:
                raise NotWritten(f"{self._folder}: cannot read the producers: {error}") from error
            found = producers.find(producer, sequence)
            if found is not None:
                return found
            base = self.tail.base
            try:
                found = Appended(self.tail.append(draft), draft.count)
                producers.add(producer, sequence, found, now_ms)
            except BaseException:
                self._producers = None  # interrupted between the two: the log knows
                raise
            # Rolled: bounds what the next one has to read. An `async` log does it with a flush.
            if self.tail.base != base and self.flush_mode is not FlushMode.ASYNC:
                self._store_producers()
            return found

    def _known_producers(self, now_ms: int) -> Producers:
        """The table, read from the snapshot and the log when it is first needed."""
        if self._producers is None:
            extents, end = self.tail.extents()
            producers = Producers.load(self._fs, self._folder, end)
            view = View(extents, self._start_offset, end)
            first = max(producers.next_offset, self._start_offset)
            while first < end:
                try:
                    for region in self.reader.regions(view, first, end):
                        producers.observe(first_headers(region.data, 0, len(region.data)))
                    break
                except Corrupt as error:
                    first = error.next_offset or end
            producers.expire(now_ms - self._options.producer_expiry_ms)
            self._producers = producers
        return self._producers

    def _store_producers(self) -> None:
        """Snapshot what is durable, so that the next one need not read the log for it. Under
        `lock`, or when nobody appends any more."""
        self._store_snapshot(self._snapshot())

    def _snapshot(self) -> dict[str, Any] | None:
        if self._producers is None:
            return None
        now_ms = time.time_ns() // 1_000_000
        self._producers.expire(now_ms - self._options.producer_expiry_ms)
        return self._producers.snapshot(self.committer.durable)

    def _store_snapshot(self, snapshot: dict[str, Any] | None) -> None:
        if snapshot is not None:
            with self._snapshot_lock, contextlib.suppress(OSError):
                Producers.store(self._fs, self._folder, snapshot)

    # --- durability -------------------------------------------------------------------------

    def flush(self) -> None:
        if self.flush_mode is not FlushMode.NONE:
            segment = self.committer.watermark.segment
            self.committer.flush()
            if self.flush_mode is FlushMode.ASYNC and self.committer.watermark.segment != segment:
                with self.lock:
                    snapshot = self._snapshot()
                self._store_snapshot(snapshot)  # not under the lock: appends go on
            return
        # First: what is rolled from here on has to wait.
        _file, segment, position, end_offset, _past = self.tail.written()
        try:
            self._sync_segments(self.committer.watermark.segment)
        except OSError as error:
            self.committer.poison(error)
        self.committer.check()
        self.committer.advance(segment, position, end_offset)

    def view(self) -> View:
        """What readers may see now."""
        start = self._start_offset
        if self.log_flush is FlushMode.SYNC:
            mark = self.committer.watermark
            extents, _end = self.tail.extents()
            visible = [extent for extent in extents if extent.base < mark.segment]
            visible.append(Extent(mark.segment, mark.position))
            return View(tuple(visible), min(start, mark.durable), mark.durable)
        extents, end = self.tail.extents()
        return View(extents, start, end)

    # --- deletion ---------------------------------------------------------------------------

    @property
    def start_offset(self) -> int:
        return self._start_offset

    def truncate_before(self, offset: int) -> None:
        """Raise the log start offset, durably; whole segments go with the next vacuum."""
        if offset > self.tail.end_offset or offset < 0:
            raise OffsetOutOfRange(
                f"{self._folder}: cannot start at {offset}; the log ends at {self.tail.end_offset}",
                offset=offset,
                low=self._start_offset,
                high=self.tail.end_offset,
            )
        if self.flush_mode is not FlushMode.NONE:
            self.committer.wait(offset)
        with self.lock:
            self._check_open()
            self._raise_start(offset)
        if self._wants_upkeep and self._upkeep is None:  # segments may have to go now
            self._start_upkeep()

    def _first_base_now(self) -> int:
        return self.tail.extents()[0][0].base

    def _raise_start(self, offset: int) -> None:
        if offset > self._start_offset:
            try:
                self._start_file.store(offset)
            except OSError as error:
                raise OutcomeUnknown(
                    f"{self._folder}: storing the start offset failed ({error}); it may show after "
                    "a restart. Try again"
                ) from error
            self._start_offset = offset

    def vacuum(self) -> VacuumReport:
        """Delete the segments that retention lets go."""
        with self.lock:
            self._check_open()
            extents = tuple(extent for extent in self.tail.extents()[0] if extent.size)
            expired = count_expired(
                self.catalog,
                extents,
                self.tail.end_offset,
                self._start_offset,
                self._options.retention,
                time.time_ns() // 1_000_000,
            )
            if not expired:
                return VacuumReport(0, 0, self._start_offset)
            if self.flush_mode is not FlushMode.NONE:
                self.committer.flush()  # what is kept instead must not go with a power cut
            if expired == len(extents) and extents[-1].base == self.tail.base:
                self.tail.roll()
            survivors = extents[expired:]
            # The start moves before the first file goes: a crash in between leaves files that the
            # next open removes, never a log that starts below what it has.
            self._raise_start(survivors[0].base if survivors else self.tail.base)
            self.tail.drop(expired)
            doomed = extents[:expired]
        for extent in doomed:
            remove_segment(self._fs, self._folder, extent.base)
            self.catalog.forget(extent.base)
        self._fs.sync_dir(self._folder)
        size = sum(extent.size for extent in doomed)
        return VacuumReport(len(doomed), size, self._start_offset)

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"{self._folder} is closed")


def _can_go_on(tail: Facts, found: Diagnosis) -> bool:
    """May appends continue in the last segment that has records?"""
    if tail.damages or tail.next_offset != found.next_offset:
        return False
    return found.empty is None and found.extents[-1] == (tail.base, tail.size)
