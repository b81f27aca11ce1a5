"""A disk that gets full: what goes, what is refused, and what works all the same."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tailrace
from tailrace import ConfigError, Full, NotWritten, Queue, Store, Stream
from tailrace.log.fs import Space
from tailrace.queue.caretaker import Caretaker
from tailrace.queue.disk import DiskSettings, DiskWatch, Level
from tailrace.testing import Fail, FaultyFileSystem, SimulatedDisk, on
from tests.queue.clocks import Machine, ManualClock
from tests.queue.support import drain, numbers, small_disk_of, values

SMALL: dict[str, Any] = {"segment_bytes": 400, "flush": "none", "compression": "none"}
ALWAYS = {"enough_free": 0}


class Scales(SimulatedDisk):
    """A disk that says what it is told to say."""

    used = 0.0
    total = 1000

    def space(self, path: str) -> Space:
        return Space(self.total, round(self.total * (1 - self.used)))


@pytest.fixture
def scales() -> Iterator[Machine]:
    with Machine() as machine:
        machine.disk = Scales(clock=machine.clock.wall_ms)
        yield machine


def set_used(machine: Machine, ratio: float) -> None:
    assert isinstance(machine.disk, Scales)
    machine.disk.used = ratio


def look(store: Store) -> Level:
    return store.disk.look()


def fill(queue: Queue | Stream, count: int = 20) -> None:
    for number in numbers(count):
        queue.publish(number)


def care(store: Store) -> Caretaker:
    """One whose thread has nothing to do."""
    caretaker = Caretaker(store)
    caretaker.stop()
    return caretaker


# --- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"max_used_ratio": 0}, "max_used_ratio: expected a ratio"),
        ({"refuse_ratio": 1.1}, "refuse_ratio: expected a ratio"),
        ({"refuse_ratio": True}, "refuse_ratio"),
        ({"refuse_ratio": 0.5, "max_used_ratio": 0.95}, "0.5 is below disk.max_used_ratio, 0.95"),
        ({"max_used_ratio": 0.95}, "refuse_ratio: 0.9 is below disk.max_used_ratio, 0.95"),
        ({"delete_when": "25"}, "delete_when: expected 'always'"),
        ({"delete_when": "4,16"}, "delete_when"),
        ({"force": "yes"}, "force: expected true or false"),
        ({"enough_free": "some"}, "enough_free"),
        ({"max_ratio": 0.5}, "disk.max_ratio: unknown option"),
        (0.9, "disk: expected a mapping"),
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, given: Any, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        tailrace.open(tmp_path, disk=given)
    assert not list(tmp_path.iterdir())


def test_levels() -> None:
    disk = Scales()
    watch = DiskWatch(disk, "", DiskSettings.parse(ALWAYS))
    for used, level in ((0.5, Level.FINE), (0.86, Level.HIGH), (0.9, Level.REFUSING)):
        disk.used = used
        assert watch.look() is level
    generous = DiskWatch(disk, "", DiskSettings(enough_free=50))
    assert generous.look() is Level.FINE
    disk.used = 0.96
    assert generous.look() is Level.REFUSING


@pytest.mark.parametrize(
    ("given", "is_refused"),
    [
        ({}, False),
        ({"refuse_ratio": 0.9, "max_used_ratio": 0.85}, True),
        ({"refuse_ratio": 0.9}, True),
        ({"refuse_ratio": 0.9, "enough_free": None}, True),
        ({"refuse_ratio": 0.95}, True),
        ({"max_used_ratio": 0.8}, True),
        ({"refuse_ratio": 0.95, "enough_free": "10GiB"}, False),
        ({"enough_free": 0}, True),
    ],
)
def test_a_ratio_that_somebody_chose_counts(given: Any, is_refused: bool) -> None:
    disk = Scales()
    disk.total, disk.used = 2**40, 0.98  # 20 GiB are free
    watch = DiskWatch(disk, "", DiskSettings.parse(given))
    assert watch.look() is (Level.REFUSING if is_refused else Level.FINE)


# --- pressure -------------------------------------------------------------------------------------


def test_what_may_go_goes_at_once(scales: Machine) -> None:
    with scales.open(disk={**ALWAYS, "delete_when": "disk_full"}, **SMALL) as store:
        queue = store.queue("q")
        fill(queue)
        drain(queue.consumer("w"))
        fill(store.queue("unread"))
        caretaker = care(store)
        caretaker.mind_the_disk()
        assert len(queue) == 20
        set_used(scales, 0.87)
        caretaker.mind_the_disk()
        assert len(queue) == 0
        assert len(store.queue("unread")) == 20


def test_publishing_is_refused_until_it_falls(scales: Machine) -> None:
    with scales.open(disk=ALWAYS, **SMALL) as store:
        queue = store.queue("q")
        fill(queue, 3)
        set_used(scales, 0.95)
        look(store)
        for publish in (
            lambda: queue.publish(b"x"),
            lambda: queue.publish_many([b"x"]),
            lambda: store.publish("$queue/q", b"x"),
        ):
            with pytest.raises(Full, match=r"disk.refuse_ratio allows \(90%\)"):
                publish()
        consumer = queue.consumer("w")
        consumer.receive(1)[0].ack()
        consumer.receive(1)[0].reject("bad")  # also a dead letter is written
        assert len(store.dead("q")) == 1
        set_used(scales, 0.5)
        look(store)
        queue.publish(b"x")


def test_it_is_noticed_without_a_caretaker(
    scales: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scales.open(disk=ALWAYS, **SMALL) as store:
        queue = store.queue("q")
        fill(queue, 1)
        set_used(scales, 0.95)
        monkeypatch.setattr(store.disk, "_looked_s", time.monotonic() - 2)
        with pytest.raises(Full):
            queue.publish(b"x")


def test_room_is_made_soon_after_messages_are_settled_however_long_there_was_none(
    scales: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = time.monotonic()
    clock = SimpleNamespace(monotonic=lambda: now_s)
    with scales.open(disk=ALWAYS, **SMALL) as store:
        queue = store.queue("q")
        fill(queue)
        caretaker = care(store)
        monkeypatch.setattr("tailrace.queue.caretaker.time", clock)
        set_used(scales, 0.95)
        for _ in range(60):  # five minutes
            now_s += 5
            scales.clock.advance(5)
            caretaker.mind_the_disk()
        drain(queue.consumer("w"))
        now_s += 5
        caretaker.mind_the_disk()
        assert len(queue) == 0


@pytest.mark.no_cover
def test_nobody_who_publishes_is_refused_for_what_may_go(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where nothing is done in the background."""
    monkeypatch.setattr("tailrace.queue.disk._LOOK_AGAIN_S", 0.0)
    machine.disk.capacity = 4 << 20
    options: dict[str, Any] = {"segment_bytes": "64KiB", "compression": "none"}
    with machine.open(disk=ALWAYS, **options) as store:
        queue = store.queue("q")
        consumer = queue.consumer("w")
        for _ in range(200):
            queue.publish(bytes(40_000))
            [message] = consumer.receive(1)
            message.ack()
        published = publish_until_refused(queue, bytes(40_000))
        assert published > 20
        drain(consumer)
        assert refused_for_s(queue) < 2


