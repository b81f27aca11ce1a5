"""Who has the log open for writing.

Each writer holds a shared lock on the file `members` as long as it is there, so the one who could
have it alone is the first to come, or the last to go: the first recovers the log, the last closes
it. An exclusive writer keeps it alone. Joining and leaving happen with the turn to write, so nobody
comes between the question and the answer.

What the file says is for people and messages; a process that was killed stays in it until the next
one joins, or, if it was another machine's or container's, until somebody comes first or many others
have come.
"""

from __future__ import annotations

import json
import os
import time
from typing import NamedTuple

from tailrace.errors import Locked
from tailrace.log.fs import FileSystem, read_file
from tailrace.log.sidefiles import side_path

__all__ = ["Member", "Members"]

NAME = "members"
_LONGEST = 1 << 16
_MOST = 128  # in a note, which is then short enough to be read as a whole


class Member(NamedTuple):
    """What a writer says of itself. `since` is in seconds since 1970; `mode` is "owner", "shared"
    or "exclusive"."""

    pid: int
    host: str
    since: int
    mode: str

    @property
    def running(self) -> bool | None:
        """Is there such a process? `None` when it is another machine's or container's, which cannot
        be asked. Another process may have got the pid: only words may hang on this."""
        if self.host != os.uname().nodename:
            return None
        try:
            os.kill(self.pid, 0)
        except PermissionError:  # it is somebody else's
            return True
        except (ProcessLookupError, OverflowError):
            return False
        return True

    def __str__(self) -> str:
        try:
            since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.since))
        except (OverflowError, OSError):  # no calendar reaches so far
            since = str(self.since)
        text = f"pid {self.pid} on {self.host} since {since}"
        # In containers many a process has the same pid.
        is_ours = self.pid == os.getpid() and self.host == os.uname().nodename
        return f"another Log in this process ({text})" if is_ours else text


class Members:
    """One handle's place among them."""

    def __init__(self, fs: FileSystem, folder: str, mode: str) -> None:
        self._folder = folder
        self._lock = fs.lock(side_path(folder, NAME))
        self._me = Member(os.getpid(), os.uname().nodename, int(time.time()), mode)

    def join(self) -> bool:
        """Come in; true when nobody else is here. `Locked` if there is somebody who does not go
        with us."""
        exclusive = self._me.mode == "exclusive"
        alone = self._lock.acquire(wait=False)
        if not alone and (exclusive or not self._lock.acquire(shared=True, wait=False)):
            self._refuse()
        if alone and not exclusive:
            self._lock.acquire(shared=True)
        others = [] if alone else _not_gone(parse(self._lock.read_note()))
        # Those who cannot be asked would pile up; the list is in the order of coming.
        self._write([*others, self._me][-_MOST:])
        return alone

    def _refuse(self) -> None:
        advice = "close it there first"
        if self._me.mode != "exclusive":
            advice = "it was opened with exclusive=True; open it with read_only=True to read"
        # If those who run are not in the note, it could not be written.
        others = _not_gone(parse(self._lock.read_note()))
        holder = str(others[0]) if others else "another process"
        if len(others) > 1:
            holder += f" and {len(others) - 1} more"
        self._lock.close()
        raise Locked(f"{self._folder} is held by {holder}; {advice}", holder)

    def leave(self) -> bool:
        """Is nobody else here? If so we have it alone until `close`; otherwise we are gone."""
        others = parse(self._lock.read_note())
        if self._me in others:
            others.remove(self._me)  # once: another handle may say the same of itself
        alone = self._lock.acquire(wait=False)
        self._write([] if alone else others)
        return alone

    def _write(self, members: list[Member]) -> None:
        self._lock.write_note(json.dumps([m._asdict() for m in members]).encode())

    def close(self) -> None:
        self._lock.close()

    @staticmethod
    def find(fs: FileSystem, folder: str) -> list[Member]:
        """Those who have the log open for writing, as far as one can tell without a lock."""
        return _not_gone(parse(read_file(fs, side_path(folder, NAME), _LONGEST) or b""))


def _not_gone(members: list[Member]) -> list[Member]:
    return [member for member in members if member.running is not False]


def parse(note: bytes) -> list[Member]:
    """What the file says; nothing of what makes no sense."""
    try:
        found = [Member(**item) for item in json.loads(note)]
    except (ValueError, TypeError):
        return []
    kinds = (int, str, int, str)
    return [m for m in found if all(map(isinstance, m, kinds)) and m.pid > 0 and m.since >= 0]
