"""A copy of a whole store, while any number of processes write to it.

The copy is what a crash would have left, at some moment between the beginning and the end of the
backup for each queue; to open it is to recover it. **What holds between the parts of a store holds
in the copy**, and that takes an order, because nothing is stopped.

What leaves one place has come to another before. A message that a group has settled was in its
log; a dead letter is in the log of the dead letters before the group says `dead`; what comes of
`ack(publish=…)` is in its queue before the group says `ack`; what was delayed is in its queue
before it leaves the side log; and a delayed message may itself come of an `ack`. So the arrows are

    group  ->  side log  ->  log

and if the copy of what is on the left is older than that of what is on the right, then whatever
is missing on the left is on the right. It may be in both: then the step is done again after the
restore, and what it writes has the name of its cause (an idempotent append), so it is there once.
The other way round, a message would be lost. (What is delayed is another matter: which messages
were delivered, the side log says of the queue's log as it is. So the two are copied while nothing
is delivered.)

    A   the logs        most of the work; nothing hangs on when it is done
    B   the groups      each with its lock, for as long as it takes to read it; the other files
        the registry    behind the groups: a queue of dead letters may have been made just now
    C   the logs        what has come since A; of each queue first what is delayed, with its lock,
                        which is kept until the queue's log is copied

For what is done again to be there once, the log has to know of it still. What it may forget a group
tells it with each step: what is settled for good. That is true of the group as it is, and not of
its copy, which is older. So from before B until C is done a lock says that a backup is under way
(`backup_lock`), and meanwhile no group tells more than before: that much is settled in its copy.

There is one arrow back: a log forgets what all its groups have settled (retention). A message that
is pending in the copy of a group, and that C does not find any more, would be nowhere: perhaps it
was rejected after the dead letters were copied. So the copy keeps what A has copied, and its start;
and what has come since and is gone again before C (`LogCopy.catch_up` tells) makes B and C begin
anew: what is deleted then was settled before the groups are looked at.

A queue that is deleted, or made anew with the same name, in the midst of this is another by its
incarnation: of what was deleted nothing is in the copy. Of a queue that was made during B, the
groups begin anew. Ephemeral queues do not outlive a restart, and are left out.

Nobody in the copy is alive: the locks by which processes show that are not copied. And its journals
end with a boot of the machine, which ends every lease.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any, Final, NamedTuple

from tailrace.errors import ConfigError, Corrupt, NotWritten
from tailrace.log.fs import FileSystem, read_exactly
from tailrace.queue.backup_files import (
    CONFIG,
    FILES,
    Changed,
    Copy,
    Manifest,
    Progress,
    Sum,
    exists,
    is_inside,
    put,
    staged,
)
from tailrace.queue.backup_lock import under_way
from tailrace.queue.backup_log import Links, LogCopy
from tailrace.queue.backup_tree import REGISTRY, Tree, look_around, read_group
from tailrace.queue.clock import Clock
from tailrace.queue.delays import held_still
from tailrace.queue.fluxmq_config import entry_of, format_entry, join, load
from tailrace.queue.layout import CONFIGS, Layout, find_base
from tailrace.queue.schedule import Manifest as Schedule
from tailrace.queue.settings import QueueSettings

__all__ = ["BackupReport", "backup"]

_ROUNDS: Final = 20
_TRIES: Final = 20


class BackupReport(NamedTuple):
    """What a backup holds. `linked` of its files share their blocks with others; `config` are the
    names of the configuration that was in the store's folder."""

    path: str
    queues: int
    groups: int
    files: int
    bytes: int
    linked: int
    config: tuple[str, ...] = ()


