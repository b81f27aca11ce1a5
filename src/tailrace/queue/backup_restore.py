"""From a backup to a store.

First every file is read and compared with the manifest, so that a backup that is damaged is refused
before anything is written. Then the files are copied, and compared once more; and when all of them
are there, and durable, the folder gets its name, `queue`. Until then there is no store. The
configuration comes just before that, so that nobody opens the store without it.

Not thread-safe; two who restore to one folder at once don't harm each other: one is refused.
"""

from __future__ import annotations

import contextlib
import os
from typing import Final, NamedTuple

from tailrace.errors import ConfigError, Corrupt, NotWritten
from tailrace.log.fs import FileSystem, OsFileSystem, read_file
from tailrace.log.ground import refuse_network
from tailrace.queue.archived import as_restored, is_note
from tailrace.queue.backup_files import (
    CONFIG,
    FILES,
    Copy,
    Manifest,
    Progress,
    Sum,
    checksum,
    exists,
    is_inside,
    put,
    staged,
    staging_places,
)
from tailrace.queue.layout import CONFIGS

__all__ = ["RestoreReport", "restore_backup", "verify_backup"]

_ROOT: Final = "queue"
_STAGING: Final = ".restore"
_OF_THE_DISK: Final = {"lost+found"}  # which an empty file system has


class RestoreReport(NamedTuple):
    """What was restored, and where; of a check, what could be. `config` are the names of the
    configuration that was put into the folder: none, if there was one before."""

    path: str
    queues: int
    files: int
    bytes: int
    config: tuple[str, ...] = ()


def restore_backup(
    path: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
    fs: FileSystem | None = None,
) -> RestoreReport:
    """Make a store in the folder `target` of the backup in `path`.

    The target must not exist, or be empty but for a configuration, which stays: else `ConfigError`.
    A backup with a file that is missing
    or damaged is refused with `Corrupt`, which names it. Whatever happens, in the end there is a
    whole store, or none.
    """
    source, folder, disk = os.fspath(path), os.fspath(target), fs or OsFileSystem()
    if fs is None:
        source, folder = os.path.abspath(source), os.path.abspath(folder)
        refuse_network(folder)
    if not folder:
        raise ConfigError("target: it is empty; name the folder of the store ('.' is this one)")
    if is_inside(disk, folder, source):
        raise ConfigError(f"target: {folder} is in the backup itself; name a folder elsewhere")
    manifest = Manifest.load(disk, source)
    _check_target(disk, folder)
    total = 2 * sum(each.size for each in manifest.everything.values())
    _verify(disk, source, manifest, progress, total)
    config: tuple[str, ...] = ()
    try:
        with staged(disk, folder, _STAGING) as content:
            copy = Copy(disk, content, progress)
            copy.expected = total
            copy.count(total // 2)
            _copy_all(copy, os.path.join(source, FILES), manifest.files)
            _mark_notes(copy)
            copy.sync()
            aside = Copy(disk, os.path.join(os.path.dirname(content), CONFIG))
            _copy_all(aside, os.path.join(source, CONFIG), manifest.config)
            aside.sync()
            _check_target(disk, folder)  # somebody may have been faster
            config = _put_config(aside, folder)
            try:
                put(disk, content, os.path.join(folder, _ROOT))
            except OSError:  # there is no store: what was for it goes
                for name in config:
                    with contextlib.suppress(OSError):
                        disk.unlink(os.path.join(folder, name))
                raise
    except OSError as error:
        raise NotWritten(
            f"{folder}: the store was not restored, and nothing is left of it: {error}"
        ) from error
    return _report(folder, manifest, config)


def _copy_all(copy: Copy, source: str, files: dict[str, Sum]) -> None:
    for name, wanted in files.items():
        original = os.path.join(source, name)
        if not copy.copy(name, original) or copy.files[name] != wanted:
            raise Corrupt(f"{original} has changed while it was copied", path=original)


def _mark_notes(copy: Copy) -> None:
    """Have each queue that was archived know that the archive is not its own."""
    for name in list(copy.files):
        if is_note(name):
            path = copy.path(name)
            data = read_file(copy.fs, path, copy.files[name].size)
            assert data is not None
            copy.write(name, as_restored(data))


def _put_config(copy: Copy, folder: str) -> tuple[str, ...]:
    """Give the configuration its place, unless there is one, which somebody has chosen."""
    if any(exists(copy.fs, os.path.join(folder, name)) for name in CONFIGS):
        return ()
    for name in copy.files:
        copy.fs.rename(copy.path(name), os.path.join(folder, name))
    if copy.files:
        copy.fs.sync_dir(folder)
    return tuple(copy.files)


def verify_backup(
    path: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
    fs: FileSystem | None = None,
) -> RestoreReport:
    """Read all of a backup, and compare it with its manifest. `Corrupt` as `restore_backup`."""
    source, disk = os.fspath(path), fs or OsFileSystem()
    manifest = Manifest.load(disk, source)
    total = sum(each.size for each in manifest.everything.values())
    _verify(disk, source, manifest, progress, total)
    return _report(source, manifest, tuple(manifest.config))


def _report(path: str, manifest: Manifest, config: tuple[str, ...]) -> RestoreReport:
    size = sum(each.size for each in manifest.files.values())
    return RestoreReport(path, len(manifest.queues), len(manifest.files), size, config)


def _check_target(fs: FileSystem, folder: str) -> None:
    try:
        names = {entry.name for entry in fs.list(folder)}
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise ConfigError(f"target: {folder} is a file; name a new folder") from None
    others = names - _OF_THE_DISK - {*CONFIGS} - set(staging_places(fs, folder, _STAGING))
    if others:
        raise ConfigError(
            f"target: {folder} is not empty (it has {min(others)!r}); name a new folder, or move "
            "what is there out of the way"
        )


def _verify(
    fs: FileSystem, source: str, manifest: Manifest, progress: Progress | None, total: int
) -> None:
    done = 0

    def tell(size: int) -> None:
        nonlocal done
        done += size
        if progress is not None:
            progress(done, total)

    problems = []
    for name, wanted in manifest.everything.items():
        path = os.path.join(source, name)
        try:
            found = checksum(fs, path, tell)
        except OSError as error:
            problems.append((path, f"cannot be read: {error.strerror}"))
            continue
        if found is None:
            problems.append((path, "is missing"))
        elif found.size != wanted.size:
            problems.append((path, f"has {found.size} bytes and not {wanted.size}"))
        elif found != wanted:
            problems.append((path, "is damaged: its checksum is another"))
    if problems:
        path, what = problems[0]
        more = f" (and {len(problems) - 1} more files are wrong)" if len(problems) > 1 else ""
        raise Corrupt(f"{path} {what}{more}; take another backup", path=path)
