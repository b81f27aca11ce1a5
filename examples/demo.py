"""What the log promises, shown: a writer is killed, and nothing it was promised is missing.

A child process appends batches and reports each one that the log acknowledged. In the middle of its
work it is killed with SIGKILL. The parent opens what is left, reads everything, and compares.

    python examples/demo.py [--seconds 1.0] [--keep DIR]
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

import tailrace

if TYPE_CHECKING:
    from collections.abc import Iterator

BATCH = 100
console = Console(highlight=False)


def value_of(number: int) -> bytes:
    """The value of the n-th record: each can be told from all others."""
    return f"order {number:012d} ".encode().ljust(256, b".")


def write_until_killed(folder: Path) -> None:
    """The child: append and, once the log says that a batch is durable, report its offsets."""
    with tailrace.Log(folder) as log:
        while True:
            first = log.end_offset
            batch = [(f"k{n % 1000}", value_of(n)) for n in range(first, first + BATCH)]
            receipt = log.append(batch).wait()
            os.write(sys.stdout.fileno(), b"%d %d\n" % (receipt.offset, receipt.end_offset))


def run_and_kill(folder: Path, seconds: float) -> list[range]:
    """Runs the child for a while and kills it. Returns the offsets that it was promised."""
    command = [sys.executable, __file__, "--writer", str(folder)]
    acknowledged: list[range] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        timer = threading.Timer(seconds, child.send_signal, [signal.SIGKILL])
        for line in child.stdout:
            if not acknowledged:  # it has begun
                timer.start()
            acknowledged.append(range(*map(int, line.split())))
    if child.returncode != -signal.SIGKILL:
        raise SystemExit(f"the writer ended by itself, with status {child.returncode}")
    return acknowledged


@contextmanager
def step(title: str) -> Iterator[list[str]]:
    """One line of the story: what was done, what came of it, how long it took."""
    outcome: list[str] = []
    started = time.perf_counter()
    yield outcome
    elapsed = time.perf_counter() - started
    shown = f"{elapsed:.2f} s" if elapsed >= 1 else f"{elapsed * 1000:.2f} ms"
    line = f"  [green]✓[/] {title:<27} [bold]{' '.join(outcome):<34}[/] [dim]{shown:>10}[/]"
    console.print(line, soft_wrap=True)


def check(condition: bool, promise: str) -> None:
    if not condition:
        console.print(f"  [red]✗ broken promise: {promise}[/]")
        raise SystemExit(1)


def show(folder: Path, seconds: float) -> None:
    console.print(f"\n[bold]tailrace {tailrace.__version__}[/], a log in {folder}\n")

    with step("append, then kill -9") as outcome:
        acknowledged = run_and_kill(folder, seconds)
        outcome.append(f"{sum(map(len, acknowledged)):,} records acknowledged")

    with step("append more, then kill -9") as outcome:
        more = run_and_kill(folder, seconds / 2)
        acknowledged += more
        outcome.append(f"{sum(map(len, more)):,} more acknowledged")

    with step("open what is left") as outcome:
        log = tailrace.Log(folder)
        outcome.append(f"offsets {log.start_offset:,} to {log.end_offset:,}")

    with log:
        with step("read everything and compare") as outcome:
            timestamps: dict[int, int] = {}
            last = -1
            for record in log.read():
                offset, timestamp = record.offset, record.timestamp
                assert offset is not None  # a record that was read has both
                assert timestamp is not None
                check(offset > last, "offsets rise")
                check(record.value == value_of(offset), "a value is what was appended")
                timestamps[offset] = timestamp
                last = offset
            complete = all(offset in timestamps for batch in acknowledged for offset in batch)
            check(complete, "every acknowledged record is there")
            outcome.append(f"{len(timestamps):,} records, none missing")

        moment = random.choice(list(timestamps.values()))
        with step("find a moment") as outcome:
            found = log.offset_at(moment)
            clock = time.strftime("%H:%M:%S", time.localtime(moment / 1000))
            outcome.append(f"{clock}.{moment % 1000:03d} is offset {found:,}")
        check(timestamps[found] >= moment, "a time lookup finds a record of that time")
        earlier = (stamp for offset, stamp in timestamps.items() if offset < found)
        check(all(stamp < moment for stamp in earlier), "and it is the first one")

        with step("append after the crash") as outcome:
            receipt = log.append([b"and on it goes"]).wait()
            check(receipt.offset > last, "offsets are never reused")
            outcome.append(f"durable at offset {receipt.offset:,}")

    with step("close, open, read the last") as outcome, tailrace.Log(folder) as again:
        [final] = again.read(again.end_offset - 1)
        check(final.value == b"and on it goes", "what was durable stays")
        outcome.append(f"offset {final.offset:,}, as it was appended")

    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    console.print(f"\n  {size / 1e6:,.1f} MB on disk; every promise kept.\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="Show that a killed writer loses nothing.")
    parser.add_argument("--seconds", type=float, default=1.0, help="how long the writer lives")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="write the log here, and keep it")
    parser.add_argument("--writer", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.writer is not None:
        write_until_killed(arguments.writer)
    elif arguments.keep is not None:
        if arguments.keep.exists() and any(arguments.keep.iterdir()):
            parser.error(f"{arguments.keep} is not empty")
        show(arguments.keep, arguments.seconds)
    else:
        with tempfile.TemporaryDirectory(prefix="tailrace-demo-") as folder:
            show(Path(folder), arguments.seconds)


if __name__ == "__main__":
    main()
