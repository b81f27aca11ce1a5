"""Publishing by topic: to every queue that is bound to it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from typing import Any

from tailrace import hooks
from tailrace.errors import InvalidName
from tailrace.kernel import Record
from tailrace.queue import dead_letters, delays
from tailrace.queue.addresses import default_binding, parse_address
from tailrace.queue.clock import Clock
from tailrace.queue.disk import DiskWatch
from tailrace.queue.layout import Layout
from tailrace.queue.message import Message, check_headers, new_record, stamp_of
from tailrace.queue.outgoing import Outgoing, Published, spread
from tailrace.queue.publishing import check_size, expires_at, refuse_delay
from tailrace.queue.queue import Queue, Stream
from tailrace.queue.registry import Registry
from tailrace.queue.settings import QueueSettings
from tailrace.queue.topics import check_topic, matches

__all__ = ["PublishingByTopic"]


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
        are not. If there is no such queue an ephemeral one is made (`InvalidName` if its name is
        that of another queue). With a `delay`, or a time to `deliver_at`, it waits for each queue,
        and has a delay id in each. With a `producer` and a `sequence` each queue gets it once: to
        repeat it after an error gives it to those that have not got it. The other parameters are as
        in `Queue.publish`."""
        self.check_open()
        due = delays.due_ms(delay, deliver_at, self.clock.wall_ms())
        if producer is not None or sequence is not None:
            refuse_delay(due is not None)
            outgoing = Outgoing(topic, value, key, headers, message_id, ttl)
            published = self._publish_where_absent(outgoing, producer, sequence, block)
            return published.wait() if wait else published
        is_plain = headers is None and message_id is None and hooks.carry_context is None
        if is_plain and due is None:
            published = self._publish_plain(topic, value, key, ttl, block)
            return published.wait() if wait else published
        batches = self._batches([Outgoing(topic, value, key, headers, message_id, ttl)], due)
        if due is not None:
            self.disk.check()
            published = spread(batches, lambda q: q.delays.schedule(batches[q][0], due))
            for name in published:
                hooks.count("scheduled", 1, name)
        else:
            self._admit(batches, block)
            published = spread(batches, lambda q: q.append(batches[q], q.settings))
        return published.wait() if wait else published

    def _publish_plain(
        self,
        topic: str,
        value: bytes | str | None,
        key: bytes | str | None,
        ttl: float | str | None,
        block: bool,
    ) -> Published:
        """What most messages are: nothing of it is parsed or checked more often than it has to."""
        queues, stamp = self._targets(topic), stamp_of(topic)
        drafts = {queue: queue.draft(stamp, value, key, ttl) for queue in queues}
        for queue in _droppers_last(queues):
            queue.admit(queue.settings, 1, block=block)
        return spread(queues, lambda queue: queue.append_draft(drafts[queue], key, value))

    def _publish_where_absent(
        self, outgoing: Outgoing, producer: str | None, sequence: int | None, block: bool
    ) -> Published:
        """To those queues whose logs don't have it: each knows the producer for itself."""
        found = {q: q.log.find(producer, sequence) for q in self._targets(outgoing.topic)}
        there = {queue: receipt for queue, receipt in found.items() if receipt is not None}
        batches = self._batches(replace(outgoing, queue=q) for q in found if q not in there)
        self._admit(batches, block)
        return spread(
            [*there, *batches],
            lambda q: there.get(q) or q.append(batches[q], q.settings, producer, sequence),
        )

    def _batches(
        self, outgoing: Iterable[Outgoing], due: int | None = None
    ) -> dict[Queue | Stream, list[Record]]:
        """What each queue is to get. Whatever one of them refuses is refused here, before any has
        got anything."""
        batches: dict[Queue | Stream, list[Record]] = {}
        for each in outgoing:
            if each.headers is not None:
                check_headers(each.headers)
            if hooks.carry_context is not None:
                each = replace(each, headers=hooks.carry_context(each.headers))
            for queue in self._named(each) or self._targets(each.topic):
                settings = queue.settings
                record = self._record(each, settings, due)
                check_size(record, settings)
                batches.setdefault(queue, []).append(record)
        return batches

    def _admit(self, batches: dict[Queue | Stream, list[Record]], block: bool) -> None:
        """Before any has got anything, or has dropped anything for it."""
        for queue, records in batches.items():
            queue.check_batch(records)
        for queue in _droppers_last(batches):
            queue.admit(queue.settings, len(batches[queue]), block=block)

    def _named(self, outgoing: Outgoing) -> list[Queue | Stream]:
        """The queue that it is for, if that was said."""
        if outgoing.queue is None:
            return []
        return [self._handle(outgoing.settings_in(self.layout.root))]

    def _targets(self, topic: str) -> list[Queue | Stream]:
        check_topic(topic)
        address = parse_address(topic)
        if address is not None and address.verb is not None:
            raise InvalidName(f"the topic {topic!r} is a verb; settle messages by their methods")
        found = self.registry.match(topic)
        if found:
            return [self.get(name) for name in sorted(found)]
        name, pattern = topic, topic
        if address is not None:
            name, pattern = address.queue, default_binding(address.queue)
        settings = self._implied_queue(name, pattern)
        if address is None and not any(matches(bound, topic) for bound in settings.topics):
            raise InvalidName(
                f"no queue is bound to the topic {topic!r}, and the queue {name!r}, whose name an "
                "ephemeral one would have, is not either: bind it, or publish to it by name"
            )
        return [self._handle(settings)]

    def _record(self, outgoing: Outgoing, settings: QueueSettings, due: int | None) -> Record:
        return new_record(
            outgoing.value,
            outgoing.topic,
            key=outgoing.key,
            headers=outgoing.headers,
            message_id=outgoing.message_id,
            expires_at=expires_at(settings, outgoing.ttl, self.clock.wall_ms(), due),
        )

    def publish_once(
        self, source: QueueSettings, message: Message, account: str, publish: Iterable[Any]
    ) -> None:
        """Publish what comes of a message, as one batch for each queue, however often this is done
        for the same message. What is there already needs no room."""
        batches = self._batches(map(Outgoing.of, publish))
        producer = dead_letters.step_id("ack", source.incarnation, account, message.offset)
        absent = {q: b for q, b in batches.items() if q.log.find(producer, 0) is None}
        self._admit(absent, block=False)
        for queue, records in batches.items():
            queue.append(records, queue.settings, producer, 0).wait()
            self._make_as_durable(queue, source)

    def _append_instead(
        self, queue: Queue | Stream, record: Record, producer: str, source: QueueSettings
    ) -> None:
        """Append, unless that was done before, what takes the place of a message of `source`."""
        queue.append_accepted(record, producer).wait()
        self._make_as_durable(queue, source)

    def _make_as_durable(self, queue: Queue | Stream, source: QueueSettings) -> None:
        """What came of a message of `source` is as durable then as that one was: only so may the
        message be settled."""
        if self.get(source.name).log.flush_mode == "sync" and queue.log.flush_mode != "sync":
            queue.log.flush()


def _droppers_last(queues: Iterable[Queue | Stream]) -> list[Queue | Stream]:
    """In the order in which to ask them for room: if one has none, none has dropped anything."""
    return sorted(queues, key=lambda queue: queue.settings.limits.on_full == "drop_oldest")
