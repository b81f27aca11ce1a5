"""What commands share that have Spark at work."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from tailrace.cli.output import progress_bar
from tailrace.errors import TailraceError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["errors_of_spark", "spark_options", "watched"]

F = TypeVar("F", bound=Callable[..., Any])

_LOOK_S: Final = 0.2  # between two looks at how far Spark is
_ENDING_S: Final = 2.0
_PATIENCE_S: Final = 10.0  # after which somebody is told that there is no executor


def _parse_conf(_: click.Context, __: click.Parameter, pairs: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.startswith("spark."):
            raise click.BadParameter(
                f"{pair!r} is not NAME=VALUE with a name such as spark.ui.port"
            )
        found[name] = value
    return found


def spark_options(command: F) -> F:
    """`--master` and `--conf`."""
    master = click.option(
        "--master", metavar="URL", help="Where Spark runs.  [default: local[*], on this machine]"
    )
    conf = click.option(
        "--conf",
        multiple=True,
        callback=_parse_conf,
        metavar="NAME=VALUE",
        help="A setting of Spark; may be given more than once.",
    )
    return master(conf(command))


def errors_of_spark() -> tuple[type[Exception], ...]:
    """What Spark raises, in this process and in its own; `TailraceError` where it is missing."""
    try:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException
    except ImportError:
        raise TailraceError("pyspark is missing: pip install 'tailrace[spark]'") from None
    return PySparkException, Py4JError


# --- to watch it ----------------------------------------------------------------------------


@contextlib.contextmanager
def watched(spark: SparkSession, label: str) -> Iterator[None]:
    """Shows those who watch how many tasks are done of those that are known, and what is waited
    for if none begins. To others it shows nothing, and costs nothing."""
    with progress_bar(label, unit="tasks") as progress:
        if progress is None:
            yield
            return
        from pyspark import InheritableThread

        is_over = threading.Event()
        watch = _Watch(spark, progress)
        thread = InheritableThread(target=watch.run, args=(is_over,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join(_ENDING_S)  # Spark may have ended, and not answer


class _Watch:
    """Of all jobs that are seen at work; others are too short to matter."""

    def __init__(self, spark: SparkSession, progress: Callable[[int, int | None], object]) -> None:
        self._context: Any = spark.sparkContext
        self._progress = progress
        self._stages: dict[int, tuple[int, int]] = {}  # tasks done, and all
        self._idle_since = time.monotonic()
        self._is_told = False

    def run(self, is_over: threading.Event) -> None:
        with contextlib.suppress(Exception):  # an interrupt has ended Spark
            tracker = self._context.statusTracker()
            while not is_over.wait(_LOOK_S):
                self._look(tracker)

    def _look(self, tracker: Any) -> None:
        is_waiting = False
        jobs = [tracker.getJobInfo(job) for job in tracker.getActiveJobsIds()]
        seen = {stage for job in jobs if job is not None for stage in job.stageIds}
        for stage in seen | {stage for stage, (done, most) in self._stages.items() if done < most}:
            found = tracker.getStageInfo(stage)
            if found is not None and found.numTasks:
                self._stages[stage] = (found.numCompletedTasks, found.numTasks)
                is_waiting |= not (found.numActiveTasks or found.numCompletedTasks)
        if self._stages:
            done, most = map(sum, zip(*self._stages.values(), strict=True))
            self._progress(done, most)
        if not is_waiting:
            self._idle_since = time.monotonic()
        elif not self._is_told and time.monotonic() - self._idle_since > _PATIENCE_S:
            self._tell_of_executors()

    def _tell_of_executors(self) -> None:
        """If there is none: the driver is counted as one."""
        master = self._context.master
        if (
            master.startswith("local")
            or self._context._jsc.sc().getExecutorMemoryStatus().size() > 1
        ):
            return
        self._is_told = True
        memory = self._context.getConf().get("spark.executor.memory", "1g")
        # Not by click, which would write past the bar into its line.
        sys.stderr.write(f"tailrace: {no_executor(master, memory)}\n")


def no_executor(master: str, memory: str) -> str:
    """What is waited for, and where to look."""
    host = master.partition("spark://")[2].partition(",")[0].rpartition(":")[0]
    where = f"the page of the master, mostly http://{host}:8080," if host else "its cluster manager"
    return (
        f"waiting for an executor: {master} has no worker with a free core and {memory} of memory "
        f"(--conf spark.executor.memory=… asks for less); {where} shows what there is"
    )
