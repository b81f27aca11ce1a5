"""Who writes to a log, as the note in its lock file says; the lock itself is left alone.

A process that was killed leaves its note behind, so the note counts only while that process runs.
Nothing but the wording of messages may depend on this: another process can have got the same pid,
and one on another machine cannot be asked.
"""

from __future__ import annotations

import json
import os
from typing import NamedTuple

from tailrace.log.fs import FileSystem, read_file
from tailrace.log.sidefiles import side_path

__all__ = ["Holder", "find_holder"]

_LONGEST = 1024


class Holder(NamedTuple):
    """What a process that took the lock says of itself. `since` is in seconds since 1970."""

    pid: int
    host: str
    since: int

    @classmethod
    def parse(cls, note: bytes) -> Holder | None:
        """`None` when it is no such note."""
        try:
            found = cls(**json.loads(note))
        except (ValueError, TypeError):
            return None
        kinds = (int, str, int)
        if not all(map(isinstance, found, kinds)) or found.pid <= 0 or found.since < 0:
            return None
        return found

    @property
    def running(self) -> bool | None:
        """Is there such a process? `None` when it is another machine's."""
        if self.host != os.uname().nodename:
            return None
        try:
            os.kill(self.pid, 0)
        except PermissionError:  # it is somebody else's
            return True
        except (ProcessLookupError, OverflowError):
            return False
        return True


def find_holder(fs: FileSystem, folder: str) -> Holder | None:
    """Who has the log open for writing, as far as one can tell."""
    holder = Holder.parse(read_file(fs, side_path(folder, "lock"), _LONGEST) or b"")
    return None if holder is None or holder.running is False else holder
