"""What is promised, shown: processes are killed, and nothing that they were promised is missing.

The log: a child process appends batches and reports each one that was acknowledged. In the middle
of its work it is killed with SIGKILL. The parent opens what is left, reads it all, and compares.

The queue: two workers share it. One of them is killed in the middle, with messages in its hands;
the other goes on, and gets them. A message that fails each time goes to the dead letters, from
which it returns when the mistake is mended.

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
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import Progress

import tailrace

if TYPE_CHECKING:
    from collections.abc import Iterator

BATCH = 100
ORDERS = 20_000
PREFETCH = 50
HANGS_AFTER = 30  # batches of one worker, while the other does as much
PATIENCE_S = 2.0
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


def _bar() -> Progress:
    return Progress(console=console, transient=True, disable=not console.is_terminal)


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


def show_log(folder: Path, seconds: float) -> list[str]:
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
    promised = sum(map(len, acknowledged))
    return [
        f"a log kept all of {promised:,} records that it had acknowledged, through two kill -9",
        "its offsets rise, are never used again, and are found by their time",
    ]


# --- the queue ------------------------------------------------------------------------------


class Shipping:
    """The application: it cannot ship one of the orders until that is mended."""

    def __init__(self, consumer: tailrace.Consumer, *, is_mended: bool = False) -> None:
        self._consumer = consumer
        self._is_mended = is_mended

    def batches(self) -> Iterator[list[int]]:
        """Ship until nothing is left that could be tried once more: numbers, once it is sure that
        nobody else gets these orders."""
        while messages := self._consumer.receive(PREFETCH, wait=PATIENCE_S):
            done = [message for message in messages if self._can_ship(message)]
            self._consumer.ack(done)
            self._consumer.nack([message for message in messages if not self._can_ship(message)])
            yield [number_of(message) for message in done]

    def _can_ship(self, order: tailrace.Message) -> bool:
        return self._is_mended or order.value != value_of(POISON)


def number_of(order: tailrace.Message) -> int:
    return int((order.value or b"").split()[1])


def work(folder: Path, hangs_after: int | None) -> None:
    """A worker: it ships when it is told to begin, and reports what. One of them hangs after some
    batches, with orders in its hands."""
    with tailrace.open(folder) as store:
        consumer = store.queue("orders").consumer(group="shipping")
        _report("ready")
        sys.stdin.readline()
        for count, numbers in enumerate(Shipping(consumer).batches(), 1):
            _report("shipped", *numbers)
            if count == hangs_after:
                held = consumer.receive(PREFETCH, wait=PATIENCE_S)
                _report("holds", *map(number_of, held))
                time.sleep(3600)


def _report(*words: object) -> None:
    print(*words, flush=True)


class Worker:
    """A worker in a process of its own, as its parent sees it."""

    def __init__(self, folder: Path, *options: str) -> None:
        command = [sys.executable, __file__, "--worker", str(folder), *options]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.shipped: list[int] = []
        self.held: list[int] = []

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def wait_until_ready(self) -> None:
        assert self._process.stdout is not None
        check(self._process.stdout.readline() == "ready\n", "a worker begins")

    def begin(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def follow(self) -> Iterator[int]:
        """Until it ends or hangs: how many orders it has shipped, each time it says so."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said, *numbers = line.split()
            if said == "holds":
                self.held = [*map(int, numbers)]
                return
            self.shipped += map(int, numbers)
            yield len(numbers)

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


def publish_orders(orders: tailrace.Queue) -> None:
    with _bar() as progress:
        bar = progress.add_task("  orders", total=ORDERS)
        for first in range(0, ORDERS, BATCH):
            orders.publish_many([value_of(number) for number in range(first, first + BATCH)])
            progress.advance(bar, BATCH)


def run_two_and_kill_one(folder: Path) -> tuple[Worker, Worker]:
    """Both work at the same time, until one of them is killed. The other one goes on to the end."""
    with (
        Worker(folder) as ada,
        Worker(folder, "--hangs-after", str(HANGS_AFTER)) as ben,
        _bar() as progress,
    ):
        for worker in (ada, ben):
            worker.wait_until_ready()
        bar = progress.add_task("  shipping", total=ORDERS)
        for worker in (ada, ben):
            worker.begin()
        for shipped in ben.follow():
            progress.advance(bar, shipped)
        ben.kill()
        for shipped in ada.follow():
            progress.advance(bar, shipped)
    return ada, ben


