"""Who holds what of a log's locks, as the system tells (Linux: /proc/locks) and as its writers say
of themselves. Nothing is locked to find out."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from tailrace.log.fs import OsFileSystem
from tailrace.log.ground import find_mount
from tailrace.log.members import Member, Members
from tailrace.log.sidefiles import side_path

__all__ = ["LOCKS", "Holders", "LockState", "find_holders"]

# What each lock is for, and its file.
LOCKS = {
    "open": "members",
    "append": "lock",
    "next": "lock.next",
    "flush": "lock.flush",
    "upkeep": "lock.upkeep",
    "deletion": "lock.deletion",
}

_LINE = re.compile(
    r"\d+: (?P<waits>-> )?FLOCK\s+\S+\s+(?P<kind>READ|WRITE)\s+(?P<pid>-?\d+)\s+"
    r"(?P<major>[0-9a-f]+):(?P<minor>[0-9a-f]+):(?P<inode>\d+)\s"
)


class LockState(NamedTuple):
    """A lock, and the processes that hold it or wait for it; `None` where the system does not
    tell. A pid of 0 or -1 is in another container."""

    name: str
    file: str
    shared: bool | None
    holders: tuple[int, ...] | None
    waiting: tuple[int, ...] | None


class Holders(NamedTuple):
    writers: tuple[Member, ...]
    locks: tuple[LockState, ...]


def find_holders(folder: str, proc: str = "/proc") -> Holders:
    """Look at a log's locks."""
    try:
        with open(f"{proc}/locks") as file:
            table: list[re.Match[str]] | None = list(_LINE.finditer(file.read()))
    except OSError:
        table = None
    locks = tuple(_state(folder, name, table, proc) for name in LOCKS)
    return Holders(tuple(Members.find(OsFileSystem(), folder)), locks)


def _state(folder: str, name: str, table: list[re.Match[str]] | None, proc: str) -> LockState:
    path = side_path(folder, LOCKS[name])
    if table is None:
        return LockState(name, path, None, None, None)
    try:
        st = os.stat(path)
    except FileNotFoundError:  # nobody has ever taken it
        return LockState(name, path, False, (), ())
    device = _find_device(path, st, proc)
    mine = [entry for entry in table if _place(entry) == (device, st.st_ino)]
    if device != st.st_dev:
        mine = [entry for entry in mine if _may_have_open(int(entry["pid"]), st, proc)]
    holders = [entry for entry in mine if not entry["waits"]]
    return LockState(
        name,
        path,
        any(entry["kind"] == "READ" for entry in holders),
        tuple(sorted({int(entry["pid"]) for entry in holders})),
        tuple(sorted({int(entry["pid"]) for entry in mine if entry["waits"]})),
    )


def _place(entry: re.Match[str]) -> tuple[int, int]:
    return os.makedev(int(entry["major"], 16), int(entry["minor"], 16)), int(entry["inode"])


def _find_device(path: str, st: os.stat_result, proc: str) -> int:
    """The number of the mounted file system, which the table of locks goes by. `stat` may give
    another: on btrfs that of the subvolume."""
    try:
        with open(f"{proc}/self/mountinfo", "rb") as file:
            mount = find_mount(file.read(), path, st.st_dev)
        if mount is None:
            return st.st_dev
        major, minor = map(int, mount.device.split(":"))
    except (OSError, ValueError):
        return st.st_dev
    return os.makedev(major, minor)


def _may_have_open(pid: int, st: os.stat_result, proc: str) -> bool:
    """Has a process this very file open, as far as one may look? Subvolumes, and snapshots above
    all, number their files alike, and the table does not tell them apart."""
    try:
        with os.scandir(f"{proc}/{pid}/fd") as descriptors:
            return any(os.path.samestat(os.stat(entry.path), st) for entry in descriptors)
    except OSError:
        return True
