"""A log that was never to be flushed, and is to be durable from now on.

Handles that are open become stricter, each for itself, as one may be that opens the log anew. What
the log itself promises, which decides how much its readers see, changes when nobody has it open.
"""

from __future__ import annotations

from tailrace.log.board import Board
from tailrace.log.extents import Extent
from tailrace.log.fs import FileSystem
from tailrace.log.members import Members
from tailrace.log.opening import sync_segments, sync_side_files
from tailrace.log.options import FlushMode
from tailrace.log.sidefiles import Identity
from tailrace.log.turn import Turn
from tailrace.log.writer import Writer

__all__ = ["be_stricter", "raise_promise"]


def raise_promise(fs: FileSystem, folder: str, mode: FlushMode | None) -> None:
    """Before a log is opened: if it was never to be flushed, and nobody has it open, it promises
    this from now on. Whoever opens it makes durable what it holds."""
    identity = Identity.load(fs, folder) if mode not in (None, FlushMode.NONE) else None
    if identity is None or identity.flush != FlushMode.NONE:
        return
    assert mode is not None
    board = Board(fs, folder)
    turn, members = Turn(fs, folder, board, "shared"), Members(fs, folder, "shared")
    try:
        turn.take()
        if members.join():
            identity._replace(flush=mode).store(fs, folder)
        members.leave()
    finally:
        members.close()
        turn.close()
        board.close()


def be_stricter(writer: Writer, mode: FlushMode) -> None:
    """Have an open handle wait for the disk from now on. Everything that was appended before, by
    whomever, is on it when this returns."""
    with writer.my_turn():
        if mode.rank >= writer.flush_mode.rank:
            return
        _file, segment, position, end_offset, past = writer.tail.state
        fs, folder = writer.catalog.fs, writer.catalog.folder
        extents = past.extents.ending_with(Extent(segment, position))

        def sync(first: int) -> None:
            fs.sync_dir(folder)
            sync_side_files(fs, folder)
            sync_segments(fs, folder, extents, first)

        writer.committer.sync_by(sync, segment, position, end_offset)
        writer.flush_mode = writer.tail.flush = mode
    if mode is FlushMode.ASYNC and writer._manner.upkeep:
        if writer._upkeep is not None:
            writer._upkeep.stop()
        writer._start_upkeep()
