"""Where a group is, and how it goes.

The side files in `.tailrace/`: `lock` is held in turns by those who change the group, `open` is
shared by those who have it open, `bell` is written to when somebody may want to look again, and
`alive-…` is held by one process each.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from tailrace.log.fs import FileSystem, remove_tree
from tailrace.log.sidefiles import FOLDER, side_path
from tailrace.queue.clock import Clock
from tailrace.queue.journal import NAME as JOURNAL
from tailrace.queue.journal import Deleted, Journal
from tailrace.queue.snapshots import STATE, Snapshot
from tailrace.queue.turns import turn_of

__all__ = [
    "ALIVE",
    "BELL",
    "OPEN",
    "UNIQUE",
    "Foreign",
    "Gone",
    "GroupFiles",
    "Member",
    "discard",
    "discard_unopened",
    "is_held",
    "is_open",
    "plain_name",
    "process_of",
    "sweep",
]

OPEN, BELL, ALIVE = "open", "bell", "alive-"
UNIQUE = "#"  # between what a consumer calls itself and what makes its name unique
_DELETED = ".deleted-"


class Gone(Exception):
    """A group was deleted before we came in, which whoever asked for it takes for an answer."""


class Foreign(Protocol):
    """The same group in another system's files."""

    def load(self, exported: Snapshot | None) -> Snapshot | None:
        """What the other system knows, if it is more than what we have `exported`."""

    def export(self, snapshot: Snapshot) -> None:
        """Leave it the group as it is."""

    def forget(self) -> None:
        """The group is deleted."""


class GroupFiles(NamedTuple):
    """Where a group is, and how durable it has to be."""

    fs: FileSystem
    folder: str
    group_id: str
    clock: Clock
    is_sync: bool  # wait for acknowledgements to be on the disk
    is_durable: bool  # else nothing is ever synced
    compact_after: int
    foreign: Foreign | None = None
    mode: str = "owner"  # or "shared": give the turn back each time
    check: Callable[[], object] = lambda: None  # raises if the queue is not there any more
    make_room: Callable[[Exception], bool] = lambda _: False  # after an error; worth another try?
    create: bool = True  # else it is `Gone`, if it is not there
    note_dropped: Callable[[], object] = lambda: None  # somebody is to tidy; called by a collector
    may_forget: Callable[[], bool] = lambda: True  # what is settled: no backup is under way

    def member_info(self, handle: str) -> dict[str, Any]:
        """What is told of a consumer of this process, who comes now."""
        since = self.clock.wall_ms()
        return {"pid": os.getpid(), "host": os.uname().nodename, "since": since, "handle": handle}

    def idle_ms(self, used_ms: int) -> int:
        """For how long nobody has used a group whose state has this for `used_ms`. If that tells
        nothing, the times of its files do."""
        if used_ms:
            return max(self.clock.wall_ms() - used_ms, 0)
        times = []
        for name in (JOURNAL, STATE):
            with contextlib.suppress(FileNotFoundError):
                times.append(self.fs.stat(os.path.join(self.folder, name)).modified_ms)
        return max(self.clock.wall_ms() - max(times), 0) if times else 0

    def make_folder(self) -> None:
        """See that there is a place for the side files. That of a group that is not to be made is
        not made either: others would take it for the group."""
        side = os.path.join(self.folder, FOLDER)
        if not self.create:
            if _exists(self.fs, side):
                return
            if not self._is_foreign():
                raise Gone(f"the group {self.group_id!r} was deleted")
        self.fs.make_dirs(side)

    def _is_foreign(self) -> bool:
        """Has another system such a group?"""
        if _exists(self.fs, self.folder):
            return True
        return self.foreign is not None and self.foreign.load(None) is not None

    def is_bare(self) -> bool:
        """Is there nothing but what whoever opens it makes?"""
        return {entry.name for entry in self.fs.list(self.folder)} <= {FOLDER}

    def forget_all_but(self, handles: set[str]) -> None:
        """Remove what is left of others that had the group open, and are dead."""
        folder = os.path.join(self.folder, FOLDER)
        names = [entry.name for entry in self.fs.list(folder) if entry.name.startswith(ALIVE)]
        for name in sorted(set(names) - {ALIVE + handle for handle in handles}):
            if not is_held(self.fs, self.folder, name):
                with contextlib.suppress(FileNotFoundError):
                    self.fs.unlink(os.path.join(folder, name))

    @property
    def bell(self) -> str:
        """The file that is written to when somebody may want to look again."""
        return side_path(self.folder, BELL)


class Member(NamedTuple):
    """A consumer of a group. `since` is in milliseconds since 1970."""

    id: str
    pid: int
    host: str
    since: int
    alive: bool

    @classmethod
    def of(cls, name: str, info: dict[str, Any], *, is_alive: bool) -> Member:
        """From what a group's state has."""
        return cls(plain_name(name), info["pid"], info["host"], info["since"], is_alive)


def is_open(fs: FileSystem, folder: str) -> bool:
    """Has anybody the group in a folder open?"""
    return is_held(fs, folder, OPEN)


def is_held(fs: FileSystem, folder: str, name: str) -> bool:
    """Has somebody the lock on a side file of the group in a folder?"""
    path = side_path(folder, name)
    if not _exists(fs, path):
        return False
    lock = fs.lock(path)
    try:
        return not lock.acquire(wait=False)
    finally:
        lock.close()


def _exists(fs: FileSystem, path: str) -> bool:
    try:
        fs.stat(path)
    except FileNotFoundError:
        return False
    return True


def plain_name(member: str) -> str:
    """What a consumer calls itself."""
    return member.rpartition(UNIQUE)[0] or member


def process_of(member: str) -> str:
    """By what name a consumer's process is alive."""
    return member.rpartition(UNIQUE)[2].partition(".")[0]


def discard(files: GroupFiles) -> None:
    """With the group's lock: tell those who use it, and take its files away; `sweep` removes them.
    What the state says does not matter."""
    fs, folder = files.fs, files.folder
    if files.foreign is not None:
        files.foreign.forget()
    journal = Journal(fs, folder)
    try:
        if journal.open():
            with contextlib.suppress(Deleted):
                journal.load(lambda op: None)
            journal.write([{"t": "deleted"}])
    finally:
        journal.close()
    fs.rename(folder, os.path.join(os.path.dirname(folder), _DELETED + secrets.token_hex(8)))
    fs.sync_dir(os.path.dirname(folder))


def discard_unopened(files: GroupFiles) -> None:
    """Delete a group without loading it: perhaps it cannot be."""
    files.fs.make_dirs(os.path.join(files.folder, FOLDER))
    with turn_of(files.fs, files.folder):
        discard(files)
    sweep(files.fs, os.path.dirname(files.folder))


def sweep(fs: FileSystem, folder: str) -> None:
    """Remove what is left of groups that were deleted from this folder."""
    for entry in fs.list(folder):
        if entry.name.startswith(_DELETED):
            remove_tree(fs, os.path.join(folder, entry.name))
