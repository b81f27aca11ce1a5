"""`Queue` and `Stream`: a log with bindings, limits and groups."""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from time import time_ns
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from tailrace.errors import Closed, ConfigError, Full, InvalidName
from tailrace.kernel import NONE, Record, encode_one
from tailrace.log.commit import Receipt
from tailrace.log.follow import Follower
from tailrace.log.log import Log
from tailrace.queue.addresses import address_of
from tailrace.queue.classic import ClassicGroup, Pending
from tailrace.queue.consumer import Consumer, StreamConsumer
from tailrace.queue.fluxmq_groups import FluxGroup, find_groups
from tailrace.queue.group import GroupFiles, Member
from tailrace.queue.message import Message, Stamp, check_headers, new_record
from tailrace.queue.names import check_name
from tailrace.queue.settings import QueueSettings
from tailrace.queue.stream import StreamGroup
from tailrace.queue.topics import check_filter
from tailrace.units import parse_duration

if TYPE_CHECKING:
    from tailrace.queue.store import Store

__all__ = ["GroupInfo", "Queue", "Stream"]

AnyGroup = ClassicGroup | StreamGroup
C = TypeVar("C", Consumer, StreamConsumer)

_STAMPS_MOST = 1024

# Compressing takes as long as appending. Of a queue whose messages don't become smaller, only some
# are tried.
_WORTH_COMPRESSING = 256
_TRY_AGAIN_AFTER = 31

_START = re.compile(r"(offset|timestamp)=(\d+)")


class GroupInfo(NamedTuple):
    """How far a group is. `lag` counts offsets from the committed one to the end."""

    id: str
    cursor: int
    committed: int
    pending: int
    lag: int
    members: list[Member]


