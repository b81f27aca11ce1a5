"""`Queue` and `Stream`: work that is done once, and a log that is read again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from operator import methodcaller
from typing import Any, Literal

from tailrace.errors import ConfigError, InvalidName
from tailrace.queue.base import GroupInfo, LogQueue, group_id_of
from tailrace.queue.classic import ClassicGroup, Pending
from tailrace.queue.consumer import Consumer, StreamConsumer
from tailrace.queue.dead_letters import GROUP
from tailrace.queue.group_files import GroupFiles
from tailrace.queue.inputs import as_text, check_flag, check_limit
from tailrace.queue.message import Message
from tailrace.queue.names import check_name
from tailrace.queue.office import Account, Letter
from tailrace.queue.scanning import Selection
from tailrace.queue.settings import QueueSettings
from tailrace.queue.stream import StreamGroup
from tailrace.units import parse_duration

__all__ = ["GroupInfo", "Queue", "Stream", "check_fits", "consumer_options"]

_OF_STREAMS = {"start", "timestamp", "auto_commit", "auto_commit_interval"}
_OF_QUEUES = {"prefetch", "visibility_timeout", "key_order"}


class Queue(LogQueue):
    """A work queue: each message goes to one consumer of each group, and comes back until one of
    them has settled it."""

    _holds_letters = False

    def _make_group(self, files: GroupFiles, pattern: str) -> ClassicGroup:
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

        A `filter` (of routing keys, by the rules of MQTT) makes a group of its own, `group@filter`,
        which may also be given as the name: what is after an `@` is the filter.
        `prefetch` messages are fetched at a time when one after the other is asked for.
        `key_order=True` gives a group whose messages of one key come one at a time, in order; it is
        fixed when the group is made.
        """
        id, lease_ms = consumer_options(
            group,
            filter=filter,
            prefetch=prefetch,
            visibility_timeout=visibility_timeout,
            key_order=key_order,
            id=id,
        )
        self._bring_due()

        def make(found: ClassicGroup) -> Consumer:
            found.agree(key_order)
            return self._attended(
                lambda leave: Consumer(
                    found,
                    self._tail(found),
                    lease_ms,
                    prefetch=prefetch,
                    id=id,
                    bring_due=self._bring_due,
                    on_close=leave,
                )
            )

        def open_consumer() -> Consumer:
            with self._lock, self._opening(group):  # it does not rest meanwhile
                return self._in_group(group, filter, make)

        return self._with_files(open_consumer)

    def consume(self, group: str, **options: Any) -> Consumer:
        """`for message in queue.consume(group="workers"):` waits for messages, for ever, or until
        the consumer is closed. Takes what `consumer` takes."""
        return self.consumer(group, **options)

    def peek(self, group: str, limit: int = 1, *, filter: str = "") -> list[Message]:
        """What a group would get next, without claiming it; also one that does not exist."""
        limit = check_limit(limit)
        group_id, pattern = group_id_of(group, filter)
        self._bring_due()
        if group_id in self.group_ids():
            with self._lock:
                return self.group(group, filter).peek(limit)
        takes = Selection(self.name, group_id, pattern, self._store.clock).takes
        meant = (record for record in self.log.read(self.log.start_offset) if takes(record))
        return [Message(self.name, record, None, 0, 0, 0) for record in islice(meant, limit)]

    def pending(self, group: str, *, filter: str = "") -> list[Pending]:
        """What a group has claimed and not settled, oldest first."""
        group_id, _ = group_id_of(group, filter)
        if group_id not in self.group_ids():
            return []
        with self._lock:
            asked = self._ask_group(group_id, lambda found: found.pending())
        return asked[1] if asked else []

    def hold_letters(self) -> None:
        """See that the group is there, durably, that has not dealt with the dead letters which come
        now: else nobody would need them, and they could go as `retention` says."""
        if not (self._holds_letters and self._store.layout.has_group(self.name, GROUP)):
            self._in_group(GROUP, "", methodcaller("progress"))  # which tells if it was deleted
            self._holds_letters = True

    # --- what a group asks for --------------------------------------------------------------

    def bury(
        self, settings: QueueSettings, letters: Sequence[Letter], group_id: str, account: Account
    ) -> dict[int, Exception]:
        return self._store.bury(settings, letters, group_id, account)

    def publish_once(self, message: Message, account: Account, publish: Iterable[Any]) -> None:
        self._store.publish_once(self.settings, message, account, publish)


