"""The files of a backup.

    DIR/backup.json     the manifest: every file with its size and CRC-32C
    DIR/files/…         the store's tree, as it is below its root
    DIR/config/…        the configuration that is in the store's folder, if it has one

`files` is not called `queue`, so that nobody opens the backup as a store by mistake: to open a
store is to change it, and the manifest would not fit any more.

**Whatever is there under its name is whole.** The files are written in a folder of another name
(`staged`), every file and every folder is synced, the manifest comes last, and then the folder is
renamed. Whoever is killed on the way leaves a folder that the next one removes: it has a lock in
it, which ends with its process.

Not thread-safe.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import secrets
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from tailrace.errors import ConfigError, Corrupt, OutcomeUnknown
from tailrace.kernel import crc32c
from tailrace.log.fs import (
    File,
    FileSystem,
    OsFileSystem,
    pieces,
    read_file,
    remove_tree,
    write_all,
)
from tailrace.log.sidefiles import load_checked_json, store_checked_json
from tailrace.queue.layout import CONFIGS

__all__ = [
    "CONFIG",
    "FILES",
    "MANIFEST",
    "Changed",
    "Copy",
    "Manifest",
    "Progress",
    "Sum",
    "checksum",
    "checksum_if_same",
    "exists",
    "is_inside",
    "put",
    "staged",
    "staging_places",
]

logger = logging.getLogger("tailrace")

FORMAT: Final = 1
MANIFEST: Final = "backup.json"
FILES: Final = "files"
CONFIG: Final = "config"

_LOCK: Final = "lock"
_CONTENT: Final = "content"
_CANNOT_LINK: Final = (errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EACCES)

Progress = Callable[[int, int], object]  # is told bytes that are done, and bytes in all


class Changed(Exception):
    """A file is not any more what it was a moment ago."""


class Sum(NamedTuple):
    """What a file has to be."""

    size: int
    crc: int


_NOTHING: Final = Sum(0, 0)


# --- copying --------------------------------------------------------------------------------


class Copy:
    """The files that are in `folder` so far, each durable by itself; their names are after `sync`.

    Paths are those below `folder`. `progress` may raise, which ends the copying.
    """

    def __init__(self, fs: FileSystem, folder: str, progress: Progress | None = None) -> None:
        self.fs = fs
        self.folder = folder
        self.files: dict[str, Sum] = {}
        self.linked = 0  # files that share their blocks with others
        self.expected = 0  # bytes, as far as one can tell
        self._progress = progress
        self._done = 0
        self._folders: set[str] = set()

    def path(self, path: str) -> str:
        return os.path.join(self.folder, path)

    def write(self, path: str, data: bytes) -> None:
        """A whole file, in the place of what was there."""
        if not self._has(path, data):
            self.drop(path)
            with self._opened(path) as file:
                write_all(file, data, 0)
                file.sync()
            self.files[path] = Sum(len(data), crc32c(data))
        self._advance(len(data))

    def _has(self, path: str, data: bytes) -> bool:
        """By the bytes: files whose parts end in their own checksums have all the same one."""
        found = self.files.get(path)
        return (
            found is not None
            and found.size == len(data)
            and read_file(self.fs, self.path(path), len(data)) == data
        )

    def extend(self, path: str, source: File, stop: int) -> None:
        """Copy what our file lacks of the first `stop` bytes. `Changed` if there are fewer; nothing
        is left of ours then."""
        start, crc = self.files.pop(path, _NOTHING)
        with self._opened(path) as file:
            for position, data in pieces(source, start, stop):
                if position == start:  # else there was less
                    write_all(file, data, position)
                    crc = crc32c(data, crc)
                    start += len(data)
                    self._advance(len(data))
            file.sync()
        self.files[path] = Sum(start, crc)
        if start != stop:
            self.drop(path)
            raise Changed(path)

    def copy(self, path: str, original: str) -> bool:
        """Copy a whole file in the place of what was there; false if there is none. `Changed` if it
        gets shorter meanwhile."""
        try:
            source = self.fs.open(original)
        except FileNotFoundError:
            return False
        try:
            self.drop(path)
            self.extend(path, source, source.size())
        finally:
            source.close()
        return True

    def link(self, path: str, original: str, sum: Sum, *, must: bool) -> bool:
        """Give a file that nobody changes any more another name here; false if that is impossible,
        or `ConfigError` if it `must` be."""
        if not isinstance(self.fs, OsFileSystem):  # the seam has no links: simulated disks don't
            return False
        self._make_folder(path)
        try:
            os.link(original, self.path(path))
        except OSError as error:
            if must and error.errno in _CANNOT_LINK:
                raise ConfigError(
                    f"link: {original} cannot be linked to {self.path(path)}: {error.strerror}. "
                    "Links need one file system that has them; leave the option out to copy"
                ) from error
            if error.errno in (*_CANNOT_LINK, errno.EMLINK):
                return False
            raise
        self.files[path] = sum
        self.linked += 1
        return True

    def adopt(self, path: str) -> None:
        """Somebody has written this file here, durably."""
        self._make_folder(path)
        found = checksum(self.fs, self.path(path))
        assert found is not None
        self.files[path] = found

    def drop(self, path: str) -> None:
        """Remove a file, if there is one."""
        if self.files.pop(path, None) is not None:
            self.fs.unlink(self.path(path))

    def drop_below(self, folder: str) -> None:
        for path in [path for path in self.files if path.startswith(f"{folder}/")]:
            self.drop(path)

    def sync(self) -> None:
        """Make the names durable."""
        for folder in sorted(self._folders):
            self.fs.sync_dir(folder)

    def count(self, size: int) -> None:
        """That much was done which is not to be seen in a file."""
        self._advance(size)

    def _make_folder(self, path: str) -> None:
        folder = os.path.dirname(self.path(path))
        if folder not in self._folders:
            self.fs.make_dirs(folder)
            self._folders.add(folder)

    @contextlib.contextmanager
    def _opened(self, path: str) -> Iterator[File]:
        self._make_folder(path)
        file = self.fs.open(self.path(path), write=True, create=True)
        try:
            yield file
        finally:
            file.close()

    def _advance(self, size: int) -> None:
        self._done += size
        self.expected = max(self.expected, self._done)
        if self._progress is not None:
            self._progress(self._done, self.expected)


def checksum(
    fs: FileSystem, path: str, tell: Callable[[int], object] = lambda size: None
) -> Sum | None:
    """Of a file; `None` if there is none."""
    try:
        file = fs.open(path)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    try:
        size = crc = 0
        for _position, data in pieces(file, 0, file.size()):
            crc = crc32c(data, crc)
            size += len(data)
            tell(len(data))
        return Sum(size, crc)
    finally:
        file.close()


def checksum_if_same(fs: FileSystem, path: str, other: str, size: int) -> Sum | None:
    """Of two files of this size, if they have the same bytes in them; else `None`."""
    with contextlib.ExitStack() as stack:
        files = []
        for each in (path, other):
            try:
                file = fs.open(each)
            except FileNotFoundError:
                return None
            stack.callback(file.close)
            if file.size() != size:
                return None
            files.append(file)
        crc = 0
        for ours, theirs in zip(*(pieces(file, 0, size) for file in files), strict=True):
            if ours != theirs:
                return None
            crc = crc32c(ours[1], crc)
        return Sum(size, crc)


# --- manifest -------------------------------------------------------------------------------


class Manifest(NamedTuple):
    """What a backup holds. `queues` are for people; the files are what counts, and those of
    `config`, by their names."""

    began_ms: int
    ended_ms: int
    queues: list[dict[str, Any]]
    files: dict[str, Sum]
    config: dict[str, Sum]

    @property
    def everything(self) -> dict[str, Sum]:
        """All files, by their path in the backup."""
        config = {os.path.join(CONFIG, name): each for name, each in self.config.items()}
        return {**{os.path.join(FILES, name): each for name, each in self.files.items()}, **config}

    def store(self, fs: FileSystem, folder: str) -> None:
        document: dict[str, Any] = {
            "format": FORMAT,
            "began_ms": self.began_ms,
            "ended_ms": self.ended_ms,
            "queues": self.queues,
            "files": _listed(self.files),
        }
        if self.config:
            document["config"] = _listed(self.config)
        store_checked_json(fs, os.path.join(folder, MANIFEST), document)

    @classmethod
    def load(cls, fs: FileSystem, folder: str) -> Manifest:
        """`ConfigError` if the folder is no backup, or one of a newer version; `Corrupt` if the
        manifest is damaged."""
        path = os.path.join(folder, MANIFEST)
        try:
            size = fs.stat(path).size
        except (FileNotFoundError, NotADirectoryError):
            raise ConfigError(
                f"{folder} is no backup: it has no {MANIFEST}. A backup that was broken off has "
                "none; take the one before"
            ) from None
        document = load_checked_json(fs, path, size)
        if document is None:
            raise Corrupt(f"{path} is damaged: take another backup", path=path)
        if document["format"] > FORMAT:
            raise ConfigError(
                f"{path} is of format {document['format']}; this tailrace knows formats up to "
                f"{FORMAT}: upgrade tailrace to use it"
            )
        files, config = _sums(document["files"]), _sums(document.get("config", []))
        wrong = [name for name in config if name not in CONFIGS]
        wrong += [name for name in files if _leads_elsewhere(name)]
        if wrong:
            raise Corrupt(f"{path} names {wrong[0]!r}, which is not in the backup", path=path)
        return cls(document["began_ms"], document["ended_ms"], document["queues"], files, config)


def _leads_elsewhere(name: str) -> bool:
    return name != os.path.normpath(name) or name.startswith(("/", "../")) or name == ".."


def _listed(files: dict[str, Sum]) -> list[dict[str, Any]]:
    return [
        {"path": path, "size": size, "crc32c": crc} for path, (size, crc) in sorted(files.items())
    ]


def _sums(listed: list[dict[str, Any]]) -> dict[str, Sum]:
    return {each["path"]: Sum(each["size"], each["crc32c"]) for each in listed}


# --- all or nothing -------------------------------------------------------------------------


@contextlib.contextmanager
def staged(fs: FileSystem, folder: str, name: str) -> Iterator[str]:
    """A new, empty folder, next to a file `name` in `folder`, which is made if need be. Whoever
    gets it renames it; if it is still there in the end, it goes. So do those of the dead."""
    fs.make_dirs(folder)
    _sweep(fs, folder, name)
    place = os.path.join(folder, f"{name}.{secrets.token_hex(4)}.tmp")
    content = os.path.join(place, _CONTENT)
    fs.make_dirs(content)
    lock = fs.lock(os.path.join(place, _LOCK))
    try:
        lock.acquire()
        yield content
    finally:
        try:
            remove_tree(fs, place)
        except OSError as error:  # not in the place of what went wrong before
            text = "%s is left over, and may be removed: %s"
            logger.warning(text, place, error, extra={"path": place})
        lock.close()


def put(fs: FileSystem, content: str, path: str) -> None:
    """Give it its name, which nothing has yet. `OutcomeUnknown` if that may not be durable."""
    folder = os.path.dirname(path) or "."
    try:
        fs.rename(content, path)
        fs.sync_dir(folder)
    except OSError as error:
        if exists(fs, content):
            raise
        raise OutcomeUnknown(
            f"{path} is there, and whole, but it may be gone after a power cut: {folder} cannot be "
            f"synced ({error})"
        ) from error


def exists(fs: FileSystem, path: str) -> bool:
    try:
        fs.stat(path)
    except FileNotFoundError:
        return False
    return True


def staging_places(fs: FileSystem, folder: str, name: str) -> list[str]:
    """The folders of those who are at it, and of those who died while they were."""
    pattern = re.compile(re.escape(name) + r"\.[0-9a-f]{8}\.tmp")
    return [entry.name for entry in fs.list(folder) if pattern.fullmatch(entry.name)]


def _sweep(fs: FileSystem, folder: str, name: str) -> None:
    for found in staging_places(fs, folder, name):
        place = os.path.join(folder, found)
        with contextlib.suppress(FileNotFoundError):  # it was just done
            lock = fs.lock(os.path.join(place, _LOCK))
            try:
                if lock.acquire(wait=False):
                    remove_tree(fs, place)
            finally:
                lock.close()


def is_inside(fs: FileSystem, path: str, folder: str) -> bool:
    """Is a path that of a folder, or below it?"""
    real = os.path.realpath if isinstance(fs, OsFileSystem) else os.path.normpath
    return f"{real(path)}/".startswith(f"{real(folder).rstrip('/')}/")
