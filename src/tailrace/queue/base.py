"""A log with bindings, limits and groups: what queues of both kinds share."""

from __future__ import annotations

import contextlib
import re
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from tailrace.errors import Closed, ConfigError, Corrupt, InvalidName, NotWritten, TailraceError
from tailrace.kernel import Record
from tailrace.log.follow import Follower
from tailrace.log.log import Log
from tailrace.queue import dead_letters
from tailrace.queue.classic import ClassicGroup
from tailrace.queue.closing import close_all
from tailrace.queue.consumer import Consumer, StreamConsumer
from tailrace.queue.delays import Delays
from tailrace.queue.fluxmq_groups import FluxGroup, find_groups
from tailrace.queue.group import Member
from tailrace.queue.group_files import Gone, GroupFiles, discard_unopened
from tailrace.queue.handles import QueueLog, opening, other_references
from tailrace.queue.message import Message
from tailrace.queue.names import check_name
from tailrace.queue.open_files import FILES_OF_A_GROUP, FILES_OF_A_LOG, FILES_OF_DELAYS
from tailrace.queue.registry import Queues
from tailrace.queue.settings import QueueSettings
from tailrace.queue.space import Roomy
from tailrace.queue.stream import StreamGroup
from tailrace.queue.topics import check_filter
from tailrace.units import parse_duration

if TYPE_CHECKING:
    from tailrace.queue.stats import QueueStats
    from tailrace.queue.store import Store

__all__ = ["AnyGroup", "GroupInfo", "LogQueue", "group_id_of"]

AnyGroup = ClassicGroup | StreamGroup
C = TypeVar("C", Consumer, StreamConsumer)
T = TypeVar("T")

_TRIES = 20  # to come into a group that others delete
_START = re.compile(r"(offset|timestamp)=(\d+)")


class GroupInfo(NamedTuple):
    """How far a group is. `lag` counts offsets from the committed one to the end."""

    id: str
    cursor: int
    committed: int
    pending: int
    lag: int
    members: list[Member]