class Stream(LogQueue):
    """A log that groups read and replay: nothing is taken out of it."""

    _mode: Literal["queue", "stream"] = "stream"

    def _make_group(self, files: GroupFiles, pattern: str) -> StreamGroup:
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
        with self._lock:
            asked = self._ask_group(group_id, lambda found: found.progress()[1])
        return (group_id, asked[1]) if asked else None

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

        Without a `start` the group goes on after what it has committed, or begins with the first
        message. With one ("first"; "last" or "next" for what comes from now on; an offset;
        "offset=…", "timestamp=…"; or `timestamp=`) the whole group goes on from there.
        """
        _check_named(group)
        check_flag("auto_commit", auto_commit)
        id = None if id is None else as_text("id", id)
        own_ms: int | None = None
        if auto_commit_interval is not None:
            own_ms = parse_duration(auto_commit_interval, "auto_commit_interval")

        def interval_ms() -> int:
            return self.settings.auto_commit_interval_ms if own_ms is None else own_ms

        self._bring_due()
        first: int | None = None  # known, or refused, before the group is made
        if start is not None or timestamp is not None:
            first = self.resolve("first" if start is None else start, timestamp)

        def make(found: StreamGroup) -> StreamConsumer:
            if first is not None:
                found.seek(first)
            return self._attended(
                lambda leave: StreamConsumer(
                    found,
                    self._tail(found),
                    self.resolve,
                    auto_commit=auto_commit,
                    interval_ms=interval_ms,
                    id=id,
                    bring_due=self._bring_due,
                    on_close=leave,
                )
            )

        def open_consumer() -> StreamConsumer:
            with self._lock, self._opening(group):  # it does not rest meanwhile
                return self._in_group(group, filter, make)

        return self._with_files(open_consumer)

    def consume(self, group: str, **options: Any) -> StreamConsumer:
        """`for message in stream.consume(group="readers"):` waits for messages, for ever, or until
        the consumer is closed. Takes what `consumer` takes."""
        return self.consumer(group, **options)


def consumer_options(
    group: str,
    *,
    filter: str = "",
    prefetch: int = 1,
    visibility_timeout: float | str | None = None,
    key_order: bool | None = None,
    id: str | None = None,
) -> tuple[str | None, int | None]:
    """What `Queue.consumer` is given, checked: the id as text, and for how many milliseconds a
    message is leased, if that was said."""
    _check_named(group)
    group_id_of(group, filter)
    if key_order is not None:
        check_flag("key_order", key_order)
    if type(prefetch) is not int or prefetch < 1:
        raise ConfigError(f"prefetch: expected a number of messages from 1 on, got {prefetch!r}")
    lease_ms = None
    if visibility_timeout is not None:
        lease_ms = parse_duration(visibility_timeout, "visibility_timeout")
        if not lease_ms:
            raise ConfigError("visibility_timeout: a millisecond is the least")
    return None if id is None else as_text("id", id), lease_ms


def check_fits(name: str, settings: QueueSettings | None, options: dict[str, Any]) -> None:
    """Are these options of a consumer of what the name stands for?"""
    is_stream = settings is not None and settings.type == "stream"
    for option in sorted(options.keys() & (_OF_QUEUES if is_stream else _OF_STREAMS)):
        kind, there = "stream", "a classic queue"
        if is_stream:
            kind, there = "classic queue", "a stream"
        elif settings is None:
            there = "no queue yet, and would become a classic one: make a stream of it before"
        raise TypeError(f"{option}= is for a consumer of a {kind}, and {name!r} is {there}")


def _check_named(group: str) -> None:
    """Nobody makes a group without a name. Another system may have: what is there can be opened."""
    check_name("group", group)
    if group.startswith("@"):
        raise InvalidName(
            f"the name of a group, {group!r}, begins with '@', after which its filter would be"
        )
