"""The settings of queues as FluxMQ keeps them, in `config/queues.json`.

The file is JSON as Go writes it: an indent of two spaces, no newline at the end, and `<`, `>` and
`&` escaped. Times are nanoseconds. `_KEYS` says which key is which setting. What FluxMQ has no key
for is in one more object of the entry, `Tailrace`, which FluxMQ does not look at (and does not keep
when it writes the file). Settings at their default need not be there, and neither need it.

What an entry says already is not written anew: as long as a key means the value that is to be
stored, it stays as it was found, or missing. So an entry that FluxMQ wrote, and of which no setting
was changed, keeps its bytes, with the keys that mean nothing to us. Numbers that make no sense (a
time below 0, no time at all for a lease) mean the nearest that does, or the default; they are
FluxMQ's, and no damage.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Any, Final

from tailrace.errors import ConfigError, Corrupt, InvalidName
from tailrace.log.options import FlushMode
from tailrace.queue.addresses import default_binding
from tailrace.queue.names import check_name
from tailrace.queue.settings import CODECS, LOG_OPTIONS, ON_FULL, TYPES, UNLIMITED, QueueSettings
from tailrace.queue.topics import check_filter

__all__ = ["VERSION", "dump", "entry_of", "format_entry", "join", "load"]

VERSION: Final = 2

_NANOSECONDS: Final = 1_000_000  # in a millisecond

# What FluxMQ's encoder escapes inside strings; and halves of characters, which UTF-8 cannot carry.
_ESCAPED: Final = re.compile("[<>&\u2028\u2029\ud800-\udfff]")

# An entry of FluxMQ's own, in its order.
_NEW_ENTRY: Final[Mapping[str, Any]] = {
    "Name": "",
    "Topics": [],
    "Reserved": False,
    "Type": "classic",
    "PrimaryGroup": "",
    "Durable": True,
    "AckDurability": "",
    "ExpiresAfter": 0,
    "LastConsumerDisconnect": "0001-01-01T00:00:00Z",
    "RetryPolicy": {
        "MaxRetries": 10,
        "InitialBackoff": 5_000_000_000,
        "MaxBackoff": 300_000_000_000,
        "BackoffMultiplier": 2,
        "TotalTimeout": 86_400_000_000_000,
    },
    "DLQConfig": {"Enabled": True, "Topic": "", "AlertWebhook": ""},
    "Replication": {
        "Enabled": False,
        "Group": "",
        "ReplicationFactor": 3,
        "Mode": "sync",
        "MinInSyncReplicas": 2,
        "AckTimeout": 5_000_000_000,
        "HeartbeatTimeout": 0,
        "ElectionTimeout": 0,
        "SnapshotInterval": 0,
        "SnapshotThreshold": 0,
    },
    "Retention": {
        "RetentionTime": 0,
        "TimeCheckInterval": 0,
        "RetentionBytes": 0,
        "RetentionMessages": 0,
        "SizeCheckEvery": 0,
        "CompactionEnabled": False,
        "CompactionKey": "",
        "CompactionLag": 0,
        "CompactionInterval": 0,
    },
    "MaxMessageSize": 10_485_760,
    "MaxDepth": 0,
    "MessageTTL": 0,
    "DeliveryTimeout": 30_000_000_000,
    "BatchSize": 100,
    "HeartbeatTimeout": 120_000_000_000,
}
_EPHEMERAL_FOR: Final = 300_000_000_000

# What is around the entries of a file.
_HEAD: Final = b'{\n  "version": %d,\n  "configs": [\n    ' % VERSION
_FOOT: Final = b'\n  ],\n  "saved_at": 0\n}'
_EMPTY: Final = b'{\n  "version": %d,\n  "configs": [],\n  "saved_at": 0\n}' % VERSION


def load(
    data: bytes, known: Mapping[str, QueueSettings] | None = None, known_data: bytes = b""
) -> list[QueueSettings]:
    """The queues of a file, in its order.

    Settings that are `known` by the name of their queue, and come from the same entry, are used
    again: they have to be as they were loaded, or as `entry_of` has stored them. If they are all
    the queues of `known_data`, in its order, only the entries that differ from it are parsed. An
    entry of FluxMQ's has no incarnation. `Corrupt` if the file is damaged, `ConfigError` if it is
    of a newer format.
    """
    known = known or {}
    if known_data:
        found = _load_difference(data, list(known.values()), known_data)
        if found is not None:
            return found
    document = _parse(data)
    if not isinstance(document, dict):
        raise Corrupt(f"it is no JSON object but {_short(document)}")
    version = document.get("version")
    if not isinstance(version, int) or isinstance(version, bool):
        raise Corrupt(f"its version is {_short(version)}")
    if version > VERSION:
        raise ConfigError(
            f"it is of version {version}; this tailrace knows versions up to {VERSION}: upgrade "
            f"tailrace to open it"
        )
    entries = document.get("configs")
    if not isinstance(entries, list | None):
        raise Corrupt(f"its configs are {_short(entries)}")
    return _queues(entries or (), known)


def _parse(data: bytes) -> Any:
    try:
        return json.loads(data.decode(), parse_float=_finite, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise Corrupt(f"it is not JSON: {error}", position=error.pos) from None
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"it is not JSON: {error}") from None


def _queues(entries: Iterable[Any], known: Mapping[str, QueueSettings]) -> list[QueueSettings]:
    queues: dict[str, QueueSettings] = {}
    for entry in entries:
        name = entry.get("Name") if isinstance(entry, dict) else None
        if not isinstance(name, str):
            raise Corrupt(f"there is a queue without a Name: {_short(entry)}")
        if name in queues:
            raise Corrupt(f"the queue {name!r} is there twice")
        settings = known.get(name)
        if settings is None or settings.fluxmq != entry:
            settings = _settings(name, entry)
        queues[name] = settings
    return list(queues.values())


def _load_difference(
    data: bytes, known: list[QueueSettings], known_data: bytes
) -> list[QueueSettings] | None:
    """To parse a file takes most of the time of a look at it, and usually one queue of thousands
    has changed. `None` if it has to be parsed as a whole, which tells what is wrong with it."""
    old, new = _texts(known_data), _texts(data)
    if old is None or new is None or len(old) != len(known):
        return None
    known_texts = dict(zip(old, known, strict=True))
    found = [known_texts.get(text) for text in new]
    try:
        # Each of them by itself: what is an object by itself is one in the list, too.
        entries = [_parse(b"{%b}" % new[i]) for i, each in enumerate(found) if each is None]
        changed = iter(_queues(entries, {settings.name: settings for settings in known}))
    except Corrupt:
        return None
    queues = {each.name: each for each in (each or next(changed) for each in found)}
    return list(queues.values()) if len(queues) == len(new) else None  # one is there twice


def _texts(data: bytes) -> list[bytes] | None:
    """The texts of the entries, without their braces, if the file is one that `join` has made (or
    looks like it)."""
    if not data.startswith(_HEAD + b"{") or not data.endswith(b"}" + _FOOT):
        return None
    return data[len(_HEAD) + 1 : -len(_FOOT) - 1].split(b"},\n    {")


def dump(queues: Iterable[QueueSettings]) -> bytes:
    """The file of these queues, in this order."""
    return join(format_entry(entry_of(queue)) for queue in queues)


def format_entry(entry: Mapping[str, Any]) -> str:
    """An entry's text, as `join` takes it."""
    text = json.dumps(entry, indent=2, ensure_ascii=False, allow_nan=False)
    escaped = _ESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
    return escaped.replace("\n", "\n    ")


