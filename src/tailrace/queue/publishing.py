"""Publishing to a queue by its name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set, ValuesView
from datetime import datetime
from itertools import chain, islice
from time import perf_counter
from typing import Any, TypeVar, overload

from tailrace import hooks
from tailrace.errors import ConfigError
from tailrace.kernel import (
    HEADER_SIZE,
    MAX_COUNT,
    NONE,
    Draft,
    Record,
    TooLarge,
    encode_one,
)
from tailrace.kernel.coerce import as_bytes_or_none
from tailrace.kernel.layout import too_large
from tailrace.log.commit import Receipt
from tailrace.log.inputs import checked_sequence, chunks
from tailrace.log.producers import Once
from tailrace.queue.addresses import topic_in
from tailrace.queue.delays import Delayed, Delays, Scheduled, due_ms
from tailrace.queue.depth import refuse_more_than_fit
from tailrace.queue.handles import QueueLog
from tailrace.queue.inputs import check_patience, check_values, no_batch_holds
from tailrace.queue.message import Stamp, check_headers, new_record
from tailrace.queue.observing import Weighed, published, weigh
from tailrace.queue.settings import QueueSettings
from tailrace.queue.values import check_batch, check_size, checked_records, exceeds, records_of
from tailrace.queue.weighing import OF_A_MESSAGE
from tailrace.units import parse_span

__all__ = ["Publishing", "Until", "expires_at", "held_of", "refuse_delay"]

_STAMPS_MOST = 1024

# Compressing takes as long as appending. Of a queue whose messages don't become smaller, only some
# are tried.
_WORTH_COMPRESSING = 256
_TRY_AGAIN_AFTER = 31

_FLAGS: tuple[type, type] = (bool, bool)
_HELD = (Sequence, Set, ValuesView)  # what holds all that it gives, and gives it again

Records = TypeVar("Records", bound=Iterable[Record])


class Publishing:
    """What both kinds of queue can do. Thread-safe: what two threads do to a cache at once is
    harmless."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._stamps: dict[str, Stamp] = {}  # by routing key
        self._uncompressed = 0  # so many messages are not worth a try
        self._known_ttl: tuple[float | str, int] = (0, 0)  # the last that was given, and parsed
        self._log: QueueLog | None = None  # once it is needed

    @property
    def settings(self) -> QueueSettings:
        raise NotImplementedError

    @property
    def log(self) -> QueueLog:
        raise NotImplementedError

    def admit(self, settings: QueueSettings, count: int, *, block: bool = True) -> bool:
        """Return when there is room for so many messages: was that waited for? `Full` if it is not.
        Others may be dropped for them, so they have to be right before."""
        raise NotImplementedError

    delays: Delays
    _wall_ms: Callable[[], int]  # the store's clock: the system's is one call away

    @overload
    def publish(
        self,
        value: bytes | str | None,
        *,
        key: bytes | str | None = None,
        routing_key: str = "",
        headers: Any = None,
        message_id: str | None = None,
        ttl: float | str | None = None,
        timestamp: int | None = None,
        delay: None = None,
        deliver_at: None = None,
        producer: str | None = None,
        sequence: int | None = None,
        wait: bool = True,
        block: bool = True,
    ) -> Receipt: ...

    @overload
    def publish(
        self,
        value: bytes | str | None,
        *,
        key: bytes | str | None = None,
        routing_key: str = "",
        headers: Any = None,
        message_id: str | None = None,
        ttl: float | str | None = None,
        timestamp: int | None = None,
        delay: float | str,
        wait: bool = True,
        block: bool = True,
    ) -> Delayed: ...

    @overload
    def publish(
        self,
        value: bytes | str | None,
        *,
        key: bytes | str | None = None,
        routing_key: str = "",
        headers: Any = None,
        message_id: str | None = None,
        ttl: float | str | None = None,
        timestamp: int | None = None,
        deliver_at: int | datetime,
        wait: bool = True,
        block: bool = True,
    ) -> Delayed: ...

    def publish(
        self,
        value: bytes | str | None,
        *,
        key: bytes | str | None = None,
        routing_key: str = "",
        headers: Any = None,
        message_id: str | None = None,
        ttl: float | str | None = None,
        timestamp: int | None = None,
        delay: float | str | None = None,
        deliver_at: int | datetime | None = None,
        producer: str | None = None,
        sequence: int | None = None,
        wait: bool = True,
        block: bool = True,
    ) -> Receipt:
        """Publish a message to this queue. Returns when it is as durable as the queue's flush mode
        promises; with `wait=False` at once, and the receipt tells. With `block=False` a full queue
        is an error, also one where publishers are to wait.

        With a `delay`, or a time to `deliver_at` (milliseconds since 1970, or a datetime with a
        time zone), the message enters the queue then; what is returned is a `Delayed`, whose
        `delay_id` cancels it. That time is its timestamp; one that is over counts as now. `ttl`
        counts from now on, and has to end later; the queue's `message_ttl` counts from that time
        on.

        With a `producer` id and a `sequence` that rises, repeating it is harmless: the receipt of
        the first time comes back, also if the queue is full now. What is given besides is not
        compared. A sequence that is too old to be remembered is `NotWritten`. A delayed message
        cannot have them.
        """
        if (type(wait), type(block)) != _FLAGS:
            check_patience(wait, block)
        settings = self.settings
        if headers is not None:
            check_headers(headers)
        if hooks.carry_context is not None:
            headers = hooks.carry_context(headers)
        if producer is not None or sequence is not None:
            refuse_delay(delay is not None or deliver_at is not None)
            receipt = self.log.find(producer, sequence)
            if receipt is None:
                records = self._admitted_record(
                    settings, block, ttl, value, key, routing_key, headers, message_id, timestamp
                )
                receipt = self.append(records, settings, producer, sequence)
            return receipt.wait() if wait else receipt
        if delay is not None or deliver_at is not None:
            due = due_ms(delay, deliver_at, self._wall_ms())
            assert due is not None
            if timestamp is not None:
                raise ValueError("timestamp: that of a delayed message is the time it is due")
            later = self._publish_later(
                settings, value, key, routing_key, headers, message_id, ttl, due
            )
            hooks.count("scheduled", 1, self.name)
            return later.wait() if wait else later
        if headers is not None or message_id is not None or type(ttl) is Until:
            records = self._admitted_record(
                settings, block, ttl, value, key, routing_key, headers, message_id, timestamp
            )
            receipt = self.append(records, settings)
            return receipt.wait() if wait else receipt
        # What most messages are: nothing is parsed or checked that is known to be right.
        now_ms = self._wall_ms()
        ttl_ms = settings.limits.message_ttl_ms
        if ttl is not None:
            known, ttl_ms = self._known_ttl
            if ttl is not known:
                ttl_ms = parse_span(ttl, "ttl")
                self._known_ttl = ttl, ttl_ms
        expiry = now_ms + ttl_ms if ttl_ms else None
        stamp = self._stamps.get(routing_key) or self._stamp(routing_key)
        draft = self._draft(settings, value, key, stamp, timestamp, now_ms, expiry)
        if self.admit(settings, 1, block=block):  # its times count from now on
            draft = self.draft(stamp, value, key, ttl, timestamp)
        receipt = self.append_draft(draft, key, value)
        return receipt.wait() if wait else receipt

    def _admitted_record(
        self,
        settings: QueueSettings,
        block: bool,
        ttl: float | str | None,
        value: bytes | str | None,
        key: bytes | str | None,
        routing_key: str,
        headers: Any,
        message_id: str | None,
        timestamp: int | None,
    ) -> list[Record]:
        """The record of a message that has more than most, and room for it."""
        given = value, key, routing_key, headers, message_id

        def make(expiry: int | None) -> list[Record]:
            return self._one_batch(settings, [self._record(settings, *given, expiry, timestamp)])

        return self._admitted(settings, block, ttl, 1, make)

    def _admitted(
        self,
        settings: QueueSettings,
        block: bool,
        ttl: float | str | None,
        count: int,
        make: Callable[[int | None], Records],
    ) -> Records:
        """So many records, for which there is room; `make` makes them, and gets when they expire.
        What they had to wait does not count."""
        records = make(expires_at(settings, ttl, self._wall_ms()))
        if self.admit(settings, count, block=block):
            records = make(expires_at(settings, ttl, self._wall_ms()))
        return records

    def _one_batch(self, settings: QueueSettings, records: list[Record]) -> list[Record]:
        """Records that are appended together. If others are dropped for them, they fit."""
        if settings.limits.on_full == "drop_oldest":
            self.check_batch(records)
        return records

    def check_batch(self, records: list[Record]) -> None:
        """`Full` if a batch cannot hold one of them, `TooLarge` if it cannot hold all together."""
        check_batch(records, self.name, self.log.options)

    def _record(
        self,
        settings: QueueSettings,
        value: bytes | str | None,
        key: bytes | str | None,
        routing_key: str,
        headers: Any,
        message_id: str | None,
        expiry: int | None,
        timestamp: int | None = None,
    ) -> Record:
        """The record of a message that has more than most."""
        record = new_record(
            value,
            self._topic(routing_key),
            key=key,
            headers=headers,
            message_id=message_id,
            expires_at=expiry,
            timestamp=timestamp,
        )
        check_size(record, settings)
        return record

    def draft(
        self,
        stamp: Stamp,
        value: bytes | str | None,
        key: bytes | str | None,
        ttl: Any,
        timestamp: int | None = None,
    ) -> Draft:
        """A message with nothing but these, as it is to be appended."""
        settings, now_ms = self.settings, self._wall_ms()
        expiry = expires_at(settings, ttl, now_ms)
        return self._draft(settings, value, key, stamp, timestamp, now_ms, expiry)

    def append_draft(
        self, draft: Draft, key: bytes | str | None, value: bytes | str | None
    ) -> Receipt:
        """Append it; key and value are told to those who listen."""
        if not hooks.listeners:
            return (self._log or self.log).append_draft(draft)
        begun = perf_counter()
        receipt = self.log.append_draft(draft)
        return published(self.name, receipt, weigh(key, value), begun)

    def _draft(
        self,
        settings: QueueSettings,
        value: bytes | str | None,
        key: bytes | str | None,
        stamp: Stamp,
        timestamp: int | None,
        now_ms: int,
        expiry: int | None,
    ) -> Draft:
        if type(value) is not bytes:
            value = as_bytes_or_none(value, "value")
        if value is not None and len(value) > settings.limits.max_message_size > 0:
            raise exceeds(len(value), settings)
        options = (self._log or self.log).options
        codec = options.codec
        if self._uncompressed:
            self._uncompressed -= 1
            codec = NONE
        head = stamp(expiry)
        draft = encode_one(value, b"" if key is None else key, head, timestamp, now_ms, codec)
        if codec and value and draft.size > HEADER_SIZE + max(len(value), _WORTH_COMPRESSING):
            self._uncompressed = _TRY_AGAIN_AFTER  # it was tried in vain
        if draft.size > HEADER_SIZE + options.max_batch_bytes:
            size, limit = draft.size - HEADER_SIZE, options.max_batch_bytes
            raise no_batch_holds(self.name, too_large(size, limit, 1))
        return draft

    def _publish_later(
        self,
        settings: QueueSettings,
        value: bytes | str | None,
        key: bytes | str | None,
        routing_key: str,
        headers: Any,
        message_id: str | None,
        ttl: float | str | None,
        due: int,
    ) -> Delayed:
        """To where it waits until it is due."""
        self._check_disk()
        now_ms = self._wall_ms()
        expiry = expires_at(settings, ttl, now_ms, due)
        if headers is None and message_id is None:
            stamp = self._stamps.get(routing_key) or self._stamp(routing_key)
            draft = self._draft(settings, value, key, stamp, due, now_ms, expiry)
            size = weigh(key, value, routing_key) + OF_A_MESSAGE
            return self.delays.schedule_draft(draft, due, size)
        record = self._record(settings, value, key, routing_key, headers, message_id, expiry)
        return self.delays.schedule(record, due)

    def _check_disk(self) -> None:
        """`Full` if nothing may be written."""
        raise NotImplementedError

    def cancel(self, delay_id: str | Delayed | Scheduled) -> bool:
        """Take a delayed message back, durably: by its delay id, what `publish` returned, or what
        `delayed` lists. True if it will never be delivered; false if it is too late, or there is no
        such message."""
        self.settings  # noqa: B018  raises if the queue was deleted
        return self.delays.cancel(delay_id)

    def delayed(self, limit: int | None = 100) -> list[Scheduled]:
        """The messages that are to be delivered later, the next one first."""
        self.settings  # noqa: B018
        return self.delays.scheduled(limit)

    def delayed_count(self) -> int:
        """How many messages are to be delivered later."""
        self.settings  # noqa: B018
        return self.delays.count()

    def _topic(self, routing_key: str) -> str:
        """The topic of a routing key, checked when it is new."""
        stamp = self._stamps.get(routing_key) or self._stamp(routing_key)
        return stamp.topic

    def _stamp(self, routing_key: str) -> Stamp:
        if not isinstance(routing_key, str):
            raise TypeError(f"routing_key is text, not {routing_key!r:.60}")
        stamp = Stamp(topic_in(self.name, routing_key))
        if len(self._stamps) >= _STAMPS_MOST:
            self._stamps.clear()
        self._stamps[routing_key] = stamp
        return stamp

    def publish_many(
        self,
        values: Iterable[Any],
        *,
        routing_key: str = "",
        ttl: float | str | None = None,
        producer: str | None = None,
        sequence: int | None = None,
        wait: bool = True,
        block: bool = True,
    ) -> Receipt:
        """Publish messages in one batch (more only beyond its limits): values, or pairs of a key
        and a value, or triples with headers. `wait` and `block` as in `publish`.

        If a list or a tuple has something in it that is refused, nothing is published. An iterator
        is published while it goes on, so what came before that may be there, if it was more than a
        batch: a note of the error tells how many. The same goes for an error of the disk.

        A `producer` and a `sequence` are those of the batch, as in `publish`; more than one batch
        holds is refused then."""
        check_values(values)
        check_patience(wait, block)
        settings = self.settings
        if producer is not None or sequence is not None:
            receipt = self.log.find(producer, sequence)
            if receipt is None:
                together = self._together(settings, values, routing_key, ttl, block)
                receipt = self.append(together, settings, producer, sequence)
            return receipt.wait() if wait else receipt
        stamp = self._stamps.get(routing_key) or self._stamp(routing_key)
        portions: Iterator[list[Record]]
        if settings.limits.max_depth or isinstance(values, _HELD):
            held = held_of(values, settings)
            if not held:
                raise _no_messages()

            def make(expiry: int | None) -> Iterable[Record]:
                return checked_records(held, stamp, expiry, settings, self.log.options)

            records = self._admitted(settings, block, ttl, len(held), make)
            portions = chunks(records, self.log.options.max_batch_bytes)
        else:
            portions = self._portions(settings, values, stamp, ttl)
            first = next(portions, None)
            if first is None:
                raise _no_messages()
            portions = chain((first,), portions)
        try:
            append = self._append_told if hooks.listeners else self.log.append_portions
            receipt = append(portions)
        except TooLarge as error:  # one alone: others are put into smaller batches
            raise no_batch_holds(self.name, error) from None
        return receipt.wait() if wait else receipt

    def _portions(
        self, settings: QueueSettings, values: Iterable[Any], stamp: Stamp, ttl: float | str | None
    ) -> Iterator[list[Record]]:
        """The records of messages that come by and by, each time of so many as fit into a batch:
        then the disk has room for them, and from then on their time counts."""
        options = self.log.options
        self._check_disk()
        for some in chunks(values, options.max_batch_bytes):
            self._check_disk()
            expiry = expires_at(settings, ttl, self._wall_ms())
            yield list(records_of(some, stamp, expiry, settings, options))

    def _together(
        self,
        settings: QueueSettings,
        values: Iterable[Any],
        routing_key: str,
        ttl: float | str | None,
        block: bool,
    ) -> list[Record]:
        """The records of messages that are to be one batch, for which there is room."""
        some = list(islice(values, MAX_COUNT + 1))
        if not some:
            raise _no_messages()
        if len(some) > MAX_COUNT:
            raise ValueError(
                f"a sequence is one batch, of at most {MAX_COUNT:,} messages; give the others "
                "sequences of their own"
            )
        stamp = self._stamps.get(routing_key) or self._stamp(routing_key)

        def make(expiry: int | None) -> list[Record]:
            records = records_of(some, stamp, expiry, settings, self.log.options)
            return self._one_batch(settings, list(records))

        return self._admitted(settings, block, ttl, len(some), make)

    def _append_told(self, portions: Iterable[list[Record]]) -> Receipt:
        begun, weighed = perf_counter(), Weighed(portions)
        receipt = self.log.append_portions(weighed)
        return published(self.name, receipt, weighed.size, begun)

    def append(
        self,
        records: list[Record],
        settings: QueueSettings,
        producer: str | None = None,
        sequence: int | None = None,
    ) -> Receipt:
        """Append records of messages; with a producer and a sequence, once. What these take in the
        batch does not count: others may have been dropped for it by then, and it must not fail."""
        for record in records:
            check_size(record, settings)
        if producer is None and sequence is None:
            return self._told(records, lambda: self.log.append(records))
        once = Once(*checked_sequence(producer, sequence))
        self.check_batch(records)
        return self.append_accepted(records, once)

    def append_accepted(self, records: list[Record], once: Once) -> Receipt:
        """Append, once, what was accepted, or takes the place of a message: no limit of what can be
        published is to refuse it."""
        return self._told(records, lambda: self.log.append_accepted(records, once))

    def has_done(self, once: Once) -> bool:
        return self.log.find(once.producer, once.sequence) is not None

    def _told(self, records: list[Record], append: Callable[[], Receipt]) -> Receipt:
        begun = perf_counter() if hooks.listeners else 0.0
        try:
            receipt = append()
        except TooLarge as error:
            if len(records) == 1:
                raise no_batch_holds(self.name, error) from None
            self.check_batch(records)
            raise
        if begun:
            size = sum(weigh(record.key, record.value) for record in records)
            return published(self.name, receipt, size, begun)
        return receipt


