"""A Spark session for a laptop: quiet, and quick to start."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from typing import IO, TYPE_CHECKING, Any, Final

from tailrace.errors import TailraceError
from tailrace.spark.class_archive import ClassArchive
from tailrace.spark.interpreter import script_in
from tailrace.spark.java import JAVA_OPTIONS, find_java
from tailrace.spark.machine import processors
from tailrace.spark.masters import check_reachable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["end_jvm", "is_static", "local_session"]

_PYTHONS: Final = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
# The JVM's optimizing compiler takes a quarter of all processor time of a start, for code that is
# about to be done with. It waits for ten times as many calls as usual: what goes on for some
# seconds comes to it all the same.
_PATIENT: Final = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
_ENDING_S: Final = 10
_LONGEST_SOCKET: Final = 103  # bytes of its path, on whichever system has the least room
_TITLE: Final = "Error occurred during initialization of VM"

_jvm: subprocess.Popen[bytes] | None = None  # that `local_session` has started


def local_session(
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    purpose: str = "tables",
    of_sql: Mapping[str, str] | None = None,
) -> SparkSession:
    """A session with the settings that suit queues, and nothing of the logs of Spark and pyspark on
    the terminal (`TAILRACE_DEBUG=1` shows them).

    `master` is all cores of this machine (`local[*]`) unless it says otherwise; `conf` is added,
    and wins: `local_session(conf={"spark.driver.memory": "8g"})`. What differs from Spark's own
    defaults:

    | Setting | Is |
    |---|---|
    | `spark.driver.memory` | `2g`: with a local master all that Spark has, for the tasks, too |
    | `spark.sql.session.timeZone` | `UTC` |
    | `spark.sql.shuffle.partitions` | with a local master, twice the number of its cores |
    | `spark.sql.warehouse.dir` | with a local master, a folder that goes when the process ends |
    | `spark.ui.enabled`, `spark.ui.showConsoleProgress` | `false` |
    | `spark.log.level` | `ERROR` |

    A cluster that cannot be reached is refused at once. If this process has a session already,
    that is the one. Sessions of one `purpose` load about the same classes. Of `of_sql`, settings of
    Spark SQL, it has those that no session can change later.
    """
    try:
        from pyspark import SparkContext
        from pyspark.sql import SparkSession
    except ImportError:
        raise TailraceError("pyspark is missing: pip install 'tailrace[spark]'") from None
    _quiet_pyspark()
    settings = _settings(master or "local[*]", conf or {}, _folder_until_exit())
    is_local = settings["spark.master"].startswith("local")
    builder = SparkSession.builder
    if SparkContext._gateway is not None:
        return builder.config(map=settings).getOrCreate()
    check_reachable(settings["spark.master"])
    with _python(script_in(_folder_until_exit()) if is_local else None, settings):
        _start_jvm(settings, purpose)
        settings |= {name: value for name, value in (of_sql or {}).items() if is_static(name)}
        return builder.config(map=settings).getOrCreate()


def is_static(name: str) -> bool:
    """Is it a setting of Spark SQL that no session can change? For a process with a JVM."""
    from pyspark import SparkContext

    found: Any = SparkContext._jvm.org.apache.spark.sql.internal  # type: ignore[union-attr]
    found.StaticSQLConf.WAREHOUSE_PATH()  # some are known from when that is loaded
    return bool(found.SQLConf.isStaticConfigKey(name))


@contextlib.contextmanager
def _python(script: str | None, settings: Mapping[str, Any]) -> Iterator[None]:
    """Have Spark start this Python, by a script if there is one, unless somebody has chosen
    another. The JVM and the session look when they begin."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    names = [name for name in _PYTHONS if os.environ.get(name) == sys.executable]
    if script is None or "PYSPARK_PYTHON" not in names or "spark.pyspark.python" in settings:
        names = []
    for name in names:
        os.environ[name] = str(script)
    try:
        yield
    finally:
        for name in names:
            os.environ[name] = sys.executable


def _settings(master: str, given: Mapping[str, str], folder: str) -> dict[str, Any]:
    """`folder` is where Spark may put what goes with the session. It makes one for tables, whether
    there are any or not; not in the current one."""
    settings: dict[str, Any] = {
        "spark.master": master,
        "spark.app.name": "tailrace",
        "spark.driver.memory": "2g",
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **given,
    }
    if settings["spark.master"].startswith("local"):
        settings = _local_settings(settings["spark.master"], folder) | settings
    return settings


def _local_settings(master: str, folder: str) -> dict[str, str]:
    """Where all of Spark is on this machine, whose cores are those that work.

    From 4.1 on Spark can talk to Python by sockets that are files. By those that are ports each
    task begins with a pause of 40 ms: one system waits for the other to confirm the first part
    before it sends the second, and that one for something to send along.
    """
    settings = {
        "spark.sql.shuffle.partitions": str(2 * _cores(master)),
        "spark.sql.warehouse.dir": folder,
    }
    path = os.fsencode(folder) + b"/.12345678-1234-1234-1234-123456789abc.sock"
    if hasattr(socket, "AF_UNIX") and len(path) <= _LONGEST_SOCKET:
        settings["spark.python.unix.domain.socket.enabled"] = "true"
        settings["spark.python.unix.domain.socket.dir"] = folder
    return settings


