"""What is in an archive: which offsets of which queue, in which files.

    <archive>/<first>-<last>.parquet                          or, partitioned by time,
    <archive>/date=2026-11-17/hour=13/<first>-<last>.parquet
    <archive>/_tailrace/manifest.jsonl
    <archive>/_tailrace/lock                                  held by who archives
    <archive>/_tailrace/placing                               the files that are being renamed
    <archive>/_tailrace/staging/                              files that are being written
    <archive>/_tailrace/ran                                   when, if that is scheduled

Tools that read a folder of Parquet files pass over names with an underscore.

The manifest has a JSON object a line, whose first key is the CRC-32C of what follows it, like a
group's journal. The first line says whose archive it is, each other one is a step: a range of
offsets, and the files that have its rows. A step counts when its line is on the disk. Its files
were written to the staging folder, synced and renamed before that (`placing.py`). Steps are never
changed and their ranges never overlap. Each line is synced before the next is written, so whoever
was killed, or had its power cut, has spoiled at most the last one: it counts for nobody, and is cut
off by the next who writes.

Readers need no lock: what a manifest names is there, and stays as it is.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, Final

from tailrace.errors import ConfigError, Corrupt, Locked, NotWritten
from tailrace.log.fs import FileSystem, read_file, replace_file, write_all
from tailrace.queue.archived import archive_folder
from tailrace.queue.journal import encode_line, parse_line

__all__ = [
    "PARTITIONS",
    "ArchivedFile",
    "Manifest",
    "Origin",
    "Step",
    "Writing",
    "archive_around",
    "document_of",
    "is_archive",
    "is_gone",
    "side_of",
    "step_of",
]

logger = logging.getLogger("tailrace")

FORMAT: Final = 2  # with the column `timestamp_ms`; 1 is without
PARTITIONS: Final = ("date", "hour")

_SIDE: Final = "_tailrace"
_NAME: Final = "manifest.jsonl"
_LARGEST: Final = 1 << 30
_BEGINNING: Final = b'{"k":"'  # of a line


@dataclass(frozen=True)
class Origin:
    """Whose archive it is. `incarnation` tells the queue from another of the same name."""

    queue: str
    incarnation: str
    partition_by: str = ""  # one of PARTITIONS, or nothing
    format: int = FORMAT  # of its files: it goes on as it was begun

    def check_is(self, queue: str, incarnation: str, folder: str) -> None:
        """Refuse an archive of another queue."""
        if self.queue != queue:
            raise ConfigError(
                f"{folder} is the archive of the queue {self.queue!r}, not of {queue!r}; each "
                "queue has a folder of its own"
            )
        if self.incarnation != incarnation:
            raise ConfigError(
                f"{folder} is the archive of another queue {queue!r}, which was deleted; this one "
                "needs a new folder"
            )


@dataclass(frozen=True)
class ArchivedFile:
    """A Parquet file of a step. `path` is from the archive's folder on."""

    path: str
    rows: int
    size: int
    crc32c: int  # of the whole file
    first_ms: int  # the oldest timestamp in it, and the newest
    last_ms: int


@dataclass(frozen=True)
class Step:
    """Offsets `first <= o < last`: all the rows that the log had of them are in the files."""

    first: int
    last: int
    files: tuple[ArchivedFile, ...]

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


@dataclass(frozen=True)
class Manifest:
    """An archive as somebody found it. A snapshot: what came later is not in it."""

    folder: str
    origin: Origin
    steps: tuple[Step, ...] = ()  # in the order of their offsets
    length: int = field(default=0, repr=False)  # bytes of the file that are whole lines
    added: tuple[Step, ...] = field(default=(), repr=False)  # in the order in which they came

    @classmethod
    def load(cls, fs: FileSystem, folder: str) -> Manifest:
        """`ConfigError` if there is no archive."""
        folder = archive_folder(folder)
        found = cls.find(fs, folder)
        if found is None:
            raise ConfigError(f"there is no archive in {folder}")
        return found

    @classmethod
    def find(cls, fs: FileSystem, folder: str) -> Manifest | None:
        path = os.path.join(side_of(folder), _NAME)
        data = read_file(fs, path, _LARGEST)
        if data is None:
            return None
        documents, length = _parse(data, path)
        added = tuple(step_of(each, path) for each in documents[1:])
        steps = tuple(sorted(added, key=lambda step: step.first))
        for one, other in pairwise(steps):
            if one.last > other.first:
                raise Corrupt(f"{path}: {other.first} to {one.last} is archived twice", path=path)
        return cls(folder, _origin(documents[0], path), steps, length, added)

    def ranges(self) -> list[tuple[int, int]]:
        """Which offsets are archived, `first <= o < last`, with as few ranges as can be."""
        found: list[tuple[int, int]] = []
        for step in self.steps:
            if found and found[-1][1] >= step.first:
                found[-1] = found[-1][0], max(found[-1][1], step.last)
            else:
                found.append((step.first, step.last))
        return found

    def reaches(self, first: int) -> int:
        """Up to which offset all is archived, from `first` on; `first` if nothing is."""
        for low, high in self.ranges():
            if low <= first < high:
                return high
        return first

    def within(self, first: int, last: int) -> Iterator[Step]:
        """The steps that have offsets of a range."""
        return (step for step in self.steps if step.first < last and step.last > first)


