"""What the checking tools report."""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["Finding", "Severity"]

Severity = Literal["problem", "note"]


class Finding(NamedTuple):
    """A `problem` has cost something, or needs a person or `recover`. A `note` is what an unclean
    end leaves behind, or what the next open puts right by itself."""

    severity: Severity
    path: str  # from the log's folder
    position: int | None  # in the file
    offset: int | None  # in the log
    message: str
