"""`tailrace bench`: how fast this machine is with it, beside what the machine can do at all.

The small version that ships: our own rates, with the limit. The comparison with other libraries and
the targets are in the repository (`scripts/bench log`, `scripts/bench processes`).
"""

from __future__ import annotations

import contextlib
import json as json_module
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from time import time_ns
from typing import Any

import click

from tailrace import Log
from tailrace.cli.measure import (
    RawFile,
    Sample,
    conditions,
    human_bytes,
    human_rate,
    human_time,
    memory_copy,
    percentile,
    pinned,
    read_files,
    time_all,
    time_each,
)
from tailrace.cli.wake import wake
from tailrace.kernel import encode

__all__ = ["Settings", "bench", "run"]

_POOL = 16  # different batches, so that not everything stays in the nearest cache
_MOST_BYTES = 4 << 30  # what a run may put on the disk


@dataclass(frozen=True)
class Settings:
    """What to measure."""

    seconds: float = 3.0
    size: int = 256
    batch: int = 1000
    flush: str = "sync"


@click.group()
def bench() -> None:
    """Measure speed on this machine.

    \b
    Example:
      tailrace bench log --seconds 1
    """


bench.add_command(wake)


@bench.command("log")
@click.option(
    "--dir",
    "folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path(),
    help="Where to write; what was written is removed.  [default: the current directory]",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.01, max=600),
    default=3.0,
    show_default=True,
    help="How long to append.",
)
@click.option(
    "--size",
    type=click.IntRange(0, 1 << 20),
    default=256,
    show_default=True,
    help="Bytes in a value.",
)
@click.option(
    "--batch",
    type=click.IntRange(1, 65_535),
    default=1000,
    show_default=True,
    help="Records in a batch.",
)
@click.option(
    "--flush",
    type=click.Choice(["sync", "async", "none"]),
    default="sync",
    show_default=True,
    help="When an append counts as done.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def log_command(
    folder: Path, seconds: float, size: int, batch: int, flush: str, as_json: bool
) -> None:
    """Append to a new log and read it back, beside plain system calls on the same bytes.

    One core, one thread. The limit of appending is `write` (with `fdatasync` for each batch if the
    log is flushed by `sync`), that of reading is `read`.

    \b
    Example:
      tailrace bench log --flush async --size 1000 --batch 100
    """
    settings = Settings(seconds, size, batch, flush)
    if size * batch > 15 << 20:
        raise click.BadParameter(f"{batch} values of {size} bytes do not fit in one batch")
    report = run(folder, settings)
    if as_json:
        click.echo(json_module.dumps(report, indent=2))
    else:
        _show(report)


def run(folder: Path, settings: Settings) -> dict[str, Any]:
    """Measure in a temporary folder inside of `folder`."""
    with (
        tempfile.TemporaryDirectory(prefix="tailrace-bench-", dir=folder) as name,
        pinned() as core,
    ):
        scratch = Path(name)
        rows = [*_append_rows(scratch, settings), *_read_rows(scratch, settings)]
        seen = conditions(scratch)
    return {"conditions": {**seen, "core": core, **asdict(settings), "codec": "none"}, "rows": rows}


def _append_rows(scratch: Path, settings: Settings) -> Iterator[dict[str, Any]]:
    """Ours and the limit in turns, because a shared machine changes from second to second."""
    values = [[os.urandom(settings.size) for _ in range(settings.batch)] for _ in range(_POOL)]
    drafts = [encode(batch, time_ns() // 1_000_000) for batch in values]
    encoded = [bytes(draft.place(0)) for draft in drafts]
    turns, ours, limits = 4, [], []
    most = max(_MOST_BYTES // len(encoded[0]) // turns, 1)
    with (
        Log(scratch / "log", flush=settings.flush) as log,
        RawFile(scratch / "raw") as raw,
    ):
        append = _appending(log, settings.batch)
        write = raw.syncing_writer() if settings.flush == "sync" else raw.writer()
        for _ in range(turns):
            ours.append(_bounded(append, values, settings, most))
            limits.append(_bounded(write, encoded, settings, most))
    name = "write + fdatasync" if settings.flush == "sync" else "write"
    size = len(encoded[0]) / settings.batch
    yield _row("append", _merged(ours), name, _merged(limits), size)


def _appending(log: Log, batch: int) -> Callable[[list[bytes]], object]:
    if batch == 1:
        return lambda values: log.append_one(values[0]).wait()
    return lambda values: log.append(values).wait()


def _bounded(
    operation: Callable[[Any], object], pool: list[Any], settings: Settings, most: int
) -> Sample:
    items = (pool[i % _POOL] for i in range(most))
    return time_each(operation, items, records=settings.batch, seconds=settings.seconds / 8)


def _merged(samples: list[Sample]) -> Sample:
    whole = Sample(0, 0.0)
    for sample in samples:
        whole.add(sample)
    return whole


def _read_rows(scratch: Path, settings: Settings) -> Iterator[dict[str, Any]]:
    files = sorted((scratch / "log").glob("*.seg"))
    total = sum(path.stat().st_size for path in files)
    with Log(scratch / "log", read_only=True) as log:
        count = log.end_offset - log.start_offset
        size = total / count
        plain = Sample(count, time_all(read_files, [files]))
        records = Sample(count, time_all(_touch, log.read()))
        yield _row("read as records", records, "read", plain, size)
        if find_spec("pyarrow") is not None:
            next(log.read_arrow(end=log.start_offset + 1))  # the import is not the reading
            plain = Sample(count, time_all(read_files, [files]))
            arrow = Sample(count, time_all(_count_rows, log.read_arrow()))
            yield _row("read to Arrow", arrow, "read", plain, size)
    copied = Sample(count, time_all(memory_copy, [total]))
    yield {"work": "copy in memory", "records_per_second": copied.rate, "bytes_per_record": size}


def _touch(record: Any) -> None:
    _ = record.value


def _count_rows(batch: Any) -> int:
    return int(batch.num_rows)


def _row(work: str, ours: Sample, name: str, limit: Sample, size: float) -> dict[str, Any]:
    row: dict[str, Any] = {
        "work": work,
        "records_per_second": ours.rate,
        "bytes_per_record": size,
        "limit": name,
        "limit_records_per_second": limit.rate,
        "ratio": ours.rate / limit.rate,
    }
    if ours.latencies:
        ordered = sorted(ours.latencies)
        row |= {"p50_us": percentile(ordered, 50) / 1e3, "p99_us": percentile(ordered, 99) / 1e3}
    return row


def _show(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    seen = report["conditions"]
    table = Table(
        "work", "records", "bytes", "p50", "p99", "limit", "of the limit",
        title=f"{seen['size']} B values, batches of {seen['batch']}, flush {seen['flush']}",
        caption=f"tailrace {seen['tailrace']} ({seen['kernel']} kernel, crc32c {seen['crc32c']}), "
        f"Python {seen['python']}, {seen['file_system']} on {seen['device']}, {seen['processor']}",
    )  # fmt: skip
    for row in report["rows"]:
        rate = row["records_per_second"]
        times = [human_time(row[p] * 1e3) if p in row else "" for p in ("p50_us", "p99_us")]
        limit = ["", ""]
        if "limit" in row:
            shown = human_rate(row["limit_records_per_second"])
            limit = [f"{row['limit']}: {shown}", f"{row['ratio']:.0%}"]
        table.add_row(
            row["work"],
            human_rate(rate),
            human_bytes(rate * row["bytes_per_record"]) + "/s",
            *times,
            *limit,
        )
    console = Console()
    with contextlib.suppress(BrokenPipeError):
        console.print(table)