class Writing:
    """The one who archives: holds the archive's lock. Not thread-safe."""

    def __init__(self, fs: FileSystem, folder: str, origin: Origin) -> None:
        """Go on with an archive, or begin one. `ConfigError` if it is another queue's or has other
        partitions, `Locked` if somebody else is at it."""
        self._fs = fs
        self.folder = folder
        fs.make_dirs(self.staging)
        self._is_broken = False
        self._lock = fs.lock(os.path.join(side_of(folder), "lock"))
        if not self._lock.acquire(wait=False):
            self._lock.close()
            raise Locked(f"somebody else is archiving to {folder} just now")
        try:
            # Whoever made them may not have lived to sync their names.
            for made in (os.path.dirname(folder), folder, side_of(folder)):
                fs.sync_dir(made or ".")
            self.manifest = self._open(origin)
        except BaseException:
            self.close()
            raise

    @property
    def staging(self) -> str:
        return os.path.join(side_of(self.folder), "staging")

    def _open(self, origin: Origin) -> Manifest:
        fs, path = self._fs, os.path.join(side_of(self.folder), _NAME)
        found = Manifest.find(fs, self.folder)
        if found is None:
            line = encode_line({"t": "archive", **asdict(origin)})
            replace_file(fs, path, line)
            return Manifest(self.folder, origin, (), len(line))
        found.origin.check_is(origin.queue, origin.incarnation, self.folder)
        if found.origin.partition_by != origin.partition_by:
            kept = found.origin.partition_by or "nothing"
            raise ConfigError(
                f"{self.folder} is partitioned by {kept}, not by "
                f"{origin.partition_by or 'nothing'}; that cannot be changed"
            )
        with contextlib.closing(fs.open(path, write=True)) as file:
            if file.size() > found.length:  # the line of one who was killed
                text = "%s: an unfinished line is cut off at %d"
                logger.warning(text, path, found.length, extra={"path": path})
                file.truncate(found.length)
            file.sync()  # the last line may be one that nobody has lived to sync
        return found

    def add(self, steps: Sequence[Step]) -> None:
        """Have steps count, all of whose files are on the disk, one after the other. If this fails,
        the one that was being written may count or not, and nothing more is added: who goes on
        opens the archive anew."""
        if self._is_broken:
            raise NotWritten(f"{self.folder}: writing the manifest has failed; open it anew")
        for step in steps:
            overlap = next(self.manifest.within(step.first, step.last), None)
            if overlap is not None:
                raise ValueError(f"{step.first} to {step.last} is archived already: {overlap}")
            self._add(step)

    def _add(self, step: Step) -> None:
        before, line = self.manifest, encode_line(document_of(step))
        path = os.path.join(side_of(self.folder), _NAME)
        self._is_broken = True
        with contextlib.closing(self._fs.open(path, write=True)) as file:
            write_all(file, line, before.length)
            file.sync()
        self._is_broken = False
        steps = tuple(sorted([*before.steps, step], key=lambda each: each.first))
        self.manifest = Manifest(
            self.folder, before.origin, steps, before.length + len(line), (*before.added, step)
        )

    def close(self) -> None:
        self._lock.close()

    def __enter__(self) -> Writing:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def side_of(folder: str) -> str:
    """Where an archive has what is no row."""
    return os.path.join(folder, _SIDE)


def is_archive(folder: str) -> bool:
    """Has anything been archived there?"""
    return os.path.exists(os.path.join(side_of(folder), _NAME))


def archive_around(folder: str) -> str | None:
    """The archive in which a folder is, by whatever links, or which it is itself. Who reads that
    one takes whatever Parquet is in it for its own."""
    each, above = "", os.path.realpath(folder)
    while each != above:
        if is_archive(above):
            return above
        each, above = above, os.path.dirname(above)
    return None


def is_gone(fs: FileSystem, folder: str) -> bool:
    """Is there no archive? What cannot be looked at now may be there."""
    try:
        fs.stat(os.path.join(side_of(folder), _NAME))
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def _parse(data: bytes, path: str) -> tuple[list[dict[str, Any]], int]:
    """The lines, and how long they are together."""
    lines = data.split(b"\n")[:-1]  # what has no end was not finished
    parsed = [parse_line(line) for line in lines]
    documents: list[dict[str, Any]] = []
    for number, document in enumerate(parsed):
        if document is None:
            if number == 0 or any(parsed[number:]):
                raise Corrupt(f"{path}: line {number + 1} is damaged", path=path)
            break
        documents.append(document)
    if not documents:
        raise Corrupt(f"{path}: the first line is missing", path=path)
    length = sum(len(line) + 1 for line in lines[: len(documents)])
    if data.count(_BEGINNING, length) > 1:  # its end is damaged, so it looks like one with the next
        raise Corrupt(f"{path}: line {len(documents) + 1} is damaged", path=path)
    return documents, length


def document_of(step: Step) -> dict[str, Any]:
    """A step as it is written."""
    return {"t": "step", **asdict(step)}


def step_of(document: dict[str, Any], path: str) -> Step:
    try:
        files = tuple(ArchivedFile(**each) for each in document["files"])
        return Step(document["first"], document["last"], files)
    except (KeyError, TypeError) as error:
        raise Corrupt(
            f"{path}: a step is of a newer version of tailrace: {document}", path=path
        ) from error


def _origin(document: dict[str, Any], path: str) -> Origin:
    if document.get("t") != "archive" or document.get("format") not in range(1, FORMAT + 1):
        raise Corrupt(
            f"{path}: it is of a newer version of tailrace, or none of its manifests", path=path
        )
    names = ("queue", "incarnation", "partition_by", "format")
    return Origin(**{name: document[name] for name in names})
