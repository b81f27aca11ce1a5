"""Snapshots of a group: whoever dies while it makes one, and whoever comes next dies as well."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

import pytest

from tailrace.errors import TailraceError
from tailrace.queue.classic import ClassicGroup
from tailrace.queue.stream import StreamGroup
from tailrace.testing import Call, Crash, Fail, FaultyFileSystem, SimulatedCrash
from tests.queue.clocks import Machine
from tests.queue.support import drain, numbers

AnyGroup = ClassicGroup | StreamGroup

CHANGES = ("open", "pwrite", "truncate", "sync", "rename", "unlink", "sync_dir")


def process(machine: Machine, kind: str) -> tuple[AnyGroup, FaultyFileSystem]:
    """One that has the group open, and has done something in it."""
    store, fs = machine.open_faulty()
    queue = store.stream("q") if kind == "stream" else store.queue("q")
    group = queue.group("w")
    assert group.progress() is not None
    return group, fs


def snapshot(group: AnyGroup) -> None:
    with group._turn:
        group._snapshot()


def let_go(group: AnyGroup) -> None:
    """What the kernel does for a process that has died."""
    group._closed = True
    for lock in (group._turn, group._alive, group._presence):
        lock.close()


@contextlib.contextmanager
def prepared(kind: str) -> Iterator[Machine]:
    with Machine() as machine:
        with machine.open() as store:
            queue = store.stream("q") if kind == "stream" else store.queue("q")
            queue.publish_many(numbers(5))
            consumer = queue.consumer("w")
            assert len(consumer.receive(3)) == 3
            consumer.close()
        yield machine


def calls_of(kind: str) -> list[Call]:
    """Those that a snapshot makes."""
    with prepared(kind) as machine:
        group, fs = process(machine, kind)
        known = len(fs.calls)
        snapshot(group)
    return [call for call in fs.calls[known:] if call.op in CHANGES]


@pytest.mark.parametrize("kind", ["queue", "stream"])
@pytest.mark.parametrize("step", [19, pytest.param(1, marks=pytest.mark.long)])
def test_one_dies_while_it_makes_one_and_so_does_the_next(step: int, kind: str) -> None:
    """The second has the group open all the time, so that it goes on where the first has left it,
    and does not load it anew."""
    count = len(calls_of(kind))
    assert count > 8
    for first in range(count):
        for second in range(first % step, count, step):
            with prepared(kind) as machine:
                check(machine, kind, first, second)


def check(machine: Machine, kind: str, *deaths: int) -> None:
    processes = [process(machine, kind) for _ in deaths]
    progress = processes[0][0].progress()
    for (group, fs), death in zip(processes, deaths, strict=True):
        assert group.progress() == progress  # it goes on with what the others have done
        planned(fs, death)
        with contextlib.suppress(SimulatedCrash):
            snapshot(group)
        let_go(group)
    machine.kill()
    with machine.open() as store:
        queue = store.stream("q") if kind == "stream" else store.queue("q")
        assert queue.group("w").progress() == progress, f"deaths at {deaths}"


def planned(fs: FaultyFileSystem, number: int) -> None:
    """Die behind that call, of those that change something."""
    seen = 0

    def plan(call: Call) -> Crash | None:
        nonlocal seen
        if call.op not in CHANGES:
            return None
        seen += 1
        return Crash(after=True) if seen == number + 1 else None

    fs.plan = plan


# --- whose snapshot fails -----------------------------------------------------------------------


def test_an_ack_that_returned_is_durable_whatever_came_of_the_snapshot() -> None:
    """At each call of some acks, of which some have a snapshot made; then the power goes."""
    nth, has_failed = 0, True
    while has_failed:
        for seed in range(3):
            with Machine(seed) as machine:
                acked, has_failed = ack_some(machine, nth)
                machine.power_cut(seed)
                with machine.open() as store:
                    left = drain(store.queue("q").consumer("w"))
                assert not acked.intersection(left), (nth, seed)
        nth += 1
    assert nth > 30


def ack_some(machine: Machine, nth: int) -> tuple[set[bytes | None], bool]:
    """What was acked without an error; and has the n-th call failed?"""
    store, fs = machine.open_faulty()
    queue = store.queue("q", flush="sync", compact_after=4)
    queue.publish_many(numbers(6))
    acked, count = set[bytes | None](), 0

    def fail(call: Call) -> Fail | None:
        nonlocal count
        count += call.op in CHANGES and "/consumers/w" in call.path
        return Fail(errno.EIO) if call.op in CHANGES and count == nth + 1 else None

    for message in queue.consumer("w").receive(6):
        fs.plan = fail
        with contextlib.suppress(TailraceError, OSError):
            message.ack()
            acked.add(message.value)
        fs.plan = None
    return acked, count > nth