def _quiet_pyspark() -> None:
    """It logs each error that it raises, kilobytes of JSON with the whole of Java's trace. They are
    its own kind of loggers, which have to be made by it."""
    from pyspark.logger import PySparkLogger

    is_quiet = not os.environ.get("TAILRACE_DEBUG")
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = is_quiet


@functools.cache
def _folder_until_exit() -> str:
    """One for this process."""
    folder = tempfile.mkdtemp(prefix="tailrace-spark-")
    atexit.register(_remove, folder, os.getpid())
    return folder


def _remove(folder: str, owner: int) -> None:
    """Not in a child that was forked, which knows of it, too."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def _cores(master: str) -> int:
    """As many as the master says, or else as this machine has."""
    said = re.fullmatch(r"local(?:\[(\d+)(?:,.*)?\])?", master)
    if said is not None:
        return int(said[1] or 1)
    return processors()


def _start_jvm(settings: dict[str, Any], purpose: str) -> None:
    """Spark's JVM, of which there is one in a process. What it says goes to a file that nobody
    sees, unless it does not start."""
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway

    launch: Any = launch_gateway  # it has no types
    archive = ClassArchive.of(find_java(), settings, purpose)
    given = _with_patience(settings.get(JAVA_OPTIONS, ""))
    with _said() as said, _on_loopback(settings["spark.master"]):
        while True:
            more = "" if archive is None else archive.options(is_heard=said is not None)
            conf = SparkConf(loadDefaults=False)
            for name, value in {**settings, JAVA_OPTIONS: f"{given} {more}".strip()}.items():
                conf.set(name, value)
            streams = {} if said is None else {"stdout": said, "stderr": said}
            try:
                with _no_orphans():
                    gateway = launch(conf, popen_kwargs=streams)
                break
            except (PySparkException, OSError) as error:
                if archive is not None and archive.is_used:  # perhaps it is that
                    archive.drop()
                    archive = None
                    continue
                raise TailraceError(f"Spark does not start: {_reason(said) or error}") from error
        SparkContext._ensure_initialized(gateway=gateway, conf=conf)
        if archive is not None and said is not None:
            archive.drop_if_refused(_text(said))
    if gateway.proc is not None:
        global _jvm
        _jvm = gateway.proc
        atexit.register(_leave, gateway.proc)


def _with_patience(given: str) -> str:
    """Options of the JVM, unless they say themselves when it is to compile."""
    is_told = re.search(r"Tier|CompileThreshold|-Xint|-Xcomp", given) is not None
    return given if is_told else f"{_PATIENT} {given}".strip()


def end_jvm() -> None:
    """End Spark with all that it is at, and return when it has ended. For a process that was
    interrupted and is about to end: to ask Spark to stop may fail then, in the middle of an answer.
    Nothing of Spark's works after it."""
    if _jvm is not None:
        _jvm.terminate()  # it removes its files
        try:
            _jvm.wait(_ENDING_S)
        except subprocess.TimeoutExpired:
            _jvm.kill()
            _jvm.wait()


@contextlib.contextmanager
def _no_orphans() -> Iterator[None]:
    """Who is interrupted here takes the JVM along: one that cannot tell anybody where it listens
    would go on for ever. pyspark keeps it to itself, so it is caught where it is started."""
    from pyspark import java_gateway

    module: Any = java_gateway
    popen = module.Popen
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(popen(*arguments, **options))
        return started[-1]

    module.Popen = start
    try:
        yield
    except BaseException:
        for process in started:
            process.kill()
            process.wait()
        raise
    finally:
        module.Popen = popen


def _leave(process: subprocess.Popen[bytes]) -> None:
    """The JVM ends when its input does, a moment after us. Nobody waits for that, and Python is not
    to complain of it."""
    process.returncode = 0


@contextlib.contextmanager
def _said() -> Iterator[IO[bytes] | None]:
    """Where the JVM, and all that it starts, may write."""
    if os.environ.get("TAILRACE_DEBUG"):
        yield None
        return
    with tempfile.TemporaryFile() as said:
        yield said


def _text(said: IO[bytes]) -> str:
    said.seek(0)
    return said.read().decode(errors="replace")


def _reason(said: IO[bytes] | None) -> str:
    """What a JVM said that did not start: the first line that is an error, or the last one. Some
    errors have a title, and the next line says what it is."""
    lines = [] if said is None else _text(said).split("\n")
    lines = [line.strip() for line in lines if line.strip()]
    if _TITLE in lines[:-1]:
        return lines[lines.index(_TITLE) + 1]
    wrong = re.compile(r"error|exception|invalid|unrecognized", re.IGNORECASE)
    return ([line for line in lines if wrong.search(line)] or lines[-1:] or [""])[0]


@contextlib.contextmanager
def _on_loopback(master: str) -> Iterator[None]:
    """Nobody else is to talk to a local session, and what the host is called does not matter."""
    if not master.startswith("local") or "SPARK_LOCAL_IP" in os.environ:
        yield
        return
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    try:
        yield
    finally:
        del os.environ["SPARK_LOCAL_IP"]
