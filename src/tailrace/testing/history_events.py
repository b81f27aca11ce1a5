"""What happened to a log: who sent what and was told what, who was given what, and what is left.

The input of `tailrace.testing.history`, which has the names of these too, and its form as lines of
JSON, so that processes can write it down as they go, and a history that failed can be kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from tailrace.log.sidefiles import Gap

__all__ = ["History", "Poll", "PowerCut", "Send", "Value", "dump", "load"]

Value: TypeAlias = bytes | str


class Send(NamedTuple):
    """An attempt to append values as one batch, at consecutive offsets from `offset` on.

    `outcome` is what the sender learned: "acked" (the receipt is done), "written" (there is a
    receipt, and nobody waited for it), "failed" (`NotWritten`) or "unknown" (`OutcomeUnknown`, or
    the process was killed on the way). The first two have an `offset`. Times are of one clock.

    Attempts with the same `producer` and `sequence` are one append. Without a producer each is one
    of its own.
    """

    process: str
    values: tuple[Value, ...]
    invoked: float
    outcome: str
    offset: int | None = None
    answered: float | None = None
    producer: str = ""
    sequence: int = 0


class Poll(NamedTuple):
    """What a follower was given, in order, as (offset, value).

    `sought` is where it was told to read from; without it, it went on where it was. The first poll
    of an incarnation should say, or nothing is known of what comes before its first record.
    `at_end`: nothing more came, and everything had been sent and answered before.
    """

    follower: str
    incarnation: int
    records: tuple[tuple[int, Value], ...]
    sought: int | None = None
    at_end: bool = False


class PowerCut(NamedTuple):
    """The power went at `time`. Everything below `flushed` had been flushed, as far as is known
    (`sync` logs need not say: acks tell), and the log went on at the offset `resumed`."""

    time: float
    resumed: int
    flushed: int = 0


@dataclass
class History:
    """All that is known. `log`, `start` and `gaps` are what the log shows in the end. Its records,
    and the polls of each follower, are in order; everything else may be in any. Values are all
    `bytes` or all `str`."""

    sends: list[Send] = field(default_factory=list)
    polls: list[Poll] = field(default_factory=list)
    log: list[tuple[int, Value]] = field(default_factory=list)
    start: int = 0
    gaps: list[Gap] = field(default_factory=list)
    flush: str = "sync"
    cuts: list[PowerCut] = field(default_factory=list)


# --- as lines of JSON -----------------------------------------------------------------------


def dump(history: History) -> Iterator[str]:
    """A line for each part, to keep a history that failed. Bytes are taken for UTF-8, and those
    that are not survive as surrogates."""
    yield _to_line("facts", {"start": history.start, "flush": history.flush})
    for kind, parts in (
        ("send", history.sends),
        ("poll", history.polls),
        ("cut", history.cuts),
        ("gap", history.gaps),
    ):
        for part in parts:
            yield _to_line(kind, part._asdict())
    for record in history.log:
        yield _to_line("record", record)


def _to_line(kind: str, part: object) -> str:
    return json.dumps({kind: part}, default=lambda data: data.decode("utf-8", "surrogateescape"))


def load(lines: Iterable[str]) -> History:
    """What `dump` wrote, or what processes wrote alike, in any order. Values come as bytes."""
    history = History()
    for number, line in enumerate(lines, 1):
        try:
            ((kind, part),) = json.loads(line).items()
            _load_part(history, kind, part)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"line {number} is not of a history: {line[:100]!r}") from error
    return history


def _load_part(history: History, kind: str, part: Any) -> None:
    match kind:
        case "send":
            part["values"] = tuple(map(_to_bytes, part["values"]))
            history.sends.append(Send(**part))
        case "poll":
            part["records"] = tuple((offset, _to_bytes(value)) for offset, value in part["records"])
            history.polls.append(Poll(**part))
        case "record":
            offset, value = part
            history.log.append((offset, _to_bytes(value)))
        case "cut":
            history.cuts.append(PowerCut(**part))
        case "gap":
            history.gaps.append(Gap(**part))
        case "facts":
            history.start, history.flush = part["start"], part["flush"]
        case _:
            raise ValueError(kind)


def _to_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