def show_queue(folder: Path) -> list[str]:
    console.print(f"\n[bold]A queue[/] in {folder}\n")
    retry = {"max_retries": 2, "initial_backoff": "50ms", "max_backoff": "200ms"}
    with tailrace.open(folder) as store:
        orders = store.queue("orders", retry=retry)
        with step("publish") as outcome:
            publish_orders(orders)
            outcome.append(f"{ORDERS:,} orders")

        with step("two workers, kill -9 one") as outcome:
            ada, ben = run_two_and_kill_one(folder)
            check(bool(ben.held), "both work at the same time")
            outcome.append(f"{len(ben.held)} orders were in its hands")

        with step("the other one goes on") as outcome:
            shipped = Counter(ada.shipped + ben.shipped)
            check(set(ben.held) - {POISON} <= set(ada.shipped), "what a dead one held comes back")
            check(set(shipped) == {*range(ORDERS)} - {POISON}, "nothing is lost")
            check(max(shipped.values()) == 1, "what was acknowledged does not come back")
            outcome.append(f"shipped {len(ada.shipped):,} beside {len(ben.shipped):,}")

        with step("the one that always fails") as outcome:
            [letter] = store.dead("orders")
            check(letter.value == value_of(POISON), "only what fails goes to the dead letters")
            tries = letter.headers["_dlq_delivery_count"].decode()
            outcome.append(f"is a dead letter after {tries} tries")

        with step("mend it, then redrive") as outcome:
            store.redrive("orders")
            mended = Shipping(orders.consumer(group="shipping"), is_mended=True)
            shipped.update(number for numbers in mended.batches() for number in numbers)
            check(store.dead("orders") == [], "what is redriven is no dead letter any more")
            check(len(shipped) == shipped.total() == ORDERS, "each once")
            outcome.append(f"all {ORDERS:,} shipped, each once")
    return [
        f"a worker was killed with {len(ben.held)} orders in its hands, and the other one got them",
        f"all of {ORDERS:,} orders were shipped, and each of them once",
        "what always fails is set aside with the reason, and comes back when it is mended",
    ]


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


def show_pipeline(folder: Path) -> list[str]:
    console.print(f"\n[bold]A pipeline[/] over a stream in {folder / 'store'}\n")
    with step("publish") as outcome:
        total = publish_sales(folder / "store")
        outcome.append(f"{SALES:,} sales in {len(COUNTRIES)} countries")

    with step("plot them") as outcome:
        run(folder, "spark", "stats", "sales", "--plot", "sales.html")
        outcome.append("sales.html")

    kept = []
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
        kept.append(f"SQL on a stream counted each of {SALES:,} sales once, into another queue")

    with step("archive full segments") as outcome:
        words = ("archive", "sales", "--to", "lake/sales", "--partition-by", "date")
        report = json.loads(run(folder, *words, "--delete", "--json"))
        outcome.append(f"{report['rows']:,} sales, {report['bytes'] / 1e6:.1f} MB of Parquet")
        check(report["deleted_segments"] > 0, "what is verified in the archive may go")
    kept.append(
        f"{report['rows']:,} sales went to Parquet, and from the log when that was verified"
    )

    if is_with_spark:
        with step("ask for all of them") as outcome:
            statement = "SELECT count(*) AS sales, count(DISTINCT offset) AS offsets FROM sales"
            found = json.loads(run(folder, "sql", "--include-archive", "--json", statement))
            check(found == {"sales": SALES, "offsets": SALES}, "none twice, and none missing")
            outcome.append(f"{found['sales']:,}, live and archived")
        kept.append("live and archived sales are one table: none twice, and none missing")
    else:
        console.print("  left out: what needs Spark (pip install 'tailrace[spark]', and Java 17)")
    return kept


# --- all of it --------------------------------------------------------------------------------


def show(folder: Path, seconds: float) -> None:
    console.print(f"\n[bold]tailrace {tailrace.__version__}[/]")
    kept = show_log(folder / "log", seconds)
    kept += show_queue(folder / "store")
    kept += show_pipeline(folder)
    console.print("\n  Every promise kept:\n")
    for promise in kept:
        console.print(f"  [green]✓[/] {promise}", soft_wrap=True)
    console.print(f"\n  {size_of(folder)} in {folder}:\n", soft_wrap=True)
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
    parser.add_argument("--hangs-after", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.writer is not None:
        write_until_killed(arguments.writer)
    elif arguments.worker is not None:
        work(arguments.worker, arguments.hangs_after)
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
