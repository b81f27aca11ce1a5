"""Which part of which log each task reads.

A plan reads no record (`log/cuts.py`). Splits are cut where batches begin, unless more of them are
asked for than that gives, and small ones are put together: a task costs as much as some megabytes.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from tailrace.errors import ConfigError, Corrupt, OffsetOutOfRange, TailraceError
from tailrace.log.cuts import cuts
from tailrace.log.fs import OsFileSystem
from tailrace.log.log import Log
from tailrace.log.sidefiles import FOLDER
from tailrace.queue.archived import ArchiveNote
from tailrace.queue.layout import Layout, find_root
from tailrace.queue.registry import Registry
from tailrace.queue.settings import QueueSettings
from tailrace.spark.columns import Decoder, Projection, RowFilter
from tailrace.spark.kept import kept_log

__all__ = [
    "DELETED",
    "IF_PASSED_OVER",
    "Place",
    "Position",
    "Positions",
    "Range",
    "Split",
    "cut",
    "is_same",
    "lost",
    "next_readable",
    "pack",
    "parted",
    "reachable",
    "read",
    "unseen",
    "went_back",
]

# Up to which offset a queue was read, and its incarnation: `[17, "5d2f…"]`. A list, since Spark
# keeps it as JSON. Those of all queues, by name, are what Spark calls an offset.
Position = list[Any]
Positions = dict[str, Position]

DELETED: Final = "retention has deleted"
IF_PASSED_OVER: Final = "With failOnDataLoss=false they are passed over"  # of what is lost


class Range(NamedTuple):
    """Offsets `first <= o < last` of a queue, which take so many bytes: of its log, or of a file of
    its archive. The incarnation tells it from another queue of the same name."""

    queue: str
    incarnation: str
    first: int
    last: int
    size: int = 0
    archive: str = ""  # the folder, if there is one: what was deleted meanwhile is in it
    file: str = ""  # of the archive, if they are read from there


@dataclass(frozen=True)
class Split:
    """What one task reads."""

    ranges: tuple[Range, ...]

    @property
    def size(self) -> int:
        return sum(part.size for part in self.ranges)


class Place:
    """A store, to look at: nothing in it is written, made or locked. For one plan or one task."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._fs = OsFileSystem()
        root = find_root(self._fs, path)
        if not os.path.isdir(root):
            raise ConfigError(
                f"path: there is no store in {os.path.abspath(path)} on {socket.gethostname()}. If "
                "it is there on the driver's machine: driver and executors have to see it under "
                "the same path"
            )
        self._root = root
        self._layout = Layout(self._fs, root)
        self._registry: Registry | None = None
        self._board: tuple[int, int] | None = None

    def queues(self) -> Mapping[str, QueueSettings]:
        """As of now. Asked for each queue: the file is parsed again only if it has changed, or if
        another store was put in the place of this one. By the board, which the registry has mapped:
        as long as it has, no other file has its number. Without one, it goes by its file anyway."""
        board = None
        with contextlib.suppress(FileNotFoundError):
            found = os.stat(os.path.join(self._root, FOLDER, "board"))
            board = found.st_dev, found.st_ino
        if self._registry is None or board != self._board:
            self._registry = Registry(self._fs, self._root, read_only=True).open()
            self._board = board
        return self._registry.current()

    @contextlib.contextmanager
    def log(self, queue: str, incarnation: str) -> Iterator[Log | None]:
        """The log of a queue; `None` if nobody has used it yet."""
        with contextlib.ExitStack() as stack:
            log = None
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                log = stack.enter_context(kept_log(self._layout.segments(queue), incarnation))
            yield log

    def folder(self, queue: str) -> str:
        return self._layout.segments(queue)

    def archive(self, queue: str) -> str | None:
        """The folder to which a queue was archived last."""
        note = ArchiveNote.load(self._fs, self._layout, queue)
        found = self.queues().get(queue)
        if note is None or found is None or note.incarnation != found.incarnation:
            return None
        return note.folder(self._layout)

    def check_same(self, queue: str, incarnation: str) -> None:
        """Refuse a queue that is not the one that was meant."""
        found = self.queues().get(queue)
        if found is None:
            raise self.deleted(queue)
        if not is_same(found, incarnation):
            raise TailraceError(
                f"the queue {queue!r} of {self.path} was deleted and made anew: offsets of the old "
                "one mean nothing in it. Load the table again; a streaming query needs a new "
                "checkpoint"
            )

    def deleted(self, queue: str) -> TailraceError:
        return TailraceError(f"the queue {queue!r} of {self.path} was deleted meanwhile")


def is_same(queue: QueueSettings, incarnation: str) -> bool:
    """Is it the queue of this incarnation? A queue of FluxMQ's has none until somebody opens the
    store for writing, so one that was not known yet is compared with nothing."""
    return incarnation in ("", queue.incarnation)


