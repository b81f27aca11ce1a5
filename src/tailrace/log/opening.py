"""What the first writer of a log decides and does before it can be appended to, beside recovery:
which flush mode holds, where to go on, and that what was found is on the disk.

It runs with the turn to write and the turn to flush, while nobody else uses the log.
"""

from __future__ import annotations

from typing import NamedTuple

from tailrace.errors import ConfigError, OutcomeUnknown
from tailrace.log.extents import Extent, Extents
from tailrace.log.fs import FileSystem, pieces, write_all
from tailrace.log.options import FlushMode, LogOptions
from tailrace.log.recovery import Diagnosis
from tailrace.log.scan import Facts
from tailrace.log.segments import segment_path
from tailrace.log.sidefiles import Identity, StartOffset, Watermark, side_path

__all__ = [
    "FlushModes",
    "can_go_on",
    "first_watermark",
    "make_durable",
    "store_start",
    "sync_segments",
    "sync_side_files",
]


class FlushModes(NamedTuple):
    """The log's own mode, and this handle's, which may be stricter."""

    of_log: FlushMode
    of_handle: FlushMode

    @classmethod
    def decide(cls, folder: str, identity: Identity | None, options: LogOptions) -> FlushModes:
        if identity is None:
            mode = options.flush or FlushMode.SYNC
            return cls(mode, mode)
        log_mode = FlushMode(identity.flush)
        mode = options.flush or log_mode
        if mode.rank > log_mode.rank:
            raise ConfigError(
                f"flush: {folder} was created with flush={log_mode.value!r}; a handle may "
                f"be stricter, not looser ({mode.value!r})"
            )
        return cls(log_mode, mode)


def can_go_on(tail: Facts, found: Diagnosis) -> bool:
    """May appends continue in the last segment that has records?"""
    if tail.damages or tail.next_offset != found.next_offset:
        return False
    return found.empty is None and found.extents[-1] == (tail.base, tail.size)


def make_durable(fs: FileSystem, folder: str, found: Diagnosis, extents: Extents) -> None:
    """Recovery read these bytes from the page cache; before they count they must be on disk.

    If they were written in this boot, a flush of them may have failed before, and the cache only
    pretends; so they are written again, which makes a sync mean something.
    """
    mark = found.watermark
    first = mark.segment if mark is not None else 0
    try:
        if mark is not None and mark.boot_id == fs.boot_id():
            for extent in extents[extents.index_of(first) :]:
                start = mark.position if extent.base == first else 0
                _write_again(fs, folder, extent, start)
        fs.sync_dir(folder)
        sync_segments(fs, folder, extents, first)
    except OSError as error:
        raise OutcomeUnknown(
            f"{folder}: what the last writer left cannot be made durable: {error}"
        ) from error


def _write_again(fs: FileSystem, folder: str, extent: Extent, start: int) -> None:
    file = fs.open(segment_path(folder, extent.base), write=True)
    try:
        for position, data in pieces(file, start, extent.size):
            write_all(file, data, position)
    finally:
        file.close()


def sync_segments(fs: FileSystem, folder: str, extents: Extents, first_base: int) -> None:
    """Sync the segments from `first_base` on; those that retention has deleted meanwhile have not
    to be."""
    for extent in extents[extents.index_of(first_base) :]:
        _sync_if_there(fs, segment_path(folder, extent.base))


def sync_side_files(fs: FileSystem, folder: str) -> None:
    """What recovery goes by: the last writer may have died before its sync."""
    for name in ("log.json", "start", "reserved", "gaps"):
        _sync_if_there(fs, side_path(folder, name))
    fs.sync_dir(side_path(folder, "").rstrip("/"))


def _sync_if_there(fs: FileSystem, path: str) -> None:
    try:
        file = fs.open(path, write=True)
    except FileNotFoundError:
        return
    try:
        file.sync()
    finally:
        file.close()


def store_start(file: StartOffset, folder: str, offset: int) -> None:
    """Have a log start elsewhere, durably. Not only the first writer does."""
    try:
        try:
            file.store(offset)
        except OSError:  # readers may see it already, so it had better hold: write it again
            file.store(offset)
    except OSError as error:
        raise OutcomeUnknown(
            f"{folder}: storing the start offset failed ({error}); it may show after a restart. "
            "Try again"
        ) from error


def first_watermark(
    found: Diagnosis, start_offset: int, written: tuple[int, int, int] | None, boot_id: bytes
) -> Watermark:
    """What is durable when the log has been opened: all that is `written` (segment, position, next
    offset), or without that what was durable before."""
    if written is not None:
        segment, position, durable = written
        return Watermark(durable, segment, position, boot_id)
    mark = found.watermark
    if mark is not None:
        return Watermark(mark.durable, mark.segment, mark.position, boot_id)
    first_base = found.extents[0].base if found.extents else found.next_offset
    return Watermark(start_offset, first_base, 0, boot_id)
