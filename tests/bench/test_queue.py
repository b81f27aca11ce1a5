"""The benchmark of queues: every row runs, compares what it says, and leaves nothing behind; the
peers are the queues that they are taken for.

No figure is checked: machines that run tests are shared and slow.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from bench.peers import Peer, Servers, Session, queue_servers, queues
from bench.peers.base import MISSING, NotInstalled
from bench.peers.queues import embedded_queue_peers, queue_peers
from bench.queue import ROWS, choose, main, run
from bench.rows.claims import peers_for
from bench.support.crew import Crew
from bench.support.duel import Duel
from bench.support.queueing import Claims, drain, drain_all, drain_peer, tree_size
from bench.support.race import Contestant, Line, Role, Row, Unit, race
from bench.support.report import document, markdown, show
from bench.support.setting import TINY, Setting
from tailrace.cli.measure import Sample, conditions

VALUES = [bytes([i]) * 256 for i in range(50)]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Every row, of the smallest size."""
    folder = tmp_path_factory.mktemp("bench")
    seen, rows, seconds = run(folder, TINY, with_peers=False)
    assert not any(folder.iterdir()), "the benchmark leaves files behind"
    output = StringIO()
    show(seen, rows, Console(file=output, width=118))
    assert "claim + ack, async, batches of 100" in output.getvalue()
    made: dict[str, Any] = json.loads(json.dumps(document(seen, rows, seconds)))
    return made


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    servers = Servers(tmp_path_factory.mktemp("bench") / "servers")
    yield servers
    servers.stop()


def lines_of(report: dict[str, Any], key: str) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = next(r["lines"] for r in report["rows"] if r["row"] == key)
    return lines


# --- the rows -------------------------------------------------------------------------------


def test_every_row_has_a_target_and_a_figure(report: dict[str, Any]) -> None:
    assert [row["number"] for row in report["rows"]] == list(range(1, 16))
    assert [row["row"] for row in report["rows"]] == list(ROWS)
    for row in report["rows"]:
        for line in row["lines"]:
            assert line["target"]
            assert line["checks"]
            assert line["results"][0]["role"] == "tailrace"
            assert line["results"][0]["value"] > 0


