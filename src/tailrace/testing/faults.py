"""Fail the n-th call, in every way that a call can fail.

`FaultyFileSystem` numbers the calls that pass through it and asks a plan about each. The plan is a
function from a `Call` to a fault, or to `None` for a call that is to succeed; `at`, `on` and
`from_call` make the usual ones. `every_call` runs a workload once for each of its calls, with the
fault there.

After a `Crash` the process is dead: `SimulatedCrash` is not an `Exception`, so that no handler
takes it for an error to deal with, and every later call raises it again, so that no `finally`
can tidy the disk. Only `close` and `release` go through: they are what the kernel does for a dead
process, and write nothing. (`close` is no fault point either, for the same reason.)
"""

from __future__ import annotations

import errno
import fnmatch
import os
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import (
    Any,
    Literal,
    NamedTuple,
    NoReturn,
    Protocol,
    TypeVar,
    get_args,
    runtime_checkable,
)

from tailrace.errors import TailraceError
from tailrace.log.fs import Entry, File, FileLock, FileSystem, Space

if sys.version_info >= (3, 12):
    from collections.abc import Buffer
else:
    from typing_extensions import Buffer

__all__ = [
    "OPERATIONS",
    "Call",
    "Crash",
    "Fail",
    "Fault",
    "FaultyFileSystem",
    "LoseDirty",
    "Operation",
    "Plan",
    "Run",
    "ShortWrite",
    "SimulatedCrash",
    "Workload",
    "at",
    "every_call",
    "from_call",
    "on",
]

T = TypeVar("T")

Operation = Literal[
    "open",
    "pread",
    "pread_into",
    "pwrite",
    "truncate",
    "sync",
    "size",
    "list",
    "stat",
    "rename",
    "unlink",
    "remove_dir",
    "make_dirs",
    "sync_dir",
    "lock",
    "map",
]
OPERATIONS: tuple[Operation, ...] = get_args(Operation)


class Call(NamedTuple):
    """A call, numbered from 0. The path of a rename is its target."""

    op: Operation
    path: str
    n: int


class SimulatedCrash(BaseException):
    """The process ended here."""


@dataclass(frozen=True)
class Fail:
    """Raise an `OSError`, instead of doing the call or `after` it was done."""

    error: int = errno.EIO
    after: bool = False


@dataclass(frozen=True)
class Crash:
    """End the process before the call, or `after` it."""

    after: bool = False


@dataclass(frozen=True)
class ShortWrite:
    """Write a part of what was given, `part` of 0 to 1; then report that, or fail, or crash.

    A short write that is reported has at least one byte and not all, as the system's own have; one
    of a single byte goes through whole. Other calls than `pwrite` are let through.
    """

    part: float = 0.5
    then: Fail | Crash | None = None


@dataclass(frozen=True)
class LoseDirty:
    """Fail a sync as Linux does: unwritten pages count as clean, and the next sync succeeds.

    It needs a `SimulatedDisk` directly below. Other calls than `sync` are let through.
    """

    error: int = errno.EIO


Fault = Fail | Crash | ShortWrite | LoseDirty
Plan = Callable[[Call], Fault | None]


def at(n: int, fault: Fault) -> Plan:
    """The fault at call `n`, once."""
    return lambda call: fault if call.n == n else None


def on(op: Operation, fault: Fault, *, path: str = "*", nth: int = 0) -> Plan:
    """The fault at the `nth` call of one operation (from 0) on a path that matches a pattern."""
    seen = 0

    def plan(call: Call) -> Fault | None:
        nonlocal seen
        if call.op != op or not fnmatch.fnmatchcase(call.path, path):
            return None
        seen += 1
        return fault if seen == nth + 1 else None

    return plan


def from_call(n: int, fault: Fault, *, ops: Collection[Operation] = OPERATIONS) -> Plan:
    """The fault at every call from `n` on: a disk that is full, or broken, and stays it."""
    return lambda call: fault if call.n >= n and call.op in ops else None


