"""Who publishes delayed messages leaves few of them unsorted, whether or not anybody delivers."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tailrace import Log, NotWritten, Queue, Store
from tailrace.queue.delays import Delays
from tailrace.queue.schedule import Manifest
from tailrace.queue.sorted_runs import Entry, RunInfo, write_run
from tailrace.testing import SimulatedDisk
from tests.queue.clocks import Machine
from tests.queue.delaying import Model, few_in_memory, values_of
from tests.queue.test_delays_files import folder_of

pytestmark = pytest.mark.no_cover

MOST = 2 * 7  # records, in `few_in_memory`


def unsorted(disk: SimulatedDisk) -> int:
    """Records that whoever comes has to read."""
    folder = folder_of(disk)
    with Log(f"{folder}/incoming", read_only=True, fs=disk) as incoming:
        return incoming.end_offset - Manifest.load(disk, folder).incoming


def unsorted_bytes(disk: SimulatedDisk) -> int:
    folder = folder_of(disk)
    with Log(f"{folder}/incoming", read_only=True, fs=disk) as incoming:
        first = Manifest.load(disk, folder).incoming
        return sum(
            len(record.value or b"") + sum(map(len, record.headers.values()))
            for record in incoming.read(first)
        )


def schedule(machine: Machine, model: Model, queue: Queue, rng: random.Random) -> None:
    model.schedule(queue, machine.clock.wall_ms() + rng.randrange(1_000, 60_000))


def check_delivery(machine: Machine, model: Model) -> None:
    """Each comes once, in the order of their times."""
    machine.clock.advance(61)
    with machine.open() as store:
        store.deliver_due()
        model.check_end(store)
        times = [model.due[value] for value in values_of(store.get("q"))]
        assert times == sorted(times)


@pytest.mark.parametrize("flush", ["sync", "async", "none"])
def test_a_publisher_that_is_killed(machine: Machine, flush: str) -> None:
    rng, model = random.Random(1), Model()
    with few_in_memory():
        queue = machine.open(flush=flush).queue("q")
        for _ in range(100):
            schedule(machine, model, queue, rng)
            assert unsorted(machine.disk) <= MOST
        machine.kill()
        assert unsorted(machine.disk) <= MOST
        check_delivery(machine, model)


@pytest.mark.parametrize("at_once", [1, 3])
def test_publishers_that_are_killed_after_a_few(machine: Machine, at_once: int) -> None:
    rng, model = random.Random(2), Model()
    with few_in_memory():
        for _ in range(30):
            queues = [machine.open(flush="async").queue("q") for _ in range(at_once)]
            for _ in range(3):
                for queue in queues:
                    schedule(machine, model, queue, rng)
            machine.kill()
            assert unsorted(machine.disk) <= MOST + at_once
        check_delivery(machine, model)


@pytest.mark.parametrize("where", ["value", "headers"])
@pytest.mark.parametrize("compression", ["none", "s2"])
@pytest.mark.parametrize("deaths", [False, True])
def test_large_messages_count_for_more(
    machine: Machine, compression: str, deaths: bool, where: str
) -> None:
    """What counts is what they take in memory, also of those that others have published."""
    most, size = 40_000, 3_000
    with mock.patch("tailrace.queue.schedule._BYTES_MOST", most):
        queues = []
        for number in range(60):
            if deaths or number < 3:
                queues.append(machine.open(flush="async").queue("q", compression=compression))
            queue = queues[-1] if deaths else queues[number % 3]
            value, large = b"%d" % number, bytes(size)
            if where == "value":
                queue.publish(value + large, delay="1m")
            else:
                queue.publish(value, headers={"large": large}, delay="1m")
            assert unsorted_bytes(machine.disk) <= 2 * most + size
            if deaths:
                machine.kill()
        machine.clock.advance(61)
        with machine.open() as store:
            store.deliver_due()
            found = [int(value.rstrip(b"\0")) for value in values_of(store.get("q"))]
    assert found == list(range(60))


def test_threads_that_publish(tmp_path: Path) -> None:
    """They wait for the one that sorts, and none of their messages is lost or doubled."""
    count, threads = 60, 4
    with few_in_memory(), Store(tmp_path / "data", upkeep=False, flush="async") as store:
        queue = store.queue("q")

        def publish(number: int) -> None:
            for each in range(count):
                queue.publish(b"%d" % (number * count + each), delay="1h")

        workers = [threading.Thread(target=publish, args=(number,)) for number in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        incoming = queue.delays.incoming
        first = Manifest.load(store.fs, queue.delays._folder).incoming
        assert incoming.exact_end() - first <= MOST + threads
        found = [int(each.value or b"") for each in queue.delayed(limit=None)]
        assert sorted(found) == list(range(threads * count))


def test_who_publishes_leaves_it_to_those_who_deliver(machine: Machine) -> None:
    with few_in_memory():
        publisher, other = machine.open().queue("q"), machine.open().queue("q")
        with mock.patch.object(
            Delays, "_sort_away", autospec=True, side_effect=Delays._sort_away
        ) as asked:
            for _ in range(10 * MOST):
                publisher.publish(b"x", delay="1h")
                other.delays.next_due()
            assert publisher.delays._state is None  # it had no turn
            assert asked.call_count < 20  # and looked at the manifest now and then


def test_what_cannot_be_sorted_is_published(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    model = Model()
    with few_in_memory():
        queue = machine.open().queue("q")
        with (
            mock.patch.object(Delays, "_sort", side_effect=NotWritten("no")) as failing,
            caplog.at_level(logging.WARNING, "tailrace"),
        ):
            for _ in range(5 * MOST):
                model.schedule(queue, machine.clock.wall_ms() + 60_000)
        assert 2 <= failing.call_count <= 5  # not each time
        assert "not sorted: no" in caplog.text
        for _ in range(MOST):
            model.schedule(queue, machine.clock.wall_ms() + 60_000)
        assert unsorted(machine.disk) <= MOST
        machine.kill()
        check_delivery(machine, model)


def test_a_sum_that_is_wrong_is_put_right(machine: Machine) -> None:
    """As a power cut may leave it."""
    queue = machine.open().queue("q")
    queue.publish(b"x", delay="1h")
    about = queue.delays._unsorted
    assert about is not None
    about._store(2**70)
    queue.publish(b"x", delay="1h")
    assert about.bytes == queue.delays._current().bytes + 1 + 64
    assert not queue.delays._current().runs


# --- the end of those who sort -------------------------------------------------------------------


class Interrupt(BaseException):
    """As a signal raises it."""


def test_who_was_interrupted_does_not_begin_again_to_close(machine: Machine) -> None:
    """Whoever comes next does it."""
    rng, model = random.Random(3), Model()
    with few_in_memory():
        store = machine.open()
        queue = store.queue("q")
        for _ in range(MOST):
            schedule(machine, model, queue, rng)
        with mock.patch("tailrace.queue.delivery.write_run", side_effect=Interrupt) as run:
            with pytest.raises(Interrupt):
                queue.delayed_count()
            store.close()
            assert run.call_count == 1
        check_delivery(machine, model)


def test_a_store_is_closed_while_its_thread_sorts(tmp_path: Path) -> None:
    """What it has begun is left to whoever comes next, and nobody has to wait for it."""
    begun, entries_s = threading.Event(), 0.01

    def slowly(fs: object, folder: str, entries: Iterable[Entry], *rest: Any) -> RunInfo | None:
        def delayed() -> Iterator[Entry]:
            for entry in entries:
                begun.set()
                time.sleep(entries_s)
                yield entry

        return write_run(fs, folder, delayed(), *rest)  # type: ignore[arg-type]

    with mock.patch("tailrace.queue.schedule._RECORDS_MOST", 6_000):
        with Store(tmp_path / "data", upkeep=False, flush="async") as store:
            queue = store.queue("q")
            for _ in range(5_999):
                queue.publish(b"x", delay="1h")
        with (
            mock.patch("tailrace.queue.delivery.write_run", slowly),
            mock.patch("tailrace.queue.delivery._PORTION", 100),
            Store(tmp_path / "data", flush="async") as store,
        ):
            store.get("q").publish(b"x", delay="1h")
            assert begun.wait(30)
            began_s = time.monotonic()
            store.close()
            assert time.monotonic() - began_s < 20  # of 60
        with Store(tmp_path / "data", upkeep=False) as store:
            assert store.get("q").delayed_count() == 6_000
