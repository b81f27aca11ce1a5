"""Durations and sizes as people write them: `"30s"`, `"5m"`, `"7d"`, `"64MiB"`.

A bare number is seconds or bytes. Durations become whole milliseconds, which is the resolution of
every timestamp on disk. One above 0 is at least a millisecond: 0 often has a meaning of its own,
such as "never", and what is left of a short time must not turn into that.
"""

from __future__ import annotations

import re

from tailrace.errors import ConfigError

__all__ = [
    "format_size",
    "is_early",
    "parse_duration",
    "parse_milliseconds",
    "parse_size",
    "parse_span",
    "write_duration",
    "write_size",
]

# FluxMQ's file counts times in nanoseconds, in 64 bits, and so do systems for who waits.
_LONGEST_MS = (2**63 - 1) // 1_000_000

_EARLIEST_MS = 10**11  # in 1973. Before it is a year, a date, or seconds, taken for milliseconds

_MILLISECONDS = {
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}
_BYTES = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _BYTES[_letter + "b"] = 1000**_power
    _BYTES[_letter + "ib"] = _BYTES[_letter] = 1024**_power

_NUMBER = r"\d{1,18}(?:\.\d{1,9})?"
_DURATION_PART = re.compile(rf"(?<!\d)({_NUMBER})\s*(ms|[smhdw])")
_OTHER_TIME = re.compile("[1-9](?:[0-9]{3}|[0-9]{7}|[0-9]{9})")
_SIZE = re.compile(rf"({_NUMBER})\s*([a-z]*)")


def parse_duration(value: str | float, key: str) -> int:
    """Milliseconds. `key` names the option in the error."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ConfigError(f"{key}: expected a duration such as '30s' or seconds, got {value!r}")
    if not isinstance(value, str):
        if not 0 <= value < 2**50:
            raise ConfigError(f"{key}: a duration cannot be {value!r} seconds")
        return round(value * 1000) or int(value > 0)
    text = value.strip().lower()
    if re.fullmatch(_NUMBER, text):
        text += "s"
    parts = _DURATION_PART.findall(text)
    if not parts or _DURATION_PART.sub("", text).strip():
        raise ConfigError(f"{key}: {value!r} is not a duration; write it as 250ms, 30s, 5m or 7d")
    total = sum(_scale(number, _MILLISECONDS[unit]) for number, unit in parts)
    return total or int(any(number.strip("0.") for number, _ in parts))


def parse_span(value: str | float, key: str) -> int:
    """The same, of what is waited for or kept: not longer than anything can count."""
    milliseconds = parse_duration(value, key)
    if milliseconds > _LONGEST_MS:
        raise ConfigError(f"{key}: {value!r} is too long; 292 years are the most")
    return milliseconds


def is_early(milliseconds: int, now_ms: int) -> bool:
    """Is this a time since 1970 that nobody can mean? If the clock itself says such times, as in
    a test, then somebody can."""
    return milliseconds < _EARLIEST_MS <= now_ms


def parse_milliseconds(text: str, key: str) -> int:
    """Since 1970, of digits. As many as a year, a date or seconds have are most likely meant as
    that, and would be a time in 1970. With a 0 in front they are not."""
    if _OTHER_TIME.fullmatch(text):
        meant = "seconds" if len(text) == len("1704067200") else "a date"
        raise ConfigError(
            f"{key}: {text!r} may be {meant} or milliseconds since 1970: write a date as "
            "2024-01-01T00:00:00Z, and milliseconds with a 0 in front"
        )
    return int(text)


def parse_size(value: str | int, key: str) -> int:
    """Bytes. `key` names the option in the error."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ConfigError(f"{key}: expected a size such as '64MiB' or bytes, got {value!r}")
    if isinstance(value, int):
        if value < 0:
            raise ConfigError(f"{key}: a size cannot be {value}")
        return value
    match = _SIZE.fullmatch(value.strip().lower())
    if match is None or match[2] not in _BYTES:
        raise ConfigError(f"{key}: {value!r} is not a size; write it as 4096, 64KiB or 64MiB")
    return _scale(match[1], _BYTES[match[2]])


def _scale(number: str, unit: int) -> int:
    """A decimal number times a unit, without the rounding of floats."""
    whole, _, fraction = number.partition(".")
    scaled: int = int(fraction or "0") * unit // 10 ** len(fraction)
    return int(whole) * unit + scaled


def write_duration(milliseconds: int) -> str | int:
    """As people write it, in one unit; 0 is 0."""
    return _write(milliseconds, ("d", "h", "m", "s", "ms"), _MILLISECONDS)


def write_size(size: int) -> str | int:
    """As people write it, and exactly: bytes where no unit fits."""
    return _write(size, ("GiB", "MiB", "KiB"), _BYTES)


def _write(number: int, units: tuple[str, ...], sizes: dict[str, int]) -> str | int:
    for unit in units:
        if number and number % sizes[unit.lower()] == 0:
            return f"{number // sizes[unit.lower()]}{unit}"
    return number


def format_size(size: int) -> str:
    """A size for people: `1.5 MiB`."""
    if size < 1024:
        return f"{size} B"
    power = min((size.bit_length() - 1) // 10, 4)
    return f"{size / 1024**power:.1f} {'KMGT'[power - 1]}iB"
