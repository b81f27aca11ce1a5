"""The journal of a group: `ops.log`, one operation a line, behind a snapshot.

A line is a JSON object whose first key is the CRC-32C of what follows it, in hex:

    {"k":"9c3f01aa","t":"ack","r":[17,3]}

The first line, `begin`, names the snapshot on which the others build, by its generation. The last
line of a journal that was replaced is `moved`; it is written before the replacement takes its name,
so nobody who has the old one open goes on writing to it. Likewise `deleted`.

Where acknowledgements wait for the disk, the file is extended ahead with zeros: a sync then writes
data only, and not the file's new size each time. So the journal ends where zeros begin, or the
file. Behind a zero there may be lines that outlived a power cut which others before them did not:
who loads the journal applies them as if the others were damaged, and cuts off what is left.

Whoever holds the group's lock reads what others have written since, and then writes. A line that
was not finished is the work of one who was killed: nobody has been told that it happened, so it is
cut off. A damaged line with whole ones behind it is another matter: it is reported, and the group's
state can bear that it is missing (`ledger.py`). So is a line whose operation cannot be carried out:
the group is loaded again without it.

Not thread-safe, but for `wait_durable` and `flush`.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

from tailrace.errors import Corrupt, NotWritten
from tailrace.kernel import read_line as parse_line
from tailrace.kernel import write_line as encode_line
from tailrace.log.fs import File, FileSystem, read_exactly, write_all
from tailrace.log.sidefiles import side_path

__all__ = [
    "NAME",
    "Deleted",
    "Journal",
    "Op",
    "Unfit",
    "encode_line",
    "parse_line",
    "unknown",
    "write_new",
]

logger = logging.getLogger("tailrace")

NAME = "ops.log"
FORMAT = 1

Op = dict[str, Any]

_ROOM = 128 << 10


def unknown(op: Op) -> Corrupt:
    """The error for an operation that this version does not know."""
    return Corrupt(f"the operation {op['t']!r} is of a newer version of tailrace: upgrade this one")


class Deleted(Exception):
    """The journal says that the group was deleted."""


class Unfit(Exception):
    """The journal has an operation that cannot be carried out, and the state is half changed by it.
    Who loads the group again goes on without it."""


# What an operation that nobody should have written leads to.
_WRONG = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


class Journal:
    def __init__(self, fs: FileSystem, folder: str, *, extend: bool = False) -> None:
        """`extend`: have room in the file ahead of what is written."""
        self._fs = fs
        self._extend = extend
        self._room = 0  # how long the file is known to be
        self.path = os.path.join(folder, NAME)
        self._file: File | None = None
        self.generation = 0
        self.group = ""  # which group it is of: one that is deleted and made anew is another
        self.ops = 0  # since the snapshot
        self.is_other = False  # its snapshot is not what the journal before it led to
        self.is_unsynced = False  # neither its snapshot nor its name was synced
        self.is_damaged = False  # a line in the middle could not be read
        self.position = 0  # behind what we know
        self._unfit: set[tuple[int, int]] = set()  # by generation and position
        self._sync_lock = threading.RLock()  # a signal handler may settle, too
        self._durable = (0, 0)  # generation and position
        self.is_at_risk = False  # a sync failed: the pages may be lost, and another would not tell

    # --- reading ----------------------------------------------------------------------------

    def open(self, generation: Callable[[], int] = int) -> bool:
        """Open it at its beginning; false if it is not there, or none of ours. If the line that
        tells is damaged, `generation` has to. Those who wait for a sync see the old one, or the new
        one."""
        with self._sync_lock:
            return self._open(generation)

    def _open(self, generation: Callable[[], int]) -> bool:
        self._drop()
        try:
            file = self._fs.open(self.path, write=True)
        except FileNotFoundError:
            return False
        first = _first_line(file)
        op = parse_line(first) if first is not None else None
        if op is None and (_looks_ours(first) or _has_lines(file)):
            self._report(0)
            op = {"t": "begin", "format": FORMAT, "generation": generation(), "id": self.group}
        if op is None or op.get("t") != "begin":
            file.close()
            return False
        if op["format"] > FORMAT:
            file.close()
            raise Corrupt(
                f"{self.path} is of format {op['format']}; this version reads {FORMAT}: upgrade it",
                path=self.path,
            )
        assert first is not None
        if op["generation"] != self.generation:
            self.is_at_risk = False
        self._file, self.generation = file, op["generation"]
        self.is_other, self.group = "other" in op, op["id"]
        self.is_unsynced = "unsynced" in op
        self.position, self.ops, self._room = len(first) + 1, 0, 0
        return True

    @property
    def has_news(self) -> bool:
        """Has somebody written since?"""
        return self._file.pread(1, self.position) > b"\0"  # type: ignore[union-attr]

    def load(self, apply: Callable[[Op], None]) -> bool:
        """Apply all of it, for the first time, and leave nothing behind it. False as `catch_up`."""
        return self._apply(self._rest(), apply)

    def catch_up(self, apply: Callable[[Op], None]) -> bool:
        """Apply what was written since. False if there is another journal now: the group has to be
        loaded again, or, if `open` finds the next generation, only to go on."""
        data, zero, _ = self._rest().partition(b"\0")
        if zero and not data.endswith(b"\n"):  # one who was killed; or a hole, behind which is more
            return self._apply(self._rest(), apply)
        return self._apply(data, apply)

    def _rest(self) -> bytes:
        file = self._file
        assert file is not None
        return read_exactly(file, file.size() - self.position, self.position)

    def _apply(self, data: bytes, apply: Callable[[Op], None]) -> bool:
        """A damaged line is passed over, and stays: others may have read it when it was whole, and
        go on behind it."""
        *lines, rest = data.split(b"\n")  # what has no end was not finished
        behind = self.position + len(data) - len(rest)
        if rest:
            self._cut(behind, is_torn=bool(rest.strip(b"\0")))
        for line in lines:
            op = parse_line(line.lstrip(b"\0"))
            if op is not None and self._unfit and self.mark in self._unfit:
                op = None
            if op is None or line[:1] == b"\0":
                self._report(self.position)
            if op is None:
                pass
            elif op.get("t") == "moved":
                return False
            elif op.get("t") == "deleted":
                raise Deleted
            else:
                try:
                    apply(op)
                except _WRONG as error:
                    self._unfit.add(self.mark)
                    text = "%s: the operation at %d cannot be carried out: %r"
                    extra = {"path": self.path}
                    logger.error(text, self.path, self.position, error, extra=extra)
                    raise Unfit from error
            self.position += len(line) + 1
            self.ops += 1
        return True

    def _cut(self, position: int, *, is_torn: bool) -> None:
        assert self._file is not None
        if is_torn:
            text = "%s: an unfinished line was cut off at %d"
            logger.warning(text, self.path, position, extra={"path": self.path})
        self._file.truncate(position)
        self._room = 0

    def _report(self, position: int) -> None:
        self.is_damaged = True
        logger.error(
            "%s: the line at %d is damaged. What it said is lost: messages may be delivered again",
            self.path,
            position,
            extra={"path": self.path},
        )

    # --- writing ----------------------------------------------------------------------------

    def write(self, ops: Sequence[Op]) -> None:
        """Write operations; all of them are there then, or none. Applying them is up to the caller,
        and has to succeed."""
        file = self._file
        if file is None:
            raise NotWritten(f"{self.path} is being replaced; try again")
        count, position = len(ops), self.position
        data = encode_line(ops[0]) if count == 1 else b"".join(map(encode_line, ops))
        size = len(data)
        try:
            if self._extend and position + size > self._room:
                self._make_room(file, position + size)
            written = file.pwrite(data, position)
            if written != size:
                write_all(file, data[written:], position + written)
        except OSError as error:
            self._room = 0
            try:
                file.truncate(self.position)
            except OSError:
                text = "%s: an unfinished line is left at %d"
                logger.error(text, self.path, self.position, extra={"path": self.path})
            raise NotWritten(f"{self.path}: cannot write: {error}") from error
        self.position = position + size
        self.ops += count

    def _make_room(self, file: File, needed: int) -> None:
        """Nothing hangs on it: without room a sync takes longer. Another process may have made
        some."""
        size = file.size()
        if size < needed:
            write_all(file, bytes(_ROOM), max(size, self.position))
            size = max(size, self.position) + _ROOM
        self._room = size

    @property
    def mark(self) -> tuple[int, int]:
        """Where the journal ends now, for `wait_durable`."""
        return self.generation, self.position

    def is_durable(self, mark: tuple[int, int]) -> bool:
        """Is what was written before `mark` on the disk? If there is a later journal, a snapshot
        has it, which was synced."""
        return self._durable >= mark or self.generation > mark[0]

    def wait_durable(self, mark: tuple[int, int]) -> float:
        """Return when what was written before `mark` is on the disk. Thread-safe: those who wait
        together share a sync. `OSError` if it failed, or cannot be done any more. The seconds that
        a sync has taken, if one was needed."""
        with self._sync_lock:
            return 0.0 if self.is_durable(mark) else self._sync()

    def flush(self) -> float:
        """The same with all that is written. While the file is closed, nothing: what has to be is
        seen to by who closes it, or by the next flush after it was opened."""
        with self._sync_lock:
            is_durable = self._file is None or self._durable >= self.mark
            return 0.0 if is_durable else self._sync()

    def _sync(self) -> float:
        if self._file is None:
            raise OSError(errno.EBADF, "it was closed before", self.path)
        if self.is_at_risk:
            raise OSError(errno.EIO, "a sync has failed before", self.path)
        end = self.mark  # at least: others may be writing
        begun = perf_counter()
        try:
            self._file.sync()
        except OSError:
            self.is_at_risk = True
            raise
        self._durable = max(self._durable, end)
        return perf_counter() - begun

    # --- replacing --------------------------------------------------------------------------

    def begin_next(self, *, sync: bool, is_other: bool = False) -> None:
        """Write the next journal, empty, under a name that nobody looks at yet. `is_other`: what it
        builds on is not what this journal led to."""
        op = {"t": "begin", "format": FORMAT, "generation": self.generation + 1, "id": self.group}
        op |= {"other": True} if is_other else {}
        op |= {} if sync else {"unsynced": True}
        write_new(self._fs, self.path + ".tmp", encode_line(op), sync=sync)

    def put_next(self) -> None:
        """Have it take the place of this one. From then on the new snapshot counts."""
        if self._file is not None:
            line = encode_line({"t": "moved"})
            try:
                write_all(self._file, line, self.position)
            except OSError:
                self._file.truncate(self.position)
                raise
        self._fs.rename(self.path + ".tmp", self.path)

    def end(self) -> None:
        """Nothing is to follow: leave an empty file, as FluxMQ does."""
        write_new(self._fs, self.path + ".tmp", b"", sync=False)
        self._fs.rename(self.path + ".tmp", self.path)

    def keep_aside(self) -> None:
        """Leave a copy of what is damaged, as far as there is room, for a person to look at."""
        assert self._file is not None
        path = side_path(os.path.dirname(self.path), f"damaged-{self.generation}")
        with contextlib.suppress(OSError):
            write_new(self._fs, path, read_exactly(self._file, self.position, 0))
        self._fs.sync_dir(os.path.dirname(path))
        self.is_damaged = False

    def disown(self) -> None:
        """In a forked child: a thread of the parent may have had the lock."""
        self._sync_lock = threading.RLock()

    def close(self) -> None:
        with self._sync_lock:
            self._drop()

    def _drop(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _first_line(file: File) -> bytes | None:
    data = file.pread(4096, 0)
    line, end, _ = data.partition(b"\n")
    return line if end else None


def _looks_ours(first: bytes | None) -> bool:
    """Is it the beginning of a journal, of which a part is damaged?"""
    return first is not None and (first[:6] == b'{"k":"' or b'"t":"begin"' in first)


def _has_lines(file: File) -> bool:
    """Are there lines of ours, behind one that is not?"""
    data = read_exactly(file, file.size(), 0)
    return any(parse_line(line.lstrip(b"\0")) is not None for line in data.split(b"\n"))


def write_new(fs: FileSystem, path: str, data: bytes, *, sync: bool = True) -> None:
    """A file of this name with these contents; to make the name durable is up to the caller."""
    file = fs.open(path, write=True, create=True)
    try:
        file.truncate(0)
        write_all(file, data, 0)
        if sync:
            file.sync()
    finally:
        file.close()
