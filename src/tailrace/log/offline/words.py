"""Numbers and ranges in sentences for people."""

from __future__ import annotations

__all__ = ["byte_range", "counted", "offsets", "offsets_are"]


def counted(number: int, one: str, many: str | None = None) -> str:
    """`1 segment`, `2 segments`; `many` is the plural where an s is not enough."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def offsets(first: int, next_offset: int) -> str:
    """A range of offsets."""
    if next_offset == first + 1:
        return f"offset {first}"
    return f"offsets {first} to {next_offset - 1}"


def offsets_are(first: int, next_offset: int) -> str:
    """A range of offsets with its verb."""
    return f"{offsets(first, next_offset)} {'is' if next_offset == first + 1 else 'are'}"


def byte_range(position: int, end: int) -> str:
    """A range of bytes with its verb."""
    if end == position + 1:
        return f"byte {position} is"
    return f"bytes {position} to {end - 1} are"
