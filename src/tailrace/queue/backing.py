"""What a store has for backups. It is apart so that nothing of it is loaded before it is needed."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from tailrace.errors import ConfigError
from tailrace.log.fs import FileSystem, OsFileSystem
from tailrace.queue.clock import Clock
from tailrace.queue.layout import Layout

if TYPE_CHECKING:
    from tailrace.queue.backup import BackupReport

__all__ = ["BackedUp"]


class BackedUp:
    """A part of `Store`."""

    path: str
    fs: FileSystem
    clock: Clock
    layout: Layout

    def check_open(self) -> None:
        raise NotImplementedError

    def backup(
        self,
        path: str | os.PathLike[str],
        *,
        since: str | os.PathLike[str] | None = None,
        link: bool = False,
        progress: Callable[[int, int], object] | None = None,
    ) -> BackupReport:
        """Copy the whole store, while it is used by whomever, to a new folder, for
        `tailrace.restore_backup`. It is there as a whole, or not at all.

        Full segments that are the same in the backup `since` are linked to it, not copied; with
        `link`, those of the store are, which needs one file system for both. `progress` is called
        with bytes done and bytes in all; what it raises ends the backup.
        """
        from tailrace.queue.backup import backup
        from tailrace.queue.backup_files import is_inside

        self.check_open()
        target, older = os.fspath(path), None if since is None else os.fspath(since)
        if isinstance(self.fs, OsFileSystem):  # the working directory may change meanwhile
            target = os.path.abspath(target) if target else ""
            older = None if older is None else os.path.abspath(older)
        if target and is_inside(self.fs, target, self.path):
            where = f"in the store {self.path} itself"
            raise ConfigError(f"path: {target} is {where}; name a folder elsewhere")
        return backup(
            self.fs,
            self.layout.root,
            target,
            self.clock,
            since=older,
            link=link,
            progress=progress,
        )
