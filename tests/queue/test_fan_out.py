"""A topic that several queues are bound to, and one of them cannot be written to."""

from __future__ import annotations

import asyncio
import errno
from typing import Any

import pytest

from tailrace import NotWritten, OutcomeUnknown, Store, aio
from tailrace.testing import Call, Fail, Fault, FaultyFileSystem, SimulatedDisk

QUEUES = ("a", "b", "c")


def faulty_store(fs: FaultyFileSystem, **options: Any) -> Store:
    store = Store("data", fs=fs, upkeep=False, **options)
    for name in QUEUES:
        store.queue(name, topics=["news/#"])
    store.publish("news/first", b"1")  # all files are there
    return store


def break_queue(fs: FaultyFileSystem, name: str, op: str) -> None:
    """From now on this call fails, for the log of one queue."""

    def plan(call: Call) -> Fault | None:
        is_meant = call.op == op and f"/{name}/" in call.path and call.path.endswith(".seg")
        return Fail(errno.EIO) if is_meant else None

    fs.plan = plan


@pytest.mark.parametrize("broken", QUEUES)
def test_the_others_have_it_and_the_error_tells(broken: str) -> None:
    fs = FaultyFileSystem(SimulatedDisk())
    with faulty_store(fs, flush="none") as store:
        break_queue(fs, broken, "pwrite")
        others = [name for name in QUEUES if name != broken]
        says = f"the message is in {', '.join(others)}, and not, or not for sure, in {broken} "
        with pytest.raises(NotWritten, match=says) as caught:
            store.publish("news/second", b"2")
        assert caught.value.appended == 2
        assert {name: len(store.get(name)) for name in QUEUES} == {
            **dict.fromkeys(others, 2),
            broken: 1,
        }


def test_all_of_them_fail() -> None:
    fs = FaultyFileSystem(SimulatedDisk())
    with faulty_store(fs, flush="none") as store:
        fs.plan = lambda call: Fail(errno.EIO) if call.op == "pwrite" else None
        with pytest.raises(NotWritten, match="in no queue, and not, or not for sure, in a, b, c"):
            store.publish("news/second", b"2")
        fs.plan = None
        assert [len(store.get(name)) for name in QUEUES] == [1, 1, 1]


def test_one_queue_alone_tells_its_own_error() -> None:
    fs = FaultyFileSystem(SimulatedDisk())
    with faulty_store(fs, flush="none") as store:
        store.queue("d", topics=["alone"])
        store.publish("alone", b"1")
        break_queue(fs, "d", "pwrite")
        with pytest.raises(NotWritten) as caught:
            store.publish("alone", b"2")
        assert "the message is in" not in str(caught.value)


@pytest.mark.parametrize("broken", QUEUES)
def test_what_cannot_be_synced_holds_nobody_else_up(broken: str) -> None:
    fs = FaultyFileSystem(SimulatedDisk())
    store = faulty_store(fs, flush="sync")
    break_queue(fs, broken, "sync")
    with pytest.raises(OutcomeUnknown, match=f"not for sure, in {broken} "):
        store.publish("news/second", b"2")
    others = [name for name in QUEUES if name != broken]
    assert [store.get(name).log.durable_offset for name in others] == [2, 2]
    fs.plan = None
    store.close()


@pytest.mark.parametrize("broken", QUEUES)
def test_asyncio_waits_for_the_others_too(broken: str) -> None:
    fs = FaultyFileSystem(SimulatedDisk())
    faulty_store(fs, flush="sync").close()

    async def run() -> None:
        async with aio.Store("data", fs=fs, upkeep=False) as store:
            break_queue(fs, broken, "sync")
            with pytest.raises(OutcomeUnknown, match=f"not for sure, in {broken} "):
                await store.publish("news/second", b"2")
            fs.plan = None

    asyncio.run(run())


def test_delayed_messages_are_scheduled_where_that_works() -> None:
    fs = FaultyFileSystem(SimulatedDisk())
    with faulty_store(fs, flush="none") as store:
        store.publish("news/later", b"1", delay=60)
        before = [store.get(name).delayed_count() for name in QUEUES]

        def plan(call: Call) -> Fault | None:
            is_meant = call.op == "pwrite" and store.get("b").incarnation in call.path
            return Fail(errno.EIO) if is_meant else None

        fs.plan = plan
        with pytest.raises(NotWritten, match="in a, c, and not, or not for sure, in b"):
            store.publish("news/later", b"2", delay=60)
        fs.plan = None
        assert before == [1, 1, 1]
        assert [store.get(name).delayed_count() for name in QUEUES] == [2, 1, 2]