def backup(
    fs: FileSystem,
    root: str,
    path: str,
    clock: Clock,
    *,
    since: str | None = None,
    link: bool = False,
    progress: Progress | None = None,
) -> BackupReport:
    """Copy the store whose folder with `queues` is `root` to a new folder `path`.

    Segments that are full and the same in the backup `since` are linked to it; with `link`, those
    of the store itself are: then both must be on one file system, and share what happens to its
    blocks. `progress` is called with bytes done and bytes in all. Whatever is raised, by it or by
    anybody, leaves nothing of the backup. `NotWritten` if it cannot be written.
    """
    if not path:
        raise ConfigError("path: it is empty; name a new folder for the backup")
    if is_inside(fs, path, root):
        raise ConfigError(f"path: {path} is in the store {root} itself; name a folder elsewhere")
    if not is_free(fs, path):
        raise ConfigError(f"path: {path} exists, and is not empty; name a new folder")
    old = Manifest.load(fs, since) if since is not None else None
    path = path.rstrip("/")
    folder, name = os.path.split(path)
    try:
        with staged(fs, folder or ".", name) as content:
            copy = Copy(fs, os.path.join(content, FILES), progress)
            work = _Backup(fs, root, copy, Links(link, since, old), clock)
            began_ms = clock.wall_ms()
            work.run()
            copy.sync()
            config = _copy_config(fs, find_base(root), os.path.join(content, CONFIG))
            manifest = Manifest(began_ms, clock.wall_ms(), work.queues, copy.files, config)
            manifest.store(fs, content)
            if exists(fs, path):
                fs.remove_dir(path)
            put(fs, content, path)
    except OSError as error:
        raise NotWritten(
            f"{path}: the backup was not made, and nothing is left of it: {error}"
        ) from error
    sizes = sum(each.size for each in copy.files.values())
    groups = sum(queue["groups"] for queue in work.queues)
    files = len(copy.files)
    return BackupReport(path, len(work.queues), groups, files, sizes, copy.linked, tuple(config))


def _copy_config(fs: FileSystem, base: str, folder: str) -> dict[str, Sum]:
    """The configuration that is in the folder of the store. Nothing else hangs on it."""
    copy = Copy(fs, folder)
    for name in CONFIGS:
        copy_settled(copy, name, os.path.join(base, name))
    if copy.files:
        copy.sync()
        fs.sync_dir(os.path.dirname(folder))
    return copy.files


def copy_settled(copy: Copy, path: str, original: str) -> bool:
    """Copy a file that somebody may be replacing; false if there is none."""
    for _ in range(_TRIES):
        try:
            return copy.copy(path, original)
        except Changed:
            continue
    raise NotWritten(f"{original} changes all the time; try again")


def is_free(fs: FileSystem, path: str) -> bool:
    """Is there nothing at a path, or an empty folder?"""
    try:
        return not fs.list(path)
    except FileNotFoundError:
        return True
    except NotADirectoryError:
        return False


class _Queues(NamedTuple):
    """The registry at one moment: by name, and by the folder of the queue below the root."""

    data: bytes | None
    by_name: dict[str, QueueSettings]
    by_folder: dict[str, QueueSettings]

    def incarnation(self, folder: str) -> str | None:
        settings = self.by_folder.get(folder)
        return None if settings is None else settings.incarnation