class _LogQueue:
    """What both kinds of queue share. Thread-safe. Opens its log when it is first needed."""

    def __init__(self, store: Store, settings: QueueSettings) -> None:
        self._store = store
        self.name = settings.name
        self.incarnation = settings.incarnation
        self._settings = settings
        self._lock = threading.RLock()
        self._log: Log | None = None
        self._groups: dict[str, AnyGroup] = {}
        self._consumers: weakref.WeakSet[Consumer | StreamConsumer] = weakref.WeakSet()
        self._root = address_of(self.name)
        self._stamps: dict[str, Stamp] = {}  # by routing key
        self._uncompressed = 0  # so many messages are not worth a try

    # --- settings ---------------------------------------------------------------------------

    @property
    def settings(self) -> QueueSettings:
        """As of now: another process may have changed them."""
        settings = self._store.registry.current().get(self.name)
        if settings is not self._settings:
            if settings is None or settings.incarnation != self.incarnation:
                self.close()
                raise Closed(f"the queue {self.name!r} was deleted; open it again to have it anew")
            self._settings = settings
        return settings

    def configure(self, **options: Any) -> None:
        """Change settings, for everybody. What is fixed when a queue is created is refused."""
        self._store.configure(self.name, **options)

    @property
    def log(self) -> Log:
        """The queue's log."""
        settings = self.settings
        log = self._log
        if log is None:
            with self._lock:
                if self._log is None:
                    self._store.check_open()
                    self._log = self._store.open_log(settings)
                log = self._log
        return log

    # --- publish ----------------------------------------------------------------------------

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
        wait: bool = True,
    ) -> Receipt:
        """Publish a message to this queue. Returns when it is as durable as the queue's flush mode
        promises; with `wait=False` at once, and the receipt tells."""
        settings = self.settings
        if headers is None and message_id is None and ttl is None:
            if not settings.limits.message_ttl_ms:
                receipt = self._publish_plain(settings, value, key, routing_key, timestamp)
                return receipt.wait() if wait else receipt
        elif headers is not None:
            check_headers(headers)
        topic = f"{self._root}/{routing_key}" if routing_key else self._root
        record = new_record(
            value,
            topic,
            key=key,
            headers=headers,
            message_id=message_id,
            expires_at=self._expiry(settings, ttl),
            timestamp=timestamp,
        )
        receipt = self.append([record], settings)
        return receipt.wait() if wait else receipt

    def _publish_plain(
        self,
        settings: QueueSettings,
        value: bytes | str | None,
        key: bytes | str | None,
        routing_key: str,
        timestamp: int | None,
    ) -> Receipt:
        """What most messages are: without headers of their own. Nothing is parsed or checked that
        is known to be right."""
        log = self._log
        if log is None:
            log = self.log
        if isinstance(value, str):
            value = value.encode()
        if value is not None and len(value) > settings.limits.max_message_size > 0:
            raise _too_large(len(value), settings)
        stamp = self._stamps.get(routing_key)
        if stamp is None:
            stamp = self._stamp(routing_key)
        codec = log.options.codec
        if self._uncompressed:
            self._uncompressed -= 1
            codec = NONE
        now_ms = time_ns() // 1_000_000
        draft = encode_one(value, b"" if key is None else key, stamp(), timestamp, now_ms, codec)
        if codec and value is not None and draft.size > len(value) > _WORTH_COMPRESSING:
            self._uncompressed = _TRY_AGAIN_AFTER
        return log.append_draft(draft)

    def _stamp(self, routing_key: str) -> Stamp:
        stamp = Stamp(f"{self._root}/{routing_key}" if routing_key else self._root)
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
        wait: bool = True,
    ) -> Receipt:
        """Publish messages in one batch (more only beyond its limits): values, or pairs of a key
        and a value, or triples with headers."""
        settings = self.settings
        topic = f"{self._root}/{routing_key}" if routing_key else self._root
        expiry = self._expiry(settings, ttl)
        records = (_record_of(value, topic, expiry, settings) for value in values)
        receipt = self.log.append_many(records)
        return receipt.wait() if wait else receipt

    def append(
        self,
        records: list[Record],
        settings: QueueSettings,
        producer: str | None = None,
    ) -> Receipt:
        """Append records of messages; with a producer, once."""
        for record in records:
            check_size(record, settings)
        if producer is not None:
            return self.log.append(records, producer=producer, sequence=0)
        return self.log.append(records)

    def _expiry(self, settings: QueueSettings, ttl: float | str | None) -> int | None:
        ttl_ms = settings.limits.message_ttl_ms if ttl is None else parse_duration(ttl, "ttl")
        return self._store.clock.wall_ms() + ttl_ms if ttl_ms else None

    # --- read -------------------------------------------------------------------------------

    def read(
        self,
        start: Any = "first",
        end: int | None = None,
        *,
        timestamp: int | None = None,
        follow: bool = False,
        timeout: float | None = None,
    ) -> Iterator[Message]:
        """Replay, without a group: messages from `start` on ("first", an offset, "offset=…",
        "timestamp=…"; "last" and "next" are the end), or from the first at or after `timestamp`.
        With `follow` it goes on with what comes."""
        first = self.resolve(start, timestamp)
        log = self.log
        records: Iterator[Record] | Follower
        if follow:
            records = log.read(first, end, follow=True, timeout=timeout)
        elif timeout is not None:
            raise ValueError("timeout is for follow=True; without it nothing is waited for")
        else:
            records = log.read(first, end)
        return (Message(self.name, record, None, 0, 0, 0) for record in records)

    def resolve(self, start: Any, timestamp: int | None = None) -> int:
        """The offset that a start means, inside of what the queue holds."""
        log = self.log
        if isinstance(start, str) and (match := _START.fullmatch(start)):
            kind, number = match[1], int(match[2])
            start = number
            if kind == "timestamp":
                start, timestamp = "first", number
        if timestamp is not None:
            if start != "first":
                raise ValueError("start from an offset or from a timestamp, not from both")
            return log.offset_at(timestamp)
        match start:
            case "first":
                return log.start_offset
            case "last" | "next":
                return _visible_end(log)
            case int() if not isinstance(start, bool):
                return min(max(start, log.start_offset), _visible_end(log))
        raise ValueError(
            f"start is 'first', 'last', 'next', an offset, 'offset=…' or 'timestamp=…', not "
            f"{start!r}"
        )

    def __len__(self) -> int:
        """How many offsets the queue holds, settled or not."""
        log = self.log
        return log.end_offset - log.start_offset

    def __bool__(self) -> bool:
        return True

    # --- groups -----------------------------------------------------------------------------

    def _make_group(self, files: GroupFiles, pattern: str, **options: Any) -> AnyGroup:
        raise NotImplementedError

    _mode: Literal["queue", "stream"] = "queue"

    def open_group(self, group: str, pattern: str = "", **options: Any) -> AnyGroup:
        """This process's hold on a group, which is made if it does not exist."""
        settings, log = self.settings, self.log
        check_name("group", group)
        if pattern:
            check_filter(pattern)
        group_id = f"{group}@{pattern}" if pattern else group
        check_name("group", group_id)
        with self._lock:
            found = self._groups.get(group_id)
            if found is not None and not found.closed:
                return found
            _name, at, own = group_id.partition("@")
            made = self._make_group(self._files(group_id, settings, log), own if at else "")
            self._groups[group_id] = made
            return made

    def _files(self, group_id: str, settings: QueueSettings, log: Log) -> GroupFiles:
        store = self._store
        foreign = FluxGroup(
            store.fs,
            store.layout.root,
            self.name,
            group_id,
            mode=self._mode,
            pattern=group_id.partition("@")[2],
            clock=store.clock,
        )
        return GroupFiles(
            store.fs,
            store.layout.group(self.name, group_id),
            group_id,
            store.clock,
            is_sync=log.flush_mode == "sync",
            is_durable=log.flush_mode != "none",
            compact_after=settings.compact_after,
            foreign=foreign,
        )

    def group_ids(self) -> list[str]:
        """The groups that the queue has."""
        ours = self._store.layout.groups(self.name)
        return sorted({*ours, *find_groups(self._store.fs, self._store.layout.root, self.name)})

    def groups(self) -> list[GroupInfo]:
        """How far each group is, and who is in it."""
        found = []
        for group_id in self.group_ids():
            group = self._existing(group_id)
            members = group.members()
            cursor, committed = group.progress()
            cursor, committed = (max(each, self.log.start_offset) for each in (cursor, committed))
            lag = max(_visible_end(self.log) - committed, 0)
            pending = group.state.weight if isinstance(group, ClassicGroup) else 0
            found.append(GroupInfo(group_id, cursor, committed, pending, lag, members))
        return found

    def _existing(self, group_id: str) -> AnyGroup:
        if group_id not in self.group_ids():
            raise InvalidName(f"the queue {self.name!r} has no group {group_id!r}")
        name, at, pattern = group_id.partition("@")
        return self.open_group(name, pattern if at else "")

    def delete_group(self, group_id: str) -> None:
        """Forget a group. Its consumers, in whichever process, get `Closed`."""
        group = self._existing(group_id)
        group.delete()
        with self._lock:
            self._groups.pop(group_id, None)

    def expire_groups(self, idle: float | str) -> list[str]:
        """Delete the groups that nobody is in, and that nobody has used for so long; their names.
        What only they held back may be deleted from the queue then."""
        idle_ms = parse_duration(idle, "idle")
        expired = []
        for group_id in self.group_ids():
            group = self._existing(group_id)
            members = [member for member in group.members() if member.alive]
            if not members and group.idle_ms() >= idle_ms:
                self.delete_group(group_id)
                expired.append(group_id)
        return expired

    def _tail(self, files: GroupFiles) -> Any:
        return self.log.tail("next", also=(files.bell,))

    def _attended(self, make: Callable[[Callable[[], None]], C]) -> C:
        """A consumer, as long as which an ephemeral queue stays; it is given how to leave."""
        attendance = ExitStack()
        attendance.enter_context(self._store.attend(self.settings))
        try:
            consumer = make(attendance.close)
        except BaseException:
            attendance.close()
            raise
        self._consumers.add(consumer)
        return consumer

    # --- the end ----------------------------------------------------------------------------

    def purge(self) -> int:
        """Delete every message, for all groups; how many offsets that were. Leases on them are
        lost."""
        log = self.log
        first, end = log.start_offset, log.end_offset
        log.flush() if log.flush_mode != "none" else None
        log.truncate_before(end)
        for group_id in self.group_ids():
            self._existing(group_id).forget_below(end)
        log.vacuum()
        return end - first

    def close(self) -> None:
        """End all consumers, and let go of the groups and the log. They are opened again when they
        are needed."""
        for consumer in list(self._consumers):
            consumer.close()
        with self._lock:
            groups, self._groups = list(self._groups.values()), {}
            log, self._log = self._log, None
        for group in groups:
            group.close()
        if log is not None:
            log.close()

    def disown(self) -> None:
        """In a forked child: another thread of the parent may have had the lock."""
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class Queue(_LogQueue):
    """A work queue: each message goes to one consumer of each group, and comes back until one of
    them has settled it."""

    def _make_group(self, files: GroupFiles, pattern: str, **options: Any) -> ClassicGroup:
        return ClassicGroup(files, self.name, self.log, self, pattern=pattern)

    def group(self, group: str, filter: str = "") -> ClassicGroup:
        found = self.open_group(group, filter)
        assert isinstance(found, ClassicGroup)
        return found

    def consumer(
        self,
        group: str,
        *,
        filter: str = "",
        prefetch: int = 1,
        visibility_timeout: float | str | None = None,
        key_order: bool | None = None,
        id: str | None = None,
    ) -> Consumer:
        """A consumer of a group, which is made if it does not exist.

        A `filter` (of routing keys, by the rules of MQTT) makes a group of its own, `group@filter`.
        `prefetch` messages are fetched at a time when one after the other is asked for.
        `key_order=True` gives a group whose messages of one key come one at a time, in order; it is
        fixed when the group is made.
        """
        if prefetch < 1:
            raise ConfigError(
                f"prefetch: expected a number of messages from 1 on, got {prefetch!r}"
            )
        lease_ms = None
        if visibility_timeout is not None:
            lease_ms = parse_duration(visibility_timeout, "visibility_timeout")
        found = self.group(group, filter)
        found.agree(key_order)
        return self._attended(
            lambda leave: Consumer(
                found,
                self._tail(found.files),
                lease_ms,
                prefetch=prefetch,
                id=id,
                on_close=leave,
            )
        )

    def consume(self, group: str, **options: Any) -> Consumer:
        """`for message in queue.consume(group="workers"):` waits for messages, for ever, or until
        the consumer is closed. Takes what `consumer` takes."""
        return self.consumer(group, **options)

    def peek(self, group: str, limit: int = 1, *, filter: str = "") -> list[Message]:
        """What a group would get next, without claiming it."""
        return self.group(group, filter).peek(limit)

    def pending(self, group: str, *, filter: str = "") -> list[Pending]:
        """What a group has claimed and not settled, oldest first."""
        return self.group(group, filter).pending()

    # --- what a group asks for --------------------------------------------------------------

    def bury(self, message: Message, group_id: str, reason: str) -> None:
        self._store.bury(self.settings, message, group_id, reason)

    def publish_once(self, message: Message, group_id: str, publish: Iterable[Any]) -> None:
        self._store.publish_once(self.settings, message, group_id, publish)


