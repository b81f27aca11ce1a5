"""Stores as FluxMQ writes them, made of bytes and JSON by the tables of its formats alone: nothing
here is ours, so that a test does not compare us with ourselves."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

__all__ = ["batch", "write_group", "write_queue"]

_MAGIC = 0x464C5558
_RAW = 0x0E  # times, keys and headers, not compressed
_AT_MS = 1_794_770_309_770
_TIME = "2026-11-15T19:18:29.768055613Z"


def _crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def _unsigned(number: int) -> bytes:
    data = bytearray()
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*data, number])


def _signed(number: int) -> bytes:
    return _unsigned(number << 1 if number >= 0 else (-number << 1) - 1)


def batch(offset: int, value: bytes, queue: str) -> bytes:
    """One message, as each publish of FluxMQ's writes it."""
    headers = {"_topic": f"$queue/{queue}", "_id": str(offset + 1), "_state": "queued"}
    record = _unsigned(0) + _signed(0) + _signed(0) + _signed(len(value)) + value
    record += _unsigned(len(headers))
    for name, text in headers.items():
        for part in (name.encode(), text.encode()):
            record += _unsigned(len(part)) + part
    at_ms = _AT_MS + offset
    checked = struct.pack("<QIHHBBHqq", offset, len(record), 1, _RAW, 0, 1, 0, at_ms, at_ms)
    checked += record
    return struct.pack("<II", _MAGIC, _crc32c(checked)) + checked


def write_queue(root: Path, name: str, values: Iterable[bytes], **keys: Any) -> None:
    """A queue with its messages; `keys` are those of its entry in `config/queues.json`."""
    config = root / "config" / "queues.json"
    config.parent.mkdir(parents=True, exist_ok=True)
    document = {"version": 2, "configs": [], "saved_at": 0}
    if config.exists():
        document = json.loads(config.read_bytes())
    entry = {"Name": name, "Topics": [f"$queue/{name}/#"], "Type": "classic", **keys}
    document["configs"] = [*document["configs"], entry]  # type: ignore[misc]
    config.write_text(json.dumps(document, indent=2))
    segments = root / "queues" / name / "segments"
    segments.mkdir(parents=True)
    data = b"".join(batch(offset, value, name) for offset, value in enumerate(values))
    (segments / f"{0:020}.seg").write_bytes(data)


def write_group(root: Path, queue: str, group: str, mode: str, cursor: int, committed: int) -> Path:
    """What `groups/` says of a group that has nothing pending."""
    path = root / "groups" / queue / f"{group}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {
        "ID": group,
        "QueueName": queue,
        "Pattern": "",
        "Mode": mode,
        "AutoCommit": True,
        "Cursor": {"Cursor": cursor, "Committed": committed},
        "PEL": {},
        "Consumers": {},
        "CreatedAt": _TIME,
        "UpdatedAt": _TIME,
    }
    path.write_text(json.dumps({"version": 2, "state": state, "saved_at": _AT_MS}, indent=2))
    return path
