"""The lines of an `ops.log`, ours or FluxMQ's, each with where it is and whether it is whole.

Nothing is cut off or skipped here, as opening a group does: every byte of the file is in a line, or
in the room that is kept ahead.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

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
        return not self.ops and (not self.has_end or self.zeros > 0 or b"\0" in self.text)


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
    lines = list(_split(written, _parse_ours))
    is_ours = any(line.ops or line.text.startswith(b'{"k":"') for line in lines)
    if not is_ours:
        lines = [line for line in _split(written, _parse_fluxmq) if line.text]
    whole = len(lines)
    if is_ours:
        while whole and not lines[whole - 1].ops:
            whole -= 1
    elif lines and not lines[-1].ops:
        whole -= 1  # FluxMQ cuts nothing off: what is damaged before may have whole ones behind it
    first = lines[0].ops if lines and not lines[0].zeros else ()
    has_begin = is_ours and bool(first) and first[0].get("t") == "begin"
    return Journal(is_ours, has_begin, lines[:whole], lines[whole:], room)


def _split(data: bytes, parse: Callable[[bytes], tuple[Op, ...]]) -> Iterator[Line]:
    position = 0
    *lines, rest = data.split(b"\n")
    for line in lines:
        text = line.lstrip(b"\0")
        yield Line(position, text, parse(text), len(line) - len(text))
        position += len(line) + 1
    if rest:
        text = rest.lstrip(b"\0")
        # One of ours without its end is not written yet; FluxMQ takes it as it is.
        ops = () if parse is _parse_ours else parse(text)
        yield Line(position, text, ops, len(rest) - len(text), has_end=False)


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
            kind = op.get("t") if isinstance(op, dict) else None
            if type(kind) is not int or kind not in FLUXMQ_OPS:
                return ()
            found.append(op)
    except (ValueError, RecursionError):
        return ()
    return tuple(found)