def join(entries: Iterable[str]) -> bytes:
    """The file of the entries that have these texts."""
    configs = ",\n    ".join(entries).encode()
    return _HEAD + configs + _FOOT if configs else _EMPTY


def _settings(name: str, entry: Mapping[str, Any]) -> QueueSettings:
    settings = _default(name)
    new: dict[str, Any] = {"fluxmq": entry}
    nested: dict[str, dict[str, Any]] = {}
    try:
        check_name("queue", name)
        for key in _KEYS:
            found = key.find(entry)
            if found is not _MISSING:
                group, _, attribute = key.attribute.rpartition(".")
                (nested.setdefault(group, {}) if group else new)[attribute] = key.read(found)
        if new.get("flush") is FlushMode.ASYNC and _part(entry, _OURS).get("flush") == "none":
            new["flush"] = FlushMode.NONE
    except (InvalidName, ValueError) as error:
        raise Corrupt(f"the queue {name!r}: {error}") from None
    for group, values in nested.items():
        new[group] = replace(getattr(settings, group), **values)
    return replace(settings, **new)


def entry_of(settings: QueueSettings) -> dict[str, Any]:
    """The entry that says all of these settings, and what the one said that they come from."""
    # Two levels are changed in place, and so copied; what is below is replaced.
    found = settings.fluxmq or _NEW_ENTRY
    entry = {key: dict(part) if isinstance(part, dict) else part for key, part in found.items()}
    if not settings.fluxmq and settings.ephemeral:
        entry["ExpiresAfter"] = _EPHEMERAL_FOR
    entry["Name"] = settings.name
    default = _default(settings.name)
    for key in _KEYS:
        key.store(entry, key.value_of(settings), key.value_of(default))
    if settings.flush is FlushMode.NONE:
        _part_to_change(entry, _OURS)["flush"] = "none"
    elif "flush" in _part(entry, _OURS) and (
        settings.flush is FlushMode.ASYNC or entry["AckDurability"] != found.get("AckDurability")
    ):  # else it does not count, and was there before
        del entry[_OURS]["flush"]
    return entry


