"""The registry: many processes, one file, and whatever may happen to one of them in between."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tailrace import Closed, ConfigError, Corrupt, Full, NotWritten, OutcomeUnknown
from tailrace.log.fs import OsFileSystem
from tailrace.queue import fluxmq_config
from tailrace.queue.fluxmq_config import dump, load
from tailrace.queue.registry import Queues, Registry
from tailrace.queue.settings import QueueSettings
from tailrace.queue.topics import Bindings
from tailrace.testing import (
    Crash,
    Fail,
    Fault,
    FaultyFileSystem,
    ShortWrite,
    SimulatedCrash,
    SimulatedDisk,
    every_call,
    from_call,
    on,
)
from tailrace.testing.faults import Operation
from tests.log.helpers import in_threads, run_python

ROOT = "store"
FILE = f"{ROOT}/config/queues.json"
BOARD = f"{ROOT}/.tailrace/board"
PATIENCE_S = 60

# An entry as FluxMQ has it: without an incarnation.
FLUXMQ = b'{"version": 2, "configs": [{"Name": "theirs", "Topics": ["t/#"], "BatchSize": 7}]}'

Edit = Callable[[dict[str, QueueSettings]], None]


def adding(*names: str, **options: Any) -> Edit:
    def edit(queues: dict[str, QueueSettings]) -> None:
        for name in names:
            queues[name] = QueueSettings.create(name, **options)

    return edit


def removing(name: str) -> Edit:
    return lambda queues: queues.__delitem__(name)


def changing(name: str, **options: Any) -> Edit:
    return lambda queues: queues.update({name: queues[name].changed(**options)})


def nothing(queues: dict[str, QueueSettings]) -> None:
    """The edit that changes nothing."""


def generation(disk: SimulatedDisk) -> int:
    board = disk.map(BOARD, 4096, write=False)
    assert board is not None
    return int.from_bytes(board[:8], "little")


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


# --- one process ----------------------------------------------------------------------------


def test_a_new_store_has_no_queues(disk: SimulatedDisk) -> None:
    with Registry(disk, ROOT).open() as registry:
        assert dict(registry.current()) == {}
        assert registry.match("a") == frozenset()
    assert disk.files() == [BOARD]
    assert disk.open_files() == []


def test_changes(disk: SimulatedDisk) -> None:
    registry = Registry(disk, ROOT).open()
    assert list(registry.change(adding("b", "a"))) == ["b", "a"]
    first = registry.current()
    assert first is registry.current()
    registry.change(adding("c"))
    assert list(registry.current()) == ["b", "a", "c"]
    assert list(first) == ["b", "a"]
    assert repr(first) == "Queues(b, a)"
    assert registry.current()["a"] is first["a"]
    registry.change(removing("b"))
    assert set(registry.current()) == {"a", "c"}
    assert load(disk.read(FILE)) == list(registry.current().values())
    assert FILE not in disk.unsynced()
    assert disk.open_files() == []


def with_name(name: str) -> QueueSettings:
    return QueueSettings.create(name)


def test_the_whole_of_a_change_or_nothing(disk: SimulatedDisk) -> None:
    registry = Registry(disk, ROOT).open()
    registry.change(adding("a"))
    before = disk.read(FILE), generation(disk)

    def edit(queues: dict[str, QueueSettings]) -> None:
        queues.clear()
        raise KeyError("on purpose")

    with pytest.raises(KeyError, match="on purpose"):
        registry.change(edit)
    with pytest.raises(ValueError, match="the settings of the queue 'x' are at 'y'"):
        registry.change(lambda queues: queues.update(y=with_name("x")))
    assert (disk.read(FILE), generation(disk)) == before
    assert set(registry.change(adding("b"))) == {"a", "b"}


def test_one_queue_changed_again_and_again(disk: SimulatedDisk) -> None:
    registry = Registry(disk, ROOT).open()
    registry.change(adding("a", "b"))
    for depth in (1, 2, 3):
        registry.change(changing("b", limits={"max_depth": depth}))
        assert load(disk.read(FILE)) == list(registry.current().values())
        assert registry.current()["b"].limits.max_depth == depth


def test_no_difference_writes_nothing(disk: SimulatedDisk) -> None:
    faulty = FaultyFileSystem(disk)
    registry = Registry(faulty, ROOT).open()
    registry.change(adding("a"))
    before = generation(disk)
    calls = len(faulty.calls)
    registry.change(nothing)
    registry.change(changing("a", limits={"max_depth": 0}))
    assert {call.op for call in faulty.calls[calls:]}.isdisjoint({"pwrite", "rename"})
    assert generation(disk) == before


def test_there_and_back(disk: SimulatedDisk) -> None:
    """What one has changed, and another changes back, is again as it was."""
    disk.put(FILE, FLUXMQ)
    Registry(disk, ROOT).open().close()  # it has its incarnation now
    one, two = Registry(disk, ROOT).open(), Registry(disk, ROOT).open()
    before = disk.read(FILE), one.current()
    one.change(changing("theirs", limits={"max_depth": 7}, dlq={"expired": True}))
    assert two.current()["theirs"].limits.max_depth == 7
    two.change(lambda queues: queues.update(before[1]))
    assert disk.read(FILE) == before[0]
    assert one.current() == two.current() == before[1]
    one.change(changing("theirs", limits={"max_depth": 7}))
    two.change(changing("theirs", limits={"max_depth": 0}))
    assert one.current() == two.current()


def test_the_file_is_read_only_when_it_changed(disk: SimulatedDisk) -> None:
    faulty = FaultyFileSystem(disk)
    one, two = Registry(faulty, ROOT).open(), Registry(disk, ROOT).open()
    two.change(adding("a"))
    assert set(one.current()) == {"a"}
    calls = len(faulty.calls)
    for _time in range(5):
        assert set(one.current()) == {"a"}
        assert one.match("$queue/a/x") == {"a"}
    assert len(faulty.calls) == calls
    two.change(adding("b"))
    assert set(one.current()) == {"a", "b"}
    assert len(faulty.calls) > calls


def test_matching(disk: SimulatedDisk) -> None:
    one, two = Registry(disk, ROOT).open(), Registry(disk, ROOT).open()
    one.change(adding("all", topics=["#", "$queue/#", "a/b"]))
    one.change(adding("some", topics=["a/+"]))
    one.change(adding("orders", "bound to nothing", topics=[]))
    assert one.match("a/b") == two.match("a/b") == {"all", "some"}
    assert one.match("$queue/x") == {"all"}
    assert one.match("$SYS/x") == frozenset()
    two.change(changing("some", topics=["c"]))
    assert one.match("a/b") == {"all"}
    assert one.match("c") == {"all", "some"}


class Work:
    """Counts filters that are put into the trie or taken out, and settings that are parsed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: Counter[str] = Counter()
        for owner, name in ((Bindings, "add"), (Bindings, "remove"), (fluxmq_config, "_parse")):
            monkeypatch.setattr(owner, name, self._counting(name, getattr(owner, name)))

    def _counting(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            self.seen[name] += 1
            return call(*arguments)

        return counted


def test_a_change_costs_what_has_changed(
    disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever made it, and however many queues there are."""
    one, two = Registry(disk, ROOT).open(), Registry(disk, ROOT).open()
    for number in range(50):
        one.change(adding(f"q{number}", topics=[f"a/{number}/+", "all/#"]))
    everybody = {f"q{number}" for number in range(50)}
    assert one.match("all/x") == two.match("all/x") == everybody
    before = two.current()
    work = Work(monkeypatch)

    def check(topic: str, names: set[str], added: int, removed: int, parsed: int) -> None:
        work.seen.clear()
        assert two.match(topic) == names
        assert (work.seen["add"], work.seen["remove"]) == (added, removed)
        assert work.seen["_parse"] == parsed
        work.seen.clear()
        assert one.match(topic) == names  # who made the change need not even parse
        assert (work.seen["add"], work.seen["remove"]) == (added, removed)
        assert not work.seen["_parse"]

    one.change(changing("q7", topics=["b"]))
    check("b", {"q7"}, 1, 2, 1)
    one.change(changing("q7", limits={"max_depth": 7}))
    check("b", {"q7"}, 0, 0, 1)
    one.change(removing("q0"))
    one.change(removing("q49"))
    check("all/x", everybody - {"q0", "q7", "q49"}, 0, 4, 0)
    one.change(adding("new", topics=["b"]))
    check("b", {"q7", "new"}, 1, 0, 1)
    one.change(lambda queues: queues.update(q1=queues.pop("q1")))  # it is the last one now
    check("a/1/x", {"q1"}, 0, 0, 0)
    assert before.match("all/x") == everybody  # what was then has not changed
    assert before.match("b") == frozenset()
    monkeypatch.undo()
    assert two.current() == Registry(disk, ROOT, read_only=True).open().current()


def test_a_difference_that_makes_no_sense(disk: SimulatedDisk) -> None:
    """Found in what has changed alone, it is told as it is of a whole file."""
    one, two = Registry(disk, ROOT).open(), Registry(disk, ROOT).open()
    one.change(adding("a", "b", "c"))
    assert set(two.current()) == {"a", "b", "c"}
    good = disk.read(FILE)
    for old, new, message in (
        (b'"Name": "b"', b'"Name": "a"', "the queue 'a' is there twice"),
        (b'"Name": "b"', b'"Name": 7', "there is a queue without a Name"),
        (b'"Name": "b",', b'"Name": "b"', "it is not JSON: .* line 63"),
    ):
        assert old in good
        disk.put(FILE, good.replace(old, new))
        with pytest.raises(Corrupt, match=message):
            two.change(nothing)
    disk.put(FILE, good)
    assert set(two.change(adding("d"))) == {"a", "b", "c", "d"}


def test_queues_are_a_mapping() -> None:
    queues = Queues({"a": with_name("a")})
    assert len(queues) == 1
    assert "a" in queues
    assert queues == dict(queues)
    assert queues.get("b") is None


def test_what_is_closed(disk: SimulatedDisk) -> None:
    registry = Registry(disk, ROOT)
    for use in (
        registry.current,
        lambda: registry.change(nothing),
        lambda: registry.match("a"),
        registry.__enter__,
    ):
        with pytest.raises(Closed, match=r"the store in .* is closed"):
            use()
    with registry.open():
        registry.change(adding("a"))
    registry.close()
    with pytest.raises(Closed):
        registry.current()
    assert set(registry.open().current()) == {"a"}


# --- what others wrote ----------------------------------------------------------------------


def test_a_queue_of_fluxmqs_gets_an_incarnation(disk: SimulatedDisk) -> None:
    disk.put(FILE, FLUXMQ)
    with Registry(disk, ROOT, read_only=True).open() as reader:
        assert reader.current()["theirs"].incarnation == ""
        assert disk.read(FILE) == FLUXMQ
    with Registry(disk, ROOT).open() as one, Registry(disk, ROOT).open() as two:
        settings = one.current()["theirs"]
        assert len(bytes.fromhex(settings.incarnation)) == 16
        assert two.current()["theirs"] == settings
    (found,) = json.loads(disk.read(FILE))["configs"]
    assert found == {
        "Name": "theirs",
        "Topics": ["t/#"],
        "BatchSize": 7,
        "Tailrace": {"incarnation": settings.incarnation},
    }


def test_a_file_that_needs_nothing_keeps_its_bytes(disk: SimulatedDisk) -> None:
    data = json.dumps(json.loads(dump([with_name("a")]))).encode()  # as a person may have left it
    disk.put(FILE, data)
    registry = Registry(disk, ROOT).open()
    registry.change(nothing)
    assert disk.read(FILE) == data
    registry.change(adding("b"))
    assert disk.read(FILE) == dump(registry.current().values())


def test_a_change_never_goes_over_somebody_elses(disk: SimulatedDisk) -> None:
    """Even of those who know no board."""
    registry = Registry(disk, ROOT).open()
    registry.change(adding("ours"))
    disk.put(FILE, FLUXMQ)
    assert set(registry.change(adding("more"))) == {"theirs", "more"}


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (b"{", Corrupt, "queues.json: it is not JSON"),
        (b'{"version": 2, "configs": [{}]}', Corrupt, "queues.json: there is a queue without"),
        (b'{"version": 9}', ConfigError, "queues.json: it is of version 9"),
    ],
)
def test_damage(disk: SimulatedDisk, data: bytes, error: type[Exception], message: str) -> None:
    with Registry(disk, ROOT).open() as registry:
        registry.change(adding("a"))
        good = disk.read(FILE)
        disk.put(FILE, data)
        with pytest.raises(error, match=message):
            registry.change(adding("b"))
        assert disk.read(FILE) == data
        disk.put(FILE, good)
        assert set(registry.change(adding("b"))) == {"a", "b"}
        disk.put(FILE, data)
    registry = Registry(disk, ROOT)
    with pytest.raises(error, match=message) as caught:
        registry.open()
    if isinstance(caught.value, Corrupt):
        assert caught.value.path == FILE
    with pytest.raises(Closed):
        registry.current()
    assert disk.open_files() == []


def test_what_the_killed_left_behind_goes(disk: SimulatedDisk) -> None:
    disk.put(FILE, dump([with_name("a")]))
    for name in ("queues.json.12345.tmp", "queues.json.tmp", "other.json.1.tmp"):
        disk.put(f"{ROOT}/config/{name}", b"{")
    with Registry(disk, ROOT, read_only=True).open() as reader:
        assert set(reader.current()) == {"a"}
    assert f"{FILE}.12345.tmp" in disk.files()
    with Registry(disk, ROOT).open() as registry:
        assert set(registry.current()) == {"a"}
    left = [path for path in disk.files() if path.endswith(".tmp")]
    assert left == [f"{ROOT}/config/other.json.1.tmp", f"{FILE}.tmp"]


# --- reading only ---------------------------------------------------------------------------


def test_read_only_writes_nothing(disk: SimulatedDisk) -> None:
    disk.put(FILE, dump([with_name("a")]))
    with Registry(disk, ROOT, read_only=True).open() as reader:
        assert set(reader.current()) == {"a"}
        with pytest.raises(NotWritten, match="open read-only"):
            reader.change(adding("b"))
    assert disk.files() == [FILE]
    with Registry(disk, "elsewhere", read_only=True).open() as reader:
        assert not reader.current()
    assert disk.files() == [FILE]


def test_without_a_board_the_time_of_the_file_tells(disk: SimulatedDisk) -> None:
    faulty = FaultyFileSystem(disk)
    reader = Registry(faulty, ROOT, read_only=True).open()
    assert not reader.current()
    disk.put(FILE, dump([with_name("a")]))
    assert set(reader.current()) == {"a"}
    calls = len(faulty.calls)
    assert set(reader.current()) == {"a"}
    assert {call.op for call in faulty.calls[calls:]} == {"map", "stat"}
    disk.put(FILE, dump([with_name("b")]))
    assert set(reader.current()) == {"b"}


def test_a_file_changed_twice_in_a_moment(tmp_path: Path) -> None:
    """Nothing but the bytes tells: the size is the same, and so is the time, to the tick."""
    path = tmp_path / "config" / "queues.json"
    path.parent.mkdir()
    path.write_bytes(dump([with_name("a")]))
    now = time.time_ns()
    os.utime(path, ns=(now, now))
    reader = Registry(OsFileSystem(), str(tmp_path), read_only=True).open()
    assert set(reader.current()) == {"a"}
    path.write_bytes(dump([with_name("b")]))
    os.utime(path, ns=(now, now))
    assert set(reader.current()) == {"b"}


def test_a_reader_finds_a_board_that_came_later(disk: SimulatedDisk) -> None:
    faulty = FaultyFileSystem(disk)
    reader = Registry(faulty, ROOT, read_only=True).open()
    writer = Registry(disk, ROOT).open()
    writer.change(adding("a"))
    assert set(reader.current()) == {"a"}
    calls = len(faulty.calls)
    assert set(reader.current()) == {"a"}
    assert len(faulty.calls) == calls
    writer.change(adding("b"))
    assert set(reader.current()) == {"a", "b"}


# --- crashes --------------------------------------------------------------------------------

CRASHES = [Crash(), Crash(after=True), ShortWrite(then=Crash())]


def prepared() -> SimulatedDisk:
    disk = SimulatedDisk()
    with Registry(disk, ROOT).open() as registry:
        registry.change(adding("old"))
    return disk


def replacing(queues: dict[str, QueueSettings]) -> None:
    del queues["old"]
    queues["new"], queues["more"] = with_name("new"), with_name("more")


def change_once(fs: FaultyFileSystem, acked: list[Any]) -> None:
    with Registry(fs, ROOT).open() as registry:
        registry.change(replacing)
        acked.append(True)


def state_of(registry: Registry) -> str:
    found = set(registry.current())
    assert found in ({"old"}, {"new", "more"})
    return "old" if "old" in found else "new"


@pytest.mark.parametrize("fault", CRASHES, ids=str)
def test_a_writer_killed_at_any_call(fault: Fault) -> None:
    """Others, who had the store open all the while, see the one or the other, and what is in the
    file; and the next change works and is seen."""
    seen = set()
    watchers: list[tuple[Registry, Registry]] = []

    def fresh() -> SimulatedDisk:
        disk = prepared()
        reader = Registry(disk, ROOT, read_only=True).open()
        watchers.append((Registry(disk, ROOT).open(), reader))
        return disk

    for run in every_call(change_once, fault, fresh):
        assert isinstance(run.disk, SimulatedDisk)
        writer, reader = watchers[-1]
        for registry in (writer, reader, Registry(run.disk, ROOT, read_only=True).open()):
            state = state_of(registry)
            assert list(registry.current().values()) == load(run.disk.read(FILE)), run.call
            assert list(registry.current().values()) == load(run.disk.read(FILE)), run.call
            seen.add(state)
        assert state == "new" or not run.acked
        writer.change(adding("next"))
        assert generation(run.disk) % 2 == 0
        assert reader.current() == writer.current()
        assert "next" in reader.current()
        assert [path for path in run.disk.files() if path.endswith(".tmp")] == []
        assert run.disk.open_files() == []
    assert seen == {"old", "new"} or isinstance(fault, ShortWrite)


@pytest.mark.no_cover
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("fault", [*CRASHES, Fail(after=True)], ids=str)
def test_the_power_goes_at_any_call(fault: Fault, seed: int) -> None:
    for run in every_call(change_once, fault, prepared):
        assert isinstance(run.disk, SimulatedDisk)
        run.disk.crash(seed)
        with Registry(run.disk, ROOT).open() as registry:
            state = state_of(registry)
            assert state == "new" or not run.acked, run.call
            registry.change(adding("next"))
        run.disk.crash(seed)
        with Registry(run.disk, ROOT).open() as registry:
            assert "next" in registry.current()


@pytest.mark.parametrize("fault", [Fail(errno.ENOSPC), Fail(after=True)], ids=str)
def test_a_change_that_fails_at_any_call(fault: Fault) -> None:
    """The process lives on; nobody is misled, and a second try works."""
    for run in every_call(change_once, fault, prepared):
        assert isinstance(run.disk, SimulatedDisk)
        assert isinstance(run.error, OSError | Full | NotWritten | OutcomeUnknown), run.call
        with Registry(run.disk, ROOT).open() as registry:
            assert generation(run.disk) % 2 == 0
            if state_of(registry) == "old":
                registry.change(replacing)
            assert state_of(registry) == "new"
            assert [path for path in run.disk.files() if path.endswith(".tmp")] == []
        assert run.disk.open_files() == []


@pytest.mark.parametrize("op", ["open", "truncate", "pwrite", "sync"])
def test_what_cannot_be_written_changes_nothing(disk: SimulatedDisk, op: Operation) -> None:
    """On a full disk, above all: nobody who comes later has to write anything."""
    full = FaultyFileSystem(disk)
    with Registry(full, ROOT).open() as registry:
        before, was = registry.change(adding("a")), generation(disk)
        full.plan = on(op, Fail(errno.ENOSPC), path="*.tmp")
        with pytest.raises(Full, match=rf"{FILE} cannot be changed .*No space") as caught:
            registry.change(adding("b"))
        assert isinstance(caught.value.__cause__, OSError)
        assert registry.current() is before
    assert generation(disk) == was
    assert not [path for path in disk.files() if path.endswith(".tmp")]
    with Registry(full, ROOT).open() as registry:
        assert set(registry.current()) == {"a"}


@pytest.mark.parametrize("op", ["rename", "sync_dir"])
def test_a_change_that_nobody_knows_the_end_of(disk: SimulatedDisk, op: Operation) -> None:
    """On a full disk, that is put in order later; those who come get what is there."""
    full = FaultyFileSystem(disk)
    with Registry(full, ROOT).open() as registry:
        registry.change(adding("a"))
        full.plan = from_call(0, Fail(errno.ENOSPC), ops={op})
        with pytest.raises(OutcomeUnknown, match=f"{FILE} may be as it was"):
            registry.change(adding("b"))
    found = {"a", "b"} if op == "sync_dir" else {"a"}
    with Registry(full, ROOT).open() as registry:
        assert set(registry.current()) == found
        assert generation(disk) % 2 == 1
    full.plan = None
    with Registry(full, ROOT).open() as registry:
        assert set(registry.current()) == found
        assert generation(disk) % 2 == 0


def test_while_the_generation_is_odd_the_file_is_read_each_time(disk: SimulatedDisk) -> None:
    reader = Registry(disk, ROOT).open()
    dying = FaultyFileSystem(disk)
    writer = Registry(dying, ROOT).open()
    writer.change(adding("a"))
    assert set(reader.current()) == {"a"}
    dying.plan = on("sync_dir", Crash(after=True))
    with pytest.raises(SimulatedCrash):
        writer.change(adding("b"))
    assert generation(disk) % 2 == 1
    assert set(reader.current()) == {"a", "b"}
    assert reader.current() is reader.current()  # it is the same, so it is not parsed again
    disk.put(FILE, dump([with_name("c")]))
    assert set(reader.current()) == {"c"}
    reader.change(nothing)
    assert generation(disk) % 2 == 0


def test_what_a_dead_writer_left_becomes_durable_with_the_next_change(disk: SimulatedDisk) -> None:
    dying = FaultyFileSystem(disk)
    writer = Registry(dying, ROOT).open()
    writer.change(adding("a"))
    dying.plan = on("rename", Crash(after=True))
    with pytest.raises(SimulatedCrash):
        writer.change(adding("b"))
    with Registry(disk, ROOT).open() as registry:  # says that it is so
        assert set(registry.change(nothing)) == {"a", "b"}
    for seed in range(10):
        after = disk.clone()
        after.crash(seed)
        assert set(Registry(after, ROOT).open().current()) == {"a", "b"}


# --- threads and processes ------------------------------------------------------------------


def test_threads_change_and_read(tmp_path: Path) -> None:
    registry = Registry(OsFileSystem(), str(tmp_path)).open()
    done = threading.Event()
    sizes: list[int] = []

    def read() -> None:
        while not done.is_set():
            sizes.append(len(registry.current()))

    def change(thread: int) -> None:
        for number in range(10):
            registry.change(adding(f"{thread}-{number}"))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        in_threads(4, change)
    finally:
        done.set()
        reader.join()
    assert len(registry.current()) == 40
    assert sizes == sorted(sizes)  # nobody sees an earlier one again


COMMON = """
import json, os, signal, sys, threading
from tailrace.log.fs import OsFileSystem
from tailrace.queue.registry import Registry
from tailrace.queue.settings import QueueSettings

root = sys.argv[1]
signal.alarm(60)  # rather than hang

def add(registry, name):
    registry.change(lambda queues: queues.update({name: QueueSettings.create(name)}))

registry = Registry(OsFileSystem(), root).open()
"""


def test_two_processes_lose_nothing(tmp_path: Path) -> None:
    code = COMMON + textwrap.dedent("""
        prefix, count = sys.argv[2], int(sys.argv[3])
        for number in range(count):
            add(registry, f"{prefix}{number}")
            assert f"{prefix}{number}" in registry.current()
        """)
    count = 40
    registry = Registry(OsFileSystem(), str(tmp_path)).open()
    children = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path), prefix, str(count)])
        for prefix in "xy"
    ]
    try:
        seen = 0
        while any(child.poll() is None for child in children):
            now = len(registry.current())
            assert now >= seen
            seen = now
        assert [child.wait(PATIENCE_S) for child in children] == [0, 0]
    finally:
        for child in children:
            child.kill()
            child.wait()
    assert set(registry.current()) == {f"{x}{n}" for x in "xy" for n in range(count)}
    assert set(Registry(OsFileSystem(), str(tmp_path)).open().current()) == set(registry.current())


def test_a_killed_process_leaves_the_lock_free(tmp_path: Path) -> None:
    code = COMMON + textwrap.dedent("""
        def edit(queues):
            print("now", flush=True)
            signal.pause()
        registry.change(edit)
        """)
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "now\n"
    finally:
        child.kill()
        child.communicate(timeout=PATIENCE_S)
    registry = Registry(OsFileSystem(), str(tmp_path)).open()
    assert set(registry.change(adding("a"))) == {"a"}


def test_a_forked_child_goes_on(tmp_path: Path) -> None:
    """Even if it was forked while other threads were reading and changing."""
    answer = run_python(
        COMMON
        + textwrap.dedent("""
        started, go_on = threading.Event(), threading.Event()
        def slow(queues):
            started.set()
            go_on.wait()
            queues["parent"] = QueueSettings.create("parent")
        thread = threading.Thread(target=registry.change, args=(slow,))
        thread.start()
        started.wait()
        registry._looking.acquire()
        ours, theirs = os.pipe()
        pid = os.fork()
        if not pid:
            signal.alarm(50)
            os.write(theirs, json.dumps(sorted(registry.current())).encode())
            add(registry, "child")
            os.write(theirs, json.dumps(sorted(registry.current())).encode())
            os._exit(0)
        registry._looking.release()
        seen = [os.read(ours, 1000).decode()]
        go_on.set()
        thread.join()
        _, status = os.waitpid(pid, 0)
        seen.append(os.read(ours, 1000).decode())
        print(json.dumps([status, seen, sorted(registry.current())]))
        """),
        tmp_path,
    )
    assert answer == [0, ["[]", '["child", "parent"]'], ["child", "parent"]]