def test_everything_was_claimed(report: dict[str, Any]) -> None:
    sizes = TINY.queue
    expected = {
        "claim-batch": [sizes.messages],
        "claim-single": [sizes.singles, sizes.sync_singles],
        "claim-pending": [sizes.singles],
        "claim-workers": [sizes.messages],
        "publish-single": [sizes.published],
        "queue-wake": [TINY.wake_records],
        "pending-memory": [sizes.held, sizes.held],
        "redeliver": [sizes.messages // 2],
    }
    for key, counts in expected.items():
        for line, count in zip(lines_of(report, key), counts, strict=True):
            assert line["results"][0]["records"] == [count]


def test_limits_and_bases(report: dict[str, Any]) -> None:
    """What a target is relative to is measured in the same run."""
    assert lines_of(report, "claim-single")[1]["ratio_to_limit"] > 0
    assert lines_of(report, "queue-wake")[0]["ratio_to_limit"] > 0
    for key in ("claim-pending", "claim-workers", "redeliver"):
        (line,) = lines_of(report, key)
        assert line["results"][1]["role"] == "base"
        assert line["checks"][0]["value"] > 0


def test_without_peers_a_target_that_needs_one_is_not_met(report: dict[str, Any]) -> None:
    (line,) = lines_of(report, "claim-batch")
    assert [check["ok"] for check in line["checks"] if "embedded" in check["what"]] == [None]


def test_markdown(report: dict[str, Any]) -> None:
    table = markdown(report).splitlines()
    assert len([row for row in table if row.startswith("|")]) == 2 + 24
    assert "publish → received elsewhere, async" in "\n".join(table)


def test_rows_with_peers(tmp_path: Path) -> None:
    _, rows, _ = run(tmp_path, TINY, ["claim-batch", "claim-single", "publish-single"])
    for line in (line for row in rows for line in row.lines):
        peers = [result for result in line.results if result.role is Role.PEER]
        assert any("SQLite" in result.name for result in peers)
        assert {result.failure for result in peers} <= {None, MISSING}
    assert not any(tmp_path.iterdir())


def test_command(tmp_path: Path) -> None:
    target = tmp_path / "made.json"
    options = ["--quick", "--only", "6", "--no-peers"]
    done = CliRunner().invoke(main, [*options, "--dir", str(tmp_path), "--json", str(target)])
    assert done.exit_code == 0, done.output
    assert [row["row"] for row in json.loads(target.read_text())["rows"]] == ["publish-single"]
    assert list(tmp_path.iterdir()) == [target]


def test_rows_by_number_or_name() -> None:
    context: Any = None
    option: Any = None
    assert choose(context, option, ("1", "queue-wake")) == ["claim-batch", "queue-wake"]
    assert CliRunner().invoke(main, ["--only", "16"]).exit_code == 2


# --- the peers ------------------------------------------------------------------------------


def opened(peer: Peer, folder: Path) -> Session:
    if peer.version == MISSING:
        pytest.skip(f"{peer.name} is {MISSING}")
    return peer.open(folder)


PEERS = [peer.name for peer in queue_peers(Servers(Path("nowhere")))]


@pytest.mark.parametrize("size", [1, 7])
@pytest.mark.parametrize("name", PEERS)
def test_a_peer_gives_each_message_once(
    servers: Servers, name: str, size: int, tmp_path: Path
) -> None:
    """What is claimed is not given out again, settled or not."""
    peer = next(peer for peer in queue_peers(servers) if peer.name == name)
    session = opened(peer, tmp_path)
    try:
        for value in VALUES[:9]:
            session.put(value)
        if session.put_batch is not None:
            session.put_batch(VALUES[9:14])
        else:
            for value in VALUES[9:14]:
                session.put(value)
        assert session.claim is not None
        assert session.settle is not None
        claimed: list[Any] = []
        while len(claimed) < 14:
            got = session.claim(min(size, 14 - len(claimed)))
            assert 0 < len(got) <= size
            if len(claimed) < 7:
                session.settle(got)
            claimed += got
        assert len({repr(one) for one in claimed}) == 14
        assert session.claim(1) == []
    finally:
        session.close()


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_is_filled_again_as_often_as_the_time_needs(
    servers: Servers, name: str, tmp_path: Path
) -> None:
    peer = next(peer for peer in queue_peers(servers) if peer.name == name)
    opened(peer, tmp_path).close()
    sample = drain_peer(peer, tmp_path, VALUES, size=5, depth=10, seconds=0.05)
    assert sample.seconds >= 0.05
    assert 5 <= sample.count <= 5 * len(sample.latencies)


def test_settled_messages_of_sqlite_are_gone(tmp_path: Path) -> None:
    peer = next(iter(embedded_queue_peers()))
    session = peer.open(tmp_path)
    assert session.put_batch is not None
    assert session.claim is not None
    assert session.settle is not None
    session.put_batch(VALUES)
    first = session.claim(20)
    session.settle(first[:10])
    session.close()
    again = peer.open(tmp_path)
    assert again.claim is not None
    assert len(again.claim(100)) == 30, "ten are settled, ten are leased"
    again.close()


def test_several_processes_share_a_peer(tmp_path: Path) -> None:
    peer = next(iter(embedded_queue_peers()))
    session = peer.open(tmp_path)
    assert session.put_batch is not None
    session.put_batch(VALUES * 10)
    session.close()
    with Crew(2) as crew:
        sample = crew.drain(2, tmp_path, peer.name, 10, 5.0)
    assert sample.count == 500
    assert len(sample.parts) == 2


def test_peers_that_promise_more_take_part_where_less_is_asked(tmp_path: Path) -> None:
    setting = Setting(tmp_path, TINY, find_peers=queue_peers)
    names = [peer.name for peer in peers_for(setting, durable=False, can="claim")]
    assert "persist-queue ack" in names
    assert "SQLite WAL FULL" not in names
    durable = [peer.name for peer in peers_for(setting, durable=True, can="claim")]
    assert "persist-queue ack" in durable
    assert "litequeue" not in durable


def test_every_peer_says_what_it_promises(servers: Servers) -> None:
    for peer in queue_peers(servers):
        assert peer.version == MISSING or "fsync" in peer.promises


def test_a_peer_that_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch, servers: Servers, tmp_path: Path
) -> None:
    for module in (queues, queue_servers):
        monkeypatch.setattr(module, "installed", lambda _name: None)
    absent = [peer for peer in queue_peers(servers) if peer.version == MISSING]
    assert [peer.name for peer in absent] == [name for name in PEERS if "SQLite" not in name]
    with pytest.raises(NotInstalled):
        absent[0].open(tmp_path)

    def run_absent() -> Sample:
        absent[0].open(tmp_path)
        return Sample(1, 1.0)

    contestants = [
        Contestant("tailrace", Role.OURS, lambda: Sample(1, 1.0)),
        Contestant(absent[0].name, Role.PEER, run_absent),
    ]
    line = Line("work", Unit.RECORDS_PER_SECOND, race(contestants, 2))
    assert line.as_json()["results"][1]["failure"] == MISSING
    output = StringIO()
    seen = conditions(tmp_path) | {
        "rounds": 2,
        "explanation": "",
        "peers": {peer.name: peer.version for peer in absent},
        "promises": {"SQLite": "a table"},
    }
    show(seen, [Row(1, "k", "t", [line])], Console(file=output, width=118))
    assert f"{absent[0].name}: {MISSING}" in output.getvalue()
    assert "failed" not in output.getvalue()
    assert "SQLite: a table." in output.getvalue()


# --- draining -------------------------------------------------------------------------------


def test_drain_ends_with_the_messages_or_the_time() -> None:
    left = list(range(25))
    settled: list[int] = []

    def claim() -> list[int]:
        taken, left[:10] = left[:10], []
        return taken

    sample = drain(Claims(claim, settled.extend), 1000)
    assert (sample.count, len(sample.latencies)) == (25, 3)
    assert settled == list(range(25))
    endless = Claims(lambda: [1], settled.extend)
    assert drain(endless, 1 << 60, seconds=0.01).seconds >= 0.01
    assert drain(endless, 7).count == 7


def test_messages_that_do_not_come_are_an_error() -> None:
    with pytest.raises(RuntimeError, match="0 of 3 messages came"):
        drain_all(Claims(list, len), 3)


def test_a_duel_is_two_contestants() -> None:
    duel = Duel(lambda: (Sample(1, 1.0), Sample(2, 1.0)))
    assert (duel.first().count, duel.second().count) == (1, 2)


def test_memory_is_told_per_message() -> None:
    sample = Sample(100, 1.0, extra={"heap_bytes": 15_000.0})
    assert Unit.BYTES_PER_MESSAGE.of(sample) == 150
    assert Unit.BYTES_PER_MESSAGE.show(150.0) == "150 B"
    assert not Unit.BYTES_PER_MESSAGE.more_is_better


def test_tree_size(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_bytes(bytes(10))
    (tmp_path / "file").write_bytes(bytes(5))
    assert tree_size(tmp_path) == 15
