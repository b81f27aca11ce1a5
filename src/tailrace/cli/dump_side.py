"""What is in the files of a log's `.tailrace` folder, a queue's or a store's, item by item."""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Callable, Iterator
from functools import partial

from tailrace.log.fs import FileSystem, read_file
from tailrace.log.members import Member, parse
from tailrace.log.offline.side_check import is_whole_gap, read_document
from tailrace.log.sidefiles import Reserved, Seals, Slots, StartOffset, Watermark, WatermarkFile
from tailrace.queue import dropped, rounds

__all__ = ["NAMES", "Item", "name_of", "side_file"]

Item = dict[str, object]

_UNNAMED = re.compile(r"\.\d+\.tmp$")


def name_of(path: str) -> str:
    """Which file it is, also before it has its name."""
    return _UNNAMED.sub("", os.path.basename(path))


def side_file(fs: FileSystem, path: str, *, limit: int | None = None) -> Iterator[Item]:
    """Every item with its place and the state of its checksum."""
    name = name_of(path)
    data = read_file(fs, path, fs.stat(path).size) or b""
    yield {"type": "file", "size": len(data)}
    if name in _DOCUMENTS:
        yield _document(data, read_document(fs, path))
    else:
        yield from itertools.islice(_READERS[name](data), limit)


def _document(data: bytes, document: Item | None) -> Item:
    if document is None:
        return {"type": "document", "checksum": "bad", "text": _text(data)}
    return {"type": "document", "checksum": "ok", "contents": document}


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


def _slots(magic: bytes, fields: Callable[[bytes], Item | None], data: bytes) -> Iterator[Item]:
    for position in (0, Slots.STRIDE):
        slot = data[position : position + Slots.STRIDE]
        parsed = Slots.parse(magic, slot)
        contents = fields(parsed[1]) if parsed is not None else None
        if parsed is not None and contents is not None:
            item: Item = {"type": "slot", "position": position, "checksum": "ok"}
            yield {**item, "sequence": parsed[0], "contents": contents}
        else:
            state = "bad" if slot.strip(b"\0") else "empty"
            yield {"type": "slot", "position": position, "checksum": state}


def _watermark(payload: bytes) -> Item | None:
    mark = Watermark.unpack(payload)
    if mark is None:
        return None
    item: Item = {"durable": mark.durable, "segment": mark.segment, "position": mark.position}
    return {**item, "boot_id": mark.boot_id.hex()}


def _reserved(payload: bytes) -> Item | None:
    if len(payload) != Reserved.LAYOUT.size:
        return None
    offset, boot_id = Reserved.LAYOUT.unpack(payload)
    return {"offset": offset, "boot_id": boot_id.hex()}


def _start(payload: bytes) -> Item | None:
    return {"offset": int.from_bytes(payload, "little")} if len(payload) == 8 else None


def _dropped(payload: bytes) -> Item | None:
    found = dropped.unpack(payload)
    return None if found is None else {"count": found[0], "incarnation": found[1]}


def _retained(payload: bytes) -> Item | None:
    found = rounds.unpack(payload)
    return None if found is None else {"looked": found[0], "go_on_at": found[1] or None}


def _seals(data: bytes) -> Iterator[Item]:
    size = Seals.ENTRY.size
    for position in range(0, len(data), size):
        found = Seals.parse(data[position : position + size])
        item: Item = {"type": "seal", "position": position}
        if found:
            yield {**item, "checksum": "ok", "contents": found[0]._asdict()}
        else:
            yield {**item, "checksum": "bad"}


def _gaps(data: bytes) -> Iterator[Item]:
    position = 0
    for line in data.split(b"\n"):
        item: Item = {"type": "gap", "position": position}
        if is_whole_gap(line):
            contents = json.loads(line.partition(b" ")[2])
            yield {**item, "checksum": "ok", "contents": contents}
        elif line:
            yield {**item, "checksum": "bad", "text": _text(line)}
        position += len(line) + 1


def _members(data: bytes) -> Iterator[Item]:
    """Who has the log open for writing: a note without a checksum."""
    members = parse(data)
    for member in members:
        yield {"type": "member", **member._asdict(), "running": member.running}
    if not members:
        item: Item = dict.fromkeys((*Member._fields, "running"))
        is_note = data in (b"", b"[]")
        yield {"type": "member", **item, **({} if is_note else {"text": _text(data)})}


_DOCUMENTS = ("log.json", "adoption", "clean", "poisoned", "producers")
_READERS: dict[str, Callable[[bytes], Iterator[Item]]] = {
    "watermark": partial(_slots, WatermarkFile.MAGIC, _watermark),
    "reserved": partial(_slots, Reserved.MAGIC, _reserved),
    "start": partial(_slots, StartOffset.MAGIC, _start),
    dropped.NAME: partial(_slots, dropped.MAGIC, _dropped),
    rounds.NAME: partial(_slots, rounds.MAGIC, _retained),
    "seals": _seals,
    "gaps": _gaps,
    "members": _members,
}
NAMES = (*_DOCUMENTS, *_READERS)
