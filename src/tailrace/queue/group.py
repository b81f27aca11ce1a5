"""What groups of both kinds have in common: one state that many processes share.

The state is in memory, in each process that uses the group; the journal keeps them the same. Who
wants to change something takes the group's turn (a lock between threads, and one between processes
which the kernel drops when its holder dies), reads what others have written to the journal since,
decides, writes what it did, and applies it. Nothing else is shared, so a process that is killed at
any moment leaves nothing behind but perhaps an unfinished line.

Each process that has the group open holds a lock of its own on a file `alive-…`; who is listed as a
member and whose lock is free, is dead.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
import threading
import time
import weakref
from collections import deque
from typing import Any, Generic, NoReturn, TypeVar

from tailrace.errors import Closed, NotWritten, TailraceError
from tailrace.log.fs import File
from tailrace.log.sidefiles import side_path
from tailrace.queue import flushing
from tailrace.queue.group_files import (
    ALIVE,
    OPEN,
    UNIQUE,
    Gone,
    GroupFiles,
    Member,
    discard,
    is_held,
    process_of,
    sweep,
)
from tailrace.queue.group_state import State
from tailrace.queue.journal import Deleted, Journal, Op, Unfit
from tailrace.queue.snapshots import Snapshot, Snapshots
from tailrace.queue.turns import Turn

__all__ = ["LOOK_AFTER_S", "Group", "Member", "State"]

logger = logging.getLogger("tailrace")

LOOK_AFTER_S = 1.0  # how often to see whether somebody has died


S = TypeVar("S", bound=State)


class Group(Generic[S]):
    """One process's hold on a group. Thread-safe; a forked child opens it anew when it uses it."""

    queue = ""  # the name of its queue

    def __init__(self, files: GroupFiles) -> None:
        self.files = files
        self.id = files.group_id
        self._journal = Journal(files.fs, files.folder, extend=files.is_sync)
        self._snapshots = Snapshots(files.fs, files.folder, files.group_id)
        self._closed = self._is_deleted = False
        self._uid = ""  # which group it is, once we know
        # Consumers that nobody has closed, with what they had fetched ahead. The garbage collector
        # leaves them here: it may have interrupted somebody who has the turn.
        self._dropped: deque[tuple[str, list[Any]]] = deque()
        files.make_folder()
        self._open()
        _groups.add(self)
        try:
            with self._turn:
                pass
        except BaseException:
            self._let_go()
            raise

    def _make(self) -> S:
        """The state of a new group."""
        raise NotImplementedError

    def _load(self, snapshot: Snapshot) -> S:
        raise NotImplementedError

    def _open(self) -> None:
        fs, folder = self.files.fs, self.files.folder
        self._mutex = threading.RLock()  # which knows its owner: see `Turn`
        self._is_stale = True  # the state has to be loaded
        self._is_inherited = False
        self._compact_at = self.files.compact_after
        self._presence = fs.lock(side_path(folder, OPEN))
        self._presence.acquire(shared=True)
        fs.open(self.files.bell, write=True, create=True).close()  # somebody may listen
        self._bell: File | None = None  # many are never rung
        self._handle = secrets.token_hex(8)
        self._turn = Turn(self)
        with self._turn.alone():  # or somebody might find the file before we have its lock
            self._alive = fs.lock(side_path(folder, ALIVE + self._handle))
            self._alive.acquire()
        self._mine: set[str] = set()
        self._joined = 0
        self._looked_s = 0.0  # when we last looked for the dead

    def _tell_of(self, level: int, text: str, about: object) -> None:
        """Write to the log of Python what has happened to the group."""
        folder = self.files.folder
        extra = {"queue": self.queue, "group": self.id, "path": folder}
        logger.log(level, f"%s: {text}", folder, about, extra=extra)

    def adopt(self, compact_after: int, *, is_sync: bool, is_durable: bool) -> None:
        """The queue's settings have changed. Takes no turn: the next one sees to it."""
        if is_durable and not self.files.is_durable:
            self._is_stale = True
        self.files = self.files._replace(
            compact_after=compact_after, is_sync=is_sync, is_durable=is_durable
        )
        self._compact_at = compact_after

    def disown(self) -> None:
        """We are in a forked child: what is open is the parent's."""
        if not self._closed:
            self._mutex = threading.RLock()
            self._journal.disown()
            self._is_inherited = True

    # --- the turn ---------------------------------------------------------------------------

    def begin(self) -> None:
        """With the turn: come to know what others have done."""
        while not self._is_informed():
            self._is_stale = True
        if self._journal.is_damaged:
            self._keep_aside()
        if self._journal.is_unsynced and self.files.is_durable:  # the queue was ephemeral
            self._snapshot()

    def _is_informed(self) -> bool:
        """False if that has to begin again, because something has to be passed over."""
        try:
            if self._is_stale:
                self._reload()
            elif not self._catch_up():
                self._follow()
        except Unfit:
            return False
        return True

    def _catch_up(self) -> bool:
        try:
            return self._journal.catch_up(self.state.apply)
        except Deleted:
            self._is_deleted = True
            raise Closed(f"the group {self.id!r} was deleted") from None

    def _follow(self) -> None:
        """The journal was replaced. What we have is what the snapshot says, unless there was more
        than one."""
        generation = self._journal.generation
        self._is_stale = True
        journal = self._journal
        self._sync_names()  # whoever replaced it may not have lived to do so
        is_there = journal.open()
        self._check_same(is_there)
        if journal.generation != generation + 1 or journal.is_other:
            self._reload()
        elif self._catch_up():
            self._is_stale = False
        else:
            self._reload()

    def _check_same(self, is_there: bool) -> None:
        """The group may have been deleted, and even made anew, while nobody told us."""
        if self._uid and (not is_there or self._journal.group != self._uid):
            self._is_deleted = True
            raise Closed(f"the group {self.id!r} was deleted")

    def _reload(self) -> None:
        self._is_stale = True
        if not self._uid:
            # We may have come into one that somebody deleted, and made anew. This lock is what we
            # have opened first, and from now on nobody deletes the group without the turn.
            self._presence.check_in_place()
        self._compact_at = self.files.compact_after
        self._sync_names()
        is_there = self._journal.open(lambda: self._snapshots.exported() or 0)
        self._check_same(is_there)
        if is_there:
            try:
                if self._journal.generation:
                    self.state = self._restored(self._snapshots.load(self._journal.generation))
                    self._sync_names()
                else:
                    self.state = self._make()
                is_last = self._journal.load(self.state.apply)
            except Deleted:  # and whoever did so was killed before the files were gone
                if not self.files.create:
                    self._stay_out()
                self.state = self._make()
                self._journal.group = secrets.token_hex(8)
                self._snapshot(is_other=True)
                is_last = True
            if not is_last:
                # The journal's replacement never came.
                self._snapshot(is_other=self._journal.is_damaged)
        else:
            self._found()
        self._is_stale = False
        self._uid = self._journal.group
        self._forget_the_dead()
        boot, clock = self.files.fs.boot_id().hex(), self.files.clock
        if self.state.boot != boot:
            now = {"u": clock.boot_ms(), "w": clock.wall_ms()}
            self.commit({"t": "boot", "b": boot, **now})
        for name in self._mine - self.state.members.keys():  # the line that said so was damaged
            self._commit_join(name)
        self._check_state()

    def _check_state(self) -> None:
        """With the turn: see that the state goes with the queue."""

    def _found(self) -> None:
        """There is no journal: the group is new, was closed, or another system's."""
        exported, snapshot = self._snapshots.exported(), None
        if exported is not None:
            snapshot = self._snapshots.load(exported)
        foreign = self.files.foreign
        other = foreign.load(snapshot) if foreign is not None else None
        known = snapshot or other
        if known is None and not self.files.create and self.files.is_bare():
            self._stay_out()
        self._journal.group = (known and known.state.get("id")) or secrets.token_hex(8)
        if other is None and snapshot is not None and self.files.is_durable:
            other = snapshot if "unsynced" in snapshot.state else None  # the queue was ephemeral
        if other is not None:
            self.state = self._restored(other)
            self._journal.generation = exported or 0
            self._snapshot()
            return
        self.state = self._make() if snapshot is None else self._restored(snapshot)
        self._journal.generation = (exported or 0) - 1
        self._journal.begin_next(sync=self.files.is_durable)
        self._journal.put_next()
        self._sync_names()
        self._journal.open()

    def _stay_out(self) -> NoReturn:
        """With the turn: there is no such group, and nobody is to find one because of us. Somebody
        else who is here may be about to make it."""
        if self._presence.acquire(wait=False):
            discard(self.files)
            sweep(self.files.fs, os.path.dirname(self.files.folder))
        raise Gone(f"the group {self.id!r} was deleted")

    def _restored(self, snapshot: Snapshot) -> S:
        """What is left of a damaged one: see `Snapshot.fill`."""
        self._journal.group = self._journal.group or snapshot.state.get("id", "")
        if snapshot.damaged:
            files = ", ".join(f"pel_{shard}.json" for shard in snapshot.damaged)
            self._tell_of(logging.ERROR, "%s damaged; messages may be delivered again", files)
            snapshot.fill()
            self._journal.is_damaged = True  # others may know what was there
        return self._load(snapshot)

    def _keep_aside(self) -> None:
        """Leave the damaged journal for a person, and begin another."""
        self._journal.keep_aside()
        # Others who have the group open know what was in the journal, and we don't; what they have
        # claimed, somebody else may get.
        self.commit({"t": "doubt"})
        self._snapshot(is_other=True)

    def commit(self, *ops: Op) -> None:
        """With the turn: write what we do, and do it."""
        try:
            self._journal.write(ops)
        except NotWritten as error:
            if not self.files.make_room(error):
                raise
            self._journal.write(ops)
        apply = self.state.apply
        for op in ops:
            apply(op)
        if self._journal.ops > self._compact_at:
            self._compact()

    def _compact(self) -> None:
        journal = self._journal
        is_dear = journal.ops < 2 * self.state.weight  # the cost stays in proportion
        if is_dear and not journal.is_at_risk:
            self._compact_at = 2 * self.state.weight
            return
        try:
            self._snapshot()
        except OSError as error:
            self._compact_at = 2 * journal.ops
            if self._is_stale:  # half done: nothing more in this turn
                journal.close()
            self._tell_of(logging.WARNING, "cannot write a snapshot: %s", error)

    def _snapshot(self, *, is_last: bool = False, is_other: bool = False) -> None:
        """`is_last`: no journal is to follow, and FluxMQ is to find all of its files. `is_other`:
        those who have followed the journal are at something else."""
        journal, files = self._journal, self.files
        if self._snapshots.install(journal.generation):
            self._sync_names()  # whoever began this journal died, and we write over its files
        generation = journal.generation + 1
        journal.begin_next(sync=files.is_durable, is_other=is_other)
        self._snapshots.write(
            generation,
            self._dumped(),
            files.clock.wall_ms(),
            sync=files.is_durable,
            all_shards=is_last,
        )
        self._sync_names()
        self._is_stale = True  # whatever happens here, the files know
        journal.put_next()
        self._sync_names()  # the journal first: it says which of the files count
        self._snapshots.install(generation)
        self._sync_names()  # or the names of the next snapshot might come before these
        if not journal.open():
            raise OSError(errno.EIO, "the new journal cannot be read")
        self._is_stale = False
        self._compact_at = self.files.compact_after

    def _dumped(self) -> Snapshot:
        state, entries = self.state.dump()
        state["id"] = self._journal.group
        if not self.files.is_durable:
            state["unsynced"] = True
        return Snapshot(state, entries)

    def _sync_names(self) -> None:
        if self.files.is_durable:
            try:
                self.files.fs.sync_dir(self.files.folder)
            except FileNotFoundError:
                self._check_same(is_there=False)
                raise

    def wait_durable(self, mark: tuple[int, int]) -> None:
        """Without the turn: return when what was written before the mark is as durable as it has to
        be."""
        if self.files.is_sync:
            flushing.wait(self, mark)

    def flush(self) -> None:
        """Make durable what was written, if it has to be. Takes no turn, and does not raise."""
        if self.files.is_durable and not self.closed and not self._is_inherited:
            flushing.flush(self)

    def ring(self) -> None:
        """Have everybody who waits look again. Nothing is lost if it fails: they look when a lease
        ends, or a message comes."""
        with contextlib.suppress(OSError):
            bell = self._bell
            if bell is None and not self._closed:
                bell = self._bell = self.files.fs.open(self.files.bell, write=True)
            if bell is not None:
                bell.pwrite(b".", 0)

    # --- members ----------------------------------------------------------------------------

    def join(self, consumer: str) -> str:
        """Come in; the name that claims are to have. It is nobody else's, whatever consumers call
        themselves."""
        self.tidy()
        with self._turn:
            self._bury_members()
            self._joined += 1
            name = f"{consumer}{UNIQUE}{self._handle}.{self._joined}"
            self._commit_join(name)
            self._mine.add(name)
        return name

    def _commit_join(self, consumer: str) -> None:
        op = {"t": "join", "c": consumer, "m": self.files.member_info(self._handle)}
        options = self.state.options  # the line that first told of them may be damaged
        self.commit({**op, "o": options} if options else op)

    def leave(self, consumer: str) -> None:
        with self._turn:
            if consumer in self._mine:
                self._mine.discard(consumer)
                self._commit_leave(consumer)

    def _commit_leave(self, consumer: str, **more: Any) -> None:
        self.commit({"t": "leave", "c": consumer, "w": self.files.clock.wall_ms(), **more})

    def drop(self, consumer: str, fetched: list[Any]) -> None:
        """The consumer is gone. Takes no lock: the store's thread tidies up, or before that, or if
        there is none, the next one who comes."""
        self._dropped.append((consumer, fetched))
        self.files.note_dropped()

    def tidy(self) -> None:
        """Without the turn: part with consumers that were dropped."""
        while self._dropped:
            try:
                dropped = self._dropped.popleft()
            except IndexError:  # another thread was faster
                return
            try:
                self._part_with(dropped[1])
                self.leave(dropped[0])
            except BaseException:
                self._dropped.appendleft(dropped)  # it is there still
                raise

    def tidy_in_passing(self) -> None:
        """The same, by somebody whom it does not concern; and what `flush` could not do."""
        if self.closed or self._is_inherited:
            return
        if self._journal.is_at_risk:
            with self._turn:
                if self._journal.is_at_risk:
                    self._snapshot()
        if self._dropped:
            self.tidy()
            self.ring()

    def _part_with(self, fetched: list[Any]) -> None:
        """Give back what a consumer had fetched ahead."""

    def members(self) -> list[Member]:
        """Who is there; the dead are seen here once, and then forgotten."""
        self.tidy()
        with self._turn:
            found = [
                Member.of(name, info, is_alive=self._is_alive(name))
                for name, info in self.state.members.items()
            ]
            self._bury_members()
        return found

    def _bury_members(self) -> list[str]:
        """With the turn: note who has died since they came."""
        dead = [name for name in self._concerned() if not self._is_alive(name)]
        for name in dead:
            self._commit_leave(name, died=True)
            with contextlib.suppress(OSError):
                self.files.fs.unlink(side_path(self.files.folder, ALIVE + process_of(name)))
        return dead

    def _concerned(self) -> list[str]:
        """With the turn: consumers who may have something of the group."""
        return list(self.state.members)

    def look_for_the_dead(self) -> None:
        """With the turn: now and then see whether other members are still there. What the dead had
        is free then."""
        now_s = time.monotonic()
        if now_s - self._looked_s > LOOK_AFTER_S:
            self._looked_s = now_s
            if self.has_others and self._bury_members():
                self.ring()

    @property
    def has_others(self) -> bool:
        """Has another process something of the group? Then it may die, and leave that to us."""
        raise NotImplementedError

    def _is_alive(self, name: str) -> bool:
        files, handle = self.files, process_of(name)
        return handle == self._handle or is_held(files.fs, files.folder, ALIVE + handle)

    def _forget_the_dead(self) -> None:
        """Remove what is left of processes that died before they had a consumer."""
        self.files.forget_all_but({self._handle, *map(process_of, self.state.members)})

    # --- the end ----------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        return self._closed or self._is_deleted

    def close(self) -> None:
        """Let go. The last one leaves files that need no journal, and that FluxMQ can read."""
        if self._closed:
            return
        try:
            if not self._is_inherited and not self._is_deleted:
                self.tidy()
                with self._turn:
                    try:
                        self._end()
                    finally:
                        self._closed = True  # for those who have waited: it is not the group's end
        except (OSError, TailraceError) as error:
            self._tell_of(logging.WARNING, "not closed cleanly: %s", error)
        finally:
            with self._mutex:
                self._let_go()

    def _end(self) -> None:
        """With the turn: all that this process has to say."""
        self._give_up_leases()
        for consumer in sorted(self._mine):
            self._commit_leave(consumer)
        self._mine.clear()
        if self.files.is_durable:
            flushing.finish(self)
        if self._presence.acquire(wait=False):
            self._export()

    def is_in_use(self, *, has_messages: bool) -> bool:
        """Has this process consumers in the group, or anything to settle? That may take somebody
        who `has_messages`."""
        return bool(self._mine)

    def _give_up_leases(self) -> None:
        """With the turn, at the end: nobody in this process can settle anything any more."""

    def _export(self) -> None:
        self._bury_members()
        self._snapshot(is_last=True)
        self._is_stale = True
        if self.files.foreign is not None:
            self.files.foreign.export(self._dumped())
        self._journal.end()
        self._sync_names()

    def delete(self) -> None:
        """Forget the group, for everybody: those who use it are told so."""
        try:
            with self._turn:
                self._discard()
        finally:
            self._let_go()
        sweep(self.files.fs, os.path.dirname(self.files.folder))

    def delete_if_idle(self, idle_ms: int) -> bool:
        """The same, unless somebody is in it, or has something of it, or has used it since: nobody
        comes in between."""
        self.tidy()
        with self._turn:
            self._bury_members()
            is_in_use = self.state.members or self._has_leases()
            if is_in_use or self.files.idle_ms(self.state.used_ms) < idle_ms:
                return False
            self._discard()
        self._let_go()
        sweep(self.files.fs, os.path.dirname(self.files.folder))
        return True

    def _discard(self) -> None:
        """With the turn, for which others may wait: they are told that the group was deleted."""
        self._is_stale = True
        discard(self.files)
        self._is_deleted = True

    def _has_leases(self) -> bool:
        """With the turn: has anybody something that is not settled, in the group or not?"""
        return False

    def _let_go(self) -> None:
        self._closed = True
        if not self._is_inherited:
            with contextlib.suppress(OSError):
                self.files.fs.unlink(side_path(self.files.folder, ALIVE + self._handle))
            self._turn.close()
            for lock in (self._alive, self._presence):
                lock.close()
        bell, self._bell = self._bell, None
        if bell is not None:
            bell.close()
        self._journal.close()

    def abandon(self) -> None:
        """The queue was deleted: let go, and write nothing."""
        self._is_deleted = True
        self.close()

    def check_open(self) -> None:
        if self.closed:
            state = "was deleted" if self._is_deleted else "is closed"
            raise Closed(f"the group {self.id!r} {state}")


_groups: weakref.WeakSet[Group[Any]] = weakref.WeakSet()


def _disown_all() -> None:
    for group in list(_groups):
        group.disown()


os.register_at_fork(after_in_child=_disown_all)
