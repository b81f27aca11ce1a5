"""The JSON files of a group: are they whole, and by which checksum?

Ours end in one. FluxMQ's have none, and FluxMQ drops ours when it writes a file: so whether there
is one says who wrote it.
"""

from __future__ import annotations

import json
from typing import Any, Final, Literal, NamedTuple

from tailrace.kernel import crc32c
from tailrace.queue.snapshots import parse_checked

__all__ = ["Checksum", "Document", "read_config", "read_saved", "read_snapshot"]

Checksum = Literal["ok", "bad", "none"]

_SEAL: Final = b',\n  "tailrace": {\n    "crc32c": '
_SEAL_END: Final = b"\n  }\n}"


class Document(NamedTuple):
    """`contents` without the checksum, as far as they are JSON; `fault` is what is wrong, at
    `position` if that is known. "none": nothing was damaged that could tell."""

    checksum: Checksum
    contents: dict[str, Any] | None
    fault: str | None = None
    position: int | None = None


def read_snapshot(data: bytes) -> Document:
    """`state.json` or `pel_<n>.json`."""
    try:
        ours = parse_checked(data)
    except (ValueError, RecursionError):
        ours = None
    if isinstance(ours, dict):
        return Document("ok", ours)
    found = _parse(data)
    contents = found.contents or {}
    if "crc32c" in contents or "tailrace" in contents or b'"crc32c":' in data:
        return found._replace(checksum="bad", fault=found.fault or "its checksum is wrong")
    return found


def read_saved(data: bytes) -> Document:
    """`groups/<queue>/<group>.json`."""
    body, found, checksum = data.rpartition(_SEAL)
    if found:
        body += b"\n}"
        document = _parse(body)
        if checksum == b"%d" % crc32c(body) + _SEAL_END and document.fault is None:
            return document._replace(checksum="ok")
    document = _parse(data)
    if found or "tailrace" in (document.contents or {}):
        return document._replace(checksum="bad", fault=document.fault or "its checksum is wrong")
    return document


def read_config(data: bytes) -> Document:
    """`config/queues.json`, which is FluxMQ's and has no checksum. What it says is not judged."""
    return _parse(data)


def _parse(data: bytes) -> Document:
    try:
        contents = json.loads(data.decode())
    except json.JSONDecodeError as error:
        return Document("none", None, f"it is not JSON: {error}", error.pos)
    except (ValueError, RecursionError) as error:
        return Document("none", None, f"it is not JSON: {error}")
    if not isinstance(contents, dict):
        return Document("none", None, "it is no JSON object")
    return Document("none", contents)