class FaultyFileSystem:
    """A `FileSystem` that fails by plan. As thread-safe as the one below it.

    `calls` has every call so far, so `calls[n].n == n`; `hits` those that got a fault. `plan` may
    be replaced at any time, by `None` to end the faults.
    """

    def __init__(self, inner: FileSystem, plan: Plan | None = None) -> None:
        self.inner = inner
        self.plan = plan
        self.calls: list[Call] = []
        self.hits: list[Call] = []
        self.crashed = False
        self._guard = threading.Lock()

    def open(self, path: str, *, write: bool = False, create: bool = False) -> FaultyFile:
        file = self._call("open", path, lambda: self.inner.open(path, write=write, create=create))
        return FaultyFile(self, file, path)

    def stat(self, path: str) -> Entry:
        return self._call("stat", path, lambda: self.inner.stat(path))

    def rename(self, source: str, target: str) -> None:
        self._call("rename", target, lambda: self.inner.rename(source, target))

    def unlink(self, path: str) -> None:
        self._call("unlink", path, lambda: self.inner.unlink(path))

    def remove_dir(self, path: str) -> None:
        self._call("remove_dir", path, lambda: self.inner.remove_dir(path))

    def make_dirs(self, path: str) -> None:
        self._call("make_dirs", path, lambda: self.inner.make_dirs(path))

    def sync_dir(self, path: str) -> None:
        self._call("sync_dir", path, lambda: self.inner.sync_dir(path))

    def lock(self, path: str) -> FileLock:
        return FaultyLock(self, self._call("lock", path, lambda: self.inner.lock(path)))

    def map(self, path: str, size: int, *, write: bool) -> memoryview | None:
        return self._call("map", path, lambda: self.inner.map(path, size, write=write))

    def space(self, path: str) -> Space:
        return self.inner.space(path)

    def boot_id(self) -> bytes:
        if self.crashed:
            raise SimulatedCrash
        return self.inner.boot_id()

    def names(self, path: str) -> list[str]:
        return self._call("list", path, lambda: self.inner.names(path))

    def list(self, path: str, *, ending: str = "") -> list[Entry]:
        return self._call("list", path, lambda: self.inner.list(path, ending=ending))

    def _call(self, op: Operation, path: str, do: Callable[[], T]) -> T:
        call, fault = self._next(op, path)
        if isinstance(fault, Fail | Crash):
            self._fail(call, fault, do)
        return do()

    def _next(self, op: Operation, path: str) -> tuple[Call, Fault | None]:
        """Number a call, and ask the plan: outside the lock, so that a plan may wait."""
        with self._guard:
            if self.crashed:
                raise SimulatedCrash
            call = Call(op, path, len(self.calls))
            self.calls.append(call)
            plan = self.plan
        fault = plan(call) if plan is not None else None
        if (isinstance(fault, ShortWrite) and op != "pwrite") or (
            isinstance(fault, LoseDirty) and op != "sync"
        ):
            fault = None
        if fault is not None:
            with self._guard:
                self.hits.append(call)
        return call, fault

    def _fail(self, call: Call, fault: Fail | Crash, do: Callable[[], object]) -> NoReturn:
        """Raise, after the call if the fault says so. What it raises by itself comes first."""
        if fault.after:
            try:
                _drop(do())
            except (OSError, TailraceError):
                if isinstance(fault, Fail):
                    raise
        if isinstance(fault, Crash):
            self.crashed = True
            raise SimulatedCrash(f"at call {call.n}: {call.op} {call.path}")
        raise OSError(fault.error, os.strerror(fault.error), call.path)


