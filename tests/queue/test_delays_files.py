"""The files of delayed messages: their format, what `verify` finds in them, and damage."""

from __future__ import annotations

import json
import logging
import re
import struct
from typing import NamedTuple
from unittest import mock

import pytest

from tailrace import Corrupt, Log, Queue, Store
from tailrace.kernel import BatchInfo, batches
from tailrace.log.sidefiles import store_checked_json
from tailrace.queue.delays import count_scheduled
from tailrace.queue.offline.verify import logs_of, verify_store
from tailrace.queue.schedule import Manifest
from tailrace.queue.sorted_runs import RunInfo
from tailrace.testing import SimulatedDisk
from tests.crash.world import flip, remove
from tests.project import ROOT
from tests.queue.clocks import Machine
from tests.queue.delaying import Model, few_in_memory, values_of

pytestmark = pytest.mark.no_cover

STORE = "data/queue"


def use(machine: Machine, flush: str = "sync") -> tuple[Store, Queue, Model]:
    """A queue with messages in runs and in `incoming`, of which some are cancelled."""
    store, model = machine.open(flush=flush), Model()
    queue = store.queue("q")
    for number in range(30):
        model.schedule(queue, machine.clock.wall_ms() + 1_000 * (number % 4 + 1))
        queue.delayed_count()
    for value in (b"3", b"20", b"30"):
        assert model.cancel(queue, value)
    return store, queue, model


def folder_of(disk: SimulatedDisk) -> str:
    [folder] = {
        path.rpartition("/")[0]
        for path in disk.files()
        if "delayed/" in path and "schedule" in path
    }
    return folder


def test_the_files_are_what_the_format_says(machine: Machine) -> None:
    text = (ROOT / "FORMAT.md").read_text()
    example = re.search(r'^\{"format":1,"id":.*\n', text, re.MULTILINE)
    assert example is not None
    run = RunInfo("00000001", 120, 50_000, 49_870, 0, 49_999, 0)
    machine.disk.make_dirs("x")
    Manifest("0123abcd", 50_000, 3, (run,)).store(machine.disk, "x")
    assert machine.disk.read("x/schedule.json").decode() == example[0]
    with few_in_memory():
        _store, queue, _model = use(machine)
        [delayed] = queue.delayed(1)
        machine.clock.advance(2)
        queue.delays.deliver()
        folder = folder_of(machine.disk)
        manifest = Manifest.load(machine.disk, folder)
        due, _offset, tag = delayed.delay_id.split("-")
        assert (int(due, 16), tag) == (delayed.deliver_at, manifest.id)
        [name, *_] = [each.name for each in manifest.runs]
        with Log(f"{folder}/runs/{name}", read_only=True, fs=machine.disk) as log:
            records = list(log.read())
        keys = [(r.timestamp, *struct.unpack_from(">cQ", r.key or b"")) for r in records]
        assert keys == sorted(keys, key=lambda key: (key[0], key[2]))
        assert {key[1] for key in keys} <= {b"m", b"c", b"v"}
        with Log(f"{folder}/incoming", read_only=True, fs=machine.disk) as log:
            ops = [
                (r.headers["_delays"], json.loads(r.value or b""))
                for r in log.read()
                if "_delays" in r.headers
            ]
        assert {kind: set(op) for kind, op in ops}.items() <= {
            b"cancel": {"k"},
            b"deliver": {"k", "m", "r", "p", "x", "b", "f"},
        }.items()


def test_what_is_right_is_no_problem(machine: Machine) -> None:
    with few_in_memory():
        store, queue, _model = use(machine)
        assert verify_store(machine.disk, STORE).ok
        machine.clock.advance(2)
        store.deliver_due()
        machine.kill()
        report = verify_store(machine.disk, STORE)
        assert report.ok, report.problems
        folder = folder_of(machine.disk)
        logs = logs_of(machine.disk, STORE)
        assert f"{folder}/incoming" in logs
        assert any(log.startswith(f"{folder}/runs/") for log in logs)
        assert queue


def test_damage_is_found(machine: Machine) -> None:
    with few_in_memory():
        use(machine)
        machine.kill()
        folder, disk = folder_of(machine.disk), machine.disk
        manifest = Manifest.load(disk, folder)

        broken = disk.clone()
        broken.corrupt(f"{folder}/schedule.json", 20, b"~")
        [problem] = verify_store(broken, STORE).problems
        assert problem.path.endswith("schedule.json")
        assert "is damaged" in problem.message

        broken = disk.clone()
        missing = manifest._replace(runs=(*manifest.runs, manifest.runs[0]._replace(name="9")))
        missing.store(broken, folder)
        [problem] = verify_store(broken, STORE).problems
        assert "are missing" in problem.message

        broken = disk.clone()
        store_checked_json(broken, f"{folder}/schedule.json", {"format": 1})
        [problem] = verify_store(broken, STORE).problems
        assert "makes sense" in problem.message

        broken = disk.clone()
        manifest._replace(incoming=10**9).store(broken, folder)
        [problem] = verify_store(broken, STORE).problems
        assert "ends before" in problem.message

        broken = disk.clone()
        name = manifest.runs[0].name
        broken.corrupt(f"{folder}/runs/{name}/{0:020d}.seg", 70, b"~~~~")
        assert not verify_store(broken, STORE).ok

        broken = disk.clone()
        manifest._replace(runs=manifest.runs[1:]).store(broken, folder)
        notes = verify_store(broken, STORE).notes
        assert any("no run that counts" in note.message for note in notes)


