"""The lines of an `ops.log`, ours or FluxMQ's, each with where it is and whether it is whole.

Nothing is cut off or skipped here, as opening a group does: every byte of the file is in a line, or
in the room that is kept ahead.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from tailrace.queue.journal import Op, parse_line

__all__ = ["FLUXMQ_OPS", "Journal", "Line", "read_journal"]

FLUXMQ_OPS: Final = {
    1: "deliver",
    2: "ack",
    3: "ack many",
    4: "nack",
    5: "claim",
    6: "claim many",
    7: "floor",
    8: "cursor",
}

_decode = json.JSONDecoder().raw_decode


class Line(NamedTuple):
    """A line without its end, from `position` on. `ops` is empty if it is damaged; a line of ours
    has one. `zeros` are in front of it: what was there has not survived a power cut."""

    position: int
    text: bytes
    ops: tuple[Op, ...]
    zeros: int = 0
    has_end: bool = True

    @property
    def is_torn(self) -> bool:
        """Is it what somebody leaves who was killed, or a power cut? Bytes are missing then, at its
        end or inside of it; other damage has changed some."""
        return not self.ops and (not self.has_end or b"\0" in self.text)


class Journal(NamedTuple):
    """`lines` up to the last that is whole, and the `tail` behind it, which the next open cuts off.
    The file ends with `room` zeros, for what comes. `has_begin`: its first line is as it was
    written."""

    is_ours: bool
    has_begin: bool
    lines: list[Line]
    tail: list[Line]
    room: int

    @property
    def all_lines(self) -> list[Line]:
        return self.lines + self.tail

    @property
    def is_empty(self) -> bool:
        return not self.lines and not self.tail


def read_journal(data: bytes) -> Journal:
    """What is in the file. FluxMQ's lines have no checksum: they are whole if they make sense."""
    written = data.rstrip(b"\0")
    room = len(data) - len(written)
    is_ours = any(
        line.ops or line.text.startswith(b'{"k":"') for line in _split(written, _parse_ours)
    )
    lines = list(_split(written, _parse_ours if is_ours else _parse_fluxmq))
    whole = len(lines)
    if is_ours:
        while whole and not lines[whole - 1].ops:
            whole -= 1
    elif lines and not lines[-1].ops:
        whole -= 1  # FluxMQ cuts nothing off: what is damaged before may have whole ones behind it
    first = lines[0].ops if lines and not lines[0].zeros else ()
    has_begin = is_ours and bool(first) and first[0].get("t") == "begin"
    return Journal(is_ours, has_begin, lines[:whole], lines[whole:], room)


def _split(data: bytes, parse: Any) -> Iterator[Line]:
    position = 0
    for line in data.splitlines(keepends=True) if b"\r" not in data else _with_ends(data):
        has_end = line.endswith(b"\n")
        text = line[:-1] if has_end else line
        bare = text.lstrip(b"\0")
        zeros = len(text) - len(bare)
        yield Line(position, bare, parse(bare) if has_end else (), zeros, has_end)
        position += len(line)


def _with_ends(data: bytes) -> list[bytes]:
    """Lines as `splitlines` has them, but that only a newline ends one."""
    lines = [line + b"\n" for line in data.split(b"\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def _parse_ours(text: bytes) -> tuple[Op, ...]:
    try:
        op = parse_line(text)
    except (ValueError, RecursionError):
        return ()
    return (op,) if isinstance(op, dict) and isinstance(op.get("t"), str) else ()


def _parse_fluxmq(text: bytes) -> tuple[Op, ...]:
    """Mostly one; more where FluxMQ went on behind an object whose end of line was lost."""
    found: list[Op] = []
    try:
        line = text.decode().strip(" \t\r")
        position = 0
        while position < len(line):
            op, position = _decode(line, position)
            if not isinstance(op, dict) or op.get("t") not in FLUXMQ_OPS:
                return ()
            found.append(op)
    except (ValueError, TypeError, RecursionError):
        return ()
    return tuple(found)
