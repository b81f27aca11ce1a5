"""What can be set on a log, with its defaults, checked in one place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tailrace.errors import ConfigError
from tailrace.kernel import MAX_SECTION, NONE, S2, ZSTD
from tailrace.units import parse_duration, parse_size

__all__ = ["FlushMode", "LogOptions", "Retention"]

# What a queue's configuration calls them.
_RETENTION_ALIASES = {"max_length_bytes": "max_bytes", "max_length_messages": "max_records"}

# What a log takes besides, by itself: for the message to somebody who mistyped one.
_OF_THE_LOG = ("exclusive", "mode", "read_only", "upkeep")

_CODECS = {"none": NONE, "s2": S2, "zstd": ZSTD}

# A position in an index is 32 bits, and one batch may overshoot nothing: it is counted first.
_SEGMENT_BYTES_MAX = 2**32 - 1
# A relative offset in an index is 31 bits in Kafka and 32 in FluxMQ; the smaller one holds.
RELATIVE_OFFSET_MAX = 2**31 - 1


class FlushMode(StrEnum):
    """When a receipt is complete; ordered from the strictest."""

    SYNC = "sync"
    ASYNC = "async"
    NONE = "none"

    @property
    def rank(self) -> int:
        return list(FlushMode).index(self)


@dataclass(frozen=True, slots=True)
class Retention:
    """What may be deleted; `None` means no limit of that kind."""

    max_age_ms: int | None = None
    max_bytes: int | None = None
    max_records: int | None = None

    @classmethod
    def parse(cls, given: Mapping[str, Any] | Retention | None) -> Retention:
        if isinstance(given, Retention):
            return given
        fields: dict[str, int | None] = {}
        for name, value in (given or {}).items():
            key = f"retention.{name}"
            match _RETENTION_ALIASES.get(name, name):
                case "max_age":
                    fields["max_age_ms"] = parse_duration(value, key) if value is not None else None
                case "max_bytes":
                    fields["max_bytes"] = parse_size(value, key) if value is not None else None
                case "max_records":
                    fields["max_records"] = _count(value, key) if value is not None else None
                case _:
                    raise ConfigError(
                        f"{key}: unknown; retention takes max_age, max_bytes and max_records"
                    )
        return cls(**{name: value or None for name, value in fields.items()})

    def __bool__(self) -> bool:
        return any((self.max_age_ms, self.max_bytes, self.max_records))


def _count(value: Any, key: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ConfigError(f"{key}: expected a whole number, got {value!r}")
    return value


@dataclass(frozen=True, slots=True)
class LogOptions:
    """A log's settings. Build them with `parse`, which takes what people write."""

    flush: FlushMode | None = None  # None: what the log was created with, else sync
    flush_interval_ms: int = 1_000
    codec: int = NONE
    segment_bytes: int = 64 * 2**20
    segment_age_ms: int = 168 * 3_600_000
    index_max_bytes: int = 10 * 2**20
    index_interval: int = 4096
    time_index_interval_ms: int = 1_000
    max_batch_bytes: int = 16 * 2**20
    retention: Retention = Retention()
    retention_check_interval_ms: int = 300_000
    producer_expiry_ms: int = 7 * 86_400_000
    open_files: int = 64

    @classmethod
    def parse(cls, **given: Any) -> LogOptions:
        unknown = given.keys() - _PARSERS.keys()
        if unknown:
            raise ConfigError(_describe_unknown(min(unknown)))
        fields: dict[str, Any] = {}
        for key, value in given.items():
            if value is not None:
                name, parse = _PARSERS[key]
                fields[name] = parse(value, key)
        options = cls(**fields)
        options._check()
        return options

    def _check(self) -> None:
        _between("segment_bytes", self.segment_bytes, 1, _SEGMENT_BYTES_MAX)
        _between("max_batch_bytes", self.max_batch_bytes, 1, MAX_SECTION)
        _between("index_interval", self.index_interval, 1, 2**32 - 1)
        _between("index_max_bytes", self.index_max_bytes, 64, _SEGMENT_BYTES_MAX)
        _between("open_files", self.open_files, 1, 2**20)
        _between("flush_interval", self.flush_interval_ms, 1, 2**50)
        _between("retention_check_interval", self.retention_check_interval_ms, 1, 2**50)


def _describe_unknown(key: str) -> str:
    from difflib import get_close_matches  # only a mistake needs it

    names = sorted((*_PARSERS, *_OF_THE_LOG))
    meant = "".join(f" (did you mean {name}?)" for name in get_close_matches(key, names, n=1))
    return f"{key}: unknown option{meant}; a log takes {', '.join(names)}"


def _between(key: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ConfigError(f"{key}: {value} is outside {low}..{high}")


def _flush(value: Any, key: str) -> FlushMode:
    try:
        return FlushMode(value)
    except ValueError:
        raise ConfigError(f"{key}: {value!r} is not one of sync, async, none") from None


def _codec(value: Any, key: str) -> int:
    try:
        return _CODECS[value]
    except (KeyError, TypeError):
        raise ConfigError(f"{key}: {value!r} is not one of none, s2, zstd") from None


def _retention(value: Any, key: str) -> Retention:
    if not isinstance(value, Mapping | Retention):
        raise ConfigError(f"{key}: expected a mapping such as {{'max_age': '7d'}}, got {value!r}")
    return Retention.parse(value)


_PARSERS: dict[str, tuple[str, Any]] = {
    "flush": ("flush", _flush),
    "flush_interval": ("flush_interval_ms", parse_duration),
    "compression": ("codec", _codec),
    "segment_bytes": ("segment_bytes", parse_size),
    "segment_age": ("segment_age_ms", parse_duration),
    "index_max_bytes": ("index_max_bytes", parse_size),
    "index_interval": ("index_interval", parse_size),
    "time_index_interval": ("time_index_interval_ms", parse_duration),
    "max_batch_bytes": ("max_batch_bytes", parse_size),
    "retention": ("retention", _retention),
    "retention_check_interval": ("retention_check_interval_ms", parse_duration),
    "producer_expiry": ("producer_expiry_ms", parse_duration),
    "open_files": ("open_files", _count),
}