def refused_for_s(queue: Queue) -> float:
    """How long it takes until something can be published."""
    begun_s = time.monotonic()
    while time.monotonic() < begun_s + 60:
        with contextlib.suppress(Full):
            queue.publish(b"x")
            break
        time.sleep(0.01)
    return time.monotonic() - begun_s


def test_who_publishes_has_room_made_in_the_background(
    larger_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailrace.queue.disk._LOOK_AGAIN_S", 0.0)
    disk = {"max_used_ratio": 0.5, "refuse_ratio": 0.7}
    options: dict[str, Any] = {"segment_bytes": "500KiB", "compression": "none", "disk": disk}
    with tailrace.open(larger_disk / "data", **options) as store:
        queue = store.queue("q")
        consumer = queue.consumer("w")
        for _ in range(300):
            queue.publish(bytes(100_000))
            [message] = consumer.receive(1)
            message.ack()
        publish_until_refused(queue, bytes(100_000))
        assert store.disk.look() is Level.REFUSING
        drain(consumer)
        assert refused_for_s(queue) < 2


def test_who_publishes_waits_only_so_long_for_room(
    scales: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailrace.queue.disk._LOOK_AGAIN_S", 0.0)
    monkeypatch.setattr("tailrace.queue.caretaker._PATIENCE_S", 0.1)
    with Store("data", fs=scales.disk, clock=scales.clock, disk=ALWAYS, **SMALL) as store:
        queue = store.queue("q")
        queue.publish(b"x")
        release = threading.Event()
        monkeypatch.setattr(Caretaker, "retain", lambda *_, **__: release.wait(60))
        set_used(scales, 0.95)
        with pytest.raises(Full):
            queue.publish(b"x")
        set_used(scales, 0.5)
        queue.publish(b"x")
        release.set()


def test_by_force_the_oldest_go_that_nobody_has(scales: Machine) -> None:
    with scales.open(disk={**ALWAYS, "force": True}, **SMALL) as store:
        queue, held, stream = store.queue("q"), store.queue("held"), store.stream("s")
        for each in (queue, held, stream):
            fill(each)
        queue.group("w")
        message = held.consumer("w").receive(1)[0]
        set_used(scales, 0.87)
        care(store).mind_the_disk()
        # It is as full as before, whatever was deleted: the scales say so.
        assert len(held) == 20
        assert held.group("w").state.dropped == 0
        assert 0 < len(queue) < 20
        assert 0 < len(stream) < 20
        assert queue.group("w").state.dropped == 20 - len(queue)
        assert stream.stats().dropped == 20 - len(stream)
        assert queue.stats().dropped == 0  # its group has counted them
        message.ack()
        assert len(drain(queue.consumer("w"))) == len(queue)


def test_by_force_nothing_is_dropped_of_what_has_to_stay(store: Store) -> None:
    """One group may let go of a segment, and the other has a message of it."""
    queue = store.queue("q", **{**SMALL, "segment_bytes": 2000})
    for number in range(40):
        queue.publish(b"%d" % number + bytes(100))
    groups = [queue.group("a"), queue.group("b")]
    consumer = queue.consumer("b")
    message = consumer.receive(1)[0]
    assert not queue.drop_segment()
    assert [group.state.dropped for group in groups] == [0, 0]
    assert [group.progress()[1] for group in groups] == [0, 0]
    message.ack()
    assert queue.drop_segment()
    first = queue.log.start_offset
    assert [group.state.dropped for group in groups] == [first, first - 1]
    assert len(queue) == 40 - first


def test_what_has_expired_is_not_dropped_by_force(store: Store, clock: ManualClock) -> None:
    stream = store.stream("s", **{**SMALL, "segment_bytes": 2000})
    for number in range(40):
        stream.publish(bytes(100), ttl=10 if number % 2 else None)
    clock.advance(11)
    assert stream.drop_segment()
    first = stream.log.start_offset
    assert first > 2
    assert stream.stats().dropped == (first + 1) // 2


# --- no space at all ----------------------------------------------------------------------------


def test_acks_work_on_a_full_disk(machine: Machine) -> None:
    store = machine.open(disk={"refuse_ratio": 1})
    queue = store.queue("q")
    queue.publish_many(numbers(50))
    consumer = queue.consumer("w")
    care(store).mind_the_disk()  # has the reserve
    messages = consumer.receive(50)
    space = machine.disk.space("")
    machine.disk.capacity = space.total - space.free
    with pytest.raises(NotWritten):
        queue.publish(os.urandom(2 << 20))  # more than there is room for ahead
    for message in messages[:40]:
        message.ack()
    assert queue.vacuum().segments == 0
    for message in messages[40:]:
        message.ack()
    assert queue.vacuum().segments == 1
    machine.disk.capacity = None
    queue.publish(b"next")
    store.close()
    with machine.open() as again:
        assert drain(again.queue("q").consumer("w")) == [b"next"]


def fill_up(machine: Machine) -> None:
    """Nothing is free any more, but what the reserve takes."""
    space = machine.disk.space("")
    machine.disk.capacity = space.total - space.free


@pytest.mark.parametrize("flush", ["sync", "async", "none"])
def test_all_that_makes_room_works_on_a_full_disk(machine: Machine, flush: str) -> None:
    """Whatever needs a little space to free more, from the first moment on; each finds the disk as
    full as the one before."""
    store = machine.open(disk={"refuse_ratio": 1}, flush=flush)
    queue, stream = store.queue("q"), store.stream("s")
    for each in (queue, stream):
        each.publish_many(numbers(50))
    queue.group("old")
    stream.group("r")
    store.close()

    def consume(again: Store) -> None:
        assert drain(again.queue("q").consumer("new")) == numbers(50)  # a group that is not there

    steps: list[Callable[[Store], object]] = [
        consume,
        lambda again: again.queue("q").group("old").reset(50),
        lambda again: again.stream("s").group("r").seek(50),
        lambda again: again.queue("q").vacuum(),
        lambda again: again.queue("q").delete_group("old"),
        lambda again: again.stream("s").purge(),
        lambda again: again.delete("s"),
    ]
    for step in steps:
        machine.disk.capacity = None
        store = machine.open(disk={"refuse_ratio": 1})  # has the reserve
        fill_up(machine)
        step(store)
        store.close()
    machine.disk.capacity = None
    with machine.open() as again:
        assert len(again.queue("q")) == 0
        assert again.queue("q").group_ids() == ["new"]
        assert [each.name for each in again.queues()] == ["q"]


def test_without_a_reserve_a_group_cannot_be_made(machine: Machine) -> None:
    store = machine.open(flush="async")
    queue = store.queue("q")
    queue.publish_many(numbers(3))
    store.reserve.spend()
    fill_up(machine)
    with pytest.raises(Full, match="no reserve left: free some space"):
        queue.consumer("w")
    with pytest.raises(Full, match="no reserve left"):
        store.delete("q")
    machine.disk.capacity = None
    assert drain(queue.consumer("w")) == numbers(3)
    store.close()


def test_the_reserve_is_there_when_the_store_is_opened(machine: Machine) -> None:
    path = "data/queue/.tailrace/reserve"
    machine.open().close()
    assert machine.disk.stat(path).size == 1 << 20
    machine.disk.put(path, b"short")
    store, fs = machine.open_faulty()
    store.close()
    assert machine.disk.stat(path).size == 1 << 20
    store, fs = machine.open_faulty()
    store.close()
    assert [call.op for call in fs.calls if call.path == path] == ["stat"]  # nothing else to do


def test_a_store_opens_without_a_reserve(machine: Machine) -> None:
    fs = FaultyFileSystem(machine.disk)
    fs.plan = on("pwrite", Fail(errno.EIO), path="*/reserve")
    with Store("data", fs=fs, clock=machine.clock, upkeep=False) as store:
        assert not store.reserve.spend()
        store.queue("q").publish(b"x")


def test_there_is_room_for_the_reserve_on_a_disk_that_is_too_full(machine: Machine) -> None:
    machine.disk.capacity = 20 << 20
    machine.disk.put("others", bytes(35 << 19))  # 17.5 MiB
    with machine.open(disk=ALWAYS) as store:
        assert look(store) is Level.REFUSING
        assert store.reserve.spend()
        assert look(store) is Level.HIGH
        care(store).mind_the_disk()
        assert store.reserve.spend()
        machine.disk.put("more", bytes(6 << 18))
        care(store).mind_the_disk()  # to take the last would not leave consumers what they need
        assert not store.reserve.spend()


def test_without_a_reserve_it_is_an_error_that_says_so(machine: Machine) -> None:
    store = machine.open(flush="async")
    store.reserve.spend()
    queue = store.queue("q")
    queue.publish_many(numbers(3))
    consumer = queue.consumer("w")
    messages = consumer.receive(3)
    space = machine.disk.space("")
    machine.disk.capacity = space.total - space.free
    with pytest.raises(NotWritten) as caught:
        messages[0].ack()
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.ENOSPC
    machine.disk.capacity = None
    for message in messages:
        message.ack()
    assert queue.group("w").progress() == (3, 3)
    store.close()


def test_the_reserve_comes_back(machine: Machine) -> None:
    with machine.open() as store:
        caretaker = care(store)
        caretaker.mind_the_disk()
        assert store.reserve.spend()
        assert not store.reserve.spend()
        caretaker.mind_the_disk()
        assert store.reserve.spend()
        machine.disk.capacity = machine.disk._used() + 1000
        store.reserve.fill()  # there is no room for it: it is not made, and that is no error
        assert machine.disk._used() <= machine.disk.capacity


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real one, of four megabytes."""
    with small_disk_of(tmp_path, "4m") as place:
        yield place


@pytest.fixture
def larger_disk(tmp_path: Path) -> Iterator[Path]:
    """One of sixteen."""
    with small_disk_of(tmp_path, "16m") as place:
        yield place


def publish_until_refused(queue: Queue, value: bytes = bytes(20_000)) -> int:
    for number in range(1000):
        try:
            queue.publish(b"%d" % number + value)
        except (NotWritten, tailrace.OutcomeUnknown, Full):
            return number
    raise AssertionError("the disk was never full")


def test_a_real_disk_that_is_full(small_disk: Path) -> None:
    options: dict[str, Any] = {"segment_bytes": "256KiB", "compression": "none"}
    with tailrace.open(small_disk / "data", disk={"refuse_ratio": 1}, **options) as store:
        queue = store.queue("q")
        care(store).mind_the_disk()
        published = publish_until_refused(queue)
        fill_all(small_disk)
        consumer = queue.consumer("w")
        done = []
        while messages := consumer.receive(10):
            done += values(messages)
            consumer.ack(messages)
        assert len(done) >= published > 50
        os.unlink(small_disk / "rest")
        queue.vacuum()
    with tailrace.open(small_disk / "data") as store:
        queue = store.queue("q")
        queue.publish(b"goes on")
        assert drain(queue.consumer("w")) == [b"goes on"]


def fill_all(place: Path, free: int = 0) -> None:
    """Somebody else takes what is left of a disk."""
    found = os.statvfs(place)
    size = found.f_bavail * found.f_frsize - free
    with contextlib.suppress(OSError), open(place / "rest", "ab", buffering=0) as rest:
        while size > 0 or not free:
            size -= rest.write(bytes(4096))


def test_a_real_disk_that_is_filled_at_once(larger_disk: Path) -> None:
    with tailrace.open(larger_disk / "data", disk={"refuse_ratio": 1}) as store:
        queue = store.queue("q")
        queue.publish_many(numbers(50))
        fill_all(larger_disk)
        assert drain(queue.consumer("w")) == numbers(50)
        assert queue.vacuum().segments == 1


def test_a_real_disk_that_was_too_full_before(larger_disk: Path) -> None:
    fill_all(larger_disk, free=2 << 20)
    with tailrace.open(larger_disk / "data", disk={"refuse_ratio": 1}) as store:
        queue = store.queue("q")
        queue.publish_many(numbers(50))
        assert store.reserve.spend()
        care(store).mind_the_disk()
        assert store.disk.look() is Level.HIGH
        fill_all(larger_disk)
        assert drain(queue.consumer("w")) == numbers(50)


@pytest.mark.no_cover
def test_commands_alone_on_a_real_disk(larger_disk: Path) -> None:
    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "tailrace", *arguments]
        done = subprocess.run(
            [*command, "--store", str(larger_disk / "data")],
            capture_output=True,
            text=True,
            check=False,
        )
        assert not done.returncode, done.stderr
        return done.stdout

    run("create", "q")
    run("publish", "q", "hello", "--count", "50")
    run("consume", "q", "--group", "w", "--max", "1", "--ack")
    for command in (
        ("consume", "q", "--group", "w", "--max", "5", "--ack"),
        ("consume", "q", "--group", "new", "--max", "5", "--ack"),
        ("groups", "reset", "q", "w", "--to-latest", "--execute"),
        ("purge", "q", "--yes"),
        ("delete", "q", "--yes"),
    ):
        run("queues")
        fill_all(larger_disk)
        run(*command)
        os.unlink(larger_disk / "rest")
        with tailrace.open(larger_disk / "data"):
            pass  # has the reserve again


@pytest.mark.no_cover
def test_after_a_change_of_the_queues_that_failed(larger_disk: Path) -> None:
    """Whoever comes next can make room all the same: the reserve is for that."""
    place, root = str(larger_disk / "data"), larger_disk / "data" / "queue"

    def run(*arguments: str, code: int = 0) -> str:
        command = [sys.executable, "-m", "tailrace", *arguments]
        if arguments[0] not in ("recover", "verify"):
            command += ["--store", place]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr

    def refused(*arguments: str) -> None:
        said = run(*arguments, code=2)
        assert "queues.json" in said
        assert "No space left" in said
        assert os.listdir(root / "config") == ["queues.json"]

    for command in (
        ("vacuum",),
        ("consume", "q", "--group", "new", "--max", "5", "--ack"),
        ("purge", "q", "--yes"),
        ("delete", "q", "--yes"),
    ):
        if not root.exists() or "q" not in run("queues"):
            run("create", "q")
        run("publish", "q", "hello", "--count", "50")
        fill_all(larger_disk)
        refused("create", "another")
        refused("create", "q", "--update", "--max-depth", "5")
        run(*command)
        os.unlink(larger_disk / "rest")
        with tailrace.open(place):
            pass  # has the reserve again
    # Such as somebody left who was killed on a full disk.
    run("create", "q")
    run("publish", "q", "hello")
    (root / "config" / "queues.json.77.tmp").touch()
    with open(root / ".tailrace" / "board", "r+b") as board:
        board.write(b"\1")
    fill_all(larger_disk)
    assert "queues.json.77.tmp" in run("recover", place, code=1)
    assert "queues.json.77.tmp" in run("recover", "--apply", place)
    assert "queues.json.77.tmp" not in run("recover", place)
    run("consume", "q", "--group", "w", "--max", "1", "--ack")


def test_refused_before_it_is_full(small_disk: Path) -> None:
    options: dict[str, Any] = {"segment_bytes": "64KiB", "retention_check_interval": "50ms"}
    with tailrace.open(small_disk / "data", compression="none", **options) as store:
        queue = store.queue("q")
        while look(store) is not Level.REFUSING:
            queue.publish(bytes(20_000))
        with pytest.raises(Full, match="refuse_ratio"):
            queue.publish(b"x")
        drain(queue.consumer("w"))
        deadline = time.monotonic() + 30
        while look(store) is not Level.FINE:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        queue.publish(b"x")