def test_what_is_left_of_a_deleted_queue_is_a_note(machine: Machine) -> None:
    use(machine)
    machine.kill()
    with machine.open() as store:
        store.registry.change(lambda queues: queues.clear())
    report = verify_store(machine.disk, STORE)
    assert any("was deleted" in note.message and "delayed" in note.path for note in report.notes)


def test_a_damaged_manifest_is_told_and_nothing_is_delivered(machine: Machine) -> None:
    store, queue, _model = use(machine)
    store.close()
    machine.disk.corrupt(f"{folder_of(machine.disk)}/schedule.json", 20, b"~")
    machine.clock.advance(60)
    with machine.open() as store:
        with pytest.raises(Corrupt, match=r"schedule.json is damaged"):
            store.deliver_due()
        queue = store.queue("q")
        with pytest.raises(Corrupt):
            queue.publish(b"x", delay=1)
        queue.publish(b"at once")  # what is not delayed goes on
        assert values_of(queue) == [b"at once"]


def test_damaged_messages_are_passed_by_and_told_of(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    with few_in_memory():
        store, _queue, model = use(machine)
        store.close()
        folder = folder_of(machine.disk)
        name = Manifest.load(machine.disk, folder).runs[0].name
        machine.disk.corrupt(f"{folder}/runs/{name}/{0:020d}.seg", 70, b"~~~~")
        machine.clock.advance(60)
        with machine.open() as store, caplog.at_level(logging.ERROR, "tailrace"):
            store.deliver_due()
            found = values_of(store.get("q"))
    model.check(found, 2**60, may_lose=True)
    assert 20 < len(found) < 27
    assert "delayed messages are lost" in caplog.text


def test_a_torn_tail_is_cut(machine: Machine) -> None:
    """Of what was just being published nothing is left, and what was there before is."""
    _store, queue, model = use(machine, "async")
    queue.delays.incoming.flush()
    machine.kill()
    [segment] = [path for path in machine.disk.files() if re.search(r"incoming/\d+\.seg", path)]
    data = machine.disk.read(segment).rstrip(b"\0")
    machine.disk.put(segment, data + data[:50])
    machine.clock.advance(60)
    with machine.open() as store:
        store.deliver_due()
        model.check_end(store)


def test_they_are_counted_while_others_sort_them(machine: Machine) -> None:
    with few_in_memory():
        _store, queue, model = use(machine)
        left = 30 - len(model.cancelled)
        assert count_scheduled(machine.disk, folder_of(machine.disk)) == left
        machine.clock.advance(1)
        queue.delays.deliver()
        assert count_scheduled(machine.disk, folder_of(machine.disk)) == queue.delayed_count()


def test_a_newer_format_is_refused(machine: Machine) -> None:
    store, _queue, _model = use(machine)
    store.close()
    store_checked_json(machine.disk, f"{folder_of(machine.disk)}/schedule.json", {"format": 2})
    with machine.open() as store, pytest.raises(Exception, match="upgrade tailrace"):
        store.deliver_due()


# --- every byte of a small one ----------------------------------------------------------------


_STRIDE = 5  # bytes between two that are flipped: all of them would take long


class Small(NamedTuple):
    """A run and an `incoming` of a few messages each, one of them cancelled, and all of it due."""

    disk: SimulatedDisk
    files: dict[str, str]  # of `runs` and `incoming`, their segments

    def batches(self, place: str) -> list[BatchInfo]:
        data = self.disk.read(self.files[place]).rstrip(b"\0")
        return list(batches(data, 0, len(data)))

    def left(self, place: str, *lost: BatchInfo) -> set[bytes]:
        """What is to be delivered if these batches of a place are lost."""
        found, cancelled = set(), set()
        for each, path in self.files.items():
            folder = path.rpartition("/")[0]
            with Log(folder, read_only=True, fs=self.disk) as log:
                for batch in self.batches(each):
                    if each == place and batch in lost:
                        continue
                    for record in log.read(batch.base_offset, batch.next_offset):
                        if "_delays" in record.headers:
                            cancelled.add(b"%d" % (json.loads(record.value or b"")["k"][1] + 1))
                        else:
                            found.add(record.value or b"")
        return found - cancelled


@pytest.fixture(params=["async"])
def small(request: pytest.FixtureRequest, machine: Machine) -> Small:
    with few_in_memory(), mock.patch("tailrace.queue.schedule._RECORDS_MOST", 3):
        queue, model = machine.open(flush=request.param).queue("q"), Model()
        for number in range(5):
            model.schedule(queue, machine.clock.wall_ms() + 1_000 * (number % 2 + 1))
            queue.delayed_count()
        with mock.patch("tailrace.queue.schedule._RECORDS_MOST", 9):
            assert model.cancel(queue, b"2")
    machine.kill()
    machine.clock.advance(60)
    places = {"runs": r"/runs/\d+/\d+\.seg", "incoming": r"/incoming/\d+\.seg"}
    files = {
        place: path
        for place, pattern in places.items()
        for path in machine.disk.files()
        if re.search(pattern, path)
    }
    found = Small(machine.disk.clone(), files)
    assert found.left("runs") == {b"1", b"3", b"4", b"5"}
    return found


def delivered(machine: Machine, disk: SimulatedDisk, *, again: bool = False) -> set[bytes]:
    """What is delivered of it, each once, so that nothing is left; also to whoever comes later."""
    machine.disk = disk
    with machine.open() as store:
        store.deliver_due()
        queue = store.get("q")
        found = values_of(queue)
        assert len(found) == len(set(found)), f"twice: {found}"
        assert queue.delayed_count() == 0
    assert not [path for path in disk.files() if "/runs/" in path or "/incoming/" in path]
    if again:
        with machine.open() as store:
            store.get("q").publish(b"new", delay="1s")
            machine.clock.advance(2)
            store.deliver_due()
            assert values_of(store.get("q")) == [*found, b"new"]
    return set(found)


@pytest.mark.parametrize(
    ("small", "place"),
    [("async", "runs"), ("async", "incoming"), ("sync", "incoming")],
    indirect=["small"],
)
@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.long)])
def test_cut_at_every_byte(machine: Machine, small: Small, place: str, step: int) -> None:
    path = small.files[place]
    data = small.disk.read(path)
    found = small.batches(place)
    for number, cut in enumerate(found):
        left = small.left(place, *found[number:])
        for kept in range(0, cut.size, step):
            disk = small.disk.clone()
            disk.put(path, data[: cut.position + kept])
            try:
                assert delivered(machine, disk, again=not kept) == left
            except Exception as error:
                error.add_note(f"{cut.position + kept} of {len(data)} bytes were left of {path}")
                raise


