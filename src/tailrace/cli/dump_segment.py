"""What is in a segment, or in an index, item by item.

Every item is a JSON object with a `type`, to which `dump` adds the `file`; `dump_text` turns it
into a line for people.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from tailrace.cli.output import record_item
from tailrace.kernel import (
    CODEC_NAMES,
    COMPRESSED,
    HAS_HEADERS,
    HAS_KEYS,
    HAS_TIMESTAMP,
    HEADER_SIZE,
    TRANSACTIONAL,
    BatchInfo,
    Malformed,
    decode,
    read_header,
)
from tailrace.log.fs import File, FileSystem, is_zeros, read_exactly, read_file
from tailrace.log.index import OffsetIndex, TimeIndex
from tailrace.log.offline.survey import Unreadable, Whole, fault_of, walk
from tailrace.log.offline.words import counted

__all__ = ["Item", "batches", "entries"]

Item = dict[str, object]

_BASE = re.compile(r"(\d{20})(?:\.seg|-\d+-\d+\.cut)")
_FLAGS = {
    COMPRESSED: "compressed",
    HAS_TIMESTAMP: "timestamps",
    HAS_KEYS: "keys",
    HAS_HEADERS: "headers",
    TRANSACTIONAL: "transactional",
}


# --- segments -------------------------------------------------------------------------------


def batches(
    fs: FileSystem, path: str, *, records: bool, start: int, limit: int | None
) -> Iterator[Item]:
    """The batches of a segment, each followed by its records; damage where it is."""
    match = _BASE.fullmatch(os.path.basename(path))
    base = int(match[1]) if match else None
    file = fs.open(path)
    try:
        size = file.size()
        yield {"type": "segment", "base_offset": base, "size": size}
        yield from _walk(file, size, base, records, start, limit)
    finally:
        file.close()


def _walk(
    file: File, size: int, base: int | None, records: bool, start: int, limit: int | None
) -> Iterator[Item]:
    shown = {"batches": 0, "records": 0, "damages": 0}
    for found in walk(file, size, base=base, expected=0):
        if isinstance(found, Unreadable):
            if found.end == size and is_zeros(file, found.position, size):
                yield {"type": "space", "position": found.position, "end": size}
                continue
            shown["damages"] += 1
            yield _damage(file, found)
            continue
        if found.info.next_offset <= start:
            continue
        if _reached(shown, records, limit):
            break
        shown["batches"] += 1
        yield _batch(found)
        if records:
            left = None if limit is None else limit - shown["records"]
            for item in _records(found, start, left):
                shown["records"] += 1
                yield item
    yield {"type": "end", **shown}


def _reached(shown: dict[str, int], records: bool, limit: int | None) -> bool:
    return limit is not None and shown["records" if records else "batches"] >= limit


def _batch(batch: Whole) -> Item:
    fault = fault_of(batch)
    item: Item = {"type": "batch", **_header(batch.info), "checksum": "ok"}
    if fault is not None:
        item["fault"] = fault.why
    return item


def _header(info: BatchInfo) -> Item:
    return {
        "position": info.position,
        "size": info.size,
        "base_offset": info.base_offset,
        "next_offset": info.next_offset,
        "count": info.count,
        "flags": [name for bit, name in _FLAGS.items() if info.flags & bit],
        "codec": CODEC_NAMES.get(info.codec, info.codec),
        "base_timestamp": info.base_timestamp,
        "max_timestamp": info.max_timestamp,
        "crc32c": f"{info.crc:08x}",
    }


def _records(batch: Whole, start: int, limit: int | None) -> list[Item]:
    last = batch.info.next_offset
    if limit is not None:
        last = min(last, max(batch.info.base_offset, start) + limit)
    try:
        found = decode(batch.data, 0, len(batch.data), start, last)
    except Malformed:
        return []  # the batch's fault says so
    return [record_item(record) for record in found]


def _damage(file: File, found: Unreadable) -> Item:
    item: Item = {
        "type": "damage",
        "position": found.position,
        "end": found.end,
        "first_offset": found.first_offset,
        "next_offset": found.next_offset,
        "why": found.why,
    }
    try:
        info = read_header(read_exactly(file, HEADER_SIZE, found.position), 0)
    except Malformed:
        return item
    claimed = _header(info._replace(position=found.position))
    return {**item, "header": {**claimed, "checksum": "bad"}}


# --- indexes --------------------------------------------------------------------------------


def entries(fs: FileSystem, path: str, *, start: int, limit: int | None) -> Iterator[Item]:
    """The header of an index, and its entries, whether they are right or not."""
    kind: type[OffsetIndex] | type[TimeIndex] = OffsetIndex if path.endswith(".idx") else TimeIndex
    data = read_file(fs, path, fs.stat(path).size) or b""
    if len(data) < kind.HEADER.size:
        why = f"{counted(len(data), 'byte')}; the header alone has {kind.HEADER.size}"
        yield {"type": "index", "size": len(data), "fault": why}
        return
    magic, version, base, count, *rest = kind.HEADER.unpack_from(data)
    item: Item = {"type": "index", "size": len(data), "version": version}
    item |= {"base_offset": base, "entries": count}
    item |= _rest_of_header(kind, rest)
    there, left_over = divmod(len(data) - kind.HEADER.size, kind.ENTRY.size)
    if magic != kind.MAGIC:
        item["fault"] = f"its magic number is {magic:08x}, not {kind.MAGIC:08x}"
    elif left_over:
        item["fault"] = f"it ends inside an entry, after {counted(left_over, 'byte')} of it"
    elif count != there:
        item["fault"] = f"it has {counted(there, 'entry', 'entries')}"
    yield item
    yield from _entries(kind, data, base, there, start, limit)


def _rest_of_header(kind: type[OffsetIndex] | type[TimeIndex], rest: list[int]) -> Item:
    if kind is OffsetIndex:
        return {"interval": rest[0]}
    return {"min_timestamp": rest[0], "max_timestamp": rest[1]}


def _entries(
    kind: type[OffsetIndex] | type[TimeIndex],
    data: bytes,
    base: int,
    count: int,
    start: int,
    limit: int | None,
) -> Iterator[Item]:
    shown = 0
    for i in range(count):
        first, second = kind.ENTRY.unpack_from(data, kind.HEADER.size + i * kind.ENTRY.size)
        if kind is OffsetIndex:
            item: Item = {"type": "entry", "i": i, "offset": base + first, "position": second}
        else:
            item = {"type": "entry", "i": i, "offset": base + second, "timestamp": first}
        if base + (first if kind is OffsetIndex else second) < start:
            continue
        if limit is not None and shown >= limit:
            return
        shown += 1
        yield item
