"""The rows about time, space and starting: what they compare, and that what they count is right.

`test_queue.py` runs every row; here are the parts they are made of. No figure is checked.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import tailrace
from bench.peers.tables import CopyTables, DelayTable, make_tables
from bench.queue import run
from bench.rows import fan_out, later, many_queues, starting
from bench.support import endurance_probe, many_probe
from bench.support.duel import Turns
from bench.support.race import Role, Row, Unit
from bench.support.setting import TINY, Setting
from tailrace.cli.measure import Sample

ROWS = ["fan-out", "many-queues", "delayed", "ttl", "endurance"]
VALUE = b"v" * 256


@pytest.fixture
def setting(tmp_path: Path) -> Iterator[Setting]:
    setting = Setting(tmp_path, TINY, with_peers=False)
    yield setting
    setting.close()


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Row]:
    """With their peers."""
    folder = tmp_path_factory.mktemp("bench")
    _, rows, _ = run(folder, TINY, ROWS)
    assert not any(folder.iterdir())
    return {row.key: row for row in rows}


# --- the rows -------------------------------------------------------------------------------


def test_no_peer_fails(rows: dict[str, Row]) -> None:
    for row in rows.values():
        for line in row.lines:
            assert not [result.failure for result in line.results if result.failure]


@pytest.mark.parametrize(
    ("key", "who"),
    [("fan-out", "ten tables"), ("many-queues", "a table for each"), ("delayed", "by time")],
)
def test_sqlite_does_the_same_work(rows: dict[str, Row], key: str, who: str) -> None:
    line = rows[key].lines[0]
    (peer,) = [result for result in line.results if result.role is Role.PEER]
    assert who in peer.name
    assert line.speed_against(peer)


def test_copies_are_counted_and_messages_told(rows: dict[str, Row]) -> None:
    line, in_sync = rows["fan-out"].lines
    assert line.ours.samples[0].count == TINY.queue.fanned * 10
    assert in_sync.ours.samples[0].count == TINY.queue.sync_fanned * 10
    assert "messages" in line.notes[0]


def test_every_line_is_shown_with_a_letter_of_its_own(rows: dict[str, Row]) -> None:
    """Of many queues there are four."""
    assert len(rows["many-queues"].lines) == 4
    handles = rows["many-queues"].lines[-1]
    assert handles.unit is Unit.HANDLES
    assert 3 < handles.value(handles.ours) < many_probe.HANDLES_MOST


def test_all_delayed_messages_are_delivered(rows: dict[str, Row]) -> None:
    published, delivered = rows["delayed"].lines
    sizes = TINY.queue
    assert [result.samples[0].count for result in published.results[:2]] == [sizes.delayed] * 2
    counts = [result.samples[0].count for result in delivered.results]
    assert counts == [sizes.delayed, sizes.punctual, sizes.delayed, sizes.delayed]


def test_with_and_without_a_ttl_do_as_much(rows: dict[str, Row]) -> None:
    for line in rows["ttl"].lines:
        assert len({result.samples[0].count for result in line.results}) == 1


def test_the_long_run_tells_memory_disk_and_rates(rows: dict[str, Row]) -> None:
    (line,) = rows["endurance"].lines
    sample = line.ours.samples[0]
    assert sample.count == TINY.queue.passed
    assert sample.extra["growth"] >= 1
    assert 0 < sample.extra["disk_at_end"] <= sample.extra["disk_filled"]
    assert "publish" in line.notes[0]


# --- the parts ------------------------------------------------------------------------------


def test_queues_that_do_not_have_the_same_are_an_error(setting: Setting) -> None:
    with (
        pytest.raises(RuntimeError, match="not as many each"),
        fan_out._bound_queues(setting, "async") as store,
    ):
        store.get("copy-3").publish(VALUE)


def test_the_probe_of_many_queues_uses_them_all(tmp_path: Path) -> None:
    many_queues._build(tmp_path, 20, VALUE)
    for _ in range(2):  # the messages are still there for the next one
        seen = many_probe.measure(tmp_path, 20)
        assert 0 < seen["seconds"] < seen["first_seconds"]
        assert seen["handles"] > seen["handles_before"]
    with tailrace.open(tmp_path) as store:
        assert [len(queue) for queue in store.queues()] == [1] * 20


def test_the_probe_of_many_queues_misses_a_message(tmp_path: Path) -> None:
    many_queues._build(tmp_path, 3, VALUE)
    with pytest.raises(RuntimeError, match="there are 3 queues, not 2"):
        many_probe.measure(tmp_path, 2)


def test_what_is_not_delivered_once_is_an_error() -> None:
    later._check_once([b"2", b"1"], [b"1", b"2"])
    for received in ([b"1"], [b"1", b"1"], [b"1", b"2", b"2"]):
        with pytest.raises(RuntimeError, match="each once"):
            later._check_once(received, [b"1", b"2"])


def test_numbered_values_differ(setting: Setting) -> None:
    values = later._numbered(setting, 20_000)  # more than there are in the payload
    assert len(set(values)) == 20_000
    assert {len(value) for value in values} == {256}


def test_a_clock_that_is_put_forward() -> None:
    clock = later.ShiftedClock()
    before = clock.wall_ms()
    clock.shift_ms = 10_000
    assert clock.wall_ms() >= before + 10_000


def test_the_probe_of_the_long_run(tmp_path: Path) -> None:
    seen: dict[str, Any] = json.loads(json.dumps(endurance_probe.measure(tmp_path, 1_050)))
    assert seen["count"] == 1_050
    assert len(seen["resident"]) == 3  # of 500, and the rest
    assert all(seconds > 0 for seconds in seen["seconds"].values())
    assert min(seen["resident"]) > 1 << 20


def test_messages_out_of_order_end_the_long_run(tmp_path: Path) -> None:
    with tailrace.open(tmp_path, flush="none") as store:
        queue = store.queue("work")
        consumer = queue.consumer(group="workers")
        queue.publish_many([VALUE] * 3)
        with pytest.raises(RuntimeError, match="0 came instead of 1"):
            endurance_probe._consume(consumer, 1, 3)


def test_a_command_that_fails_is_an_error(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit(1)"]
    with pytest.raises(subprocess.CalledProcessError):
        starting._contestant(tmp_path, "wrong", Role.OURS, *command)


def test_what_is_started_has_its_bytecode_apart(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import tailrace.units"]
    starting._contestant(tmp_path, "right", Role.OURS, *command)
    assert list(tmp_path.rglob("units.*.pyc"))


def test_those_who_take_turns_are_run_by_the_first() -> None:
    calls = []

    def all_of_them() -> list[Sample]:
        calls.append(1)
        return [Sample(1, 1.0), Sample(2, 1.0), Sample(3, 1.0)]

    turns = Turns(all_of_them)
    runs = [turns.of(place) for place in range(3)]
    assert [run().count for _ in range(2) for run in runs] == [1, 2, 3, 1, 2, 3]
    assert len(calls) == 2


# --- SQLite ---------------------------------------------------------------------------------


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_each_table_has_a_copy(tmp_path: Path, flush: str) -> None:
    with closing(CopyTables(tmp_path, flush, 3)) as tables:
        for _ in range(5):
            tables.publish(VALUE)
        assert tables.counts() == [5, 5, 5]


def test_a_table_delivers_what_is_due_in_order(tmp_path: Path) -> None:
    with closing(DelayTable(tmp_path)) as table:
        table.publish((b"late", 300))
        table.publish((b"second", 20))
        table.publish_all([(b"third", 20), (b"first", 10)])
        assert table.deliver(100, 2) == 2
        assert table.deliver(100, 2) == 1
        assert table.deliver(100, 2) == 0
        assert table.values() == [b"first", b"second", b"third"]
        assert table.deliver(300, 2) == 1


def test_many_tables(tmp_path: Path) -> None:
    make_tables(tmp_path / "queues.db", 5, VALUE)
    sample = many_queues._open_tables(tmp_path / "queues.db", 5)
    assert 0 < sample.seconds < sample.extra["first_seconds"]
