"""Are the files in `.tailrace/` whole?

Each is judged by itself here; whether they agree with the segments is `verify`'s business. What can
be thrown away without loss (seals, the producers' snapshot, the clean marker) is never a problem.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from functools import partial

from tailrace.kernel import crc32c
from tailrace.log.fs import FileSystem, read_file
from tailrace.log.offline.findings import Finding, Severity
from tailrace.log.options import FlushMode
from tailrace.log.sidefiles import (
    FOLDER,
    FORMAT,
    CleanMarker,
    Gap,
    Reserved,
    Seals,
    Slots,
    StartOffset,
    WatermarkFile,
    load_checked_json,
    side_path,
)

__all__ = ["NAMES", "check_side_files", "is_whole_gap", "read_document", "read_side_file"]

_Findings = Iterator[Finding]
_Document = dict[str, object]


def read_side_file(fs: FileSystem, folder: str, name: str) -> bytes | None:
    """All of a side file; `None` when there is none."""
    path = side_path(folder, name)
    try:
        size = fs.stat(path).size
    except FileNotFoundError:
        return None
    return read_file(fs, path, size)


def check_side_files(fs: FileSystem, folder: str) -> list[Finding]:
    """What is wrong with them, one by one. A missing file is fine here."""
    findings: list[Finding] = []
    for name in NAMES:
        data = read_side_file(fs, folder, name)
        if data is None:
            continue
        if name in _DOCUMENTS:
            findings += _DOCUMENTS[name](name, read_document(fs, side_path(folder, name)))
        else:
            findings += _OTHERS[name](name, data)
    return findings


def _finding(severity: Severity, name: str, message: str, position: int | None = None) -> Finding:
    return Finding(severity, os.path.join(FOLDER, name), position, None, message)


# --- JSON documents -------------------------------------------------------------------------


def read_document(fs: FileSystem, path: str) -> _Document | None:
    """A checked JSON file of any size, whatever is in it; `None` when it is missing or damaged."""
    try:
        return load_checked_json(fs, path, fs.stat(path).size)
    except (FileNotFoundError, ValueError):
        return None


def _log_json(name: str, document: _Document | None) -> _Findings:
    if document is None:
        message = "is damaged: the log's flush mode is not known, and 'sync' is taken for it"
        yield _finding("problem", name, message)
        return
    number, flush = document.get("format"), document.get("flush")
    if not isinstance(number, int) or number > FORMAT:
        yield _finding("problem", name, f"is of format {number}; this tailrace knows {FORMAT}")
    elif flush not in list(FlushMode):
        yield _finding("problem", name, f"has the flush mode {flush!r}, which does not exist")
    elif not isinstance(document.get("sparse_below"), int):
        yield _finding("problem", name, "does not say where gaps that nobody recorded may be")


def _document(
    severity: Severity,
    fields: tuple[str, ...],
    consequence: str,
    name: str,
    document: _Document | None,
) -> _Findings:
    if document is None:
        yield _finding(severity, name, f"is damaged: {consequence}")
    elif set(document) != set(fields):
        yield _finding(severity, name, f"does not have the keys {', '.join(fields)}")


def _poisoned(name: str, document: _Document | None) -> _Findings:
    if document is None:
        yield _finding("problem", name, "is damaged: a flush failed, and nobody can tell where")
        return
    durable, reason = document.get("durable"), document.get("reason")
    message = f"a flush failed ({reason}); the next open goes back to offset {durable}"
    yield _finding("problem", name, message)


def _adoption(name: str, document: _Document | None) -> _Findings:
    """Whoever stores it is at work, or was killed."""
    if document is None:
        yield _finding("problem", name, "is damaged: what was being taken in may be seen in part")
        return
    durable = document.get("durable")
    message = f"batches are being taken in; if nobody does so, the next open goes back to {durable}"
    yield _finding("note", name, message)


# --- slots ----------------------------------------------------------------------------------


def _slots(
    severity: Severity, magic: bytes, size: int, consequence: str, name: str, data: bytes
) -> _Findings:
    """Two slots, of which one may be torn by a crash or never have been written."""
    bad: list[int] = []
    good = 0
    for position in (0, Slots.STRIDE):
        slot = data[position : position + Slots.STRIDE]
        parsed = Slots.parse(magic, slot)
        if parsed is not None and len(parsed[1]) == size:
            good += 1
        elif slot.strip(b"\0"):
            bad.append(position)
    if not good:
        yield _finding(severity, name, f"has no slot that is whole: {consequence}", 0)
    elif bad:
        yield _finding("note", name, "one of its two slots is damaged; the other counts", bad[0])


# --- journals -------------------------------------------------------------------------------


def _seals(name: str, data: bytes) -> _Findings:
    size = Seals.ENTRY.size
    for position in range(0, len(data), size):
        if not Seals.parse(data[position : position + size]):
            message = "an entry is damaged; that segment is scanned instead"
            yield _finding("note", name, message, position)


def is_whole_gap(line: bytes) -> bool:
    """Is this a line of `gaps`, with its checksum, about a gap?"""
    checksum, _, body = line.partition(b" ")
    if not body or checksum != b"%08x" % crc32c(body):
        return False
    try:
        document = json.loads(body)
    except ValueError:
        return False
    return isinstance(document, dict) and set(document) == set(Gap._fields)


def _gaps(name: str, data: bytes) -> _Findings:
    position = 0
    lines = data.split(b"\n")
    for number, line in enumerate(lines, 1):
        if line and not is_whole_gap(line):
            if number == len(lines):
                yield _finding("note", name, "a crash tore its last line", position)
            else:
                message = f"line {number} is damaged, and the gap that it recorded is not known"
                yield _finding("problem", name, message, position)
        position += len(line) + 1


_DOCUMENTS: dict[str, Callable[[str, _Document | None], _Findings]] = {
    "log.json": _log_json,
    "adoption": _adoption,
    "clean": partial(
        _document, "note", CleanMarker._fields, "the next open scans the last segment"
    ),
    "poisoned": _poisoned,
    "producers": partial(
        _document,
        "note",
        ("next_offset", "producers"),
        "what it says of producers is read from the log instead",
    ),
}
_OTHERS: dict[str, Callable[[str, bytes], _Findings]] = {
    "watermark": partial(
        _slots,
        "problem",
        WatermarkFile.MAGIC,
        WatermarkFile.SIZE,
        "how far the log was durable is not known",
    ),
    "reserved": partial(
        _slots,
        "problem",
        Reserved.MAGIC,
        Reserved.LAYOUT.size,
        "which offsets readers may have seen is not known",
    ),
    "start": partial(
        _slots, "problem", StartOffset.MAGIC, 8, "where the log was cut off in front is not known"
    ),
    "seals": _seals,
    "gaps": _gaps,
}
NAMES = (*_DOCUMENTS, *_OTHERS)
