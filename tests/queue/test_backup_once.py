"""What is done once for a message while a backup is made is there once after the restore: the log
does not forget it meanwhile, and does so again when the backup is over."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tailrace import Consumer, NotWritten, Queue, Store, restore_backup
from tailrace.log.fs import OsFileSystem
from tailrace.queue.backup import backup
from tailrace.queue.backup_lock import under_way
from tailrace.testing import Call, Fail, Fault, FaultyFileSystem, on
from tests.queue.backup_world import World
from tests.queue.clocks import Machine
from tests.queue.conftest import OpenStore
from tests.queue.support import another_process, numbers, values

FLUSH = ["sync", "async", "none"]


def back_up(machine: Machine, meanwhile: Callable[[], object]) -> None:
    """And do something when the groups are copied, and the logs are not; then restore it."""
    seen = 0

    def plan(call: Call) -> Fault | None:
        nonlocal seen
        if call.op == "open" and call.path == "data/queue/config/queues.json":
            seen += 1  # before the logs the first time, before the groups, and before the logs
            if seen == 3:
                meanwhile()
        return None

    backup(FaultyFileSystem(machine.disk, plan), "data/queue", "backup", machine.clock)
    assert seen >= 3
    restore_backup("backup", "restored", fs=machine.disk)


def answer(queue: Queue, answers: Queue, consumer: Consumer, count: int = 10) -> None:
    for message in consumer.receive(count):
        message.ack(publish=[(answers, message.value)])
        queue.group("w").flush()


def reject(queue: Queue, consumer: Consumer) -> None:
    for message in consumer.receive(10):
        message.reject("bad")
        queue.group("w").flush()


# --- what is done again -----------------------------------------------------------------------


@pytest.mark.parametrize("flush", FLUSH)
def test_answers(machine: Machine, flush: str) -> None:
    with machine.open() as store:
        queue, answers = store.queue("q", flush=flush), store.queue("answers", flush=flush)
        queue.publish_many(numbers(30))
        consumer = queue.consumer("w")
        answer(queue, answers, consumer)  # so that something is told before
        back_up(machine, lambda: answer(queue, answers, consumer))
    with machine.open("restored") as store:
        queue, answers = store.queue("q"), store.queue("answers")
        with queue.consumer("w") as consumer:
            answer(queue, answers, consumer, 30)
        assert values(answers.read()) == numbers(30)


@pytest.mark.parametrize("flush", FLUSH)
def test_dead_letters(machine: Machine, flush: str) -> None:
    with machine.open() as store:
        queue = store.queue("q", flush=flush)
        queue.publish_many(numbers(30))
        consumer = queue.consumer("w")
        reject(queue, consumer)
        back_up(machine, lambda: reject(queue, consumer))
    with machine.open("restored") as store:
        queue = store.queue("q")
        with queue.consumer("w") as consumer:
            reject(queue, consumer)
            reject(queue, consumer)
        assert values(store.dead("q")) == numbers(30)


def test_redriven_letters(machine: Machine) -> None:
    with machine.open() as store:
        queue = store.queue("q")
        queue.publish_many(numbers(20))
        with queue.consumer("w") as consumer:
            consumer.reject(consumer.receive(20), "bad")
        assert [store.redrive("q", limit=1) for _ in range(5)] == [1] * 5
        back_up(machine, lambda: [store.redrive("q", limit=1) for _ in range(10)])
    with machine.open("restored") as store:
        store.redrive("q")
        assert values(store.queue("q").read()) == numbers(20) * 2


@pytest.mark.no_cover
@pytest.mark.parametrize("seed", [2, 51, 86])
def test_what_went_wrong(seed: int) -> None:
    with Machine(seed) as machine:
        world = World(machine, seed, "sync")
        world.back_up_and_check()
        world.close()


# --- what a group tells -----------------------------------------------------------------------


class Told:
    """What a group says it has settled for good, while messages are settled one by one."""

    def __init__(self, store: Store, flush: str = "sync") -> None:
        self.queue = store.queue("q", flush=flush)
        self.queue.publish_many(numbers(100))
        self.consumer = self.queue.consumer("w")

    def after(self, count: int) -> int:
        for message in self.consumer.receive(count):
            message.ack()
            self.queue.group("w").flush()
            self.queue.group("w").account()
        return self.queue.group("w").account().settled


@pytest.mark.parametrize("flush", FLUSH)
def test_it_stands_still_during_any_backup_and_goes_on_behind_it(store: Store, flush: str) -> None:
    told, side = Told(store, flush), store.layout.side
    before = told.after(10)
    assert before >= 9
    with under_way(store.fs, side):
        assert told.after(10) == before
        with under_way(store.fs, side):
            assert told.after(10) == before
        assert told.after(10) == before
    assert told.after(10) >= 49


def test_a_group_that_is_reset_meanwhile(store: Store) -> None:
    told = Told(store)
    before = told.after(10)
    with under_way(store.fs, store.layout.side):
        name = told.queue.group("w").account().name
        told.queue.group("w").reset(0)
        account = told.queue.group("w").account()
        assert (account.name != name, account.settled) == (True, 0)
        assert told.after(20) == 0
    assert told.after(1) >= before


def test_a_backup_that_is_killed(store: Store, tmp_path: Path) -> None:
    told = Told(store)
    before = told.after(10)
    with another_process(tmp_path / "data") as other:
        entered = "__import__('tailrace.queue.backup_lock').queue.backup_lock.under_way"
        other.ask(f"globals().update(it={entered}(store.fs, store.layout.side))")
        assert other.ask("it.__enter__()") == "None"
        assert told.after(10) == before
        assert other.ask("store.queue('q').group('w').account().settled") == "0"
        other.kill()
    assert told.after(10) >= 29


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child(store: Store) -> None:
    """It has neither the parent's backup nor what the parent looks by."""
    told = Told(store)
    before = told.after(10)
    with under_way(store.fs, store.layout.side):
        child = os.fork()
        if not child:
            os._exit(told.queue.group("w").account().settled or store.backups.are_over())
        assert os.waitpid(child, 0)[1] == 0
        assert told.after(10) == before
    child = os.fork()
    if not child:
        group = told.queue.group("w")
        os._exit([group.account().settled for _ in range(3)][-1])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 20