class _Backup:
    """One instance, one `run`."""

    def __init__(self, fs: FileSystem, root: str, copy: Copy, links: Links, clock: Clock) -> None:
        self.queues: list[dict[str, Any]] = []
        self._fs = fs
        self._root = root
        self._layout = Layout(fs, root)
        self._copy = copy
        self._links = links
        self._clock = clock
        self._logs: dict[str, LogCopy] = {}
        self._incarnations: dict[str, str | None] = {}  # of the queues whose logs these are
        self._group_of: dict[str, str] = {}  # which group a file is of, by its folder
        self._states: set[str] = set()  # all that was copied in B
        self._seen: set[str] = set()  # logs, and schedules, that were there the last time
        self._delayed = os.path.relpath(self._layout.delayed(), root)

    def run(self) -> None:
        self._copy_logs(self._read_registry(), is_first=True)
        with under_way(self._fs, self._layout.side):
            before, meanwhile = self._copy_rounds()
        kept = self._choose(before, meanwhile, self._read_registry())
        self._write_registry(meanwhile, kept)
        for log in self._logs.values():
            log.finish()
        self.queues = [self._describe(folder, settings) for folder, settings in kept.items()]

    def _copy_rounds(self) -> tuple[_Queues, _Queues]:
        """B and C, as often as it takes; the registry before each."""
        for _ in range(_ROUNDS):
            before = self._read_registry()
            self._copy_states(before)
            meanwhile = self._read_registry()
            if self._copy_logs(meanwhile):
                return before, meanwhile
        raise NotWritten(
            f"{self._root}: segments are deleted faster than they can be copied. Try again, or let "
            "retention keep more meanwhile"
        )

    # --- parts ------------------------------------------------------------------------------

    def _read_registry(self) -> _Queues:
        path = os.path.join(self._root, REGISTRY)
        try:
            file = self._fs.open(path)
        except FileNotFoundError:
            return _Queues(None, {}, {})
        try:
            data = read_exactly(file, file.size(), 0)
        finally:
            file.close()
        try:
            by_name = {settings.name: settings for settings in load(data)}
        except Corrupt as error:
            raise Corrupt(f"{path}: {error}", path=path, position=error.position) from None
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None
        folders = {name: os.path.relpath(self._layout.queue(name), self._root) for name in by_name}
        return _Queues(data, by_name, {folders[name]: each for name, each in by_name.items()})

    def _look_around(self, queues: _Queues) -> Tree:
        without = {folder for folder, each in queues.by_folder.items() if each.ephemeral}
        return look_around(self._fs, self._root, without | {self._delayed})

    def _copy_logs(self, queues: _Queues, *, is_first: bool = False) -> bool:
        """Bring the copies of all logs up to date; false if something was gone before it could be
        copied that groups may need."""
        tree = self._look_around(queues)
        if is_first:
            self._copy.expected = tree.size
        parts: dict[str, list[str]] = {folder: [] for folder in queues.by_folder}
        for path in tree.side_logs + tree.logs:
            parts.setdefault(_owner(path, queues.by_folder), []).append(path)
        known, self._seen = self._seen, set()
        is_unbroken = True
        for folder, paths in parts.items():
            settings = queues.by_folder.get(folder)
            if settings is None:
                results = [self._catch_up(path, None) for path in paths]
            elif settings.ephemeral:
                continue
            else:
                results = self._copy_queue(settings, paths, is_first)
            is_unbroken = is_unbroken and all(results)
        for path in known - self._seen:
            self._logs.pop(path, None)
            self._copy.drop_below(path)
            self._copy.drop(path)
        return is_unbroken

    def _copy_queue(self, settings: QueueSettings, paths: list[str], is_first: bool) -> list[bool]:
        """The logs of a queue. What is delayed is delivered once by what its files say of the
        queue's log; so nothing is delivered between the two, but for the first time, which takes
        long and counts for nothing."""
        incarnation = settings.incarnation
        folder = self._layout.delayed(incarnation)
        with contextlib.ExitStack() as stack:
            if incarnation and exists(self._fs, folder):
                # If it is deleted just now, then so is the queue.
                with contextlib.suppress(FileNotFoundError):
                    if not is_first:
                        stack.enter_context(held_still(self._fs, folder))
                    self._copy_delayed(folder, incarnation)
            return [self._catch_up(path, incarnation) for path in paths]

    def _copy_delayed(self, folder: str, incarnation: str) -> None:
        """Runs that the schedule does not name are just being written."""
        path = os.path.relpath(folder, self._root)
        names = [run.name for run in Schedule.load(self._fs, folder).runs]
        for log in ("incoming", *(os.path.join("runs", name) for name in names)):
            self._catch_up(os.path.join(path, log), incarnation)
        data = Schedule.read(self._fs, folder)
        if data is not None:
            name = os.path.relpath(Schedule.path(folder), self._root)
            self._copy.write(name, data)
            self._seen.add(name)

    def _catch_up(self, path: str, incarnation: str | None) -> bool:
        log = self._logs.get(path)
        if log is not None and self._incarnations[path] != incarnation:
            log.drop()
            log = None
        if log is None:
            source = os.path.join(self._root, path)
            log = self._logs[path] = LogCopy(self._copy, source, path, self._links)
            self._incarnations[path] = incarnation
        try:
            is_unbroken = log.catch_up()
        except FileNotFoundError:  # deleted just now
            self._logs.pop(path).drop()
            return True
        self._seen.add(path)
        return is_unbroken

    def _copy_states(self, queues: _Queues) -> None:
        """The groups, and then everything else that is no log."""
        tree = self._look_around(queues)
        stale, self._states, self._group_of = self._states, set(), {}
        for folder in tree.groups:
            source = os.path.join(self._root, folder)
            for name, data in (read_group(self._fs, source, self._clock) or {}).items():
                path = os.path.join(folder, name)
                self._copy.write(path, data)
                self._states.add(path)
                self._group_of[path] = folder
        for path in tree.files:
            if copy_settled(self._copy, path, os.path.join(self._root, path)):
                self._states.add(path)
        for path in stale - self._states:
            self._copy.drop(path)

    # --- what belongs together ----------------------------------------------------------------

    def _choose(
        self, before: _Queues, meanwhile: _Queues, after: _Queues
    ) -> dict[str, QueueSettings]:
        """Which queues are whole in the copy, by their folder; the others go."""
        kept, new = {}, set()
        for folder, settings in meanwhile.by_folder.items():
            if not settings.ephemeral and after.incarnation(folder) == settings.incarnation:
                kept[folder] = settings
                if before.incarnation(folder) != settings.incarnation:
                    new.add(folder)
        known = {**before.by_folder, **meanwhile.by_folder, **after.by_folder}
        incarnations = {settings.incarnation for settings in kept.values()}
        for path in list(self._copy.files):
            folder = _owner(path, known) or self._owner_of_record(path, known)
            if folder and (folder not in kept or (folder in new and path in self._states)):
                self._copy.drop(path)
        for path, incarnation in self._incarnations.items():
            folder = _owner(path, known)
            is_gone = incarnation is not None and incarnation not in incarnations
            if is_gone or (folder and folder not in kept):
                self._logs.pop(path, None)
                self._copy.drop_below(path)
        delayed = {os.path.relpath(self._layout.delayed(each), self._root) for each in incarnations}
        for path in [path for path in self._copy.files if path.startswith(f"{self._delayed}/")]:
            if not any(path.startswith(f"{folder}/") for folder in delayed):
                self._copy.drop(path)
        return kept

    def _owner_of_record(self, path: str, known: dict[str, QueueSettings]) -> str:
        """The folder of the queue that a file in `groups` is about, which names it."""
        if path.startswith("groups/") and path in self._states:
            file = self._fs.open(self._copy.path(path))
            try:
                document = json.loads(read_exactly(file, file.size(), 0))
                name = document["state"]["QueueName"]
            except (ValueError, KeyError, TypeError):  # nobody could read it
                return ""
            finally:
                file.close()
            for folder, settings in known.items():
                if settings.name == name:
                    return folder
        return ""

    def _write_registry(self, queues: _Queues, kept: dict[str, QueueSettings]) -> None:
        data = queues.data
        if data is None:
            return
        if len(kept) != len(queues.by_name):
            data = join(format_entry(entry_of(settings)) for settings in kept.values())
        self._copy.write(REGISTRY, data)

    def _describe(self, folder: str, settings: QueueSettings) -> dict[str, Any]:
        log = self._logs.get(os.path.join(folder, "segments"))
        groups = {g for p, g in self._group_of.items() if p in self._copy.files}
        return {
            "name": settings.name,
            "type": settings.type,
            "start_offset": log.start_offset if log is not None else 0,
            "end_offset": log.end_offset if log is not None else 0,
            "groups": sum(group.startswith(f"{folder}/") for group in groups),
        }


def _owner(path: str, folders: dict[str, QueueSettings]) -> str:
    """The folder of a queue in which a path is; empty if it is in none."""
    while path and path not in folders:
        path = os.path.dirname(path)
    return path
