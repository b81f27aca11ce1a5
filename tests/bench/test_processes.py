"""The benchmark of many processes: every row runs, compares what it says, and leaves nothing.

No figure is checked: machines that run tests are shared and slow.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from bench.peers.shared import shared_peers
from bench.processes import ROWS, choose, main, run
from bench.support.crew import Crew, CrewError
from bench.support.race import Contestant, Line, Role, Unit, race
from bench.support.report import document, markdown, show
from bench.support.setting import TINY
from bench.support.writing import Tool
from tailrace import Log
from tailrace.cli.measure import Sample
from tailrace.cli.stamps import write_stamps


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Every row, of the smallest size."""
    folder = tmp_path_factory.mktemp("bench")
    seen, rows, seconds = run(folder, TINY, with_peers=False)
    assert not any(folder.iterdir()), "the benchmark leaves files behind"
    output = StringIO()
    show(seen, rows, Console(file=output, width=118))
    assert "append one by one, async, shared" in output.getvalue()
    made: dict[str, Any] = json.loads(json.dumps(document(seen, rows, seconds)))
    return made


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    with Crew(2) as crew:
        yield crew


def lines_of(report: dict[str, Any], key: str) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = next(r["lines"] for r in report["rows"] if r["row"] == key)
    return lines


def result_of(line: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(result for result in line["results"] if result["name"] == name)
    return found


def test_every_row_compares_with_a_limit(report: dict[str, Any]) -> None:
    assert [row["number"] for row in report["rows"]] == [1, 2, 3, 4, 5, 6, 7]
    assert [row["row"] for row in report["rows"]] == list(ROWS)
    for row in report["rows"]:
        for line in row["lines"]:
            assert line["target"]
            assert line["checks"]
            assert line["results"][0]["role"] == "tailrace"
            assert line["results"][0]["value"] > 0
            limit = next(each for each in line["results"] if each["role"] == "limit")
            assert limit["failure"] is None, limit
            assert line["ratio_to_limit"] > 0


def test_each_writer_has_its_share(report: dict[str, Any]) -> None:
    for line, writers in zip(lines_of(report, "shared-contended"), (2, 4), strict=True):
        shares = line["results"][0]["shares"]
        assert [len(of_round) for of_round in shares] == [writers] * TINY.rounds
        assert all(sum(of_round) == pytest.approx(1) for of_round in shares)
        assert "shares" not in result_of(line, "tailrace, one writer")
        assert "share of one process" in line["notes"][0]


def test_peers(tmp_path: Path) -> None:
    """Those who are there take part, whether they are many, wait for each other, or are polled."""
    _, rows, _ = run(tmp_path, TINY, ["shared-sync", "wake"])
    for line in (line for row in rows for line in row.lines):
        peers = [result for result in line.results if result.role is Role.PEER]
        assert any("SQLite" in result.name for result in peers)
        assert [(result.name, result.failure) for result in peers if result.failure] == []
    assert not any(tmp_path.iterdir())


def test_wake_ups_have_percentiles(report: dict[str, Any]) -> None:
    for key in ("wake", "followers"):
        for line in lines_of(report, key):
            for result in line["results"]:
                assert 0 < result["p50_us"] <= result["p99_us"] <= result["max_us"]


def test_every_follower_is_counted(report: dict[str, Any]) -> None:
    for line in lines_of(report, "followers"):
        for result in line["results"]:
            assert result["records"] == [TINY.followers * TINY.follower_records] * TINY.rounds
        instances = next(c for c in line["checks"] if c["what"] == "inotify instances")
        assert instances["value"] == 1


def test_an_idle_follower_sleeps(report: dict[str, Any]) -> None:
    (line,) = lines_of(report, "idle")
    assert line["unit"] == "ms CPU/s"
    woken = next(c for c in line["checks"] if c["what"] == "times woken in a second")
    # Whatever else such a process does, it does not look every few milliseconds.
    assert woken["value"] < 100


def test_markdown(report: dict[str, Any]) -> None:
    table = markdown(report).splitlines()
    assert len([row for row in table if row.startswith("|")]) == 2 + 10
    assert "append → seen elsewhere, async" in "\n".join(table)


# --- the command line -----------------------------------------------------------------------


def test_command(tmp_path: Path) -> None:
    target = tmp_path / "made.json"
    options = ["--quick", "--only", "1", "--no-peers", "--seconds", "0.01"]
    where = ["--dir", str(tmp_path), "--json", str(target)]
    done = CliRunner().invoke(main, [*options, *where])
    assert done.exit_code == 0, done.output
    made = json.loads(target.read_text())
    assert made["conditions"]["slice_seconds"] == 0.01
    assert [row["row"] for row in made["rows"]] == ["shared-single"]
    assert list(tmp_path.iterdir()) == [target]
    done = CliRunner().invoke(main, ["--markdown", "--json", str(target)])
    assert done.output.count("\n|") == 3


def test_rows_by_number_or_name() -> None:
    context: Any = None
    option: Any = None
    assert choose(context, option, ("1", "wake")) == ["shared-single", "wake"]
    assert CliRunner().invoke(main, ["--only", "8"]).exit_code == 2


# --- slices, shares, samples ----------------------------------------------------------------


def test_slices_are_one_sample() -> None:
    order: list[str] = []

    def runs(name: str) -> Sample:
        order.append(name)
        return Sample(10, 1.0, array("q", [1]), {"cpu_seconds": 0.5}, [4, 6])

    contestants = [
        Contestant("tailrace", Role.OURS, lambda: runs("ours")),
        Contestant("other", Role.LIMIT, lambda: runs("other")),
    ]
    results = race(contestants, rounds=2, slices=3)
    assert order == ["ours", "other"] * 6
    for result in results:
        assert [sample.count for sample in result.samples] == [30, 30]
        assert result.samples[0].seconds == 3.0
        assert result.samples[0].extra == {"cpu_seconds": 1.5}
        assert list(result.latencies()) == [1] * 6
        assert result.shares() == [[0.4, 0.6], [0.4, 0.6]]


def test_a_peer_that_fails_in_a_slice_is_out() -> None:
    answers = [Sample(1, 1.0), Sample(1, 1.0)]

    def stumble() -> Sample:
        if not answers:
            raise RuntimeError("no disk")
        return answers.pop()

    ours = Contestant("tailrace", Role.OURS, lambda: Sample(1, 1.0))
    results = race([ours, Contestant("other", Role.PEER, stumble)], rounds=2, slices=2)
    assert results[1].failure == "RuntimeError: no disk"
    assert len(results[1].samples) == 1
    assert len(results[0].samples) == 2


def test_shares_are_told() -> None:
    ours = Contestant("tailrace", Role.OURS, lambda: Sample(10, 1.0, parts=[1, 9]))
    alone = Contestant("one", Role.BASE, lambda: Sample(10, 1.0, parts=[10]))
    line = Line("work", Unit.RECORDS_PER_SECOND, race([ours, alone], 1))
    line.note_shares()
    assert line.notes == ["share of one process in one round: tailrace 10% to 90%"]


# --- crews ----------------------------------------------------------------------------------


def test_a_crew_writes_one_log_together(crew: Crew, tmp_path: Path) -> None:
    sample = crew.write(2, tmp_path, Tool("log", mode="shared"), 0.05)
    assert len(sample.parts) == 2
    assert sum(sample.parts) == sample.count
    assert sample.seconds > 0
    with Log(tmp_path, read_only=True) as log:
        assert log.end_offset == sample.count


@pytest.mark.parametrize("batch", [False, True], ids=["singles", "batches"])
@pytest.mark.parametrize("peer", [peer.name for peer in shared_peers()])
def test_peers_keep_what_a_crew_puts(crew: Crew, peer: str, batch: bool, tmp_path: Path) -> None:
    """What is compared is a log: whoever reads gets all the values, each once."""
    chosen = next(known for known in shared_peers() if known.name == peer)
    sample = crew.write(2, tmp_path, Tool(peer, batch, chosen.durable), 0.05)
    session = chosen.open(tmp_path)
    try:
        assert session.poll is not None
        values = session.poll()
        assert len(values) == sample.count
        assert {len(value) for value in values} == {256}
        assert session.poll() == []
    finally:
        session.close()


def test_a_crew_tells_of_failures(crew: Crew, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(CrewError, match="FileExistsError"):
        crew.write(2, tmp_path / "file", Tool("log"), 0.01)
    assert crew.write(2, tmp_path, Tool("file"), 0.01).count > 0


def test_a_crew_ends_with_its_block() -> None:
    with Crew(2) as crew:
        processes = list(crew._processes)
        assert crew.ask_all([0, 1], "close") == [{}, {}]
    assert [process.returncode for process in processes] == [0, 0]


@pytest.mark.parametrize(
    ("how", "kind"),
    [("threads", "log"), ("tasks", "log"), ("bare threads", "file"), ("bare tasks", "file")],
)
def test_followers_may_be_dismissed(crew: Crew, how: str, kind: str, tmp_path: Path) -> None:
    """Nobody writes, so no end comes; closing them ends it."""
    with crew.opened([0], tmp_path, Tool(kind)):
        crew.ask(1, "follow", how=how, folder=str(tmp_path), followers=3)
        assert crew.ask(1, "rest", seconds=0.02)["inotify"] >= 1
        crew.ask(1, "close")
        assert crew.ask(1, "rest", seconds=0)["cpu_seconds"] >= 0


def test_stamps_end_when_the_time_is_over() -> None:
    put: list[bytes] = []
    took = write_stamps(put.append, 1_000_000, pause_s=0.0, warm_up=2, seconds=0.02)
    assert len(put) == 2 + len(took) + 1
    assert len(took) < 1_000_000
    assert {len(value) for value in put} == {256}
