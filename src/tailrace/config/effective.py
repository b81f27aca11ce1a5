"""The values that count where there is a store.

What a file says of a queue counts, also for one that exists: it is changed when the store is
opened. What the file does not say of it, the queue has kept since it was made. So `storage` and the
defaults are for queues that are not there yet.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tailrace.config.keys import Key, keys_of
from tailrace.config.model import DEFAULT, Config, Value
from tailrace.config.schema import QueueEntry
from tailrace.queue.settings import LOG_OPTIONS, QueueSettings
from tailrace.units import parse_duration, parse_size, write_duration, write_size

__all__ = ["STORE", "effective_values"]

STORE: Final = "store"

_OF_QUEUE: Final = re.compile(r"queues\[(\d+)\]\.(.+)")


def effective_values(
    config: Config, queues: Mapping[str, QueueSettings], place: Value | None = None
) -> Iterator[Value]:
    """Every value that counts. `queues` are those of the store, whose settings have the origin
    `store`; `place` is where it is, if that is said elsewhere than in the file."""
    for value in config.values():
        match = _OF_QUEUE.fullmatch(value.key)
        if match is not None:
            settings = queues.get(config.queues[int(match[1])].name)
            if settings is not None and not config.is_given(value.key):
                value = _stored(value, match[2], settings)
        elif place is not None and value.key == place.key:
            value = place
        yield value


def _stored(value: Value, name: str, settings: QueueSettings) -> Value:
    """What the queue has, as people write it: as it is written already, if that is the same."""
    if name in LOG_OPTIONS and name not in dict(settings.log_options):
        inherited = keys_of(QueueEntry)[name].inherits or ""
        return Value(value.key, Config.empty().value_of(inherited), DEFAULT)
    found = _settings(settings).get(name)
    if found is None:
        return value
    kind = _key(name).kind
    if kind == "duration":
        is_same, shown = parse_duration(value.value, name) == found, write_duration(found)
    elif kind == "size":
        is_same, shown = parse_size(value.value, name) == found, write_size(found)
    else:
        is_same, shown = value.value == found, found
    return Value(value.key, value.value if is_same else shown, STORE)


def _key(name: str) -> Key:
    section, _, inner = name.partition(".")
    key = keys_of(QueueEntry)[section]
    return keys_of(key.section)[inner] if inner else key


def _settings(settings: QueueSettings) -> dict[str, Any]:
    """By the keys of the file; times in milliseconds, sizes in bytes."""
    limits, retry, dlq, retention = (
        settings.limits,
        settings.retry,
        settings.dlq,
        settings.retention,
    )
    flush = "sync" if settings.flush is None else str(settings.flush)
    return {
        "type": settings.type,
        "topics": list(settings.topics),
        "primary_group": settings.primary_group,
        "limits.max_message_size": limits.max_message_size,
        "limits.max_depth": limits.max_depth,
        "limits.message_ttl": limits.message_ttl_ms,
        "limits.on_full": limits.on_full,
        "visibility_timeout": settings.visibility_timeout_ms,
        "retry.max_retries": "unlimited" if retry.max_retries is None else retry.max_retries,
        "retry.initial_backoff": retry.initial_backoff_ms,
        "retry.max_backoff": retry.max_backoff_ms,
        "retry.multiplier": retry.multiplier,
        "dlq.enabled": dlq.enabled,
        "dlq.topic": dlq.topic,
        "dlq.expired": dlq.expired,
        "retention.max_age": retention.max_age_ms or 0,
        "retention.max_length_bytes": retention.max_bytes or 0,
        "retention.max_length_messages": retention.max_records or 0,
        "ephemeral": settings.ephemeral,
        "expires_after": settings.expires_after_ms,
        "compact_after": settings.compact_after,
        "expire_groups": settings.expire_groups_ms,
        "auto_commit_interval": settings.auto_commit_interval_ms,
        "flush": "none" if settings.ephemeral else flush,
        "compression": settings.compression,
        **{name: _log_option(name, value) for name, value in settings.log_options},
    }


def _log_option(name: str, value: int | str) -> int:
    return parse_duration(value, name) if isinstance(value, str) else value