def cut(log: Log, queue: QueueSettings, first: int, last: int, split_bytes: int) -> Iterator[Range]:
    """A range of a queue in pieces of about this size, as `log/cuts.py` makes them."""
    for piece in cuts(log, first, last, split_bytes):
        yield Range(queue.name, queue.incarnation, *piece)


def pack(ranges: Iterator[Range], split_bytes: int, most: int | None = None) -> list[Split]:
    """Ranges together, until they are about `split_bytes` or more, and at most twice as much, or
    `most`: what is left of each segment is no task of its own. Those that follow one another become
    one."""
    enough = split_bytes - split_bytes // 8  # segments are a little smaller than they may be
    most = 2 * split_bytes if most is None else most
    splits: list[Split] = []
    current: list[Range] = []
    size = 0
    for part in ranges:
        if current and (size >= enough or size + part.size > most):
            splits.append(Split(tuple(current)))
            current, size = [], 0
        last = current[-1] if current else None
        is_next = last is not None and last[:2] == part[:2] and last.last == part.first
        if last is not None and is_next and last.file == part.file:
            current[-1] = last._replace(last=part.last, size=last.size + part.size)
        else:
            current.append(part)
        size += part.size
    if current:
        splits.append(Split(tuple(current)))
    return splits


def parted(splits: list[Split], least: int) -> list[Split]:
    """At least so many, if there are as many offsets, of about as many offsets each: whatever
    batches they are in, which several tasks may have to decode then."""
    ranges = [part for split in splits for part in split.ranges]
    step = max(sum(part.last - part.first for part in ranges) // least, 1)
    return [
        Split((_piece_of(part, first, min(first + step, part.last)),))
        for part in ranges
        for first in range(part.first, part.last, step)
    ]


def _piece_of(part: Range, first: int, last: int) -> Range:
    size = part.size * (last - first) // (part.last - part.first)
    return part._replace(first=first, last=last, size=size)


def read(
    path: str, split: Split, projection: Projection, rows: RowFilter, *, fail_on_loss: bool
) -> Iterator[object]:
    """The rows of a split, as Arrow batches; in a task."""
    place = Place(path)
    for part in split.ranges:
        place.check_same(part.queue, part.incarnation)
        if part.archive:
            from tailrace.spark.lake import together

            yield from together.read(place, part, projection, rows, fail_on_loss=fail_on_loss)
            continue
        decoder = Decoder(part.queue, projection, rows)
        with place.log(part.queue, part.incarnation) as log:
            if log is None:
                raise unseen(place.folder(part.queue))
            position = part.first
            last = reachable(log, part.queue, part.last, fail_on_loss=fail_on_loss)
            while position < last:
                try:
                    yield from decoder.read(log, position, last)
                    break
                except (Corrupt, OffsetOutOfRange) as error:
                    position = next_readable(error, position, fail_on_loss=fail_on_loss)


def next_readable(error: Corrupt | OffsetOutOfRange, position: int, *, fail_on_loss: bool) -> int:
    """Where reading from `position` goes on, if rows that are lost are to be passed over."""
    if isinstance(error, Corrupt):
        if fail_on_loss or not error.next_offset or error.next_offset <= position:
            raise lost(error, "cannot be read") from error
        return error.next_offset
    if position < error.offset and error.low <= error.offset:
        return error.offset  # other files have these rows now; what is before was read
    if fail_on_loss or error.low <= position:
        raise lost(error, DELETED) from error
    return error.low


def reachable(log: Log, queue: str, last: int, *, fail_on_loss: bool) -> int:
    """Up to where a range that was planned can be read. A log never ends earlier than it did, but
    who restores a store has an older one, and another machine may see an older one."""
    end = log.end_offset
    if last <= end:
        return last
    if fail_on_loss:
        raise went_back(queue, log.path, last, end)
    return end


def went_back(queue: str, folder: str, offset: int, end: int) -> TailraceError:
    return TailraceError(
        f"the log of {queue!r} ends at {end} on {socket.gethostname()}, before offset {offset} "
        f"that was there: {folder} is older than it was. If it was restored from a backup, load "
        "the table again, or start the query with a new checkpoint. If the power failed, open the "
        f"store for writing once. {IF_PASSED_OVER}"
    )


def unseen(path: str) -> ConfigError:
    """Of a file, or a folder, that another machine sees."""
    return ConfigError(
        f"path: {path} cannot be seen on {socket.gethostname()}: driver and executors have to "
        "see the store under the same path, and nobody may have deleted it meanwhile"
    )


def lost(error: TailraceError, why: str) -> TailraceError:
    return TailraceError(f"rows are lost, which {why}: {error}. {IF_PASSED_OVER}")
