"""Both implementations of the kernel behind one face, and batches made by hand."""

from __future__ import annotations

import importlib
import os
import struct
from dataclasses import dataclass
from typing import Any

from tailrace.kernel.compiled import is_built
from tailrace.kernel.layout import HEADER, MAGIC
from tailrace.kernel.pure.crc import crc32c

TWINS = ("compiled", "pure")
_PARTS = (
    *("crc", "s2", "records", "codec", "tally", "outline", "flock", "notes", "lines", "naming"),
    "columns",  # the last: see `arrow` in conftest.py
)
NOW = 1_700_000_000_000

# The first batch of the uncompressed fixture, as FluxMQ wrote it.
GOLDEN = bytes.fromhex(
    "58554c46 91995bfe 0000000000000000 33000000 0100 0e00 00 01 0000 b092a5e0a1010000"
    "b092a5e0a1010000 00 00 00 0a 68656c6c6f 03 06 5f746f706963 0d 2471756575652f6f7264657273"
    "03 5f6964 01 37 06 5f7374617465 06 717565756564"
)


@dataclass(frozen=True)
class Twin:
    """One implementation: every function of its modules is an attribute."""

    name: str
    modules: tuple[Any, ...]

    def __getattr__(self, name: str) -> Any:
        for module in self.modules:
            if hasattr(module, name):
                return getattr(module, name)
        raise AttributeError(name)


def available(name: str) -> bool:
    """Whether a twin can be tested; a compiled one that is missing counts, unless excused."""
    return name == "pure" or is_built() or os.environ.get("TAILRACE_KERNEL") != "pure"


def load(name: str) -> Twin:
    if name == "compiled" and not is_built():
        raise ImportError("the kernel's extensions are not built for this Python: scripts/setup")
    modules = tuple(importlib.import_module(f"tailrace.kernel.{name}.{part}") for part in _PARTS)
    return Twin(name, modules)


def fields(record: Any) -> tuple[Any, ...]:
    """What a record holds, comparable between twins."""
    return record.offset, record.timestamp, record.key, record.value, record.headers.pairs


def batch(
    section: bytes,
    count: int = 1,
    *,
    base_offset: int = 0,
    flags: int = 0x0E,
    codec: int = 0,
    version: int = 1,
    length: int | None = None,
    base_timestamp: int = NOW,
    max_timestamp: int = NOW,
    magic: int = MAGIC,
) -> bytes:
    """A batch with these fields, whatever they are, and the right CRC."""
    head = HEADER.pack(
        magic,
        0,
        base_offset,
        len(section) if length is None else length,
        count,
        flags,
        codec,
        version,
        0,
        base_timestamp,
        max_timestamp,
    )
    return resealed(head + section)


def resealed(data: bytes) -> bytes:
    """`data`, one batch, with the right CRC."""
    return data[:4] + struct.pack("<I", crc32c(data[8:])) + data[8:]


def uvarint(number: int) -> bytes:
    """The obvious encoder, to test the others with."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*out, number))


def outcome(function: Any, *arguments: Any) -> Any:
    """The result of a call, or the type of the ValueError that it raised."""
    try:
        return function(*arguments)
    except ValueError as error:
        return type(error)
