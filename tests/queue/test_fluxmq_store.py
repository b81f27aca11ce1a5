"""Whole stores of FluxMQ's: what is in them stays, and groups go on where they were."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

import tailrace
from tests.queue.clocks import ManualClock
from tests.queue.fluxmq_store import batch, write_group, write_queue
from tests.queue.support import drain, numbers, offsets, values

# The first batch of a file of FluxMQ's own.
GOLDEN = bytes.fromhex(
    "58554c46 91995bfe 0000000000000000 33000000 0100 0e00 00 01 0000 b092a5e0a1010000"
    "b092a5e0a1010000 00 00 00 0a 68656c6c6f 03 06 5f746f706963 0d 2471756575652f6f7264657273"
    "03 5f6964 01 37 06 5f7374617465 06 717565756564"
)


def test_the_batches_of_these_tests_are_like_fluxmqs() -> None:
    ours = batch(6, b"hello", "orders")
    assert (len(ours), ours[44:]) == (len(GOLDEN), GOLDEN[44:])
    assert (ours[:4], ours[16:28]) == (GOLDEN[:4], GOLDEN[16:28])


@pytest.mark.parametrize("auto_commit", [False, True])
def test_a_stream_goes_on_from_what_fluxmq_has_committed(tmp_path: Path, auto_commit: bool) -> None:
    """It had delivered up to 18, and 15 were processed: what is between comes again."""
    write_queue(tmp_path, "events", numbers(20), Type="stream")
    file = write_group(tmp_path, "events", "readers", "stream", cursor=18, committed=15)
    with tailrace.open(tmp_path, upkeep=False) as store:
        events = store.stream("events")
        assert events.group("readers").progress() == (15, 15)
        with events.consumer("readers", auto_commit=auto_commit, auto_commit_interval=0) as reader:
            first = reader.receive(2)
            assert (offsets(first), values(first)) == ([15, 16], [b"15", b"16"])
            assert offsets(reader.receive(9)) == [17, 18, 19]
            reader.commit(first[-1])
        assert events.publish(b"20").offset == 20
    state = json.loads(file.read_bytes())["state"]
    assert state["Cursor"] == {"Cursor": 17, "Committed": 17}
    assert (state["Mode"], state["CreatedAt"]) == ("stream", "2026-11-15T19:18:29.768055613Z")
    with tailrace.open(tmp_path, upkeep=False) as store:
        reader = store.stream("events").consumer("readers")
        assert offsets(reader.receive(3)) + offsets(reader.receive(9)) == [17, 18, 19, 20]


# --- queues that are not durable --------------------------------------------------------------


def names(store: tailrace.Store) -> list[str]:
    return [queue.name for queue in store.queues()]


@pytest.mark.parametrize("kind", ["classic", "stream"])
def test_what_is_not_durable_is_kept(tmp_path: Path, kind: str) -> None:
    """As with FluxMQ, where it outlives a restart; ours does not."""
    write_queue(tmp_path, "theirs", numbers(3), Durable=False, Type=kind)
    for _ in range(3):
        with tailrace.open(tmp_path, upkeep=False) as store:
            assert names(store) == ["theirs"]
            assert values(store.get("theirs").read()) == numbers(3)
            store.publish("ours", b"x")
            assert names(store) == ["ours", "theirs"]
    [entry] = [
        entry
        for entry in json.loads((tmp_path / "config" / "queues.json").read_bytes())["configs"]
        if entry["Name"] == "theirs"
    ]
    assert (entry["Durable"], entry["Tailrace"]["survives"]) == (False, True)


def test_it_goes_when_a_consumer_has_come_and_gone(tmp_path: Path) -> None:
    write_queue(tmp_path, "theirs", numbers(3), Durable=False, ExpiresAfter=10_000_000_000)
    folder = tmp_path / "queues" / "theirs"
    os.utime(folder, (1, 1))
    clock = ManualClock()
    clock.set_wall(time.time_ns() // 1_000_000)
    with tailrace.open(tmp_path, upkeep=False, clock=clock) as store:
        clock.advance(3600)
        store._sweep()
        assert names(store) == ["theirs"]
        clock.set_wall(clock.wall_ms() - 3_600_000)
        with store.consumer("theirs", "w") as consumer:
            assert drain(consumer) == numbers(3)
        store._sweep()
        assert names(store) == ["theirs"]
    with tailrace.open(tmp_path, upkeep=False, clock=clock) as store:
        assert names(store) == ["theirs"]
        clock.advance(3600)
        store._sweep()
        assert names(store) == []


def test_another_of_its_name_is_ours(tmp_path: Path) -> None:
    write_queue(tmp_path, "theirs", numbers(3), Durable=False)
    with tailrace.open(tmp_path, upkeep=False) as store:
        assert store.queue("theirs").settings.ephemeral
        store.delete("theirs")
        store.queue("theirs", ephemeral=True).publish(b"x")
        assert not store.get("theirs").settings.survives
    with tailrace.open(tmp_path, upkeep=False) as store:
        assert names(store) == []
