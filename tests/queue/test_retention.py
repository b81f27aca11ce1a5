"""What queues delete, and when: by themselves, by command, and never what somebody needs."""

from __future__ import annotations

import os
import resource
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

import tailrace
from tailrace import Closed, Queue, Store, Stream
from tailrace.log.fs import OsFileSystem
from tailrace.queue.caretaker import Caretaker
from tailrace.queue.disk import DiskSettings, Level
from tailrace.queue.handles import Handles
from tailrace.queue.looking import Look
from tailrace.queue.open_files import FILES_OF_A_LOG, most_files
from tailrace.queue.settings import QueueSettings
from tailrace.testing import FaultyFileSystem
from tests.log.helpers import WAIT
from tests.queue.clocks import Machine, ManualClock
from tests.queue.conftest import OpenStore
from tests.queue.support import another_process, drain, numbers, offsets, one, values

SMALL: dict[str, Any] = {"segment_bytes": 400, "flush": "none", "compression": "none"}
SOON = "30ms"


def segments(queue: Queue | Stream) -> int:
    return segments_in(queue.log.path)


def segments_in(folder: str) -> int:
    return sum(name.endswith(".seg") for name in os.listdir(folder))


def fill(queue: Queue | Stream, count: int = 20) -> None:
    for number in numbers(count):
        queue.publish(number)


def eventually(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT
    while not is_so():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.01)


# --- what may go ----------------------------------------------------------------------------------


def test_what_all_groups_have_settled_goes(store: Store) -> None:
    queue = store.queue("q", **SMALL)
    fill(queue)
    fast, slow = queue.consumer("fast"), queue.consumer("slow")
    assert len(drain(fast)) == 20
    assert queue.vacuum().segments == 0
    messages = slow.receive(12)
    for message in messages[1:]:
        message.ack()
    assert queue.vacuum().segments == 0  # the first one is not settled
    messages[0].ack()
    before = segments(queue)
    report = queue.vacuum()
    assert report.segments == before - segments(queue) > 0
    assert offsets(queue.read())[0] <= 12
    assert values(slow.receive(99)) == numbers(20)[12:]


def test_everything_goes_when_everything_is_settled(store: Store) -> None:
    queue = store.queue("q", **SMALL)
    fill(queue)
    drain(queue.consumer("w"))
    queue.vacuum()
    assert segments(queue) <= 1
    assert sum(os.path.getsize(path) for path in Path(queue.log.path).glob("*.seg")) < 100
    queue.publish(b"next")
    assert one(queue.consumer("w")).offset == 20


def test_limits_say_what_is_kept_of_it(store: Store) -> None:
    queue = store.queue("q", retention={"max_length_messages": 8}, **SMALL)
    fill(queue)
    consumer = queue.consumer("w")
    consumer.ack(consumer.receive(4))
    queue.vacuum()
    assert queue.log.start_offset <= 4  # whatever the limit says: it is needed
    drain(consumer)
    queue.vacuum()
    assert 8 <= len(queue) < 14
    assert values(queue.read())[-8:] == numbers(20)[-8:]


def test_a_queue_that_no_group_reads_keeps_everything(store: Store) -> None:
    queue = store.queue("q", **SMALL)
    fill(queue)
    assert queue.vacuum().segments == 0
    queue.configure(retention={"max_length_messages": 8})
    assert queue.vacuum().segments > 0
    assert 8 <= len(queue) < 14


def test_groups_of_a_stream_hold_nothing_back(store: Store) -> None:
    stream = store.stream("s", retention={"max_length_messages": 8}, **SMALL)
    fill(stream)
    stream.consumer("r").receive(1)
    stream.vacuum()
    assert 8 <= len(stream) < 14


def test_age(store: Store, clock: ManualClock) -> None:
    stream = store.stream("s", retention={"max_age": "1h"}, **SMALL)
    for number in range(20):
        if number == 9:
            clock.advance("2h")
        stream.publish(str(number))
    stream.vacuum()
    first = stream.log.start_offset
    assert 0 < first <= 9


def test_of_all_queues_by_command(store: Store) -> None:
    for name in ("a", "b"):
        queue = store.queue(name, **SMALL)
        fill(queue)
        drain(queue.consumer("w"))
    reports = store.vacuum()
    assert [reports[name].segments > 0 for name in ("a", "b")] == [True, True]


def test_a_group_that_cannot_be_read_holds_everything_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = store.queue("q", **SMALL)
    fill(queue)
    drain(queue.consumer("w"))

    def damaged(look: Look, settings: QueueSettings, group_id: str) -> NoReturn:
        raise tailrace.Corrupt(f"the group {group_id!r} cannot be read")

    monkeypatch.setattr(Look, "look_at", damaged)
    with pytest.raises(tailrace.Corrupt):
        queue.vacuum()
    assert len(queue) == 20


