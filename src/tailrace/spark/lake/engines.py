"""Who turns pieces of a log into files: threads of this process, or Spark.

Both do the same (`writing.py`): rows never leave the Python task that decodes them. Threads are
enough for a disk or two, because the decoder, the compressor and the disk all work without Python's
lock; Spark is for many machines that see the same folders.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from tailrace.errors import OffsetOutOfRange
from tailrace.log.fs import NO_SPACE, FileSystem, OsFileSystem
from tailrace.log.log import Log
from tailrace.spark.lake.manifest import Origin
from tailrace.spark.lake.writing import Piece, Staged, remove, write

__all__ = ["Direct", "Engine", "OnSpark", "Task", "in_order"]

T = TypeVar("T")
R = TypeVar("R")

_ROUNDS: Final = 2  # pieces of one core, between two commits


@dataclass(frozen=True)
class Task:
    """What is the same for all pieces."""

    store: str
    origin: Origin
    staging: str


class Engine(Protocol):
    name: str

    def run(
        self, fs: FileSystem, log: Log, task: Task, pieces: Sequence[Piece]
    ) -> Generator[Staged, None, None]:
        """Each piece, in order. What was staged and not handed out is removed."""


class Direct:
    """Threads."""

    name = "direct"

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads or max(min(os.cpu_count() or 1, 8), 2)  # one may wait for the disk

    def run(
        self, fs: FileSystem, log: Log, task: Task, pieces: Sequence[Piece]
    ) -> Generator[Staged, None, None]:
        def do(piece: Piece) -> Staged:
            return write(fs, log, task.origin, piece, task.staging)

        def drop(staged: Staged) -> None:
            remove(fs, [path for path, _ in staged.files])

        return in_order(pieces, do, self._threads, drop)


def in_order(
    items: Iterable[T],
    do: Callable[[T], R],
    threads: int,
    drop: Callable[[R], object] = lambda _: None,
) -> Generator[R, None, None]:
    """What becomes of each item, in order, some at a time. When it ends early, what was done and
    not handed out is dropped."""
    waiting: deque[Future[R]] = deque()
    remaining = iter(items)
    with ThreadPoolExecutor(threads, thread_name_prefix="tailrace-archive") as executor:
        try:
            while True:
                while len(waiting) <= threads:  # one is ready while the others work
                    try:
                        item = next(remaining)
                    except StopIteration:
                        break
                    waiting.append(executor.submit(do, item))
                if not waiting:
                    return
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
            for future in waiting:
                if not future.cancelled() and future.exception() is None:
                    drop(future.result())


class OnSpark:
    """Tasks of a Spark job. The executors see the store and the archive under the same paths."""

    name = "spark"

    def __init__(self, session: Any) -> None:
        self._context = session.sparkContext

    def run(
        self, fs: FileSystem, log: Log, task: Task, pieces: Sequence[Piece]
    ) -> Generator[Staged, None, None]:
        size = _ROUNDS * max(int(self._context.defaultParallelism), 1)
        for first in range(0, len(pieces), size):
            chosen = [(task, piece) for piece in pieces[first : first + size]]
            done = deque(self._context.parallelize(chosen, len(chosen)).map(_do).collect())
            try:
                while done:
                    staged, low, number = done.popleft()
                    if number:
                        raise OSError(number, os.strerror(number))
                    if staged is None:
                        raise OffsetOutOfRange(
                            f"retention has deleted what is below {low}", offset=0, low=low, high=0
                        )
                    yield staged
            finally:
                for each in done:
                    if each.staged is not None:
                        remove(fs, [path for path, _ in each.staged.files])


class _Done(NamedTuple):
    """What a task has come to: files; or where the log starts by now; or the number of an error."""

    staged: Staged | None
    low: int = 0
    number: int = 0


def _do(what: tuple[Task, Piece]) -> _Done:
    """In a task. What retention was faster to delete is no error there: the driver plans anew. A
    disk that is full is none, either: it is as full for a second try, and who called says where."""
    from tailrace.spark.planning import Place
    from tailrace.spark.workers import freeze_imports

    task, piece = what
    freeze_imports()
    place, origin = Place(task.store), task.origin
    place.check_same(origin.queue, origin.incarnation)
    with place.log(origin.queue, origin.incarnation) as log:
        if log is None:
            raise FileNotFoundError(place.folder(origin.queue))
        try:
            return _Done(write(OsFileSystem(), log, origin, piece, task.staging))
        except OffsetOutOfRange as error:
            return _Done(None, low=error.low)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            return _Done(None, number=error.errno)
