"""Where the items of a job are worked on, and how far that is.

What is small is done in this process, by a thread for each processor: the kernel works outside of
Python's lock. Starting Spark takes as long as reading gigabytes. On Spark, items go to tasks in
runs that are of about the same size, each task returns what came of its items and nothing else, and
the order is kept.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeVar

from tailrace.errors import TailraceError
from tailrace.spark.machine import processors
from tailrace.spark.session import local_session
from tailrace.units import format_size

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

__all__ = ["Means", "Path", "Progress", "Running", "Sized", "runs"]

SMALL: Final = 4 << 30  # less is done in this process, unless it is told otherwise
PIECE_BYTES: Final = 32 << 20  # what a job cuts segments into
_RUN_BYTES: Final = 64 << 20  # a task costs as much as reading some megabytes
_MOST_RUNS: Final = 256  # what came of them is all here in the end
_LOOK_S: Final = 0.1  # between two looks at how far Spark is

Path = Literal["direct", "spark"]
Progress = Callable[[int, int | None], object]  # bytes done, of how many


class Sized(Protocol):
    """An item of work. On Spark it is pickled."""

    @property
    def size(self) -> int: ...


Item = TypeVar("Item", bound=Sized)
Found = TypeVar("Found")


@dataclass(frozen=True)
class Means:
    """What a job may use. `spark` says whether it is to use Spark; if it does not, whoever names a
    master or a setting wants it, and else the size of the work decides. `session` is one that is
    there already."""

    spark: bool | None = None
    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    session: SparkSession | None = None
    progress: Progress | None = None

    @property
    def chosen(self) -> bool | None:
        """Is it to be Spark, or not; `None` if nobody has said."""
        if self.spark is None and (self.master is not None or self.conf):
            return True
        return self.spark


class Running:
    """One job. `path` and `why` say where it runs; nothing is started before there is something to
    do. Not thread-safe."""

    def __init__(self, means: Means, total: int) -> None:
        self._means = means
        self.total = total
        self._done = 0
        self._began = time.monotonic()
        chosen = means.chosen
        is_large = total >= SMALL
        self.path: Path = "spark" if (is_large if chosen is None else chosen) else "direct"
        self.is_chosen = chosen is not None
        self.tasks = 0

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    @property
    def why(self) -> str:
        """For people: where it ran, and what else they could say."""
        size = format_size(self.total)
        if self.path == "spark":
            other = "" if self.is_chosen else "; --no-spark keeps it in this process"
            return f"{size}: done by Spark{other}"
        other = "" if self.is_chosen else "; --spark has Spark do it"
        return f"{size}: done in this process{other}"

    def run(
        self,
        work: Callable[[Item], Found],
        items: Sequence[Item],
        *,
        counts: bool = True,
    ) -> list[Found]:
        """What comes of each item, in order. `work` is a function of a module, or a part of one.
        Items that do not count were counted before."""
        if not items:
            return []
        if self.path == "spark":
            return self._on_spark(work, items, counts)
        return self._here(work, items, counts)

    def finish(self) -> None:
        self._tell(self.total)

    def _tell(self, done: int) -> None:
        if self._means.progress is not None:
            self._means.progress(min(done, self.total), self.total)

    # --- in this process --------------------------------------------------------------------

    def _here(
        self, work: Callable[[Item], Found], items: Sequence[Item], counts: bool
    ) -> list[Found]:
        found = []
        with ThreadPoolExecutor(processors()) as threads:
            waiting = [threads.submit(work, item) for item in items]
            try:
                for item, each in zip(items, waiting, strict=True):
                    found.append(each.result())
                    if counts:
                        self._done += item.size
                        self._tell(self._done)
            except BaseException:
                for each in waiting:
                    each.cancel()
                raise
        return found

    # --- on Spark ---------------------------------------------------------------------------

    def _on_spark(
        self, work: Callable[[Item], Found], items: Sequence[Item], counts: bool
    ) -> list[Found]:
        context: SparkContext = self._session().sparkContext
        parts = list(runs(items, 2 * context.defaultParallelism))
        self.tasks += len(parts)
        rdd = context.parallelize(parts, len(parts)).map(partial(_task, work))
        size = sum(item.size for item in items) if counts else 0
        with _plain_errors():
            if self._means.progress is None:
                lists: list[list[Found]] = rdd.collect()
            else:
                lists = _watched(rdd, lambda share: self._tell(self._done + int(share * size)))
        self._done += size
        return [each for found in lists for each in found]

    def _session(self) -> SparkSession:
        if self._means.session is not None:
            return self._means.session
        before = signal.getsignal(signal.SIGINT)
        try:
            with _plain_errors():
                return local_session(self._means.master, self._means.conf)
        except TailraceError as error:
            raise TailraceError(f"{error}; --no-spark does it in this process") from error
        finally:
            with contextlib.suppress(ValueError):  # not the main thread
                signal.signal(signal.SIGINT, before)  # Spark's asks the JVM, amid an answer


def runs(items: Sequence[Item], least: int) -> Iterator[list[Item]]:
    """Items that follow one another, in runs of about the same size: enough of them to keep all
    processors busy, and not more than is worth a task each."""
    total = sum(item.size for item in items)
    wanted = min(max(least, total // _RUN_BYTES), max(_MOST_RUNS, least))
    share = max(total // wanted, 1)
    current: list[Item] = []
    size = 0
    for item in items:
        if current and size + item.size // 2 > share:
            yield current
            current, size = [], 0
        current.append(item)
        size += item.size
    if current:
        yield current


@contextlib.contextmanager
def _plain_errors() -> Iterator[None]:
    """What Spark says is wrong, in a line, and nothing of it in the log."""
    try:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException
    except ImportError:
        raise TailraceError("pyspark is missing: pip install 'tailrace[spark]'") from None
    from tailrace.spark.statements import describe, quietly

    with quietly():
        try:
            yield
        except (PySparkException, Py4JError) as error:
            raise TailraceError(describe(error)) from error


def _task(work: Callable[[Item], Found], items: Iterable[Item]) -> list[Found]:
    """In a process of Spark's."""
    from tailrace.spark.workers import freeze_imports

    freeze_imports()
    return [work(item) for item in items]


def _watched(rdd: Any, tell: Callable[[float], object]) -> list[Any]:
    """Collect, and tell meanwhile which share of the tasks is done. The thread is left alone if
    this one is interrupted: the process is about to end then, and Spark with it."""
    from pyspark import InheritableThread

    context = rdd.context
    group = f"tailrace-{os.getpid()}-{id(rdd):x}"
    found: list[Any] = []
    failed: list[BaseException] = []

    def collect() -> None:
        try:
            context.setJobGroup(group, "tailrace")
            found.extend(rdd.collect())
        except BaseException as error:  # noqa: BLE001 (raised again below)
            failed.append(error)

    thread = InheritableThread(target=collect, daemon=True)
    thread.start()
    tracker = context.statusTracker()
    while thread.is_alive():
        thread.join(_LOOK_S)
        for job in tracker.getJobIdsForGroup(group):
            info = tracker.getJobInfo(job)
            stages = [tracker.getStageInfo(stage) for stage in (info.stageIds if info else [])]
            for stage in stages:
                if stage is not None and stage.numTasks:
                    tell(stage.numCompletedTasks / stage.numTasks)
    if failed:
        raise failed[0]
    return found
