"""Names of queues and groups, and the files that carry them.

A name may hold anything but control characters. In a path it is one component, in which what a path
cannot hold is written as `%` and two hex digits for each byte of its UTF-8: a slash, a percent
sign, and the dot of a name that begins with one (`..` is a folder, and `.tailrace` is ours). Names
that need none of this are their own files, as FluxMQ writes them.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

from tailrace.errors import InvalidName

__all__ = ["RESERVED", "check_name", "from_component", "refuse_reserved", "to_component"]

RESERVED: Final = frozenset({"mqtt"})  # queues that a broker makes for itself, as FluxMQ does

_LONGEST = 200  # bytes of a component: file systems take 255, and files need an ending
_ESCAPED = re.compile(r"^\.|[/%]")
_ESCAPE = re.compile(r"%([0-9A-F]{2})")


def check_name(kind: str, name: str) -> None:
    """Raise `InvalidName` unless it can be the name of a `kind`: "queue" or "group"."""
    if not isinstance(name, str):
        raise InvalidName(f"the name of a {kind} is text, not {name!r:.60}")
    if not name:
        raise InvalidName(f"the name of a {kind} must not be empty")
    for character in name:
        # Controls; and halves of characters, which no file can carry.
        if unicodedata.category(character) in ("Cc", "Cs"):
            raise InvalidName(f"the name of a {kind}, {name!r}, holds {character!r}")
    size = len(_escape(name).encode())
    if size > _LONGEST:
        raise InvalidName(
            f"the name of a {kind}, {name[:20]!r}…, takes {size} bytes in a path; "
            f"{_LONGEST} are the most"
        )


def refuse_reserved(name: str) -> None:
    """Raise `InvalidName` if nobody but the broker may make a queue of this name. One that is there
    is like any other."""
    if name in RESERVED:
        raise InvalidName(
            f"the name of a queue, {name!r}, is reserved for the broker, which keeps its own "
            "messages there; use another name"
        )


def to_component(name: str) -> str:
    """The name of its file or folder. Two names never have the same."""
    return _escape(name)


def from_component(component: str) -> str:
    """The name whose file or folder it is."""
    return _ESCAPE.sub(lambda match: chr(int(match[1], 16)), component)


def _escape(name: str) -> str:
    return _ESCAPED.sub(lambda match: f"%{ord(match[0]):02X}", name)
