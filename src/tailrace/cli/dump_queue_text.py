"""The items of a dump of a store's files, as lines for people."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from tailrace.cli.output import as_text, as_time
from tailrace.log.offline.words import counted

__all__ = ["LINES"]

_LONGEST: Final = 80
_WORDS: Final = {
    "a": "attempt",
    "again": "again",
    "b": "boot",
    "c": "consumer",
    "count": "delivered",
    "d": "delivered at",
    "e": "error",
    "f": "from",
    "h": "handed",
    "k": "strikes",
    "l": "last",
    "m": "member",
    "n": "delivered",
    "o": "options",
    "r": "of",
    "u": "until",
    "w": "time",
    "x": "cursor",
}
_FLUXMQ_WORDS: Final = {"c": "consumer", "o": "offset", "os": "offsets", "ts": "time"}
_OTHER_WORDS: Final = {"take": {"b": "back", "n": "messages", "x": "to"}, "done": {"x": "below"}}
_RUNS: Final = ("r", "again", "parked")
_TIMES: Final = ("w", "ts", "d", "l")


def _op(item: dict[str, Any]) -> str:
    place = f"@{item['position']:<9} "
    if item["checksum"] == "bad":
        what = "not whole" if item["torn"] else "damaged"
        return f"{place}!! {what}: {_shortened(as_text(item['text'].encode(), _LONGEST))}"
    contents = {key: value for key, value in item["contents"].items() if key != "t"}
    words = {**_WORDS, **_OTHER_WORDS.get(item["op"], {})}
    if item["checksum"] == "none":
        words = _FLUXMQ_WORDS
        if item["op"] in ("deliver", "ack", "nack", "claim", "floor", "cursor"):
            contents = {"o": 0, **contents}  # which FluxMQ leaves out
    checksum = f"{item['checksum']}  " if item["checksum"] == "ok" else ""
    return "  ".join([f"{place}{checksum}{item['op']}", *_pairs(contents, words)])


def _pairs(contents: Mapping[str, Any], words: Mapping[str, str]) -> Iterator[str]:
    for key, value in contents.items():
        word = words.get(key, key)
        if key in _RUNS and isinstance(value, list):
            yield f"{word} {_runs(value)}"
        elif key in _TIMES and type(value) is int:
            yield f"{word} {as_time(value)}"
        else:
            yield f"{word} {_shortened(json.dumps(value, ensure_ascii=False))}"


def _runs(runs: list[Any]) -> str:
    """`[7, 1, 9, 3]` is `7, 9 to 11`."""
    pairs = list(zip(runs[::2], runs[1::2], strict=False))
    if not all(type(number) is int for pair in pairs for number in pair):
        return json.dumps(runs)
    text = ", ".join(
        str(first) if count == 1 else f"{first} to {first + count - 1}" for first, count in pairs
    )
    return _shortened(text) or "none"


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _hole(item: dict[str, Any]) -> str:
    return f"@{item['position']:<9} !! zeros up to byte {item['end'] - 1}, and more after them"


def _ops(item: dict[str, Any]) -> str:
    text = counted(item["ops"], "operation")
    return text + (f", {counted(item['damages'], 'damaged line')}" if item["damages"] else "")


def _pending(item: dict[str, Any]) -> str:
    text = f"  {item['offset']}"
    if "state" in item:
        text += f"  {item['state']}"
    contents = item["contents"]
    if not isinstance(contents, dict):
        return f"{text}  !! {_shortened(json.dumps(contents))}"
    said = ("o", "s") if "state" in item else ("o",)
    shown = {key: value for key, value in contents.items() if key not in said}
    return "  ".join([text, *_pairs(shown, _WORDS)])


def _queue(item: dict[str, Any]) -> str:
    text = f"  {item['name']}"
    contents = item["contents"]
    if not isinstance(contents, dict):
        return f"{text}  !! {_shortened(json.dumps(contents))}"
    for key, value in contents.items():
        if key != "Name":
            text += f"\n    {key}: {json.dumps(value, ensure_ascii=False)}"
    return text


def _board(item: dict[str, Any]) -> str:
    if item["generation"] is None:
        return "  !! too short"
    changing = ": the queues are being changed, or were when somebody died" * item["changing"]
    return f"  generation {item['generation']}{changing}"


def _mark(item: dict[str, Any]) -> str:
    text = f"  {item['what']}\n    modified: {as_time(item['modified'])}"
    return text + (f"\n    text: {as_text(item['text'].encode(), _LONGEST)}" * bool(item["text"]))


def _page(item: dict[str, Any]) -> str:
    text = f"  {item['what']}"
    if item["contents"] is None:
        return f"{text}\n  !! too short"
    for key, value in item["contents"].items():
        shown = as_time(value) if key.endswith("_ms") and value is not None else value
        text += f"\n    {key.removesuffix('_ms').replace('_', ' ')}: {_word(shown)}"
    return text


def _word(value: object) -> str:
    """As people say it."""
    if value is None or isinstance(value, bool):
        return "yes" if value else "no" if value is False else "none"
    return str(value)


def _copied(item: dict[str, Any]) -> str:
    contents = item["contents"]
    if not isinstance(contents, dict) or not {"path", "size", "crc32c"} <= contents.keys():
        return f"  !! {_shortened(json.dumps(contents))}"
    return f"  {contents['path']}  {contents['size']} bytes  crc {contents['crc32c']}"


LINES: Final[Mapping[str, Callable[[dict[str, Any]], str]]] = {
    "op": _op,
    "hole": _hole,
    "ops": _ops,
    "pending": _pending,
    "queue": _queue,
    "board": _board,
    "mark": _mark,
    "page": _page,
    "copied": _copied,
}
