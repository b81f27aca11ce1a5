"""What is on the pages of memory that processes share: the boards of a log, and of what is delayed.

They mean something only to those who have them mapped, and only in the boot in which they were
written.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from tailrace.kernel.layout import NOTE_PHASE, NOTE_WRITING
from tailrace.log.board import ATTENTION, SIZE, Board
from tailrace.log.fs import FileSystem, read_file
from tailrace.queue.alarm import NEVER

__all__ = ["Item", "of_delayed", "of_log", "of_schedule"]

Item = dict[str, object]

_LOG: Final = "memory that the writers of a log share"
_ALARM: Final = "memory that processes share: when whoever delivers what is delayed looks next"
_TURN: Final = "memory that processes share: what was delivered of what is delayed for a queue"

_ALARM_NUMBERS: Final = struct.Struct("<QQQ")
_MARK: Final = struct.Struct("<8sQQ")
_MARK_AT: Final = 8


def of_log(fs: FileSystem, path: str, *, start: int, limit: int | None) -> Iterator[Item]:
    data = _read(fs, path)
    yield {"type": "file", "size": len(data)}
    if len(data) < SIZE:
        yield _page(_LOG, None)
        return
    board = Board.over(memoryview(data), b"")
    note = board.peek()
    contents: Item = {
        "in_use": board.is_set_up,
        "poisoned": board.poisoned,
        "incarnation": board.incarnation,
        "layout": board.layout,
        "boot_id": board.boot_id.hex(),
        "somebody_waits": bool(data[ATTENTION]),
        "somebody_writes": bool(data[NOTE_PHASE] & NOTE_WRITING),
        "keeper": board.keeper or None,
        **({} if note is None else note._asdict()),
    }
    yield _page(_LOG, contents)


def of_delayed(fs: FileSystem, path: str, *, start: int, limit: int | None) -> Iterator[Item]:
    """The one of all queues."""
    data = _read(fs, path)
    yield {"type": "file", "size": len(data)}
    if len(data) < SIZE:
        yield _page(_ALARM, None)
        return
    next_ms, keeper, stirred_ms = _ALARM_NUMBERS.unpack_from(data)
    contents: Item = {
        "next_ms": next_ms if 0 < next_ms < NEVER else None,
        "looking": next_ms == 0,
        "keeper": keeper or None,
        "stirred_uptime_s": stirred_ms / 1000,
    }
    yield _page(_ALARM, contents)


def of_schedule(fs: FileSystem, path: str, *, start: int, limit: int | None) -> Iterator[Item]:
    """The one of a queue."""
    data = _read(fs, path)
    yield {"type": "file", "size": len(data)}
    if len(data) < SIZE:
        yield _page(_TURN, None)
        return
    boot, behind, unsorted = _MARK.unpack_from(data, _MARK_AT)
    contents: Item = {
        "asleep": bool(data[0]),
        "boot_id": boot.hex(),
        "carried_out_below": behind,
        "unsorted_bytes": unsorted,
    }
    yield _page(_TURN, contents)


def _page(what: str, contents: Item | None) -> Item:
    return {"type": "page", "what": what, "contents": contents}


def _read(fs: FileSystem, path: str) -> bytes:
    return read_file(fs, path, fs.stat(path).size) or b""
