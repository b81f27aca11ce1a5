"""The items of a dump as lines for people."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

from tailrace.cli import dump_queue_text
from tailrace.cli.output import as_text, as_time
from tailrace.log.offline.words import counted, offsets

__all__ = ["describe_record", "line"]

_LONGEST = 48  # of a key, value or header's value
_TIMES = ("time_ms", "began_ms", "ended_ms")


def line(item: dict[str, Any]) -> str:
    return _LINES[item["type"]](item)


def _segment(item: dict[str, Any]) -> str:
    return f"{item['file']}: {counted(item['size'], 'byte')}"


def _batch(item: dict[str, Any]) -> str:
    text = _header(item) + f"  crc {item['crc32c']} {item['checksum']}"
    if "fault" in item:
        text += f"\n  !! {item['fault']}"
    return text


def _header(item: dict[str, Any]) -> str:
    codec = item["codec"] if "compressed" in item["flags"] else "raw"
    return (
        f"@{item['position']:<9} {offsets(item['base_offset'], item['next_offset'])}  "
        f"count {item['count']}  "
        f"{item['size']} bytes  {codec}  {as_time(item['max_timestamp'])}"
    )


def _record(item: dict[str, Any]) -> str:
    return f"  | {describe_record(item)}"


def describe_record(item: dict[str, Any]) -> str:
    """A record in a line."""
    text = f"{item['offset']}  {as_time(item['timestamp'])}"
    if item["key"] is not None:
        text += f"  key {_bytes(item['key'])}"
    text += f"  value {_bytes(item['value'])}"
    if item["headers"]:
        pairs = (f"{_bytes(name)}={_bytes(value)}" for name, value in item["headers"])
        text += f"  headers {', '.join(pairs)}"
    return text


def _bytes(value: Any) -> str:
    if isinstance(value, dict):
        return as_text(base64.b64decode(value["base64"]), _LONGEST)
    return as_text(None if value is None else value.encode(), _LONGEST)


def _damage(item: dict[str, Any]) -> str:
    text = f"@{item['position']:<9} !! damaged up to byte {item['end'] - 1}: {item['why']}"
    if "header" in item:
        text += f"\n  its header says: {_header(item['header']).partition(' ')[2].strip()}"
    return text


def _space(item: dict[str, Any]) -> str:
    return f"@{item['position']:<9} zeros up to byte {item['end'] - 1}: room for what comes"


def _end(item: dict[str, Any]) -> str:
    text = f"{counted(item['batches'], 'batch', 'batches')}, {counted(item['records'], 'record')}"
    return text + (f", {counted(item['damages'], 'damaged place')}" if item["damages"] else "")


def _index(item: dict[str, Any]) -> str:
    text = _segment(item)
    for key in ("version", "base_offset", "entries", "interval"):
        if key in item:
            text += f"  {key.replace('_', ' ')} {item[key]}"
    if "min_timestamp" in item:
        text += f"  {as_time(item['min_timestamp'])} to {as_time(item['max_timestamp'])}"
    return text + (f"\n  !! {item['fault']}" if "fault" in item else "")


def _entry(item: dict[str, Any]) -> str:
    if "position" in item:
        return f"  {item['i']:<6} offset {item['offset']} at byte {item['position']}"
    return f"  {item['i']:<6} {as_time(item['timestamp'])} at offset {item['offset']}"


def _checked(item: dict[str, Any]) -> str:
    """A document, slot, seal or gap: where, whether it is whole, and what it says."""
    place = f"@{item['position']:<6} " if "position" in item else ""
    text = f"  {place}checksum {item['checksum']}"
    if "sequence" in item:
        text += f"  sequence {item['sequence']}"
    if "fault" in item:
        text += f"\n  !! {item['fault']}"
    if "text" in item:
        return f"{text}\n    {item['text'].strip()}"
    for key, value in item.get("contents", {}).items():
        is_time = key in _TIMES or key.endswith("_timestamp")
        shown = as_time(value) if is_time and type(value) is int else value
        text += f"\n    {key}: {shown}"
    return text


def _member(item: dict[str, Any]) -> str:
    if "text" in item:
        return f"  !! not a note of who has it open\n    {item['text'].strip()}"
    if item["pid"] is None:
        return "  nobody has it open for writing"
    since = as_time(item["since"] * 1000)
    ended = "; that process has ended" if item["running"] is False else ""
    return f"  pid {item['pid']} on {item['host']} since {since} ({item['mode']}){ended}"


_LINES: dict[str, Callable[[dict[str, Any]], str]] = {
    "segment": _segment,
    "batch": _batch,
    "record": _record,
    "damage": _damage,
    "space": _space,
    "end": _end,
    "index": _index,
    "entry": _entry,
    "file": _segment,
    "document": _checked,
    "slot": _checked,
    "seal": _checked,
    "gap": _checked,
    "member": _member,
    **dump_queue_text.LINES,
}
