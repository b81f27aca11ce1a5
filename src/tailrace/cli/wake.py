"""`tailrace bench wake`: how long it takes from an append to a follower in another process."""

from __future__ import annotations

import contextlib
import json as json_module
import select
import subprocess
import sys
import tempfile
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import click

from tailrace import Log
from tailrace.cli.measure import conditions, human_time, percentile
from tailrace.cli.stamps import write_stamps

__all__ = ["WakeSettings", "measure_wake", "wake"]

_PAUSE_S = 0.001
_FOLLOWERS_PER_PAUSE = 5  # with more, longer pauses: a record is to find its followers asleep
_MOST_SECONDS = 60.0  # of appending; with a slow disk, fewer records than asked for
_START_SECONDS = 60.0  # for the other process to begin
_END_SECONDS = 60.0  # for it to say what it saw


@dataclass(frozen=True)
class WakeSettings:
    """What to measure."""

    followers: int = 1
    count: int = 1000
    flush: str = "sync"


@click.command("wake")
@click.argument(
    "folder",
    metavar="[DIR]",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path(),
)
@click.option(
    "--followers",
    type=click.IntRange(1, 1000),
    default=1,
    show_default=True,
    help="Threads that follow, all in the other process.",
)
@click.option(
    "--count",
    type=click.IntRange(1, 100_000),
    default=1000,
    show_default=True,
    help="Records to append, for a minute at most: one a millisecond, fewer for many followers.",
)
@click.option(
    "--flush",
    type=click.Choice(["sync", "async"]),
    default="sync",
    show_default=True,
    help="When followers see a record: once it is on the disk, or at once.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def wake(folder: Path, followers: int, count: int, flush: str, as_json: bool) -> None:
    """Append here, follow in another process, and tell how long a record takes from one to the
    other.

    The log is a new one in DIR (the current directory), and is removed. A time begins before the
    append and ends when the follower has the record.

    \b
    Example:
      tailrace bench wake --flush async --followers 10
    """
    report = measure_wake(folder, WakeSettings(followers, count, flush))
    if as_json:
        click.echo(json_module.dumps(report, indent=2))
    else:
        _show(report)


def measure_wake(folder: Path, settings: WakeSettings) -> dict[str, Any]:
    """Measure in a temporary folder inside of `folder`."""
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-", dir=folder) as name:
        scratch = Path(name)
        appends, seen = _append_and_follow(scratch / "log", settings)
        conditions_seen = conditions(scratch)
    rows = [
        _row("append", appends),
        _row("append → seen", [age for ages in seen for age in ages]),
    ]
    if settings.followers > 1:
        rows.append(_row("append → seen by all", [max(ages) for ages in zip(*seen, strict=True)]))
    return {
        "conditions": {**conditions_seen, **asdict(settings), "records": len(appends)},
        "rows": rows,
    }


def _append_and_follow(path: Path, settings: WakeSettings) -> tuple[array[int], list[list[int]]]:
    """How long each append took, and for each follower how old each record was; nanoseconds."""
    with Log(path, flush=settings.flush) as log:
        append = log.append_one
        with _follower(path, settings.followers) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            _expect_ready(process.stdout)
            appends = write_stamps(
                lambda value: append(value).wait(),
                settings.count,
                pause_s=_PAUSE_S * max(1, settings.followers / _FOLLOWERS_PER_PAUSE),
                seconds=_MOST_SECONDS,
            )
            answer, _ = process.communicate("end\n", timeout=_END_SECONDS)
            if process.returncode:
                raise click.ClickException("the process that follows has failed")
    seen: list[list[int]] = json_module.loads(answer)
    return appends, seen


@contextlib.contextmanager
def _follower(path: Path, followers: int) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tailrace.cli.stamps", str(path), str(followers)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
    )
    try:
        yield process
    finally:
        for pipe in (process.stdin, process.stdout):  # its input ends, and so does it
            if pipe is not None:
                pipe.close()
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _expect_ready(output: IO[str]) -> None:
    readable, _, _ = select.select([output], [], [], _START_SECONDS)
    if not readable or output.readline() != "ready\n":
        raise click.ClickException("the process that follows does not start")


def _row(work: str, nanoseconds: Sequence[int]) -> dict[str, Any]:
    ordered = sorted(nanoseconds)
    return {
        "work": work,
        "p50_us": percentile(ordered, 50) / 1e3,
        "p99_us": percentile(ordered, 99) / 1e3,
        "max_us": ordered[-1] / 1e3,
    }


def _show(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    seen = report["conditions"]
    followers = "1 follower" if seen["followers"] == 1 else f"{seen['followers']} followers"
    table = Table(
        "work", "p50", "p99", "max",
        title=f"{seen['records']} records, flush {seen['flush']}, {followers} in another process",
        caption=f"tailrace {seen['tailrace']} ({seen['kernel']} kernel), Python {seen['python']}, "
        f"{seen['file_system']} on {seen['device']}, {seen['processor']}",
    )  # fmt: skip
    for row in report["rows"]:
        times = [human_time(row[name] * 1e3) for name in ("p50_us", "p99_us", "max_us")]
        table.add_row(row["work"], *times)
    with contextlib.suppress(BrokenPipeError):
        Console().print(table)
