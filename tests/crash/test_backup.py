"""A backup, or a restore, that is broken off at any call: there is all of it, or nothing, and the
store is as it was."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from tailrace import NotWritten, OutcomeUnknown, TailraceError, restore_backup, verify_backup
from tailrace.queue.backup import backup
from tailrace.testing import (
    Call,
    Crash,
    Fail,
    Fault,
    FaultyFileSystem,
    ShortWrite,
    SimulatedCrash,
    SimulatedDisk,
    at,
    from_call,
)
from tests.queue.clocks import Machine
from tests.queue.support import drain, numbers, states, values


@pytest.fixture(scope="module")
def disk() -> Iterator[SimulatedDisk]:
    """With a store in it that somebody had open when the machine died, and a backup of it."""
    with Machine() as machine:
        store = machine.open()
        queue = store.queue("q", segment_bytes=300, visibility_timeout="1h")
        queue.publish_many(numbers(3))
        for number in range(3, 8):
            queue.publish(b"%d" % number)
        consumer = queue.consumer("w")
        first, second, *_rest = consumer.receive(4)
        first.ack()
        second.reject("no")
        stream = store.stream("s", flush="async")
        stream.publish(b"x")
        stream.log.flush()
        backup(machine.disk, "data/queue", "old/backup", machine.clock)
        machine.power_cut(0)
        yield machine.disk


def copied(fs: FaultyFileSystem) -> None:
    machine = Machine()
    backup(fs, "data/queue", "new/backup", machine.clock)


def restored(fs: FaultyFileSystem) -> None:
    restore_backup("old/backup", "new/store", fs=fs)


def calls_of(disk: SimulatedDisk, work: object) -> list[Call]:
    fs = FaultyFileSystem(disk.clone())
    assert callable(work)
    work(fs)
    return fs.calls


def check_store(disk: SimulatedDisk, path: str) -> None:
    with Machine() as machine:
        machine.disk = disk
        with machine.open(path) as store:
            queue = store.queue("q")
            assert values(queue.read()) == numbers(8)
            assert values(store.stream("s").read()) == [b"x"]
            assert [letter.value for letter in store.dead("q")] == [b"1"]
            assert states(queue).keys() <= {2, 3}
            with queue.consumer("w") as consumer:
                assert drain(consumer) == numbers(8)[2:]


def check_backup(disk: SimulatedDisk, path: str) -> None:
    verify_backup(path, fs=disk)
    restore_backup(path, "checked", fs=disk)
    check_store(disk, "checked")


def is_there(disk: SimulatedDisk, path: str) -> bool:
    try:
        disk.stat(path)
    except FileNotFoundError:
        return False
    return True


@pytest.mark.sample(2)
@pytest.mark.parametrize("power", [True, False], ids=["power cut", "kill"])
@pytest.mark.parametrize("work", [copied, restored])
@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.long)])
def test_it_ends_at_any_call(step: int, work: object, power: bool, disk: SimulatedDisk) -> None:
    assert callable(work)
    made = 0
    for n in range(len(calls_of(disk, work)) - 1, -1, -step):
        twin = disk.clone()
        fs = FaultyFileSystem(twin, at(n, Crash(after=power)))
        with pytest.raises(SimulatedCrash):
            work(fs)
        if power:
            twin.crash(n)
        else:
            twin.kill()
        if is_there(twin, "new/backup"):
            made += 1
            check_backup(twin, "new/backup")
        elif is_there(twin, "new/store/queue"):
            made += 1
            check_store(twin, "new/store")
        elif n % 10 == 0:
            # It can be done again, in the same place, and nothing else is left there.
            twin.make_dirs("new")
            work(FaultyFileSystem(twin))
            if work is copied:
                assert [entry.name for entry in twin.list("new")] == ["backup"]
            else:
                assert [entry.name for entry in twin.list("new/store")] == ["queue"]
        if n % 10 == 0:
            check_store(twin, "data")
    assert made


@pytest.mark.parametrize("work", [copied, restored])
def test_when_it_returns_it_is_durable(work: object, disk: SimulatedDisk) -> None:
    assert callable(work)
    for seed in range(20):
        twin = disk.clone()
        work(FaultyFileSystem(twin))
        assert not [path for path in twin.unsynced() if path.startswith("new/")]
        twin.crash(seed)
        if work is copied:
            check_backup(twin, "new/backup")
        else:
            check_store(twin, "new/store")


FAULTS = [Fail(errno.EIO), Fail(errno.EIO, after=True), ShortWrite(0.5)]


@pytest.mark.sample(2)
@pytest.mark.parametrize("fault", FAULTS, ids=str)
@pytest.mark.parametrize("work", [copied, restored])
@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.long)])
def test_any_call_fails(step: int, work: object, fault: Fault, disk: SimulatedDisk) -> None:
    """It is made all the same, or it is not; but it is told."""
    assert callable(work)
    for call in calls_of(disk, work)[::step]:
        if isinstance(fault, ShortWrite) and call.op != "pwrite":
            continue
        twin = disk.clone()
        fs = FaultyFileSystem(twin, at(call.n, fault))
        try:
            work(fs)
        except (TailraceError, OSError) as error:
            assert not isinstance(fault, ShortWrite), error  # noqa: PT017
            is_made = is_there(twin, "new/backup") or is_there(twin, "new/store/queue")
            assert is_made == isinstance(error, OutcomeUnknown)  # noqa: PT017
        else:
            if work is copied:
                verify_backup("new/backup", fs=twin)
            else:
                assert is_there(twin, "new/store/queue/config/queues.json")
        left = [path for path in twin.files() if path.startswith("new/") and ".tmp/" in path]
        assert not left or fs.hits[0].op in ("unlink", "remove_dir", "list", "rename", "lock"), left
        assert not twin.open_files()


def own_files(disk: SimulatedDisk) -> list[str]:
    """All but those by which whoever looks at a group takes its turn."""
    return [path for path in disk.files() if "/lock" not in path and not path.endswith("/board")]


@pytest.mark.parametrize("work", [copied, restored])
def test_a_full_disk(work: object, disk: SimulatedDisk) -> None:
    """Nothing is left, and there is as much space as before."""
    assert callable(work)
    before = own_files(disk)
    for n in range(0, len(calls_of(disk, work)), 3):
        twin = disk.clone()
        fs = FaultyFileSystem(twin, from_call(n, Fail(errno.ENOSPC), ops=["pwrite"]))
        try:
            work(fs)
        except NotWritten as error:
            assert "nothing is left of it" in str(error)  # noqa: PT017
            assert "No space left on device" in str(error)  # noqa: PT017
            assert own_files(twin) == before
        else:
            assert not fs.hits
    check_store(disk.clone(), "data")