def test_who_cannot_look_forgets_nothing(machine: Machine) -> None:
    store, fs = machine.open_faulty()
    assert store.backups.are_over()
    store.backups.disown()
    fs.plan = on("lock", Fail(errno.EMFILE), path="*/lock.backup")
    assert not store.backups.are_over()
    assert store.backups.are_over()


# --- the file ---------------------------------------------------------------------------------


def test_the_file_is_made_by_who_opens_the_store(open_store: OpenStore, tmp_path: Path) -> None:
    with open_store() as store:
        store.queue("q").publish(b"1")
        file = Path(store.layout.side) / "lock.backup"
    assert file.exists()
    root = store.layout.root
    backup(OsFileSystem(), root, str(tmp_path / "one"), store.clock)
    file.unlink()
    backup(OsFileSystem(), root, str(tmp_path / "two"), store.clock)
    assert not file.exists()
    for name in ("one", "two"):
        assert not list((tmp_path / name).rglob("lock.backup"))
        restore_backup(tmp_path / name, tmp_path / f"{name}-restored")
        with Store(tmp_path / f"{name}-restored") as restored:
            assert values(restored.queue("q").read()) == [b"1"]


@pytest.mark.parametrize("error", [errno.EROFS, errno.EACCES])
def test_a_store_that_cannot_be_written_to(machine: Machine, error: int) -> None:
    with machine.open() as store:
        store.queue("q").publish(b"1")
    fs = FaultyFileSystem(machine.disk, on("lock", Fail(error), path="*/lock.backup"))
    assert backup(fs, "data/queue", "backup", machine.clock).queues == 1
    assert fs.hits


def test_a_lock_that_cannot_be_had(machine: Machine) -> None:
    with machine.open() as store:
        store.queue("q").publish(b"1")
    fs = FaultyFileSystem(machine.disk, on("lock", Fail(errno.EIO), path="*/lock.backup"))
    with pytest.raises(NotWritten):
        backup(fs, "data/queue", "backup", machine.clock)