def held_of(values: Iterable[Any], settings: QueueSettings) -> Sequence[Any]:
    """All of them together. Of those that are not held yet no more are taken than their queue could
    ever hold: `Full` if there are others."""
    if isinstance(values, list | tuple):
        return values
    if isinstance(values, _HELD) or not settings.limits.max_depth:
        return list(values)
    held = list(islice(values, settings.limits.max_depth + 1))
    refuse_more_than_fit(settings, len(held))
    return held


class Until(float):
    """A `ttl` of those who pass a message on: not how long it lives, but until when, in
    milliseconds since 1970. So it is the same however often, and however slowly."""


def expires_at(
    settings: QueueSettings, ttl: float | str | None, now_ms: int, due: int | None = None
) -> int | None:
    """When a message expires, in milliseconds since 1970; `None` if never. What its publisher gives
    it counts from now on, and what its queue gives it from when it may be had."""
    if ttl is None:
        ttl_ms = settings.limits.message_ttl_ms
        return max(now_ms, due or 0) + ttl_ms if ttl_ms else None
    if isinstance(ttl, Until):
        expiry, said = int(ttl), "what is left of it"
    else:
        ttl_ms = parse_span(ttl, "ttl")
        if not ttl_ms:
            return None
        expiry = now_ms + ttl_ms
        said = repr(ttl) if isinstance(ttl, str) else f"{ttl:g} {_seconds(ttl)}"
    if due is not None and due > now_ms and expiry <= due:
        rest = (due - now_ms) / 1000
        raise ConfigError(
            f"ttl: {said} from now on is over before it is due, in {rest:g} {_seconds(rest)}: "
            "nobody would ever get the message"
        )
    return expiry


def _seconds(number: float) -> str:
    return "second" if number == 1 else "seconds"


def refuse_delay(is_delayed: bool) -> None:
    """Of a message that has a producer and a sequence."""
    if is_delayed:
        raise ValueError(
            "producer, sequence: a delayed message cannot have them. It waits elsewhere, where its "
            "queue would not recognise it"
        )


def _no_messages() -> ValueError:
    return ValueError("publish_many was given no messages")
