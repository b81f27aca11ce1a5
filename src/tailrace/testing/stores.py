"""Stores for the tests of an application, and what can go wrong under them.

A `StorePlace` opens stores by a clock that the test moves, and closes what the test did not. A
`FaultyStorePlace` has its stores on a simulated disk, which fails, fills up and loses its power at
the word of a test. The plugin makes fixtures of them; without pytest they work as well.
"""

from __future__ import annotations

import errno
import itertools
import logging
import os
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack
from fnmatch import fnmatchcase
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tailrace.config.opening import open_store
from tailrace.errors import TailraceError
from tailrace.log.fs import FileSystem
from tailrace.queue.store import Store
from tailrace.testing.clock import ManualClock
from tailrace.testing.disk import SimulatedDisk
from tailrace.testing.faults import (
    OPERATIONS,
    Call,
    Crash,
    Fail,
    Fault,
    FaultyFileSystem,
    LoseDirty,
    Operation,
    Plan,
    ShortWrite,
)
from tailrace.testing.timekeeping import bury, deliver, keeping_time, living_stores

if TYPE_CHECKING:
    from tailrace import aio

__all__ = ["FaultyStorePlace", "StorePlace"]

logger = logging.getLogger("tailrace")

# What people call the calls of a `FileSystem`.
_WORDS: dict[str, tuple[Operation, ...]] = {
    "read": ("pread", "pread_into"),
    "write": ("pwrite",),
    "fsync": ("sync", "sync_dir"),
    "any": OPERATIONS,
    **{operation: (operation,) for operation in OPERATIONS},
}