@pytest.mark.parametrize("seed", range(10))
def test_the_power_fails_while_it_deletes(seed: int, machine: Machine) -> None:
    options = {**SMALL, "flush": "sync"}
    store = machine.open()
    queue = store.queue("q", **options)
    fill(queue)
    consumer = queue.consumer("w")
    consumer.ack(consumer.receive(10))
    queue.vacuum()
    machine.power_cut(seed)
    with machine.open() as again:
        left = again.queue("q").consumer("w").receive(99)
        assert values(left) == numbers(20)[10:]


# --- by itself ------------------------------------------------------------------------------------


def test_space_returns_without_a_call(tmp_path: Path) -> None:
    with tailrace.open(tmp_path, retention_check_interval=SOON, **SMALL) as store:
        queue = store.queue("q")
        fill(queue)
        assert segments(queue) > 3
        drain(queue.consumer("w"))
        eventually(lambda: segments(queue) <= 1)


def test_also_of_queues_that_nobody_uses(tmp_path: Path) -> None:
    with tailrace.open(tmp_path, upkeep=False, retention_check_interval=SOON, **SMALL) as store:
        queue = store.queue("idle")
        fill(queue)
        drain(queue.consumer("w"))
        folder = queue.log.path
    with tailrace.open(tmp_path) as store:
        store.queue("other").publish(b"x")
        eventually(lambda: segments_in(folder) <= 1)
        eventually(lambda: not store.get("idle").is_open)


def leave_settled(path: Path) -> str:
    """Messages that may go, and nobody who deletes them; the folder of their segments."""
    with tailrace.open(path, upkeep=False, retention_check_interval=SOON, **SMALL) as store:
        queue = store.queue("q")
        fill(queue)
        drain(queue.consumer("w"))
        assert segments(queue) > 3
        return queue.log.path


def test_also_by_who_uses_no_queue(tmp_path: Path) -> None:
    folder = leave_settled(tmp_path)
    with tailrace.open(tmp_path):
        eventually(lambda: segments_in(folder) <= 1)


def test_also_by_who_came_before_there_was_a_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailrace.queue.caretaker._DISK_S", 0.03)  # when it looks for changes
    with tailrace.open(tmp_path):
        folder = leave_settled(tmp_path)
        eventually(lambda: segments_in(folder) <= 1)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_also_by_a_forked_child(tmp_path: Path) -> None:
    with tailrace.open(tmp_path) as store:
        child = os.fork()
        if not child:
            try:
                folder = leave_settled(tmp_path)
                store.check_open()
                eventually(lambda: segments_in(folder) <= 1)
                (tmp_path / "done").touch()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
    assert (tmp_path / "done").exists()


def test_a_queue_in_which_nothing_happened_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tailrace.open(tmp_path, retention_check_interval=SOON, **SMALL) as store:
        for name in ("a", "b", "c"):
            fill(store.queue(name))
            drain(store.queue(name).consumer("w"))
            store.queue(name).close()
        assert store._caretaker is not None
        eventually(lambda: len(store._caretaker._signs) == 3)  # type: ignore[union-attr]
        time.sleep(0.3)  # also what closing has changed is seen to
        seen: list[str] = []
        drop_segments = Queue.drop_segments

        def noticed(queue: Queue) -> Any:
            seen.append(queue.name)
            return drop_segments(queue)

        monkeypatch.setattr(Queue, "drop_segments", noticed)
        store.queue("b").publish(b"x")
        eventually(lambda: "b" in seen)
        time.sleep(0.2)
        assert set(seen) == {"b"}


def test_a_queue_that_is_made_or_changed_later_has_its_own_interval(tmp_path: Path) -> None:
    with tailrace.open(tmp_path, **SMALL) as store:
        other = store.queue("other")
        other.publish(b"x")
        queue = store.queue("q", retention_check_interval=SOON)
        assert store._caretaker is not None
        eventually(lambda: "other" in store._caretaker._seen_s)  # type: ignore[union-attr]
        for each in (other, queue):
            fill(each)
            drain(each.consumer("w"))
        eventually(lambda: segments(queue) <= 1)
        assert segments(other) > 3
        other.configure(retention_check_interval=SOON)
        eventually(lambda: segments(other) <= 1)


