"""JSON objects of any shape, for both twins: their `lines` are for the usual ones."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["decode_object", "encode_object"]

_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
_decode = json.JSONDecoder().raw_decode  # half of what `loads` takes


def encode_object(value: dict[str, Any]) -> bytes:
    """An object, without the brace that it begins with."""
    return _encode(value)[1:].encode()


def decode_object(data: bytes) -> dict[str, Any] | None:
    """The other way round; `None` if it is none."""
    try:
        value: dict[str, Any] = _decode("{" + data.decode())[0]
    except (ValueError, RecursionError):
        return None
    return value