def _default(name: str) -> QueueSettings:
    """What an entry means that says nothing but a name."""
    return QueueSettings(name, topics=(default_binding(name),))


# --- keys -----------------------------------------------------------------------------------

_MISSING: Final = object()
_OURS: Final = "Tailrace"


def _part(entry: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = entry.get(name)
    if part is None:
        return {}
    if not isinstance(part, dict):
        raise ValueError(f"{name} is {_short(part)}")
    return part


def _part_to_change(entry: dict[str, Any], name: str) -> dict[str, Any]:
    part: dict[str, Any] | None = entry.get(name)
    if part is None:
        part = entry[name] = {}
    return part


class _Key:
    """A key of an entry, or of an object in it, and the setting that it is."""

    def __init__(
        self,
        path: str,
        attribute: str,
        decode: Callable[[Any], Any],
        encode: Callable[[Any], Any] = lambda value: value,
    ) -> None:
        self.attribute = attribute
        self.value_of = attrgetter(attribute)
        self._path = path
        self._group, _, self._name = path.rpartition(".")
        self._decode = decode
        self._encode = encode

    def find(self, entry: Mapping[str, Any]) -> Any:
        part = _part(entry, self._group) if self._group else entry
        return part.get(self._name, _MISSING)

    def read(self, found: Any) -> Any:
        try:
            return self._decode(found)
        except ValueError as error:
            raise ValueError(f"{self._path} is {_short(found)}; expected {error}") from None

    def store(self, entry: dict[str, Any], value: Any, default: Any) -> None:
        found = self.find(entry)
        if value != (default if found is _MISSING else self._decode(found)):
            part = _part_to_change(entry, self._group) if self._group else entry
            part[self._name] = self._encode(value)


def _flag(found: Any) -> bool:
    if not isinstance(found, bool):
        raise ValueError("true or false")
    return found


def _text(found: Any) -> str:
    if not isinstance(found, str):
        raise ValueError("a string")
    return found


def _number(found: Any) -> int:
    if isinstance(found, bool) or not isinstance(found, int):
        raise ValueError("a whole number")
    return max(found, 0)


def _milliseconds(found: Any) -> int:
    return -(-_number(found) // _NANOSECONDS)  # rounded up: a short time is not none


def _nanoseconds(milliseconds: int | None) -> int:
    return (milliseconds or 0) * _NANOSECONDS


def _multiplier(found: Any) -> float:
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise ValueError("a number")
    return float(min(max(found, 1), 1000))


def _topics(found: Any) -> tuple[str, ...]:
    if found is None:  # so Go writes an empty list
        return ()
    if not isinstance(found, list) or not all(isinstance(topic, str) for topic in found):
        raise ValueError("a list of filters")
    for topic in found:
        check_filter(topic)
    return tuple(found)


def _one_of(*choices: str) -> Callable[[Any], str]:
    def decode(found: Any) -> str:
        if not isinstance(found, str) or found not in choices:
            raise ValueError(f"one of {', '.join(choices)}")
        return found

    return decode


def _log_options(found: Any) -> tuple[tuple[str, int | str], ...]:
    """Those that this version knows."""
    if not isinstance(found, dict):
        raise ValueError("an object")
    for value in found.values():
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise ValueError("numbers and strings in it")
    return tuple(sorted((key, value) for key, value in found.items() if key in LOG_OPTIONS))


_FLUSH: Final = {"": None, "fsync": FlushMode.SYNC, "buffered": FlushMode.ASYNC}
_DURABILITY: Final = {mode: name for name, mode in _FLUSH.items()} | {FlushMode.NONE: "buffered"}
_ack_durability = _one_of(*_FLUSH)
_type = _one_of(*TYPES)


def _retries(found: Any) -> int | None:
    retries = _number(found)
    return None if retries >= UNLIMITED else retries


_KEYS: Final = (
    _Key("Topics", "topics", _topics, list),
    _Key("Reserved", "reserved", _flag),
    _Key("Type", "type", lambda found: _type(found or TYPES[0])),
    _Key("PrimaryGroup", "primary_group", _text),
    _Key("Durable", "ephemeral", lambda found: not _flag(found), lambda value: not value),
    _Key("AckDurability", "flush", lambda found: _FLUSH[_ack_durability(found)], _DURABILITY.get),
    _Key(
        "ExpiresAfter",
        "expires_after_ms",
        lambda found: _milliseconds(found or _EPHEMERAL_FOR),
        _nanoseconds,
    ),
    _Key(
        "RetryPolicy.MaxRetries",
        "retry.max_retries",
        _retries,
        lambda value: UNLIMITED if value is None else value,
    ),
    _Key("RetryPolicy.InitialBackoff", "retry.initial_backoff_ms", _milliseconds, _nanoseconds),
    _Key("RetryPolicy.MaxBackoff", "retry.max_backoff_ms", _milliseconds, _nanoseconds),
    _Key(
        "RetryPolicy.BackoffMultiplier",
        "retry.multiplier",
        _multiplier,
        lambda value: int(value) if value == int(value) else value,
    ),
    _Key("DLQConfig.Enabled", "dlq.enabled", _flag),
    _Key("DLQConfig.Topic", "dlq.topic", _text),
    _Key(
        "Retention.RetentionTime",
        "retention.max_age_ms",
        lambda found: _milliseconds(found) or None,
        _nanoseconds,
    ),
    _Key(
        "Retention.RetentionBytes",
        "retention.max_bytes",
        lambda found: _number(found) or None,
        lambda value: value or 0,
    ),
    _Key(
        "Retention.RetentionMessages",
        "retention.max_records",
        lambda found: _number(found) or None,
        lambda value: value or 0,
    ),
    _Key("MaxMessageSize", "limits.max_message_size", _number),
    _Key("MaxDepth", "limits.max_depth", _number),
    _Key("MessageTTL", "limits.message_ttl_ms", _milliseconds, _nanoseconds),
    _Key(
        "DeliveryTimeout",
        "visibility_timeout_ms",
        lambda found: _milliseconds(found) or 30_000,
        _nanoseconds,
    ),
    _Key(f"{_OURS}.incarnation", "incarnation", _text),
    _Key(f"{_OURS}.on_full", "limits.on_full", _one_of(*ON_FULL)),
    _Key(f"{_OURS}.dlq_expired", "dlq.expired", _flag),
    _Key(f"{_OURS}.compression", "compression", _one_of(*CODECS)),
    _Key(f"{_OURS}.log", "log_options", _log_options, dict),
    _Key(f"{_OURS}.compact_after", "compact_after", lambda found: _number(found) or 1),
    _Key(f"{_OURS}.auto_commit_interval_ms", "auto_commit_interval_ms", _number),
    _Key(f"{_OURS}.expire_groups_ms", "expire_groups_ms", _number),
    _Key(f"{_OURS}.implied", "implied", _flag),
    _Key(f"{_OURS}.survives", "survives", _flag),
)


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"{text} is not a number")
    return number


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is not a number")


def _short(found: Any) -> str:
    """What was found, for people."""
    text = json.dumps(found)
    return text if len(text) <= 60 else f"{text[:60]}…"
