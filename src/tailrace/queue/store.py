"""`Store`: a directory of queues."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from tailrace.errors import Closed, ConfigError, InvalidName, TailraceError
from tailrace.log.commit import Receipt
from tailrace.log.fs import FileLock, FileSystem, OsFileSystem, remove_tree
from tailrace.log.ground import refuse_network
from tailrace.log.retention import VacuumReport
from tailrace.log.upkeep import Chore, Upkeep
from tailrace.queue import dead_letters, delays, deletion
from tailrace.queue.addresses import default_binding
from tailrace.queue.alarm import Alarm
from tailrace.queue.backing import BackedUp
from tailrace.queue.backup_lock import Backups
from tailrace.queue.by_topic import PublishingByTopic
from tailrace.queue.caretaker import Caretaker
from tailrace.queue.clock import Clock, SystemClock
from tailrace.queue.closing import close_all, is_amid_call
from tailrace.queue.consumer import Consumer, StreamConsumer, shorter
from tailrace.queue.disk import DiskSettings, DiskWatch, Level
from tailrace.queue.ephemeral import Attendance, Sweeper
from tailrace.queue.handles import Handles, QueueLog, opening
from tailrace.queue.layout import Layout, find_root
from tailrace.queue.looking import Look
from tailrace.queue.names import refuse_reserved
from tailrace.queue.office import Account, Letter
from tailrace.queue.open_files import most_files
from tailrace.queue.outgoing import Outgoing, Published
from tailrace.queue.pump import Pump, deliver_due
from tailrace.queue.queue import Queue, Stream, check_fits, consumer_options
from tailrace.queue.redriving import Redriving
from tailrace.queue.registry import Queues, Registry
from tailrace.queue.reserve import Reserve, is_full
from tailrace.queue.settings import OPTIONS, QueueSettings, describe_unknown

if TYPE_CHECKING:
    from tailrace.queue.stats import StoreStats

__all__ = ["Outgoing", "Published", "Store"]

_OPTIONS = ("clock", "config (by tailrace.open)", "disk", "flush", "fs", "mode", "upkeep")
_SWEEP_S = 60.0  # the longest between two looks for ephemeral queues that may go


class Store(BackedUp, PublishingByTopic, Redriving):
    """The queues in a directory. Thread-safe; any number of processes may have it open.

    `mode` is how its logs take turns to write (see `Log`); with `upkeep=False` nothing is flushed
    or deleted in the background (a disk that is too full is seen to by who publishes, before it is
    refused). `disk` says how full that may get (see `DiskSettings`). A forked child may go on with
    its parent's.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        flush: str | None = None,
        mode: Literal["owner", "shared"] = "owner",
        upkeep: bool = True,
        fs: FileSystem | None = None,
        clock: Clock | None = None,
        disk: Any = None,
        **defaults: Any,
    ) -> None:
        self.path = os.fspath(path)
        if not self.path:
            raise ConfigError("path: it is empty; name the folder of the store ('.' is this one)")
        self.fs = fs if fs is not None else OsFileSystem()
        self.clock = clock if clock is not None else SystemClock()
        folder = self.path if fs is not None else os.path.abspath(self.path)
        if fs is None:
            refuse_network(folder)
        self.mode = mode
        self.upkeep = upkeep
        self._defaults = {**defaults, "flush": flush}
        disk = DiskSettings.parse(disk)
        for key in defaults:
            if key not in OPTIONS:
                raise ConfigError(describe_unknown(key, {*_OPTIONS, *OPTIONS}, "a store"))
        QueueSettings.create("?", defaults=self._defaults)  # refuses a wrong one now
        self.layout = Layout(self.fs, find_root(self.fs, folder))
        self._lock = threading.RLock()
        self._queues: dict[str, Queue | Stream] = {}
        self._closed = False
        self._closing: threading.Thread | None = None
        self.reserve = Reserve(self.fs, self.layout.side)
        self.backups = Backups(self.fs, self.layout.side)
        self.registry = self.reserve.in_need(Registry(self.fs, self.layout.root).open)
        self._is_inherited = False
        self._presence = self._new_presence()
        self._sweeper = Sweeper(self._sweep)
        self.handles = Handles(most_files(3))
        self.look = Look(self.fs, self.layout, self.registry.current, self.clock)
        self.disk = DiskWatch(self.fs, self.layout.root, disk, self._relieve)
        self._caretaker: Caretaker | None = None
        self.alarm = Alarm(self.fs, self.layout.delayed())
        self._pump: Pump | None = None
        self._employed: list[Upkeep] = []
        try:
            if self._presence.acquire(wait=False):
                self._start_afresh()
            self._presence.acquire(shared=True)
            self.reserve.have()
            self.backups.have()
            if upkeep:
                self._begin_upkeep()
        except BaseException:
            self._presence.close()
            self.registry.close()
            raise
        if upkeep and self._ephemeral():
            self._sweeper.start()
        _stores.add(self)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Store cannot be pickled: pass its path, and open it in the other process"
        )

    def check_open(self) -> None:
        if self._closed:
            raise Closed(f"the store in {self.path} is closed")
        if self._is_inherited:
            with self._lock:
                if self._is_inherited:
                    self._presence = self._new_presence()
                    self._presence.acquire(shared=True)
                    self._is_inherited = False
                    if self.upkeep:
                        self._begin_upkeep()

    def _begin_upkeep(self) -> None:
        """Whether or not we use any of the queues: others may, who do not stay for long."""
        self._take_care()
        self._pump = Pump(self)

    def _new_presence(self) -> FileLock:
        """Who has the store open shares this lock."""
        return self.fs.lock(os.path.join(self.layout.side, "members"))

    def _disown(self) -> None:
        """In a forked child: the parent's other threads, which may have had the locks, are not
        here, and its lock is not ours."""
        self._lock = threading.RLock()
        self._sweeper = Sweeper(self._sweep)
        self._is_inherited = True
        self._caretaker = self._pump = self._closing = None
        self._employed = []
        self.alarm.disown()
        self.backups.disown()
        self.handles.disown()
        for queue in self._queues.values():
            queue.disown()

    # --- queues -----------------------------------------------------------------------------

    def queue(self, name: str, **options: Any) -> Queue:
        """The work queue of this name, which is made if it does not exist. If it does, options that
        are given change it, for everybody; what is fixed when it is made is refused. One that is
        ephemeral because somebody used its name before becomes durable, with what is in it."""
        found = self._open_queue(name, "classic", options)
        assert isinstance(found, Queue)
        return found

    def stream(self, name: str, **options: Any) -> Stream:
        """The stream of this name; otherwise like `queue`."""
        found = self._open_queue(name, "stream", options)
        assert isinstance(found, Stream)
        return found

    def _open_queue(self, name: str, kind: str, options: dict[str, Any]) -> Queue | Stream:
        self.check_open()
        if "type" in options:
            raise ConfigError("type: store.queue opens a work queue, and store.stream a stream")
        settings = self.registry.current().get(name)
        if settings is None or settings.declared(kind, self._defaults, options) is not settings:
            settings = self._create(name, kind, options)
        return self._handle(settings)

    def _create(self, name: str, kind: str, options: Mapping[str, Any]) -> QueueSettings:
        return self.declare([(name, kind, options)])[name]

    def declare(self, wanted: Iterable[tuple[str, str, Mapping[str, Any]]]) -> Queues:
        """Make the queues of these names, types and options, or change those that exist. It is one
        change: all of them, or if one is refused, none. Nothing is opened, but for what was
        ephemeral and becomes durable."""
        wanted = list(wanted)
        self.check_open()
        kept: list[str] = []

        def edit(queues: dict[str, QueueSettings]) -> None:
            made, before = [], dict(queues)
            for name, kind, options in wanted:
                if name in queues:
                    was_ephemeral = queues[name].ephemeral
                    queues[name] = queues[name].declared(kind, self._defaults, options)
                    if was_ephemeral and not queues[name].ephemeral:
                        kept.append(name)
                else:
                    if not options.get("reserved"):
                        refuse_reserved(name)
                    queues[name] = QueueSettings.create(
                        name, kind, defaults=self._defaults, **options
                    )
                    made.append(name)
            dead_letters.check_routes(queues, before, [name for name, _, _ in wanted])
            for name in made:
                deletion.clear(self.fs, self.layout, name)

        queues = self._change(edit)
        for name in kept:
            self._make_durable(self._handle(queues[name]))
        for name, _, _ in wanted:
            self._expect_to_sweep(queues[name])
        return queues

    def _make_durable(self, queue: Queue | Stream) -> None:
        """It was ephemeral: see that all it holds is on the disk, if it is to be."""
        log = queue.log
        if log.flush_mode == "none":
            return
        log.flush()
        if queue.delays.exists:
            queue.delays.incoming.flush()
        queue.groups()  # each has its turn, in which it sees to that

    def _handle(self, settings: QueueSettings) -> Queue | Stream:
        with self._lock:
            found = self._queues.get(settings.name)
            if found is None or found.incarnation != settings.incarnation:
                kind = Queue if settings.type == "classic" else Stream
                found = self._queues[settings.name] = kind(self, settings)
            return found

    def get(self, name: str) -> Queue | Stream:
        """The queue or stream of this name; `InvalidName` if there is none."""
        self.check_open()
        settings = self.registry.current().get(name)
        if settings is None:
            raise InvalidName(f"there is no queue {name!r} in {self.path}")
        return self._handle(settings)

    def queues(self) -> list[Queue | Stream]:
        """All of them, by name."""
        self.check_open()
        current = self.registry.current()
        return [self._handle(current[name]) for name in sorted(current)]

    def stats(self, *, exact: bool = False) -> StoreStats:
        """Figures of each queue, by name, and as `disk` those of the disk. Nobody is disturbed, and
        no log is left open that was not. What would take long to count is estimated, and says so,
        unless it is to be `exact`."""
        from tailrace.queue.disk_stats import disk_stats
        from tailrace.queue.stats import StoreStats, look_through, store_stats

        self.check_open()
        disk = disk_stats(self.fs, self.layout, self.disk.settings)
        return StoreStats(store_stats(look_through(self), exact=exact), disk)

    def configure(self, name: str, **options: Any) -> None:
        """Change settings of a queue, for everybody, and for what is open. What is fixed when it is
        made is refused; a few options of its log count from the next open: `flush_interval`,
        `index_interval`, `time_index_interval`, `open_files`, `producer_expiry` and
        `retention_check_interval`."""
        self.get(name)

        def edit(queues: dict[str, QueueSettings]) -> None:
            if name not in queues:
                raise InvalidName(f"there is no queue {name!r} in {self.path}")
            before = queues[name]
            queues[name] = before.changed(**options)
            dead_letters.check_routes(queues, {name: before}, [name])

        self._expect_to_sweep(self._change(edit)[name])

    def _change(self, edit: Callable[[dict[str, QueueSettings]], None]) -> Queues:
        queues = self.handles.open(None, lambda: self.registry.change(edit))
        if (caretaker := self._caretaker) is not None:
            caretaker.adapt()
        return queues

    def delete(self, name: str) -> None:
        """Delete a queue with all that is in it, for everybody: whoever uses it gets `Closed`."""
        self._remove(self.get(name).settings)

    def _remove(self, settings: QueueSettings) -> None:
        """Delete a queue, if it is still this one. Its folder is marked first, so that what a crash
        leaves is never taken for the queue of the same name that somebody makes next."""
        name = settings.name

        def edit(queues: dict[str, QueueSettings]) -> None:
            found = queues.get(name)
            if found is not None and found.incarnation == settings.incarnation:
                deletion.mark(self.fs, self.layout.queue(name), settings.incarnation)
                del queues[name]

        def clear() -> None:
            """The folder goes before anybody else can make a queue of the same name; by now nobody
            in this process opens it again. Whoever has a group's turn may be waiting for us, so
            this does not wait for turns."""
            with self._lock:
                queue = self._queues.get(name)
                if queue is not None and queue.incarnation == settings.incarnation:
                    gone.append(self._queues.pop(name))
            for queue in gone:
                queue.abandon_log()
            deletion.clear(self.fs, self.layout, name)

        gone: list[Queue | Stream] = []
        self.reserve.in_need(lambda: self.registry.change(edit, clear))
        for queue in gone:
            queue.abandon()
        delays.sweep(self.fs, self.layout, self.registry.current)

    def open_log(
        self, settings: QueueSettings, folder: str | None = None, **options: Any
    ) -> QueueLog:
        """The log of a queue, for its handle, or one like it in another folder. It deletes nothing
        by itself: what may go depends on the groups as well."""
        arguments = {**settings.log_arguments(), **options}
        folder = folder or self.layout.segments(settings.name)
        self.fs.make_dirs(folder)
        fs = None if isinstance(self.fs, OsFileSystem) else self.fs
        arguments |= {"mode": self.mode, "upkeep": self.upkeep, "fs": fs}
        log = QueueLog(folder, wall_ms=self.clock.wall_ms, **arguments)
        log.label(settings.name)
        return log

    def _take_care(self) -> Caretaker | None:
        with self._lock:
            if self._caretaker is None and not self._closed:
                self._caretaker = self.reserve.in_need(lambda: Caretaker(self))
            return self._caretaker

    def _relieve(self, level: Level) -> None:
        """The disk is too full for one who publishes."""
        caretaker = self._caretaker or self._take_care()
        if caretaker is not None:
            caretaker.relieve(level)

    def tidy_soon(self) -> None:
        """A consumer is gone that nobody has closed. Waits for nobody, as the garbage collector
        calls it; without a thread of ours the next one who comes to the group tidies."""
        caretaker = self._caretaker
        if caretaker is not None:
            caretaker.tidy_soon()

    def tidy(self) -> None:
        """Part with consumers that nobody has closed."""
        close_all([queue.tidy for queue in list(self._queues.values())])

    def employ(self, chores: list[Chore]) -> None:
        """Have more done in the background, as long as the store is open: in a thread of its own,
        because it may take long; by one at a time of those that have the store open."""
        lock = self.fs.lock(os.path.join(self.layout.side, "lock.employed"))
        upkeep = Upkeep(self.path, chores, lock)
        weakref.finalize(self, upkeep.end).atexit = False
        with self._lock:
            self._employed.append(upkeep)

    def vacuum(self) -> dict[str, VacuumReport]:
        """Delete what may go, now, groups by `expire_groups` as well; what that was, by queue."""
        return {queue.name: queue.vacuum() for queue in self.queues()}

    def _imply(self, name: str, pattern: str) -> QueueSettings:
        """What an ephemeral queue of this name would be, bound to a filter. It is not made; if it
        cannot be, this says so."""
        queues = dict(self.registry.current())
        self._add_implied(queues, name, pattern)
        return queues[name]

    def _add_implied(self, queues: dict[str, QueueSettings], name: str, pattern: str) -> None:
        refuse_reserved(name)
        queues[name] = QueueSettings.imply(name, pattern, self._defaults)
        dead_letters.check_routes(queues, {}, [name])

    def _implied_queue(self, name: str, pattern: str) -> QueueSettings:
        """The queue of this name, or an ephemeral one that is made, and bound to a filter."""
        settings = self.registry.current().get(name)
        if settings is not None:
            return settings

        def edit(queues: dict[str, QueueSettings]) -> None:
            if name not in queues:
                self._add_implied(queues, name, pattern)
                deletion.clear(self.fs, self.layout, name)

        with opening(f"an ephemeral queue {name!r}"):
            settings = self._change(edit)[name]
        self._expect_to_sweep(settings)
        return settings

    def deliver_due(self) -> int:
        """Deliver the delayed messages that are due; how many that were. With `upkeep` this happens
        by itself, when the time comes."""
        self.check_open()
        return deliver_due(self)

    # --- consume ----------------------------------------------------------------------------

    def consumer(self, name: str, group: str, **options: Any) -> Consumer | StreamConsumer:
        """A consumer of a queue by its name. If there is none yet, an ephemeral one is made, bound
        to `$queue/<name>/#`, which gets what is published from then on."""
        self.check_open()
        found = self.registry.current().get(name)
        check_fits(name, found, options)
        if found is None:
            consumer_options(group, **options)  # raises, before the queue is made
        settings = self._implied_queue(name, default_binding(name))
        return self._handle(settings).consumer(group, **options)

    def attend(self, settings: QueueSettings) -> AbstractContextManager[object]:
        """A consumer is there: an ephemeral queue stays."""
        if not settings.ephemeral:
            return nullcontext()
        return Attendance(self.fs, self.layout.queue(settings.name))

    # --- dead letters -----------------------------------------------------------------------

    def bury(
        self, settings: QueueSettings, letters: Sequence[Letter], group_id: str, account: Account
    ) -> dict[int, Exception]:
        """Write dead letters, durably, and each once; by offset, why some could not be written.
        Nobody has a turn or a queue's lock here: a queue may be made, and the disk waited for."""
        place = dead_letters.place_of(settings)
        queue, now_ms = self._dead_letter_queue(place), self.clock.wall_ms()
        queue.hold_letters()
        receipts: dict[int, Receipt] = {}
        failed: dict[int, Exception] = {}
        for message, reason in letters:
            offset = message.offset
            step = dead_letters.step_of("dlq", settings.incarnation, account, offset)
            try:
                record = dead_letters.dead_letter(message, place.topic, group_id, reason, now_ms)
                receipts[offset] = queue.append_accepted([record], step)
            except Exception as error:  # noqa: BLE001  the others have nothing to do with it
                failed[offset] = error
                if is_full(error):
                    failed |= {m.offset: error for m, _ in letters if m.offset not in receipts}
                    break
        for offset, receipt in receipts.items():
            try:
                receipt.wait()
            except Exception as error:  # noqa: BLE001
                failed[offset] = error
        if len(failed) < len(letters):
            self._make_as_durable(queue, settings)
        return failed

    # --- ephemeral queues -------------------------------------------------------------------

    def _ephemeral(self) -> list[QueueSettings]:
        return [each for each in self.registry.current().values() if each.ephemeral]

    def _start_afresh(self) -> None:
        """Nobody else is here: what does not outlive a restart goes, and what somebody left who was
        killed while deleting."""
        for settings in self._ephemeral():
            if not settings.survives:
                self._remove(settings)
        delays.sweep(self.fs, self.layout, self.registry.current)
        remove_tree(self.fs, os.path.dirname(self.layout.trash("x")))

    def _expect_to_sweep(self, settings: QueueSettings) -> None:
        if settings.ephemeral and self.upkeep:
            self._sweeper.start(_look_after_s(settings))

    def _sweep(self) -> float | None:
        """Delete the ephemeral queues that nobody has consumed for their time; how long until it is
        worth looking again, `None` if there are none. What is to be delivered later counts for a
        consumer: there is time for one to come when it is there."""
        shortest = None
        for settings in self._ephemeral():
            folder = self.layout.queue(settings.name)
            idle_s = Attendance.idle_s(self.fs, folder, self.clock.wall_ms())
            if settings.survives and not Attendance.has_begun(self.fs, folder):
                idle_s = None
            if idle_s is not None and self._has_scheduled(settings):
                with self.attend(settings):
                    idle_s = None
            if idle_s is not None and idle_s * 1000 >= settings.expires_after_ms:
                self._remove(settings)
            else:
                shortest = shorter(shortest, _look_after_s(settings))
        return shortest

    def _has_scheduled(self, settings: QueueSettings) -> bool:
        folder = self.layout.delayed(settings.incarnation)
        try:
            return delays.count_scheduled(self.fs, folder) > 0
        except (TailraceError, OSError):  # as when it is damaged; whoever delivers tells of it
            return True

    # --- the end ----------------------------------------------------------------------------

    def close(self) -> None:
        """Flush and close all queues; a second close does nothing. In a signal handler that has
        interrupted a call of ours, a thread does it as soon as that call lets it, and whoever
        closes the store after that waits for the thread."""
        if is_amid_call():
            if self._closing is None:
                self._closing = threading.Thread(target=self.close, name="tailrace-close")
                self._closing.start()
            return
        try:
            if (caretaker := self._caretaker) is not None:
                caretaker.look_in_passing()
        finally:
            self._close()

    def _close(self) -> None:
        closing = self._closing
        if closing is not None and closing is not threading.current_thread():
            closing.join()
        with self._lock:
            if self._closed:
                return
            self._closed = True
            queues, self._queues = list(self._queues.values()), {}
            caretaker, self._caretaker = self._caretaker, None
            employed, self._employed = self._employed, []
        for upkeep in employed:
            upkeep.stop()
        if self._pump is not None:
            self._pump.stop()
        self._sweeper.stop()
        if caretaker is not None:
            caretaker.stop()
        ours = self.alarm.close, self.backups.close, self._presence.close, self.registry.close
        close_all([*(queue.close for queue in queues), *ours])

    def __enter__(self) -> Store:
        self.check_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Store({self.path!r}{', closed' if self._closed else ''})"


def _look_after_s(settings: QueueSettings) -> float:
    """How often to look whether an ephemeral queue may go."""
    return min(settings.expires_after_ms / 2000, _SWEEP_S)


_stores: weakref.WeakSet[Store] = weakref.WeakSet()


def _disown_all() -> None:
    for store in list(_stores):
        store._disown()


os.register_at_fork(after_in_child=_disown_all)