@pytest.mark.parametrize("place", ["runs", "incoming"])
def test_flip_bytes(machine: Machine, small: Small, place: str) -> None:
    """What is damaged is lost, or not cancelled any more, and nothing else is."""
    path = small.files[place]
    for damaged in small.batches(place):
        left = small.left(place, damaged)
        for position in range(damaged.position, damaged.position + damaged.size, _STRIDE):
            disk = small.disk.clone()
            flip(disk, path, position, 0xFF if position % 2 else 0x01)
            try:
                assert delivered(machine, disk) == left
            except Exception as error:
                error.add_note(f"byte {position} of {path} was flipped")
                raise


def test_their_indexes_are_hints(machine: Machine, small: Small) -> None:
    left = small.left("runs")
    for path in small.disk.files():
        if "/delayed/" in path and path.endswith((".idx", ".tix")):
            size = len(small.disk.read(path))
            for position in range(0, size, _STRIDE):
                disk = small.disk.clone()
                flip(disk, path, position)
                assert delivered(machine, disk) == left, f"byte {position} of {path} was flipped"
            for kept in (0, size // 2, size - 1):
                disk = small.disk.clone()
                disk.put(path, small.disk.read(path)[:kept])
                assert delivered(machine, disk) == left, f"{path} was cut at {kept}"
            disk = small.disk.clone()
            remove(disk, path)
            assert delivered(machine, disk) == left, f"{path} was removed"


def cut_runs(machine: Machine) -> None:
    """Nothing is left of what is in runs."""
    for path in machine.disk.files():
        if re.search(r"/runs/\d+/\d+\.seg", path):
            machine.disk.put(path, b"")


def test_what_is_cancelled_in_a_lost_run_hides_no_other(machine: Machine) -> None:
    """They cannot be told apart by counting, and where nothing is left the files go."""
    with few_in_memory():
        store, model = machine.open(), Model()
        queue = store.queue("q")
        for _ in range(7):
            model.schedule(queue, machine.clock.wall_ms() + 60_000)
        assert queue.delayed_count() == 7
        assert model.cancel(queue, b"3")
        kept = model.schedule(queue, machine.clock.wall_ms() + 90_000)
        store.close()
        cut_runs(machine)
        for _ in range(2):
            with machine.open() as store:
                assert store.deliver_due() == 0
                assert [each.value for each in store.get("q").delayed()] == [kept]
        machine.clock.advance(100)
        with machine.open() as store:
            assert store.deliver_due() == 1
            assert values_of(store.get("q")) == [kept]
            assert store.get("q").delayed_count() == 0


def test_lost_runs_are_merged_to_nothing(machine: Machine) -> None:
    with few_in_memory():
        store, _queue, _model = use(machine)
        store.close()
        cut_runs(machine)
        with machine.open() as store:
            queue = store.queue("q")
            left = [each.value for each in queue.delayed()]
            assert left == [b"29"]
            while queue.delays.merge():
                continue
            assert [each.value for each in queue.delayed()] == left
            machine.clock.advance(60)
            assert store.deliver_due() == 1
            assert queue.delayed_count() == 0