class LogQueue(Roomy):
    """What both kinds of queue share. Thread-safe. Opens its log when it is first needed."""

    def __init__(self, store: Store, settings: QueueSettings) -> None:
        self.incarnation = settings.incarnation
        # As they were when we last looked, among those of all queues. One object: threads share it.
        self._known: tuple[Queues | None, QueueSettings] = None, settings
        self._noticing = threading.RLock()  # who has it waits for no other lock of a queue
        self._groups: dict[str, AnyGroup] = {}
        self._consumers: weakref.WeakSet[Consumer | StreamConsumer] = weakref.WeakSet()
        self._wall_ms = store.clock.wall_ms
        super().__init__(store, settings.name)
        self.delays = Delays(
            store.fs,
            store.layout.delayed(self.incarnation),
            self,
            store.alarm,
            store.clock.wall_ms,
            store.open_log,
        )
        # By then the store's thread, if it has one, delivers what is due when it is due.
        self._due: object = None  # another, when something is to be looked for
        self._looked_for: object = object() if store.upkeep else None

    # --- settings ---------------------------------------------------------------------------

    @property
    def settings(self) -> QueueSettings:
        """As of now: another process may have changed them."""
        try:
            queues = self._store.registry.current()
        except Closed:
            self._store.check_open()  # it is not of the registry that its user knows
            raise
        known, settings = self._known
        return settings if queues is known else self._notice()

    def _notice(self) -> QueueSettings:
        """Some queue was made, changed or deleted. If it is this one, what is open goes on by the
        new settings, or is let go of.

        To let go one waits for the lock and for each group's turn; and whoever deletes a queue has
        the registry, and waits for the lock. So with the lock or a turn nobody lets go, nor waits
        for the registry: who has a turn has read the settings before it, and for who has the lock
        another thread does it. (The lock is to be one of the interpreter's own, whose `with` no
        Ctrl-C can break, so it cannot tell when it is given back.)"""
        with self._noticing:
            queues = self._store.registry.current()
            found = queues.get(self.name)
            if found is not None and found.incarnation == self.incarnation:
                if found is not self._known[1]:
                    self._adopt(found)
                self._known = queues, found
                return found
        if self._has_lock:
            threading.Thread(target=self.abandon, name="tailrace-abandon", daemon=True).start()
        else:
            self.abandon()
        raise Closed(f"the queue {self.name!r} was deleted; open it again to have it anew")

    @property
    def _has_lock(self) -> bool:
        """Has this thread got the queue's lock?"""
        return bool(self._lock._is_owned())  # type: ignore[attr-defined]

    def _adopt(self, settings: QueueSettings) -> None:
        log = self._log
        if log is None:  # and so nothing is open
            return
        log.adopt(**settings.log_arguments())
        self.delays.promise(log.options.flush)
        for group in list(self._groups.values()):
            group.adopt(settings.compact_after, **_durability(log))

    def _check_there(self) -> None:
        """`Closed` if the queue was deleted, or the store closed: each turn of each group asks."""
        self.settings  # noqa: B018

    def abandon(self) -> None:
        """The queue was deleted, perhaps by another process: let go of everything. What it would
        write has no place any more."""
        with self._lock:
            groups, self._groups = list(self._groups.values()), {}
        for group in groups:
            group.abandon()
        for consumer in list(self._consumers):
            consumer.close()
        self.delays.abandon()
        self.abandon_log()

    def abandon_log(self) -> None:
        with self._lock:
            log, self._log = self._log, None
        if log is not None:
            log.abandon()

    def configure(self, **options: Any) -> None:
        """Change settings, for everybody. What is fixed when a queue is created is refused."""
        self._store.configure(self.name, **options)

    @property
    def log(self) -> QueueLog:
        """The queue's log."""
        settings = self.settings
        log = self._log
        if log is None:
            log = self._with_files(partial(self._opened_log, settings))
            self.note_opened()
        return log

    def _opened_log(self, settings: QueueSettings) -> QueueLog:
        with self._lock:
            if self._log is None:
                self.check_open()
                try:
                    with opening(f"the log of the queue {self.name!r}"):
                        self._log = self._store.reserve.in_need(lambda: self._open_log(settings))
                    if self.settings is not settings:  # changed meanwhile
                        self._adopt(self.settings)
                finally:  # whatever came of it, if the folder went away meanwhile
                    self._check_there()
            return self._log

    def _open_log(self, settings: QueueSettings) -> QueueLog:
        try:
            return self._store.open_log(settings)
        except ConfigError:  # others may have it open by new settings, which are stricter
            if self.settings is settings:
                raise
            return self._store.open_log(self.settings)

    def _with_files(self, do: Callable[[], T]) -> T:
        """Do what opens files. Others rest for it, if need be, unless somebody could be waiting for
        our lock: then it is for whoever has taken that."""
        if self._has_lock:
            return do()
        return self._store.handles.open(self, do)

    def note_opened(self) -> None:
        """There are more files open than before. Not with our lock: others may be asked to rest."""
        self._store.handles.opened(self)

    @property
    def files(self) -> int:
        log = FILES_OF_A_LOG * self.is_open
        return log + FILES_OF_DELAYS * self.delays.is_open + FILES_OF_A_GROUP * len(self._groups)

    def rest(self) -> bool:
        """Close the log and the groups, unless they are in use; false if so."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if any(not consumer.closed for consumer in self._consumers):
                return False
            for group in self._groups.values():
                group.tidy()
                has_messages = other_references(group) > 2  # those of this queue and its turn
                if group.is_in_use(has_messages=has_messages):
                    return False
            while self._groups:
                self._groups.popitem()[1].close()
            log, self._log = self._log, None
            # From here on nobody gets it. Who has got it before, to append or read, still has it.
            if log is not None and other_references(log):
                self._log = log
                return False
            if log is not None:
                log.close()
            return self.delays.rest()
        finally:
            self._lock.release()

    @property
    def open_log(self) -> QueueLog | None:
        """The log, if it is open. It stays so for as long as somebody has it, unless the queue or
        the store goes."""
        return self._log

    @property
    def is_open(self) -> bool:
        """Has it a log open? It opens it when it is used."""
        return self._log is not None

    def _check_disk(self) -> None:
        self._store.disk.check()

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
        return self._messages(records)

    def _messages(self, records: Iterator[Record]) -> Iterator[Message]:
        try:
            for record in records:
                yield Message(self.name, record, None, 0, 0, 0)
        except Closed:  # that of the log says little: was the queue deleted, or the store closed?
            self.settings  # noqa: B018
            raise

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
            case int() if not isinstance(start, bool) and start >= 0:
                return min(max(start, log.start_offset), _visible_end(log))
        raise ValueError(
            "start is 'first', 'last', 'next', an offset from 0 on, 'offset=…' or 'timestamp=…', "
            f"not {start!r}"
        )

    def __len__(self) -> int:
        """How many offsets the queue holds, settled or not."""
        log = self.log
        return log.end_offset - log.start_offset

    def __bool__(self) -> bool:
        return True

    def stats(self, *, exact: bool = False) -> QueueStats:
        """Figures of the queue and its groups. Nobody is disturbed. What would take long to count
        is estimated, and says so, unless it is to be `exact`."""
        from tailrace.queue.stats import look_through, queue_stats

        try:
            return queue_stats(look_through(self._store), self.settings, exact=exact)
        except OSError:
            self.settings  # noqa: B018  raises if the queue was deleted meanwhile
            raise

    # --- groups -----------------------------------------------------------------------------

    def _make_group(self, files: GroupFiles, pattern: str) -> AnyGroup:
        raise NotImplementedError

    _mode: Literal["queue", "stream"] = "queue"

    def open_group(self, group: str, pattern: str = "", *, create: bool = True) -> AnyGroup:
        """This process's hold on a group, which is made if it does not exist."""
        settings, log = self.settings, self.log
        group_id, own = group_id_of(group, pattern)

        def open_group() -> AnyGroup:
            with self._lock:
                found = self._groups.get(group_id)
                if found is not None and not found.closed:
                    return found
                self._store.check_open()
                with self._opening(group_id):
                    files = self._files(group_id, settings, log)._replace(create=create)
                    made = self._store.reserve.in_need(lambda: self._come_into(files, own))
                self._groups[group_id] = made
                log.flush_along(made)
                if self.settings is not settings:  # changed meanwhile
                    self._adopt(self.settings)
                return made

        made = self._with_files(open_group)
        self.note_opened()
        return made

    def _come_into(self, files: GroupFiles, pattern: str) -> AnyGroup:
        """Somebody may delete it while we come in: then it is made anew."""
        for _ in range(_TRIES if files.create else 0):
            with contextlib.suppress(FileNotFoundError):
                return self._make_group(files, pattern)
        return self._make_group(files, pattern)

    def find_group(self, group_id: str) -> AnyGroup | None:
        """The same, of a group that there was a moment ago; `None` if it is gone."""
        try:
            return self.open_group(group_id, create=False)
        except Gone:
            return None
        except NotWritten as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            return None  # its folder went away meanwhile

    def _opening(self, group_id: str) -> AbstractContextManager[None]:
        return opening(f"the group {group_id!r} of the queue {self.name!r}")

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
            compact_after=settings.compact_after,
            **_durability(log),
            foreign=foreign,
            mode=self._store.mode,
            check=self._check_there,
            make_room=store.reserve.helps,
            note_dropped=store.tidy_soon,
            may_forget=store.backups.are_over,
        )

    def tidy(self) -> None:
        """Part with consumers of this process that nobody has closed."""
        for group in list(self._groups.values()):
            with contextlib.suppress(Closed):
                group.tidy_in_passing()

    def group_ids(self) -> list[str]:
        """The groups that the queue has."""
        self.settings  # noqa: B018  raises if the queue was deleted
        ours = self._store.layout.groups(self.name)
        return sorted({*ours, *find_groups(self._store.fs, self._store.layout.root, self.name)})

    def groups(self) -> list[GroupInfo]:
        """How far each group is, and who is in it."""
        with self._lock:
            asked = self._ask_groups(lambda group: (group.members(), *group.progress()))
        found = []
        for group, (members, cursor, committed) in asked.items():
            cursor, committed = (max(each, self.log.start_offset) for each in (cursor, committed))
            lag = max(_visible_end(self.log) - committed, 0)
            pending = group.state.weight if isinstance(group, ClassicGroup) else 0
            found.append(GroupInfo(group.id, cursor, committed, pending, lag, members))
        return found

    def delete_group(self, group_id: str) -> None:
        """Forget a group, even one that is damaged. Its consumers, in whichever process, get
        `Closed`."""
        settings, log = self.settings, self.log
        if group_id not in self.group_ids():
            raise InvalidName(f"the queue {self.name!r} has no group {group_id!r}")

        def delete() -> None:
            with self._lock:
                group = self._groups.pop(group_id, None)
            with contextlib.suppress(Closed, FileNotFoundError):  # somebody else does it just now
                if group is not None and not group.closed:
                    group.delete()
                else:
                    discard_unopened(self._files(group_id, settings, log))

        self._store.reserve.in_need(delete)
        self._check_there()

    def expire_groups(self, idle: float | str) -> list[str]:
        """Delete the groups that nobody is in, and that nobody has used for so long; their names.
        What only they held back may be deleted from the queue then."""
        idle_ms = parse_duration(idle, "idle")
        in_need = self._store.reserve.in_need
        found = [group_id for group_id, for_ms in self.idle_ms().items() if for_ms >= idle_ms]
        return [each for each in found if in_need(partial(self._expire, each, idle_ms))]

    def _expire(self, group_id: str, idle_ms: int) -> bool:
        """Delete a group if it is idle: is it gone now?"""
        with self._lock:
            try:
                asked = self._ask_group(group_id, lambda group: group.delete_if_idle(idle_ms))
            except Corrupt:  # nobody can open it
                self.delete_group(group_id)
                return True
        return asked is not None and asked[1]

    def idle_ms(self) -> dict[str, int]:
        """For how long nobody has used each of the groups, as far as they may expire. Dead letters
        that somebody has dealt with would come back without the group that knows of it."""
        settings, log, found = self.settings, self.log, dict[str, int]()
        for group_id in self.group_ids():
            if group_id != dead_letters.GROUP:
                used_ms = 0
                with contextlib.suppress(Corrupt):
                    used_ms = self._store.look.look_at(settings, group_id).state.used_ms
                found[group_id] = self._files(group_id, settings, log).idle_ms(used_ms)
        return found

    def _in_group(self, group: str, pattern: str, make: Callable[[Any], C]) -> C:
        """A consumer. Whoever finds that the group was deleted since it came in makes it anew."""
        for _ in range(_TRIES):
            found = self.open_group(group, pattern)
            try:
                return make(found)
            except Closed:
                if not found.closed:
                    raise
        return make(self.open_group(group, pattern))

    def _tail(self, group: AnyGroup) -> Any:
        try:
            return self.log.tail("next", also=(group.files.bell,))
        except FileNotFoundError:
            group.progress()  # which tells if the group was deleted
            raise

    def _bring_due(self) -> bool:
        """Whoever comes to a store finds there what was due before, and what this process published
        that was. Deliver a batch of that; false if there is no more, from when on that is the
        business of the store's thread."""
        due = self._due
        if due is self._looked_for:
            return False
        with contextlib.suppress(TailraceError, OSError):  # the thread tries again, and tells of it
            if self.delays.exists and self.delays.deliver() is not None:
                return True
        self._looked_for = due
        return False

    def note_due(self) -> None:
        """Something was published that is due already."""
        self._due = object()

    def _attended(self, make: Callable[[Callable[[], None]], C]) -> C:
        """A consumer, as long as which an ephemeral queue stays; it is given how to leave."""
        attendance = contextlib.ExitStack()
        attendance.enter_context(self._store.attend(self.settings))
        try:
            consumer = make(attendance.close)
        except BaseException:
            attendance.close()
            raise
        self._consumers.add(consumer)
        return consumer

    # --- the end ----------------------------------------------------------------------------

    def close(self) -> None:
        """End all consumers, and let go of the groups and the log. They are opened again when they
        are needed."""
        try:
            self.settings  # noqa: B018
        except Closed:  # deleted, and let go of
            return
        trash = self._store.layout.trash(self.incarnation)
        close_all(
            [
                *(consumer.close for consumer in list(self._consumers)),
                lambda: self._close_delays(trash),
                lambda: self._store.handles.forget(self),
                self._close_files,
            ]
        )

    def _close_delays(self, trash: str) -> None:
        """They need the log once more, although the store is closed for everybody else."""
        self._is_closing = True
        try:
            self.delays.close(trash)
        finally:
            self._is_closing = False

    def _close_files(self) -> None:
        with self._lock:
            groups, self._groups = list(self._groups.values()), {}
            log, self._log = self._log, None
        closes: list[Callable[[], object]] = [group.close for group in groups]
        close_all(closes if log is None else [*closes, log.close])

    def disown(self) -> None:
        """In a forked child: another thread of the parent may have had the lock."""
        self._lock = threading.RLock()
        self._passing = threading.Lock()
        self._noticing = threading.RLock()
        self._depth.disown()
        self.delays.disown()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


def group_id_of(group: str, pattern: str) -> tuple[str, str]:
    """The name of a group, and its filter, which is what is behind the `@` of the name."""
    check_name("group", group)
    if pattern:
        check_filter(pattern)
        if "@" in group:
            raise InvalidName(
                f"the name of a group, {group!r}, names a filter after its '@', and {pattern!r} "
                "is another; give one of them"
            )
    group_id = f"{group}@{pattern}" if pattern else group
    check_name("group", group_id)
    name, _, own = group_id.partition("@")
    if name and own:
        check_filter(own)
    return group_id, own if name else ""


def _durability(log: Log) -> dict[str, bool]:
    """How durable the groups of a queue with this log have to be."""
    return {"is_sync": log.flush_mode == "sync", "is_durable": log.flush_mode != "none"}


def _visible_end(log: Log) -> int:
    """Behind the last record that readers see."""
    return log.durable_offset if log.flush_mode == "sync" else log.end_offset
