"""Where a job runs, and in what portions."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tailrace.errors import TailraceError
from tailrace.spark.jobs import running as module
from tailrace.spark.jobs.running import Means, Running, runs


@dataclass(frozen=True)
class Item:
    number: int
    size: int = 1


def double(item: Item) -> int:
    return 2 * item.number


def fail(item: Item) -> int:
    if item.number == 3:
        raise TailraceError(f"it is item {item.number} that is wrong")
    return item.number


def test_the_size_decides() -> None:
    small = Running(Means(), 1 << 20)
    assert small.path == "direct"
    assert small.why == "1.0 MiB: done in this process; --spark has Spark do it"
    large = Running(Means(), module.SMALL)
    assert large.path == "spark"
    assert large.why == "4.0 GiB: done by Spark; --no-spark keeps it in this process"
    assert Running(Means(spark=True), 1).why == "1 B: done by Spark"
    assert Running(Means(spark=False), 1 << 50).path == "direct"
    for means in (Means(master="local[2]"), Means(conf={"spark.ui.port": "1"})):
        assert Running(means, 1).why == "1 B: done by Spark"


def test_in_this_process_the_order_is_kept() -> None:
    items = [Item(number) for number in range(100)]
    assert Running(Means(spark=False), 100).run(double, items) == [2 * n for n in range(100)]
    assert Running(Means(spark=False), 0).run(double, []) == []


def test_an_error_ends_it() -> None:
    before = threading.active_count()
    with pytest.raises(TailraceError, match="item 3"):
        Running(Means(spark=False), 9).run(fail, [Item(number) for number in range(9)])
    assert threading.active_count() == before


@pytest.mark.parametrize("seed", range(20))
def test_runs_are_of_about_the_same_size(seed: int) -> None:
    rng = random.Random(seed)
    items = [Item(n, rng.choice([1, 10, 100])) for n in range(rng.randint(1, 500))]
    found = list(runs(items, 4))
    assert [item for run in found for item in run] == items
    assert all(found)
    if len(items) > 100:
        assert 3 <= len(found) <= 6


def test_there_is_an_end_of_runs() -> None:
    items = [Item(number, 1 << 30) for number in range(5_000)]
    assert len(list(runs(items, 4))) <= 300


def test_on_spark(spark: Any) -> None:
    items = [Item(number) for number in range(50)]
    assert Running(Means(True, session=spark), 50).run(double, items) == [2 * n for n in range(50)]
    seen: list[int] = []
    watched = Means(True, session=spark, progress=lambda done, _: seen.append(done))
    assert Running(watched, 50).run(double, items) == [2 * n for n in range(50)]
    for means in (Means(True, session=spark), watched):
        with pytest.raises(TailraceError, match=r"^it is item 3 that is wrong$"):
            Running(means, 50).run(fail, items)


def test_without_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyspark = pytest.importorskip("pyspark", reason="pyspark is missing: tailrace[spark]")
    monkeypatch.setattr(pyspark.SparkContext, "_gateway", None)  # as in a process without Spark
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(TailraceError, match=r"JAVA_HOME.*--no-spark does it in this process"):
        Running(Means(spark=True), 1).run(double, [Item(1)])
    assert Running(Means(spark=False), 1).run(double, [Item(1)]) == [2]
