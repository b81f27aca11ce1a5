"""In an `async` queue what was settled goes to the disk soon, though nobody waits for it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tailrace import Store
from tailrace.log.fs import FileSystem, OsFileSystem
from tailrace.testing.faults import Call, Fail, FaultyFileSystem, LoseDirty, on
from tests.log.helpers import WAIT, eventually
from tests.queue.clocks import Machine
from tests.queue.support import numbers, one, values

JOURNAL = "*/ops.log"
SEEDS = range(8)


@contextmanager
def threaded(machine: Machine, fs: FileSystem | None = None, **options: Any) -> Iterator[Store]:
    """A store on the machine's disk that has its threads."""
    options = {"flush": "async", "flush_interval": "10ms", **options}
    with Store("data", fs=fs or machine.disk, clock=machine.clock, **options) as store:
        yield store


def settle(store: Store, kind: str = "queue") -> Any:
    """Publish ten messages, and settle the first four; the consumer."""
    queue: Any = store.queue("q") if kind == "queue" else store.stream("q")
    queue.publish_many(numbers(10))
    options = {} if kind == "queue" else {"auto_commit": False}
    consumer = queue.consumer("w", **options)
    messages = consumer.receive(4)
    if kind == "queue":
        consumer.ack(messages)
    else:
        consumer.commit()
    return consumer


def is_settled(machine: Machine, done: int = 4) -> None:
    """Whatever a power cut now takes: what was settled is."""
    for seed in SEEDS:
        twin = Machine(seed)
        twin.disk = machine.disk.clone()
        twin.power_cut(seed)
        with twin.open() as store:
            assert values(store.get("q").consumer("w").receive(20)) == numbers(10)[done:]


def is_at_risk(machine: Machine) -> bool:
    """Could a power cut take something of what was published or settled?"""
    return any(path.endswith(("/ops.log", ".seg")) for path in machine.disk.unsynced())


def syncs(fs: FaultyFileSystem) -> int:
    return sum(call.op == "sync" and call.path.endswith("/ops.log") for call in fs.calls)


# --- in time ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["queue", "stream"])
def test_what_was_settled_outlives_a_power_cut_soon(machine: Machine, kind: str) -> None:
    with threaded(machine) as store:
        settle(store, kind)
        eventually(lambda: not is_at_risk(machine))
        is_settled(machine)


def test_each_process_sees_to_what_it_wrote(machine: Machine) -> None:
    with threaded(machine) as store, threaded(machine) as other:
        settle(store)
        other.queue("q").consumer("w").receive()[0].ack()
        eventually(lambda: not is_at_risk(machine))
        is_settled(machine, 5)


def test_while_nobody_writes_nothing_is_synced(machine: Machine) -> None:
    fs = FaultyFileSystem(machine.disk)
    with threaded(machine, fs) as store:
        consumer = settle(store)
        eventually(lambda: not is_at_risk(machine))
        count = syncs(fs)
        time.sleep(0.2)
        assert syncs(fs) == count
        one(consumer).ack()
        eventually(lambda: syncs(fs) > count)


def test_a_queue_that_was_ephemeral(machine: Machine) -> None:
    with threaded(machine) as store:
        store.consumer("q", "w").close()
        store.get("q").publish_many(numbers(10))
        consumer: Any = store.get("q").consumer("w")
        store.queue("q")  # somebody asks for it: it is durable now
        consumer.ack(consumer.receive(4))
        eventually(lambda: not is_at_risk(machine))
        is_settled(machine)


def test_nobody_waits_for_the_sync(machine: Machine) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def plan(call: Call) -> None:
        if call.op == "sync" and call.path.endswith("/ops.log"):
            begun.set()
            assert go_on.wait(WAIT)

    fs = FaultyFileSystem(machine.disk)
    with threaded(machine, fs) as store:
        consumer = settle(store)
        try:
            fs.plan = plan
            one(consumer).ack()
            assert begun.wait(WAIT)
            one(consumer).ack()
        finally:
            go_on.set()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child(tmp_path: Path) -> None:
    fs = FaultyFileSystem(OsFileSystem())
    path = str(tmp_path / "data")
    with Store(path, fs=fs, flush="async", flush_interval="10ms") as store:
        consumer = settle(store)
        child = os.fork()
        if not child:
            try:
                one(consumer).ack()
                count = syncs(fs)
                eventually(lambda: syncs(fs) > count)
                (tmp_path / "synced").touch()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert (tmp_path / "synced").exists()


# --- never --------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_ephemeral", [False, True])
def test_what_promises_nothing_is_never_synced(machine: Machine, is_ephemeral: bool) -> None:
    fs = FaultyFileSystem(machine.disk)
    with threaded(machine, fs) as store:
        store.queue("q", **({"ephemeral": True} if is_ephemeral else {"flush": "none"}))
        settle(store)
        store.queue("q").group("w").flush()
        time.sleep(0.1)
    assert not syncs(fs)


# --- when it fails ------------------------------------------------------------------------------


def test_a_sync_that_fails_is_made_good_by_the_thread_of_the_store(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    fs = FaultyFileSystem(machine.disk)
    with threaded(machine, fs) as store:
        consumer = settle(store)
        eventually(lambda: not is_at_risk(machine))
        fs.plan = on("sync", LoseDirty(), path=JOURNAL)
        one(consumer).ack()
        eventually(lambda: "cannot sync the journal" in caplog.text)
        journal = store.queue("q").group("w")._journal
        eventually(lambda: not journal.is_at_risk)  # though nobody does anything
        is_settled(machine, 5)


def test_a_sync_that_fails_is_made_good_by_who_comes_next(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    store, fs = machine.open_faulty(flush="async")
    consumer = settle(store)
    queue = store.queue("q")
    queue.log.flush()
    fs.plan = on("sync", LoseDirty(), path=JOURNAL)
    for _ in range(3):  # the second one would succeed, and mean nothing
        queue.group("w").flush()
    assert len(fs.hits) == 1
    assert caplog.text.count("cannot sync the journal") == 1
    full = on("pwrite", Fail(), path="*.tmp")
    fs.plan = full
    one(consumer).ack()
    assert fs.hits[1:], "a snapshot was tried"
    queue.group("w").flush()
    one(consumer).ack()
    queue.group("w").flush()
    is_settled(machine, 6)


def test_a_sync_that_fails_is_made_good_by_a_close(machine: Machine) -> None:
    store, fs = machine.open_faulty(flush="async")
    other = machine.open()
    settle(store).close()
    store.queue("q").log.flush()
    fs.plan = on("sync", LoseDirty(), path=JOURNAL)
    store.queue("q").group("w").flush()
    other.queue("q").group("w").progress()
    store.close()
    is_settled(machine)


def test_who_closes_it_leaves_nothing_to_be_lost(machine: Machine) -> None:
    """Also if others stay, so that the journal does."""
    store, other = machine.open(flush="async"), machine.open()
    other.queue("q", flush="async").group("w").progress()
    settle(store)
    store.close()
    is_settled(machine)
