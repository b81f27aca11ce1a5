"""What is published, as records: is each of them right, and does it fit?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any, Final

from tailrace import hooks
from tailrace.errors import Full
from tailrace.kernel import MAX_SECTION, Record, TooLarge, encode
from tailrace.log.options import LogOptions
from tailrace.queue.inputs import no_batch_holds
from tailrace.queue.message import Stamp, check_headers, new_record
from tailrace.queue.settings import QueueSettings

__all__ = ["check_batch", "check_size", "checked_records", "exceeds", "records_of"]

_SOME: Final = 1000  # messages that are looked at together
_RECORD: Final = 16  # bytes of a record besides what it carries, more or less


def check_batch(records: list[Record], queue: str, options: LogOptions) -> None:
    """`Full` if a batch cannot hold one of them, `TooLarge` if it cannot hold all together; nothing
    is tried of those that are small."""
    limit = options.max_batch_bytes
    if sum(map(_weight, records)) > limit // 2:
        try:
            encode(records, 0, options.codec, (), limit)
        except TooLarge as error:
            if len(records) == 1:
                raise no_batch_holds(queue, error) from None
            for record in records:
                check_batch([record], queue, options)
            raise


def _weight(record: Record) -> int:
    """More than half of what it takes in a batch, in any case."""
    weight = len(record.key or b"") + len(record.value or b"") + _RECORD
    for name, value in record.headers.pairs:
        weight += 4 * len(name) + len(value) + 2
    return weight


def check_size(record: Record, settings: QueueSettings) -> None:
    limit, size = settings.limits.max_message_size, len(record.value or b"")
    if limit and size > limit:
        raise exceeds(size, settings)


def exceeds(size: int, settings: QueueSettings) -> Full:
    return Full(
        f"a message of {size:,} bytes is more than the queue {settings.name!r} takes: "
        f"limits.max_message_size is {settings.limits.max_message_size:,}"
    )


def _largest(settings: QueueSettings) -> int:
    return settings.limits.max_message_size or MAX_SECTION


def _are_plain(values: Sequence[Any], limit: int) -> bool:
    """Are all of them nothing but their value, of which none is larger than that?"""
    return (
        hooks.carry_context is None
        and set(map(type, values)) == {bytes}
        and max(map(len, values)) <= limit
    )


def checked_records(
    values: Sequence[Any],
    stamp: Stamp,
    expiry: int | None,
    settings: QueueSettings,
    options: LogOptions,
) -> Iterable[Record]:
    """All of them are right, and none is too large for a batch: whatever is refused is refused
    here, before any is published. What most messages are is not made for that, only looked at."""
    most = options.max_batch_bytes // 2
    if _are_plain(values, min(most, _largest(settings))):
        return stamp.records(values, expiry)
    records = list(records_of(values, stamp, expiry, settings, options))
    if _longest(records, "key") + _longest(records, "value") > most:
        for record in records:
            check_batch([record], settings.name, options)
    return records


def _longest(records: list[Record], name: str) -> int:
    return max(map(len, filter(None, map(attrgetter(name), records))), default=0)


def records_of(
    values: Iterable[Any],
    stamp: Stamp,
    expiry: int | None,
    settings: QueueSettings,
    options: LogOptions,
) -> Iterator[Record]:
    """By and by: there may be more of them than memory. A batch can hold each that has headers:
    those of any other are short."""
    values, limit = iter(values), _largest(settings)
    while some := list(islice(values, _SOME)):
        if _are_plain(some, limit):
            yield from stamp.records(some, expiry)
        else:
            for value in some:
                yield _record_of(value, stamp, expiry, settings, options)


def _record_of(
    value: Any,
    stamp: Stamp,
    expiry: int | None,
    settings: QueueSettings,
    options: LogOptions,
) -> Record:
    key: Any = None
    headers: Any = None
    match value:
        case (key, value):
            pass
        case (key, value, headers) if headers is not None:
            check_headers(headers)
    if hooks.carry_context is not None:
        headers = hooks.carry_context(headers)
    if headers is None:
        record = stamp.record(value, b"" if key is None else key, expiry)
    else:
        record = new_record(value, stamp.topic, key=key, headers=headers, expires_at=expiry)
        check_batch([record], settings.name, options)
    check_size(record, settings)
    return record
