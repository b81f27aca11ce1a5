"""Lines of a journal: JSON objects, each with the checksum of the rest of its line in front."""

from __future__ import annotations

from typing import Any

from tailrace.kernel.objects import decode_object, encode_object
from tailrace.kernel.pure.crc import crc32c

__all__ = ["read_line", "write_line"]

_PREFIX = len(b'{"k":"00000000",')


def write_line(value: dict[str, Any]) -> bytes:
    """An object as a line, with its end."""
    body = encode_object(value)
    return b'{"k":"%08x",%b\n' % (crc32c(body), body)


def read_line(line: bytes) -> dict[str, Any] | None:
    """The object in a line (without its end), less the checksum; `None` if it is damaged."""
    body = line[_PREFIX:]
    if line[:_PREFIX] != b'{"k":"%08x",' % crc32c(body):
        return None
    return decode_object(body)
