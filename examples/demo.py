"""What is promised, shown: processes are killed, and nothing that they were promised is missing.

The log: a child process appends batches and reports each one that was acknowledged. In the middle
of its work it is killed with SIGKILL. The parent opens what is left, reads it all, and compares.

The queue: of two workers one is killed while it holds messages, and they come back to the other. A
message that fails each time goes to the dead letters, from which it returns when the mistake is
mended.

The pipeline: sales in a stream are plotted, summed up by SQL into another queue, archived to
Parquet, and asked for with SQL, live and archived ones as one table. What needs Spark is left out
where there is none, or no Java.

    python examples/demo.py [--seconds 1.0] [--keep DIR]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import Progress

import tailrace

if TYPE_CHECKING:
    from collections.abc import Iterator

BATCH = 100
ORDERS = 1_000
PREFETCH = 50
SALES = 300_000
COUNTRIES = ("de", "fr", "pl")
CONFIGURATION = """\
pipelines:
  - name: revenue
    from: sales
    format: json
    schema: "country string, amount long"
    sql: SELECT country AS key, sum(amount) AS revenue FROM sales GROUP BY country
    output_mode: update
    to: revenue
"""
POISON = 700
WHERE = {
    "log": "the log that its writer was killed at",
    "store": "the queues: orders, sales and revenue",
    "lake/sales": "the archive: Parquet files that any tool reads",
    "sales.html": "a plot: open it with a browser",
    "tailrace.yaml": "the configuration, with the pipeline",
}
console = Console(highlight=False)


# --- how the story is told ------------------------------------------------------------------


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


def size_of(folder: Path) -> str:
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return f"{size / 1e6:,.1f} MB"


# --- the log --------------------------------------------------------------------------------


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


def show_log(folder: Path, seconds: float) -> None:
    console.print(f"\n[bold]A log[/] in {folder}\n")

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


# --- the queue ------------------------------------------------------------------------------


def take_and_hang(folder: Path) -> None:
    """The worker that is killed: it takes messages, says so, and settles none."""
    with tailrace.open(folder) as store:
        messages = store.queue("orders").consumer(group="shipping").receive(PREFETCH, wait=60.0)
        os.write(sys.stdout.fileno(), b"%d\n" % len(messages))
        time.sleep(3600)


def kill_a_worker(folder: Path) -> int:
    """How many messages a worker held when it was killed."""
    command = [sys.executable, __file__, "--worker", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        held = int(worker.stdout.readline())
        worker.kill()
    return held


class Shipping:
    """The application: it counts what it has shipped, and cannot ship one of the orders yet."""

    def __init__(self) -> None:
        self.shipped: Counter[bytes | None] = Counter()
        self.seen_before = 0
        self.is_mended = False

    def work(self, consumer: tailrace.Consumer) -> None:
        """Ship until nothing is left that could be tried once more."""
        while messages := consumer.receive(100, wait=1.0):
            for message in messages:
                self.seen_before += message.delivery_count > 1
                with suppress(LookupError), message:  # acks, or gives it back if the block raises
                    self.ship(message.value)

    def ship(self, order: bytes | None) -> None:
        if order == value_of(POISON) and not self.is_mended:
            raise LookupError("its address cannot be read")
        self.shipped[order] += 1


def show_queue(folder: Path) -> None:
    console.print(f"\n[bold]A queue[/] in {folder}\n")
    shipping = Shipping()
    retry = {"max_retries": 2, "initial_backoff": "50ms", "max_backoff": "200ms"}
    with tailrace.open(folder) as store:
        orders = store.queue("orders", retry=retry)
        with step("publish") as outcome:
            orders.publish_many([value_of(number) for number in range(ORDERS)])
            outcome.append(f"{ORDERS:,} orders")

        with step("a worker, then kill -9") as outcome:
            held = kill_a_worker(folder)
            check(orders.pending("shipping") != [], "what it held is not lost with it")
            outcome.append(f"{held} orders were in its hands")

        consumer = orders.consumer(group="shipping")
        with step("another worker") as outcome:
            shipping.work(consumer)
            check(shipping.seen_before >= held, "what a dead worker held comes back")
            check(max(shipping.shipped.values()) == 1, "what was acknowledged does not come back")
            outcome.append(f"{shipping.shipped.total():,} shipped, {held} of them came back")

        with step("the one that always fails") as outcome:
            [letter] = store.dead("orders")
            check(letter.value == value_of(POISON), "only what fails goes to the dead letters")
            tries = letter.headers["_dlq_delivery_count"].decode()
            outcome.append(f"is a dead letter after {tries} tries")

        with step("mend it, then redrive") as outcome:
            shipping.is_mended = True
            store.redrive("orders")
            shipping.work(consumer)
            check(store.dead("orders") == [], "what is redriven is no dead letter any more")
            check(len(shipping.shipped) == shipping.shipped.total() == ORDERS, "each once")
            outcome.append(f"all {ORDERS:,} shipped, each once")


# --- the pipeline ---------------------------------------------------------------------------


def run(folder: Path, *words: str) -> str:
    """A command of ours, as anybody would type it; what it writes."""
    console.print(f"    [dim]$ tailrace {shlex.join(words)}[/]", soft_wrap=True)
    done = subprocess.run(
        [sys.executable, "-m", "tailrace", *words],
        cwd=folder,
        env={**os.environ, "TAILRACE_STORE": "store"},
        capture_output=True,
        text=True,
        check=False,
    )
    check(done.returncode == 0, f"tailrace {words[0]}: {done.stderr.strip()}")
    return done.stdout


def has_spark() -> bool:
    """Is there all that Spark needs? Java is a program of its own."""
    java = "JAVA_HOME" in os.environ or shutil.which("java") is not None
    return java and importlib.util.find_spec("pyspark") is not None


def _bar() -> Progress:
    return Progress(console=console, transient=True, disable=not console.is_terminal)


def publish_sales(folder: Path) -> dict[str, int]:
    """What was sold in each country."""
    total = dict.fromkeys(COUNTRIES, 0)
    with tailrace.open(folder) as store, _bar() as progress:
        sales = store.stream("sales", segment_bytes="4MiB", compression="none")
        bar = progress.add_task("  sales", total=SALES)
        for first in range(0, SALES, 1000):
            batch = []
            for number in range(first, first + 1000):
                country, amount = COUNTRIES[number % 3], number % 90 + 10
                total[country] += amount
                batch.append((country, json.dumps({"country": country, "amount": amount})))
            sales.publish_many(batch)
            progress.advance(bar, len(batch))
    return total


def show_pipeline(folder: Path) -> None:
    console.print(f"\n[bold]A pipeline[/] over a stream in {folder / 'store'}\n")
    with step("publish") as outcome:
        total = publish_sales(folder / "store")
        outcome.append(f"{SALES:,} sales in {len(COUNTRIES)} countries")

    with step("plot them") as outcome:
        run(folder, "spark", "stats", "sales", "--plot", "sales.html")
        outcome.append("sales.html")

    is_with_spark = has_spark()
    if is_with_spark:
        (folder / "tailrace.yaml").write_text(CONFIGURATION)
        with step("sum them up as they come") as outcome:
            run(folder, "pipeline", "run", "revenue", "--once")
            with tailrace.open(folder / "store") as store:
                written = {
                    (message.key or b"").decode(): json.loads(message.value or b"")["revenue"]
                    for message in store.stream("revenue").read()
                }
            check(written == total, "each sale counts, and counts once")
            outcome.append(", ".join(f"{name} {sold:,}" for name, sold in written.items()))

    with step("archive full segments") as outcome:
        words = ("archive", "sales", "--to", "lake/sales", "--partition-by", "date")
        report = json.loads(run(folder, *words, "--delete", "--json"))
        outcome.append(f"{report['rows']:,} sales, {report['bytes'] / 1e6:.1f} MB of Parquet")
        check(report["deleted_segments"] > 0, "what is verified in the archive may go")

    if is_with_spark:
        with step("ask for all of them") as outcome:
            statement = "SELECT count(*) AS sales, count(DISTINCT offset) AS offsets FROM sales"
            found = json.loads(run(folder, "sql", "--include-archive", "--json", statement))
            check(found == {"sales": SALES, "offsets": SALES}, "none twice, and none missing")
            outcome.append(f"{found['sales']:,}, live and archived")
    else:
        console.print("  left out: what needs Spark (pip install 'tailrace[spark]', and Java 17)")


# --- all of it --------------------------------------------------------------------------------


def show(folder: Path, seconds: float) -> None:
    console.print(f"\n[bold]tailrace {tailrace.__version__}[/]")
    show_log(folder / "log", seconds)
    show_queue(folder / "store")
    show_pipeline(folder)
    console.print(f"\n  Every promise kept. {size_of(folder)} in {folder}:\n", soft_wrap=True)
    for name, what in WHERE.items():
        if (folder / name).exists():
            console.print(f"    {name:<15} {what}")
    console.print()


def main() -> None:
    parser = argparse.ArgumentParser(description="Show that a killed process loses nothing.")
    parser.add_argument("--seconds", type=float, default=1.0, help="how long the writer lives")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="write here, and keep it")
    parser.add_argument("--writer", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.writer is not None:
        write_until_killed(arguments.writer)
    elif arguments.worker is not None:
        take_and_hang(arguments.worker)
    elif arguments.keep is not None:
        if arguments.keep.exists() and any(arguments.keep.iterdir()):
            parser.error(f"{arguments.keep} is not empty")
        show(arguments.keep, arguments.seconds)
        console.print(f"  Look around: tailrace stats --store {arguments.keep / 'store'}\n")
    else:
        with tempfile.TemporaryDirectory(prefix="tailrace-demo-") as folder:
            show(Path(folder), arguments.seconds)
        console.print("  All of it is gone again; --keep DIR leaves it there.\n")


if __name__ == "__main__":
    main()