def test_an_interval_that_another_process_has_set(tmp_path: Path) -> None:
    with tailrace.open(tmp_path, **SMALL) as store, another_process(tmp_path) as other:
        queue = store.queue("q")
        fill(queue)
        drain(queue.consumer("w"))
        other.ask(f"store.configure('q', retention_check_interval='{SOON}')")
        eventually(lambda: segments(queue) <= 1)


class Idle:
    """Many queues that nobody uses, with somebody who looks after them and is watched."""

    def __init__(
        self, machine: Machine, monkeypatch: pytest.MonkeyPatch, count: int, **options: Any
    ) -> None:
        settings = {**SMALL, "flush": "sync", **options}
        with machine.open() as store:
            for number in range(count):
                queue = store.queue(f"q{number}", **settings)
                fill(queue, 8)
                if number % 2:
                    drain(queue.consumer("w"))
        self._watch(*machine.open_faulty(disk={"enough_free": 0, "force": True}), monkeypatch)

    @classmethod
    def watching(cls, store: Store, fs: FaultyFileSystem, monkeypatch: pytest.MonkeyPatch) -> Idle:
        """The same, of a store that is there."""
        idle = cls.__new__(cls)
        idle._watch(store, fs, monkeypatch)
        return idle

    def _watch(self, store: Store, fs: FaultyFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store, self.fs = store, fs
        self.caretaker = Caretaker(self.store)
        self.caretaker.stop()
        self.opened: list[str] = []
        open_log = Store.open_log

        def noticed(store: Store, settings: QueueSettings, *rest: Any, **options: Any) -> Any:
            self.opened.append(settings.name)
            return open_log(store, settings, *rest, **options)

        monkeypatch.setattr(Store, "open_log", noticed)

    def cost(self, do: Callable[[], object]) -> tuple[int, int]:
        """How many queues were opened, and how many calls were made to the disk."""
        self.caretaker._seen_s.clear()  # it is everybody's turn
        if isinstance(self.store.clock, ManualClock):
            self.store.clock.advance(1)
        else:
            time.sleep(0.05)  # the times of the files tell that nothing has happened
        self.opened.clear()
        before = len(self.fs.calls)
        do()
        return len(self.opened), len(self.fs.calls) - before


MANY = 60


@pytest.mark.no_cover
@pytest.mark.parametrize(
    "options", [{}, {"retention": {"max_age": "1h"}}, {"expire_groups": "1h"}], ids=str
)
def test_idle_queues_cost_next_to_nothing(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    idle = Idle(machine, monkeypatch, MANY, **options)
    retain = idle.caretaker.retain
    opened, _ = idle.cost(retain)
    assert opened == MANY  # nothing is known of them
    idle.cost(retain)  # also what was deleted has been seen
    opened, calls = idle.cost(retain)
    assert opened == 0
    assert calls <= 8 * MANY
    queue = idle.store.queue("q7")
    queue.publish(b"x")
    queue.close()
    assert idle.cost(retain)[0] == 1
    assert idle.cost(lambda: retain(is_pressed=True))[0] == 0
    idle.store.close()


@pytest.mark.no_cover
@pytest.mark.parametrize("count", [150, pytest.param(1_000, marks=pytest.mark.long)], ids=str)
def test_many_idle_queues_on_a_real_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Each costs a look or two; who looks closely, looks at those that are used."""
    with tailrace.open(tmp_path, upkeep=False) as store:
        store.declare([(f"q{number}", "classic", SMALL) for number in range(count)])
        fill(store.queue("q0"), 8)
        made = Path(store.layout.queue("q0"))
    for number in range(1, count):
        shutil.copytree(made, made.parent / f"q{number}")
    fs = FaultyFileSystem(OsFileSystem(), lambda call: None)
    with Store(tmp_path, fs=fs, upkeep=False) as store:
        idle = Idle.watching(store, fs, monkeypatch)
        retain = idle.caretaker.retain
        assert idle.cost(retain)[0] == count  # nothing is known of them
        opened, calls = idle.cost(retain)
        assert (opened, calls // count) == (0, 3)
        used = [store.queue(f"q{number}") for number in (3, 7)]
        for queue in used:
            queue.publish(b"x")
            queue.close()
        opened, with_used = idle.cost(retain)
        assert opened == len(used)
        assert with_used - calls < 200


def test_what_becomes_too_old_is_not_forgotten(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle = Idle(machine, monkeypatch, 4, retention={"max_age": "1h"})
    retain = idle.caretaker.retain
    idle.cost(retain)
    machine.clock.advance(3_000)
    assert idle.cost(retain) == (0, idle.cost(retain)[1])
    machine.clock.advance(700)
    assert idle.cost(retain)[0] == 4
    # Those that no group reads are empty now, and so are those that are settled.
    assert [len(each) for each in idle.store.queues()] == [0, 0, 0, 0]
    held = idle.store.queue("held", retention={"max_age": "1h"}, **SMALL)
    held.group("w")
    fill(held)
    machine.clock.advance(3_700)
    idle.cost(retain)
    assert len(held) == 20  # it is too old, and needed
    held.close()
    idle.cost(retain)
    assert idle.cost(retain)[0] == 0
    drain(held.consumer("w"))
    held.close()
    idle.cost(retain)
    assert len(held) == 0
    idle.store.close()


@pytest.mark.no_cover
def test_a_disk_that_stays_too_full_costs_little(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "tailrace")
    idle = Idle(machine, monkeypatch, MANY)
    now_s = 0.0
    monkeypatch.setattr(
        "tailrace.queue.caretaker.time", SimpleNamespace(monotonic=lambda: 1000 + now_s)
    )
    level, takes_s = Level.HIGH, 0.0
    monkeypatch.setattr(idle.store.disk, "measure", lambda: level)
    mind, retain = idle.caretaker.mind_the_disk, idle.caretaker.retain

    def search(*, is_pressed: bool) -> bool:
        nonlocal now_s
        now_s += takes_s
        return retain(is_pressed=is_pressed)

    monkeypatch.setattr(idle.caretaker, "retain", search)
    assert idle.cost(mind)[0] >= MANY
    for _ in range(3):  # what was deleted, and what opening has left, has been seen
        now_s += 60
        idle.cost(mind)
    for each_s, searches in ((0.0, 24), (10.0, 3)):  # whatever it costs, it is a small share
        takes_s, rounds = each_s, []
        for _ in range(24):  # two minutes
            now_s += 5
            rounds.append(idle.cost(mind))
        assert {opened for opened, _ in rounds} == {0}
        assert sum(calls > MANY for _, calls in rounds) == searches  # else a look at the disk
        assert max(calls for _, calls in rounds) <= 12 * MANY
    told = [record.message for record in caplog.records if "the disk of" in record.message]
    assert len(told) == 1
    level = Level.FINE
    mind()
    assert "has room again" in caplog.messages[-1]
    idle.store.close()


def test_only_at_certain_hours(store: Store, open_store: OpenStore) -> None:
    for when, hour, may in (("04;16", 4, True), ("04;16", 5, False), ("disk_full", 4, False)):
        settings = DiskSettings.parse({"delete_when": when})
        wall_ms = int(time.mktime((2026, 3, 1, hour, 30, 0, 0, 0, -1)) * 1000)
        assert settings.may_delete(wall_ms) is may
    never = open_store(disk={"delete_when": "disk_full"})
    queue = never.queue("q", **SMALL)
    fill(queue)
    drain(queue.consumer("w"))
    caretaker = Caretaker(never)
    try:
        caretaker.retain()
        assert segments(queue) > 3
        caretaker.retain(is_pressed=True)
        assert segments(queue) <= 1
    finally:
        caretaker.stop()


def test_groups_expire_at_any_hour(open_store: OpenStore, clock: ManualClock) -> None:
    store = open_store(disk={"delete_when": "disk_full"})
    queue = store.queue("q", expire_groups="1h", **SMALL)
    fill(queue)
    with queue.consumer("w") as consumer:
        drain(consumer)
    queue.close()
    clock.advance(3_601)
    caretaker = Caretaker(store)
    try:
        assert caretaker.retain()
        assert queue.group_ids() == []
        assert segments(queue) > 3
        caretaker.retain(is_pressed=True)
        assert segments(queue) > 3  # without a group nothing is settled
    finally:
        caretaker.stop()


def test_groups_that_are_idle_expire_by_rule(tmp_path: Path) -> None:
    options: dict[str, Any] = {**SMALL, "retention_check_interval": SOON}
    with tailrace.open(tmp_path, **options) as store:
        queue = store.queue("q", expire_groups="200ms")
        fill(queue)
        queue.group("forgotten")
        with queue.consumer("w") as consumer:
            drain(consumer)
            eventually(lambda: queue.group_ids() == ["w"])
            eventually(lambda: segments(queue) <= 1)


# --- how many are open --------------------------------------------------------------------------


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.no_cover
def test_many_queues_do_not_need_many_files(tmp_path: Path) -> None:
    with tailrace.open(tmp_path, flush="none") as store:
        store.handles = Handles(5 * FILES_OF_A_LOG)
        before = open_files()
        for number in range(40):
            store.queue(f"q{number}").publish(b"%d" % number)
        assert open_files() - before < 6 * 20
        for number in range(40):
            queue = store.queue(f"q{number}")
            assert drain(queue.consumer("w")) == [b"%d" % number]
            queue._consumers.clear()
        assert sum(queue.is_open for queue in store.queues()) < 20


@pytest.mark.no_cover
@pytest.mark.parametrize("delivers", [False, True])
def test_groups_and_delayed_messages_count_too(tmp_path: Path, delivers: bool) -> None:
    with tailrace.open(tmp_path, flush="none") as store, tailrace.open(tmp_path) as other:
        store.queue("first").publish(b"x", delay=3600)
        eventually(lambda: is_delivering(store) or is_delivering(other))
        used = store if is_delivering(store) is delivers else other
        store.handles = Handles(200)
        other.handles = Handles(200)
        before = open_files()
        for number in range(20):
            queue = used.queue(f"q{number}")
            queue.publish(b"x", delay=50 if number % 2 else 3600)
            for group in range(5):
                queue.consumer(f"g{group}").close()
        eventually(lambda: sum(queue.files for queue in used.queues()) < 300)
        eventually(lambda: open_files() - before < 600)  # of both
        assert all(queue.delayed_count() == 1 for queue in used.queues())


def is_delivering(store: Store) -> bool:
    """Of those that have the store open, one delivers what is due."""
    return store._pump is not None and store._pump.is_delivering


def test_what_is_in_use_does_not_rest(tmp_path: Path) -> None:
    with tailrace.open(tmp_path, flush="none") as store:
        store.handles = Handles(1)
        one_queue, other = store.queue("one"), store.queue("other")
        one_queue.publish_many(numbers(3))
        reading = one_queue.read()
        assert next(reading).value == b"0"
        consumer = other.consumer("w")
        other.publish(b"x")
        message = one(consumer)
        for number in range(5):
            store.queue(f"q{number}").publish(b"x")
        assert other.is_open
        assert one_queue.is_open
        assert values(reading) == [b"1", b"2"]
        del reading
        assert one_queue.rest()
        assert [queue.is_open for queue in (one_queue, other)] == [False, True]
        message.ack()
        consumer.close()
        assert other.rest()
        other.publish(b"y")


def test_a_message_in_hand_keeps_its_group(tmp_path: Path) -> None:
    with tailrace.open(tmp_path, flush="none") as store:
        queue = store.queue("q")
        queue.publish(b"x")
        with queue.consumer("w") as consumer:
            message = one(consumer)
        assert not queue.rest()
        message.ack()
        assert queue.rest()
        with pytest.raises(Closed):
            message.ack()


def test_a_message_in_hand_keeps_its_group_also_when_its_lease_is_over(tmp_path: Path) -> None:
    with tailrace.open(tmp_path, flush="none", visibility_timeout="1ms") as store:
        queue = store.queue("q")
        queue.publish(b"x")
        with queue.consumer("w") as consumer:
            message = one(consumer)
        time.sleep(0.005)
        assert not queue.rest()
        message.ack()
        assert queue.rest()
        assert not queue.pending("w")


def test_a_message_that_was_forgotten_keeps_its_group_as_long_as_its_lease(tmp_path: Path) -> None:
    with tailrace.open(tmp_path, flush="none", visibility_timeout="200ms") as store:
        queue = store.queue("q")
        queue.publish(b"x")
        with queue.consumer("w") as consumer:
            one(consumer)
        del consumer  # which could still settle it
        assert not queue.rest()
        time.sleep(0.25)
        assert queue.rest()
        with queue.consumer("w") as consumer:
            again = one(consumer)
            assert again.delivery_count == 2
            again.ack()


@pytest.mark.no_cover
def test_threads_that_use_more_queues_than_may_be_open(tmp_path: Path) -> None:
    with tailrace.open(tmp_path, flush="none") as store:
        store.handles = Handles(3 * FILES_OF_A_LOG)
        failures: list[Exception] = []

        def work(start: int) -> None:
            try:
                for number in range(60):
                    queue = store.queue(f"q{(start + number) % 12}")
                    queue.publish(b"x")
                    with queue.consumer("w") as consumer:
                        for message in consumer.receive(2):
                            message.ack()
            except (tailrace.TailraceError, OSError, AssertionError) as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(start,)) for start in (0, 4, 8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        queues = [store.queue(f"q{number}") for number in range(12)]
        left = sum(len(drain(queue.consumer("w"))) for queue in queues)
        assert sum(queue.group("w").state.acked for queue in queues) == 180
        assert left <= 180


def test_how_many_depends_on_the_process() -> None:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert most_files(2) == min(max(limit // 2, 256), 4096)
    assert most_files(8) <= most_files(2)