class Stream(_LogQueue):
    """A log that groups read and replay: nothing is taken out of it."""

    _mode: Literal["queue", "stream"] = "stream"

    def _make_group(self, files: GroupFiles, pattern: str, **options: Any) -> StreamGroup:
        return StreamGroup(
            files, self.name, self.log, lambda: self._work_group(pattern), pattern=pattern
        )

    def group(self, group: str, filter: str = "") -> StreamGroup:
        found = self.open_group(group, filter)
        assert isinstance(found, StreamGroup)
        return found

    def _work_group(self, pattern: str) -> tuple[str, int] | None:
        """The stream's primary group with the same filter, if it is set and exists."""
        primary = self.settings.primary_group
        group_id = f"{primary}@{pattern}" if pattern else primary
        if not primary or (group_id not in self._groups and group_id not in self.group_ids()):
            return None
        return group_id, self.group(primary, pattern).progress()[1]

    def consumer(
        self,
        group: str,
        *,
        filter: str = "",
        start: Any = None,
        timestamp: int | None = None,
        auto_commit: bool = True,
        auto_commit_interval: float | str | None = None,
        id: str | None = None,
    ) -> StreamConsumer:
        """A consumer of a group, which is made if it does not exist.

        Without a `start` the group goes on behind what it has committed, or begins with the first
        message. With one ("first"; "last" or "next" for what comes from now on; an offset;
        "offset=…", "timestamp=…"; or `timestamp=`) the whole group goes on from there.
        """
        interval_ms = self.settings.auto_commit_interval_ms
        if auto_commit_interval is not None:
            interval_ms = parse_duration(auto_commit_interval, "auto_commit_interval")
        found = self.group(group, filter)
        if start is not None or timestamp is not None:
            found.seek(self.resolve("first" if start is None else start, timestamp))
        return self._attended(
            lambda leave: StreamConsumer(
                found,
                self._tail(found.files),
                self.resolve,
                auto_commit=auto_commit,
                auto_commit_interval_s=interval_ms / 1000,
                id=id,
                on_close=leave,
            )
        )

    def consume(self, group: str, **options: Any) -> StreamConsumer:
        """`for message in stream.consume(group="readers"):` waits for messages, for ever, or until
        the consumer is closed. Takes what `consumer` takes."""
        return self.consumer(group, **options)


def check_size(record: Record, settings: QueueSettings) -> None:
    limit, size = settings.limits.max_message_size, len(record.value or b"")
    if limit and size > limit:
        raise _too_large(size, settings)


def _too_large(size: int, settings: QueueSettings) -> Full:
    return Full(
        f"a message of {size:,} bytes is more than the queue {settings.name!r} takes: "
        f"limits.max_message_size is {settings.limits.max_message_size:,}"
    )


def _record_of(value: Any, topic: str, expiry: int | None, settings: QueueSettings) -> Record:
    key = headers = None
    match value:
        case (key, value):
            pass
        case (key, value, headers):
            check_headers(headers)
    record = new_record(value, topic, key=key, headers=headers, expires_at=expiry)
    check_size(record, settings)
    return record


def _visible_end(log: Log) -> int:
    """Behind the last record that readers see."""
    return log.durable_offset if log.flush_mode == "sync" else log.end_offset
