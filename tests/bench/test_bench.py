"""The benchmark itself: it runs, compares what it says, and its JSON has what the docs promise.

No figure is checked: machines that run tests are shared and slow.
"""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from bench.log import ROWS, choose, run
from bench.support import twin_probe
from bench.support.race import Check, Contestant, Line, Role, Row, Unit, race
from bench.support.report import document, markdown, show
from bench.support.setting import TINY
from tailrace.cli.bench import bench
from tailrace.cli.measure import Sample, percentile, spread


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Rows of every kind, of the smallest size, with the peers that are installed but servers."""
    folder = tmp_path_factory.mktemp("bench")
    chosen = [key for key in ROWS if key != "append-sync-concurrent"]
    seen, rows, seconds = run(folder, TINY, chosen, with_peers=False)
    assert not any(folder.iterdir()), "the benchmark leaves files behind"
    output = StringIO()
    show(seen, rows, Console(file=output, width=118))
    assert "append, async, batches of 1,000" in output.getvalue()
    made: dict[str, Any] = json.loads(json.dumps(document(seen, rows, seconds)))
    return made


def test_conditions(report: dict[str, Any]) -> None:
    seen = report["conditions"]
    assert seen["value_bytes"] == 256
    assert seen["codec"] == "none"
    assert seen["kernel"] in ("compiled", "pure")
    for name in ("date", "crc32c", "file_system", "device", "processor", "python", "peers"):
        assert name in seen


def test_every_row_compares_with_a_limit(report: dict[str, Any]) -> None:
    numbers = [row["number"] for row in report["rows"]]
    assert numbers == [1, 2, 3, 5, 6, 7, 8, 9, 10]
    for row in report["rows"]:
        for line in row["lines"]:
            assert line["target"]
            assert line["checks"]
            assert line["results"][0]["role"] == "tailrace"
            assert line["results"][0]["value"] > 0
            if line["unit"] != "MB":  # resident memory has no limit to compare with
                assert line["ratio_to_limit"] > 0


def test_latencies_where_the_target_is_one(report: dict[str, Any]) -> None:
    for row in report["rows"]:
        if row["row"].startswith("append") or row["row"] == "seek":
            for line in row["lines"]:
                ours = line["results"][0]
                assert 0 < ours["p50_us"] <= ours["p99_us"] <= ours["max_us"]


def test_without_peers_a_target_that_needs_one_is_not_met(report: dict[str, Any]) -> None:
    first = report["rows"][0]["lines"][0]
    assert [check["ok"] for check in first["checks"] if "LMDB" in check["what"]] == [None]
    assert first["met"] is not True


def test_markdown(report: dict[str, Any]) -> None:
    text = markdown(report)
    lines = sum(len(row["lines"]) for row in report["rows"])
    assert text.count("\n| ") == lines + 1
    assert "append one by one, async" in text


def test_many_writers_and_peers(tmp_path: Path) -> None:
    """The row with threads and tasks; SQLite is always there."""
    _, rows, _ = run(tmp_path, TINY, ["append-sync-concurrent"], with_peers=False)
    (row,) = rows
    assert [line.checks[0].value is not None for line in row.lines] == [True, True]


def test_peers(tmp_path: Path) -> None:
    _, rows, _ = run(tmp_path, TINY, ["append-sync-single"])
    assert rows[0].lines[0].find("SQLite WAL FULL") is not None
    assert not any(tmp_path.iterdir())


# --- how figures are made of samples --------------------------------------------------------


def rates(*given: float) -> list[Sample]:
    return [Sample(int(rate), 1.0) for rate in given]


def line_of(ours: list[Sample], other: list[Sample], role: Role = Role.PEER) -> Line:
    runs = {"tailrace": iter(ours), "other": iter(other)}
    contestants = [
        Contestant("tailrace", Role.OURS, lambda: next(runs["tailrace"])),
        Contestant("other", role, lambda: next(runs["other"])),
    ]
    return Line("work", Unit.RECORDS_PER_SECOND, race(contestants, len(ours)))


def test_ratios_are_taken_within_rounds() -> None:
    """A machine that gets ten times slower on the way changes no ratio."""
    line = line_of(rates(1000, 100, 10), rates(2000, 200, 20))
    assert line.speed_against(line.results[1]) == 0.5


def test_less_is_better_for_times() -> None:
    line = line_of([Sample(1, 0.5)], [Sample(1, 1.0)])
    line.unit = Unit.MILLISECONDS
    assert line.speed_against(line.results[1]) == 2.0
    assert line.best_peer() is line.results[1]


def test_a_peer_that_fails_is_out() -> None:
    def fail() -> Sample:
        raise RuntimeError("no disk")

    ours = Contestant("tailrace", Role.OURS, lambda: Sample(1, 1.0))
    results = race([ours, Contestant("other", Role.PEER, fail)], 2)
    assert results[1].failure == "RuntimeError: no disk"
    line = Line("work", Unit.RECORDS_PER_SECOND, results)
    assert line.best_peer() is None
    show_something(line)
    with pytest.raises(RuntimeError):
        race([Contestant("tailrace", Role.OURS, fail)], 1)


def show_something(line: Line) -> None:
    assert line.as_json()["results"][1]["failure"]


@pytest.mark.parametrize(
    ("values", "met"),
    [((1.0, 1.0), True), ((1.0, 0.4), False), ((1.0, None), None), ((0.4, None), False)],
)
def test_met(values: tuple[float | None, ...], met: bool | None) -> None:
    line = Line("work", Unit.RECORDS_PER_SECOND, [])
    line.checks = [Check("ratio", value, 0.5) for value in values]
    assert line.met is met


def test_percentiles_and_spread() -> None:
    assert percentile([], 50) == 0
    assert percentile([1, 2, 3, 4], 50) == 2.5
    assert percentile(range(101), 99) == 99
    assert spread([8, 10, 12]) == 0.4


def test_rows_by_number_or_name() -> None:
    context: Any = None
    option: Any = None
    assert choose(context, option, ("1", "seek")) == ["append-async-batch", "seek"]
    assert Row(1, "k", "t", []).as_json()["row"] == "k"


def test_the_yardstick_and_the_twin_agree() -> None:
    taken = twin_probe.measure(100, 1)
    assert len(taken) == 4


# --- the command that ships -----------------------------------------------------------------


@pytest.mark.parametrize("flush", ["sync", "async", "none"])
def test_bench_log_command(tmp_path: Path, flush: str) -> None:
    arguments = ["log", "--dir", str(tmp_path), "--seconds", "0.05", "--batch", "10"]
    done = CliRunner().invoke(bench, [*arguments, "--flush", flush, "--json"])
    assert done.exit_code == 0, done.output
    made = json.loads(done.output)
    assert made["conditions"]["flush"] == flush
    assert [row["work"] for row in made["rows"]][:2] == ["append", "read as records"]
    assert all(row["records_per_second"] > 0 for row in made["rows"])
    assert not any(tmp_path.iterdir())


def test_bench_log_command_for_people(tmp_path: Path) -> None:
    arguments = ["log", "--dir", str(tmp_path), "--seconds", "0.05", "--batch", "1"]
    done = CliRunner().invoke(bench, arguments)
    assert done.exit_code == 0, done.output
    assert "append" in done.output


def test_bench_log_command_refuses_too_large_batches(tmp_path: Path) -> None:
    arguments = ["log", "--dir", str(tmp_path), "--size", "65536", "--batch", "65535"]
    done = CliRunner().invoke(bench, arguments)
    assert done.exit_code == 2