class FaultyFile:
    """An open file of a `FaultyFileSystem`."""

    def __init__(self, fs: FaultyFileSystem, inner: File, path: str) -> None:
        self._fs = fs
        self._inner = inner
        self._path = path

    def pread(self, size: int, position: int) -> bytes:
        return self._fs._call("pread", self._path, lambda: self._inner.pread(size, position))

    def pread_now(self, size: int, position: int) -> bytes | None:
        return self.pread(size, position)

    def pread_into(self, buffer: Buffer, position: int) -> int:
        return self._fs._call(
            "pread_into", self._path, lambda: self._inner.pread_into(buffer, position)
        )

    def pwrite(self, data: Buffer, position: int) -> int:
        call, fault = self._fs._next("pwrite", self._path)
        if isinstance(fault, ShortWrite):
            view = memoryview(data).cast("B")
            size = int(len(view) * fault.part)
            if fault.then is not None:
                if size:
                    self._inner.pwrite(view[:size], position)
                self._fs._fail(call, fault.then, lambda: None)
            return self._inner.pwrite(view[: max(1, min(size, len(view) - 1))], position)
        if isinstance(fault, Fail | Crash):
            self._fs._fail(call, fault, lambda: self._inner.pwrite(data, position))
        return self._inner.pwrite(data, position)

    def truncate(self, size: int) -> None:
        self._fs._call("truncate", self._path, lambda: self._inner.truncate(size))

    def part_with(self, size: int, position: int) -> None:
        self._inner.part_with(size, position)

    def sync(self) -> None:
        call, fault = self._fs._next("sync", self._path)
        if isinstance(fault, LoseDirty):
            if not isinstance(self._inner, _Lossy):
                raise TypeError("LoseDirty needs a SimulatedDisk directly below")
            self._inner.lose_dirty()
            fault = Fail(fault.error)
        if isinstance(fault, Fail | Crash):
            self._fs._fail(call, fault, self._inner.sync)
        self._inner.sync()

    def size(self) -> int:
        return self._fs._call("size", self._path, self._inner.size)

    def close(self) -> None:
        self._inner.close()


class FaultyLock:
    """A lock of a `FaultyFileSystem`. Taking it is no fault point, because it happens whenever a
    thread gets round to it; but a dead process takes none."""

    def __init__(self, fs: FaultyFileSystem, inner: FileLock) -> None:
        self._fs = fs
        self._inner = inner

    def acquire(self, *, shared: bool = False, wait: bool = True) -> bool:
        if self._fs.crashed:
            raise SimulatedCrash
        return self._inner.acquire(shared=shared, wait=wait)

    def acquire_now(self) -> bool:
        return self.acquire(wait=False)

    def release(self) -> None:
        self._inner.release()

    def check_in_place(self) -> None:
        self._inner.check_in_place()

    def read_note(self) -> bytes:
        return self._inner.read_note()

    def write_note(self, note: bytes) -> None:
        if not self._fs.crashed:
            self._inner.write_note(note)

    def close(self) -> None:
        self._inner.close()


@runtime_checkable
class _Lossy(Protocol):
    def lose_dirty(self) -> None: ...


@runtime_checkable
class _Closable(Protocol):
    def close(self) -> None: ...


@runtime_checkable
class _Releasable(Protocol):
    def release(self) -> None: ...


def _drop(result: object) -> None:
    """A caller that gets an error gets no file or lock, so there must be none left open."""
    if isinstance(result, _Closable):
        result.close()
    elif isinstance(result, _Releasable):
        result.release()


Workload = Callable[[FaultyFileSystem, list[Any]], object]


@dataclass
class Run:
    """A workload that met a fault, over. `call` is where; `disk` is what it left behind.

    `acked` is the list that the workload was given, to put in it what it was promised: that is
    what a test then looks for on the disk. `error` is what ended it, if anything did.
    """

    call: Call
    fs: FaultyFileSystem
    disk: FileSystem
    acked: list[Any] = field(default_factory=list)
    error: OSError | TailraceError | SimulatedCrash | None = None

    @property
    def hit(self) -> bool:
        """Whether the fault happened; with threads, a call may come at another number."""
        return bool(self.fs.hits)


def every_call(
    workload: Workload,
    fault: Fault,
    fresh: Callable[[], FileSystem],
    *,
    ops: Collection[Operation] = OPERATIONS,
) -> Iterator[Run]:
    """Run the workload on a `fresh` disk for each call it makes (of `ops`), with the fault there.

    It is run without faults first, to number its calls. Only the errors that a fault may cause end
    a run; any other is a bug in what is tested, and comes out, saying where the fault was.
    """
    counting = FaultyFileSystem(fresh())
    workload(counting, [])
    for call in counting.calls:
        if call.op in ops:
            disk = fresh()
            run = Run(call, FaultyFileSystem(disk, at(call.n, fault)), disk)
            try:
                workload(run.fs, run.acked)
            except (OSError, TailraceError, SimulatedCrash) as error:
                run.error = error
            except Exception as error:
                error.add_note(f"with {fault} at call {call.n}: {call.op} {call.path}")
                raise
            yield run