class StorePlace:
    """A folder for the stores of one test, and the clock that they go by.

        with StorePlace(tmp_path / "data", ManualClock()) as place:
            store = place.open()

    While it is open the clock delivers: what is due when it was moved is in its queue then, in
    every store that was opened with it. Its own stores have no threads; they are closed with it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        clock: ManualClock,
        *,
        fs: FileSystem | None = None,
        **options: Any,
    ) -> None:
        """`options` are those of `tailrace.open`, for every store that is opened here."""
        self.path = os.fspath(path)
        self.clock = clock
        self._options = {"upkeep": False, **options, "fs": fs, "clock": clock}
        self._opened: list[Store] = []
        self._opened_async: list[aio.Store] = []
        self._stack = ExitStack()

    def open(self, **options: Any) -> Store:
        """Open the store. It may be open before: then this is like another process of it."""
        store = open_store(self.path, **{**self._options, **options})
        self._opened.append(store)
        deliver(store)
        return store

    def open_async(self, **options: Any) -> aio.Store:
        """The same for asyncio: open it by `async with`, or by awaiting it."""
        from tailrace import aio

        store = aio.open(self.path, **{**self._options, **options})
        self._opened_async.append(store)
        return store

    def __enter__(self) -> Self:
        self._stack.enter_context(keeping_time(self.clock))
        return self

    def close(self) -> None:
        """Close the stores that are still open."""
        self._stack.close()
        with ExitStack() as stack:  # each of them, whatever the others do
            for store in self._opened:
                stack.callback(self._close, store.close)
            for other in self._opened_async:
                stack.callback(self._close, partial(_run, other.close))

    def _close(self, close: Callable[[], object]) -> None:
        close()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class FaultyStorePlace(StorePlace):
    """The same on a simulated disk, in memory. What goes wrong there does so for all stores that
    are opened here, and for no others.

    `disk` is the `SimulatedDisk`, `fs` the `FaultyFileSystem` between it and the stores.
    """

    def __init__(
        self, path: str | os.PathLike[str], clock: ManualClock, *, seed: int = 0, **options: Any
    ) -> None:
        self.disk = SimulatedDisk(seed, clock=clock.wall_ms)
        self.fs = FaultyFileSystem(self.disk, self._plan)
        self._plans: list[Plan] = []
        self._seeds = itertools.count(seed)
        super().__init__(path, clock, fs=self.fs, **options)

    # --- calls that fail --------------------------------------------------------------------

    def fail_next(
        self,
        operation: str | Sequence[str],
        error: str | int | OSError | Fault = "EIO",
        *,
        skip: int = 0,
        times: int | None = 1,
        path: str = "*",
    ) -> None:
        """Have the next call of a kind fail, or the next but `skip`; and so many `times` in a row
        (`None`: from then on).

        A kind is "write", "fsync", "read", "any", one of `OPERATIONS`, or several of them. The
        error is the name or number of one of the system's, an `OSError` with such a number, or a
        `Fault`, such as `Crash()`. `path` is a pattern for the files that count, such as `"*.seg"`:
        segments are what messages are in.
        """
        if skip < 0 or (times is not None and times < 1):
            raise ValueError(f"skip and times are numbers of calls, not {skip!r} and {times!r}")
        end = None if times is None else skip + times
        self._add(operation, error, path, lambda n: n >= skip and (end is None or n < end))

    def fail_every(
        self,
        nth: int,
        operation: str | Sequence[str],
        error: str | int | OSError | Fault = "EIO",
        *,
        path: str = "*",
    ) -> None:
        """Have every `nth` call of a kind fail. The rest is as in `fail_next`."""
        if nth < 1:
            raise ValueError(f"nth is a number of calls, at least 1, not {nth!r}")
        self._add(operation, error, path, lambda n: (n + 1) % nth == 0)

    def stop_failing(self) -> None:
        """No call fails any more that was to. A disk that is full stays it."""
        self._plans = []

    @property
    def hits(self) -> list[Call]:
        """The calls that have failed because they were told to."""
        return list(self.fs.hits)

    def _add(
        self,
        operation: str | Sequence[str],
        error: str | int | OSError | Fault,
        path: str,
        is_meant: Callable[[int], bool],
    ) -> None:
        operations = _operations(operation)
        fault: Fault
        sync_fault: Fault
        if isinstance(error, Fail | Crash | ShortWrite | LoseDirty):
            _check_fault(error, operation, operations)
            fault = sync_fault = error
        else:
            number = _error_number(error)
            fault, sync_fault = Fail(number), LoseDirty(number)  # as Linux fails them
        numbers = itertools.count()  # its next is one step, whatever other threads do

        def plan(call: Call) -> Fault | None:
            if call.op not in operations or not fnmatchcase(call.path, path):
                return None
            if not is_meant(next(numbers)):
                return None
            return sync_fault if call.op == "sync" else fault

        self._plans = [*self._plans, plan]

    def _plan(self, call: Call) -> Fault | None:
        """Each plan counts the calls that are its own, also those that another one has fail."""
        found = [plan(call) for plan in self._plans]
        return next((fault for fault in found if fault is not None), None)

    # --- no space ---------------------------------------------------------------------------

    def fill_disk(self, room: int = 0) -> None:
        """Let there be no more than `room` bytes left. The stores notice it now and not, as they
        would, within seconds; one that was opened with `disk={"refuse_ratio": 1}` goes on until
        nothing fits. They have kept a reserve, as those with threads do."""
        self.disk.capacity = None
        plans, self._plans = self._plans, []  # what is to fail is what the test does
        for store in self._on_disk():
            store.reserve.fill()
        self._plans = plans
        space = self.disk.space("")
        self.disk.capacity = space.total - space.free + room
        self._look()

    def free_disk(self) -> None:
        """Let there be space again."""
        self.disk.capacity = None
        self._look()

    def _look(self) -> None:
        for store in self._on_disk():
            store.disk.look()

    def _on_disk(self) -> list[Store]:
        return [store for store in living_stores(self.clock) if store.fs is self.fs]

    # --- the end of processes and machines --------------------------------------------------

    def kill(self) -> None:
        """End the process that has the stores, as SIGKILL does. They are of no use any more; what
        they had written is there. `open` is the next process."""
        self._bury()
        self.disk.kill()

    def power_cut(self, seed: int | None = None, *, seconds_off: float = 0.0) -> None:
        """Cut the power, and start the machine again after so many seconds. What was synced is
        there; what else is, the seed decides, which is another one each time if none is given. The
        stores are of no use any more: `open` one."""
        self._bury()
        self.disk.crash(next(self._seeds) if seed is None else seed)
        self.clock.reboot(seconds_off)

    def _bury(self) -> None:
        """Forget the stores, so that what they have goes when the test forgets them, too."""
        dead = self._on_disk()
        bury(dead)
        self._opened = [each for each in self._opened if each not in dead]
        self._opened_async = [each for each in self._opened_async if each._store not in dead]
        self._plans = []
        self.fs.crashed = False

    def close(self) -> None:
        self._plans = []
        self.disk.capacity = None
        if self.fs.crashed:  # and the test has left it at that
            self._bury()
        super().close()

    def _close(self, close: Callable[[], object]) -> None:
        """A log that was told to fail may say so again, and has said it before."""
        try:
            close()
        except (TailraceError, OSError) as error:
            if not self.fs.hits:
                raise
            logger.warning("after a fault that a test asked for: %s", error)


def _operations(given: str | Sequence[str]) -> frozenset[Operation]:
    words = [given] if isinstance(given, str) else list(given)
    for word in words:
        if word not in _WORDS:
            raise ValueError(f"{word!r} is not an operation; there are {', '.join(_WORDS)}")
    return frozenset(operation for word in words for operation in _WORDS[word])


def _check_fault(
    fault: Fault, given: str | Sequence[str], operations: frozenset[Operation]
) -> None:
    """Refuse what would never happen, so that no test passes because nothing fails."""
    only: Operation | None = None
    if isinstance(fault, ShortWrite | LoseDirty):
        only = "pwrite" if isinstance(fault, ShortWrite) else "sync"
    if only is not None and only not in operations:
        words = given if isinstance(given, str) else ", ".join(given)
        raise ValueError(f"no {words} is one for a {type(fault).__name__}, only {only} is")


def _error_number(given: object) -> int:
    number: object = given
    if isinstance(given, str):
        number = getattr(errno, given, 0)
    elif isinstance(given, OSError):
        number = given.errno
    elif not isinstance(given, int) or isinstance(given, bool):
        raise TypeError(
            "expected an error such as 'EIO', errno.EIO, OSError(errno.EIO, '…') or a fault such "
            f"as Crash(), got {given!r}"
        )
    if not isinstance(number, int) or number not in errno.errorcode:
        raise ValueError(f"{given!r} is not an error of the system; name one, such as 'ENOSPC'")
    return number


def _run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a coroutine to its end, wherever we are: also where a loop runs, or belongs to somebody
    who would miss it."""
    import asyncio

    errors: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(work())
        except BaseException as error:  # noqa: BLE001  it is raised below
            errors.append(error)

    thread = threading.Thread(target=run, name="tailrace-closing")
    thread.start()
    thread.join()
    for error in errors:
        raise error
