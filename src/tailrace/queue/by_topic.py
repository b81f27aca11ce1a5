"""Publishing by topic: to every queue that is bound to it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tailrace import hooks
from tailrace.errors import InvalidName
from tailrace.kernel import Record
from tailrace.log.commit import Receipt
from tailrace.log.inputs import checked_sequence
from tailrace.log.options import LogOptions
from tailrace.queue import dead_letters, delays
from tailrace.queue.addresses import default_binding, parse_address
from tailrace.queue.clock import Clock
from tailrace.queue.depth import refuse_more_than_fit
from tailrace.queue.disk import DiskWatch
from tailrace.queue.inputs import check_patience
from tailrace.queue.layout import Layout
from tailrace.queue.message import Message, check_headers, new_record, stamp_of
from tailrace.queue.office import Account
from tailrace.queue.outgoing import Outgoing, Published, spread
from tailrace.queue.publishing import expires_at, refuse_delay
from tailrace.queue.queue import Queue, Stream
from tailrace.queue.registry import Registry
from tailrace.queue.settings import QueueSettings
from tailrace.queue.topics import check_topic, matches
from tailrace.queue.values import check_batch, check_size

__all__ = ["PublishingByTopic"]


@dataclass(slots=True)
class _Sending:
    """What one queue is to get. If there is no such queue yet (`None`), it is made when nothing can
    be refused any more: `settings` are what it would have."""

    settings: QueueSettings
    queue: Queue | Stream | None
    outgoing: list[Outgoing] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)


class PublishingByTopic:
    """A part of `Store`."""

    clock: Clock
    disk: DiskWatch
    layout: Layout
    registry: Registry

    def check_open(self) -> None:
        raise NotImplementedError

    def get(self, name: str) -> Queue | Stream:
        raise NotImplementedError

    def _handle(self, settings: QueueSettings) -> Queue | Stream:
        raise NotImplementedError

    def _imply(self, name: str, pattern: str) -> QueueSettings:
        raise NotImplementedError

    def _implied_queue(self, name: str, pattern: str) -> QueueSettings:
        raise NotImplementedError

    def publish(
        self,
        topic: str,
        value: bytes | str | None,
        *,
        key: bytes | str | None = None,
        headers: Any = None,
        message_id: str | None = None,
        ttl: float | str | None = None,
        delay: float | str | None = None,
        deliver_at: int | datetime | None = None,
        producer: str | None = None,
        sequence: int | None = None,
        wait: bool = True,
        block: bool = True,
    ) -> Published:
        """Publish to every queue that is bound to the topic. Each append is atomic, all together
        are not. If there is no such queue an ephemeral one is made, unless the message is refused
        (`InvalidName` if its name is that of another queue). With a `delay`, or a time to
        `deliver_at`, it waits for each queue, and has a delay id in each. With a `producer` and a
        `sequence` each queue gets it once: to repeat it after an error gives it to those that have
        not got it. The other parameters are as in `Queue.publish`."""
        self.check_open()
        check_patience(wait, block)
        due = delays.due_ms(delay, deliver_at, self.clock.wall_ms())
        if producer is not None or sequence is not None:
            refuse_delay(due is not None)
            outgoing = Outgoing(topic, value, key, headers, message_id, ttl)
            published = self._publish_where_absent(outgoing, producer, sequence, block)
            return published.wait() if wait else published
        is_plain = headers is None and message_id is None and hooks.carry_context is None
        if is_plain and due is None and (queues := self._targets(topic)):
            published = self._publish_plain(queues, topic, value, key, ttl, block)
            return published.wait() if wait else published
        outgoing = Outgoing(topic, value, key, headers, message_id, ttl)
        sendings = self._checked(self._sendings([outgoing]), due)
        if due is not None:
            self.disk.check()
            batches = self._batches(sendings)
            published = spread(batches, lambda q: q.delays.schedule(batches[q][0], due))
            for name in published:
                hooks.count("scheduled", 1, name)
        else:
            self._admit(sendings, block)
            batches = self._batches(sendings)
            published = spread(batches, lambda q: q.append(batches[q], q.settings))
        return published.wait() if wait else published

    def _publish_plain(
        self,
        queues: list[Queue | Stream],
        topic: str,
        value: bytes | str | None,
        key: bytes | str | None,
        ttl: float | str | None,
        block: bool,
    ) -> Published:
        """What most messages are: nothing of it is parsed or checked more often than it has to."""
        stamp = stamp_of(topic)
        drafts = {queue: queue.draft(stamp, value, key, ttl) for queue in queues}
        waited = False
        for queue in _droppers_last(queues):
            waited |= queue.admit(queue.settings, 1, block=block)
        if waited:  # their times count from now on
            drafts = {queue: queue.draft(stamp, value, key, ttl) for queue in queues}
        return spread(queues, lambda queue: queue.append_draft(drafts[queue], key, value))

    def _publish_where_absent(
        self, outgoing: Outgoing, producer: str | None, sequence: int | None, block: bool
    ) -> Published:
        """To those queues whose logs don't have it: each knows the producer for itself."""
        checked_sequence(producer, sequence)
        there: dict[Queue | Stream, Receipt] = {}
        absent: list[_Sending] = []
        for each in self._sendings([outgoing]):
            receipt = None if each.queue is None else each.queue.log.find(producer, sequence)
            if each.queue is None or receipt is None:
                absent.append(each)
            else:
                there[each.queue] = receipt
        self._admit(self._checked(absent), block)
        batches = self._batches(absent)
        return spread(
            [*there, *batches],
            lambda q: there.get(q) or q.append(batches[q], q.settings, producer, sequence),
        )

    def _sendings(self, outgoing: Iterable[Outgoing]) -> list[_Sending]:
        """Who is to get what. Nothing of it is checked but where it goes."""
        sendings: dict[str, _Sending] = {}
        for each in outgoing:
            queues = self._named(each) or self._targets(each.topic)
            for queue in queues:
                sending = _Sending(queue.settings, queue)
                sendings.setdefault(queue.name, sending).outgoing.append(each)
            if not queues:
                name, pattern = _implied_by(each.topic)
                sending = sendings.get(name) or _Sending(self._imply(name, pattern), None)
                _check_bound(each.topic, sending.settings)
                sendings.setdefault(name, sending).outgoing.append(each)
        return list(sendings.values())

    def _checked(self, sendings: list[_Sending], due: int | None = None) -> list[_Sending]:
        """With their records. Whatever a queue refuses is refused here, before any has got
        anything, and before one is made."""
        for each in sendings:
            each.records = self._records(each, due)
            if each.queue is None:
                options = LogOptions.parse(**each.settings.log_arguments())
                check_batch(each.records, each.settings.name, options)
        return sendings

    def _admit(self, sendings: list[_Sending], block: bool) -> None:
        """Before any has got anything, or has dropped anything for it. What they had to wait does
        not count."""
        for each in sendings:
            if each.queue is not None:
                each.queue.check_batch(each.records)
            else:
                self.disk.check()
                refuse_more_than_fit(each.settings, len(each.records))
        by_queue = {each.queue: len(each.records) for each in sendings if each.queue is not None}
        waited = False
        for queue in _droppers_last(by_queue):
            waited |= queue.admit(queue.settings, by_queue[queue], block=block)
        if waited:
            for each in sendings:
                each.records = self._records(each)

    def _batches(self, sendings: list[_Sending]) -> dict[Queue | Stream, list[Record]]:
        """What each queue is to get. Those that are missing are made."""
        batches: dict[Queue | Stream, list[Record]] = {}
        for each in sendings:
            queue, settings = each.queue, each.settings
            if queue is None:
                queue = self._handle(self._implied_queue(settings.name, settings.topics[0]))
            batches[queue] = each.records
        return batches

    def _named(self, outgoing: Outgoing) -> list[Queue | Stream]:
        """The queue that it is for, if that was said."""
        if outgoing.queue is None:
            return []
        return [self._handle(outgoing.settings_in(self.layout.root))]

    def _targets(self, topic: str) -> list[Queue | Stream]:
        """The queues that are to get it; none, if the one of its name has yet to be made."""
        check_topic(topic)
        name, _ = _implied_by(topic)
        found = self.registry.match(topic)
        if found:
            return [self.get(name) for name in sorted(found)]
        settings = self.registry.current().get(name)
        if settings is None:
            return []
        _check_bound(topic, settings)
        return [self._handle(settings)]

    def _records(self, sending: _Sending, due: int | None = None) -> list[Record]:
        records, settings = [], sending.settings
        for each in sending.outgoing:
            headers = each.headers
            if headers is not None:
                check_headers(headers)
            if hooks.carry_context is not None:
                headers = hooks.carry_context(headers)
            record = new_record(
                each.value,
                each.topic,
                key=each.key,
                headers=headers,
                message_id=each.message_id,
                expires_at=expires_at(settings, each.ttl, self.clock.wall_ms(), due),
            )
            check_size(record, settings)
            records.append(record)
        return records

    def publish_once(
        self, source: QueueSettings, message: Message, account: Account, publish: Iterable[Any]
    ) -> None:
        """Publish what comes of a message, as one batch for each queue, however often this is done
        for the same message. What is there already needs no room."""
        sendings = self._checked(self._sendings(map(Outgoing.of, publish)))
        step = dead_letters.step_of("ack", source.incarnation, account, message.offset)
        absent = [each for each in sendings if each.queue is None or not each.queue.has_done(step)]
        self._admit(absent, block=False)
        for queue, records in self._batches(sendings).items():
            queue.append_accepted(records, step).wait()
            self._make_as_durable(queue, source)

    def _make_as_durable(self, queue: Queue | Stream, source: QueueSettings) -> None:
        """What came of a message of `source` is on the disk then, as that one was, or may have
        been: only so may the message be settled. Also in `async`: that it is settled may get to the
        disk at any time."""
        if self.get(source.name).log.flush_mode != "none" and queue.log.flush_mode != "sync":
            queue.log.flush()


def _implied_by(topic: str) -> tuple[str, str]:
    """The name and the binding of the queue that is made if no queue is bound to a topic."""
    address = parse_address(topic)
    if address is None:
        return topic, topic
    if address.verb is not None:
        raise InvalidName(f"the topic {topic!r} is a verb; settle messages by their methods")
    return address.queue, default_binding(address.queue)


def _check_bound(topic: str, settings: QueueSettings) -> None:
    """May a queue get what is published to a topic, because it has that name?"""
    is_address = parse_address(topic) is not None
    if not is_address and not any(matches(bound, topic) for bound in settings.topics):
        raise InvalidName(
            f"no queue is bound to the topic {topic!r}, and the queue {settings.name!r}, whose "
            "name an ephemeral one would have, is not either: bind it, or publish to it by name"
        )


def _droppers_last(queues: Iterable[Queue | Stream]) -> list[Queue | Stream]:
    """In the order in which to ask them for room: if one has none, none has dropped anything."""
    return sorted(queues, key=lambda queue: queue.settings.limits.on_full == "drop_oldest")
