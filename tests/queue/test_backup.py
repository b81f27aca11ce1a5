"""A backup is a store at one moment, however much it is used meanwhile."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tailrace import (
    Closed,
    ConfigError,
    Consumer,
    Corrupt,
    Message,
    OutcomeUnknown,
    Store,
    aio,
    restore_backup,
    verify_backup,
)
from tailrace.kernel import crc32c
from tailrace.log.fs import OsFileSystem
from tailrace.log.sidefiles import store_checked_json
from tailrace.queue.backup import backup
from tailrace.queue.backup_tree import without_leases
from tailrace.queue.journal import encode_line, parse_line
from tailrace.queue.offline.verify import verify_store
from tailrace.testing import LoseDirty, on
from tests.log.helpers import WAIT
from tests.queue.backup_world import World
from tests.queue.clocks import Machine, ManualClock
from tests.queue.conftest import OpenStore
from tests.queue.support import FAST, drain, numbers, states, values


@pytest.mark.no_cover
@pytest.mark.sample(3)
@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_meanwhile(
    seed: int, flush: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Machine(seed) as machine:
        world = World(machine, seed, flush)
        world.back_up_and_check()
        world.close()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


# --- what is in it --------------------------------------------------------------------------


def fill(store: Store) -> None:
    """Some of everything."""
    queue = store.queue("q", segment_bytes=1000, **FAST)
    queue.publish_many(numbers(5))
    for number in range(5, 60):
        queue.publish(b"%d" % number)
    with queue.consumer("w") as consumer:
        for message in consumer.receive(10):
            if message.value == b"3":
                message.reject("no")
            elif message.value == b"4":
                message.nack(delay=1000)
            else:
                message.ack()
    stream = store.stream("a/b", flush="async")
    stream.publish_many(numbers(30))
    with stream.consumer("r", auto_commit=False) as reader:
        reader.receive(7)
        reader.commit()
    store.queue("empty")
    store.publish("nobody/wants", b"this")  # ephemeral
    store.queue("later").publish(b"sooner", delay=10)
    store.queue("later").publish(b"later", delay=20)


def check(store: Store) -> None:
    names = {queue.name for queue in store.queues()}
    assert names == {"q", "a/b", "empty", "$dlq/q", "later"}
    assert [each.value for each in store.queue("later").delayed()] == [b"sooner", b"later"]
    queue, stream = store.queue("q"), store.stream("a/b")
    assert values(queue.read()) == numbers(60)
    assert values(stream.read()) == numbers(30)
    assert queue.settings.visibility_timeout_ms == 1000
    [letter] = store.dead("q")
    assert letter.value == b"3"
    [info] = stream.groups()
    assert (info.id, info.committed) == ("r", 7)
    assert states(queue) == {4: ("waiting", 1)}
    with queue.consumer("w") as consumer:
        assert drain(consumer) == numbers(60)[10:]
    assert queue.publish(b"more").offset == 60
    assert not len(store.queue("empty"))


@pytest.mark.parametrize("is_open", [True, False], ids=["in use", "closed"])
def test_everything_is_there(is_open: bool, open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    fill(store)
    if not is_open:
        store.close()
        store = open_store()
    report = store.backup(tmp_path / "backup")
    assert (report.queues, report.groups, report.linked) == (5, 3, 0)
    assert report.path == str(tmp_path / "backup")
    found = verify_backup(tmp_path / "backup")
    assert (found.queues, found.files, found.bytes) == (5, report.files, report.bytes)
    restored = restore_backup(tmp_path / "backup", tmp_path / "restored")
    assert restored == found._replace(path=str(tmp_path / "restored"))
    report_of_files = verify_store(OsFileSystem(), str(tmp_path / "restored" / "queue"))
    assert report_of_files.ok
    with Store(tmp_path / "restored", clock=store.clock, upkeep=False) as copy:
        check(copy)
    assert values(store.queue("q").read()) == numbers(60)  # this one knows nothing of it


def test_a_restored_store_that_nobody_has_used(open_store: OpenStore, tmp_path: Path) -> None:
    """Its groups have no folder for their turns yet."""
    store = open_store()
    fill(store)
    first = store.backup(tmp_path / "first")
    restore_backup(tmp_path / "first", tmp_path / "restored")
    with Store(tmp_path / "restored", clock=store.clock, upkeep=False) as copy:
        second = copy.backup(tmp_path / "second")
    assert (second.queues, second.groups) == (first.queues, first.groups)
    restore_backup(tmp_path / "second", tmp_path / "again")
    with Store(tmp_path / "again", clock=store.clock, upkeep=False) as copy:
        check(copy)


def test_what_somebody_had_is_free(open_store: OpenStore, tmp_path: Path) -> None:
    """Whoever had it is not there, and nobody is to blame."""
    store = open_store()
    queue = store.queue("q", visibility_timeout="1h")
    queue.publish_many(numbers(4))
    held = queue.consumer("w")
    messages = held.receive(2)
    left = queue.consumer("w")
    messages += left.receive(1)
    left.close()  # the message may still be settled, so its lease goes on
    stream = store.stream("s")
    stream.publish_many(numbers(4))
    reader = stream.consumer("r", auto_commit=False)
    assert len(reader.receive(3)) == 3
    store.backup(tmp_path / "backup")
    restore_backup(tmp_path / "backup", tmp_path / "restored")
    with Store(tmp_path / "restored", clock=store.clock, upkeep=False) as copy:
        with copy.queue("q").consumer("w") as consumer:
            found = consumer.receive(10)
            assert [(m.value, m.delivery_count) for m in found] == [
                (b"0", 2),
                (b"1", 2),
                (b"2", 2),
                (b"3", 1),
            ]
        with copy.stream("s").consumer("r") as again:
            assert values(again.receive(10) + again.receive(10)) == numbers(4)
    for message in messages:  # here nothing has changed
        message.ack()
    held.close()
    reader.close()


def test_journals_that_end_in_any_way(clock: ManualClock) -> None:
    lines = [
        encode_line({"t": "begin", "format": 1, "generation": 0, "id": "x"}),
        encode_line({"t": "ack", "r": [0, 1]}),
        encode_line({"t": "moved"}),
    ]
    boot = encode_line({"t": "boot", "b": "0" * 32, "u": clock.boot_ms(), "w": clock.wall_ms()})
    assert without_leases(b"", clock) == b""
    assert without_leases(b'{"t":1,"o":5}\n', clock) == b'{"t":1,"o":5}\n'  # FluxMQ's
    assert without_leases(lines[0], clock) == lines[0] + boot
    assert without_leases(b"".join(lines[:2]), clock) == b"".join(lines[:2]) + boot
    assert without_leases(b"".join(lines), clock) == b"".join(lines[:2]) + boot + lines[2]
    torn = b"".join(lines[:2]) + lines[1][:9]
    assert without_leases(torn, clock) == b"".join(lines[:2]) + boot


def test_an_empty_store(open_store: OpenStore, tmp_path: Path) -> None:
    report = open_store().backup(tmp_path / "backup")
    assert (report.queues, report.groups) == (0, 0)
    restore_backup(tmp_path / "backup", tmp_path / "restored")
    with Store(tmp_path / "restored") as copy:
        assert copy.queues() == []


def test_files_of_another_program(open_store: OpenStore, tmp_path: Path) -> None:
    """A log without our side files, of a queue that the registry does not know."""
    store = open_store()
    store.queue("q").publish_many(numbers(3))
    store.close()
    queues = tmp_path / "data" / "queue" / "queues"
    (queues / "q").rename(queues / "theirs")
    shutil.rmtree(queues / "theirs" / "segments" / ".tailrace")
    store = open_store()
    store.delete("q")
    store.backup(tmp_path / "backup")
    restore_backup(tmp_path / "backup", tmp_path / "restored")
    with Store(tmp_path / "restored") as copy:
        assert copy.queues() == []
        assert values(copy.queue("theirs").read()) == numbers(3)


@pytest.mark.no_cover
def test_after_a_power_cut_that_nobody_has_seen_to(machine: Machine) -> None:
    """Offsets of records that are lost are not given out again, in the copy as in the store."""
    for seed in range(20):
        store = machine.open(f"data{seed}")
        queue = store.queue("q", flush="async")
        queue.publish_many(numbers(3))
        queue.log.flush()
        queue.publish_many(numbers(100))
        with queue.consumer("w") as consumer:
            consumer.ack(consumer.receive(100))
        machine.power_cut(seed)
        path = f"backup{seed}"
        backup(machine.disk, f"data{seed}/queue", path, machine.clock)
        restore_backup(path, f"restored{seed}", fs=machine.disk)
        with machine.open(f"data{seed}") as original, machine.open(f"restored{seed}") as copy:
            for each in (original, copy):
                assert each.queue("q").publish(b"new").offset >= 103
                with each.queue("q").consumer("w") as consumer:
                    assert drain(consumer)[-1] == b"new"
            assert values(original.queue("q").read()) == values(copy.queue("q").read())


def test_a_log_whose_flush_has_failed(machine: Machine) -> None:
    """What may not be on the disk is not in the copy."""
    store, fs = machine.open_faulty()
    queue = store.queue("q")
    queue.publish(b"good")
    fs.plan = on("sync", LoseDirty(), path="*.seg")
    with pytest.raises(OutcomeUnknown):
        queue.publish(b"bad")
    backup(machine.disk, "data/queue", "backup", machine.clock)
    restore_backup("backup", "restored", fs=machine.disk)
    with machine.open("restored") as copy:
        assert values(copy.queue("q").read()) == [b"good"]
        copy.queue("q").publish(b"more")


# --- links ----------------------------------------------------------------------------------


def test_segments_that_are_linked(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    fill(store)
    first = store.backup(tmp_path / "1", link=True)
    assert first.linked >= 2
    assert is_linked(tmp_path, "1", "data/queue", first_segment(tmp_path / "1"))
    store.queue("q").publish(b"60")
    second = store.backup(tmp_path / "2", since=tmp_path / "1")
    third = store.backup(tmp_path / "3", since=tmp_path / "1", link=True)
    assert second.linked == third.linked == first.linked
    assert is_linked(tmp_path, "1", "2/files", first_segment(tmp_path / "1"))
    shutil.rmtree(tmp_path / "1")
    for name in "23":
        restore_backup(tmp_path / name, tmp_path / f"restored{name}")
        with Store(tmp_path / f"restored{name}") as copy:
            assert values(copy.queue("q").read()) == numbers(61)


def first_segment(backup: Path) -> str:
    return str(
        min((backup / "files" / "queues" / "q").rglob("*.seg")).relative_to(backup / "files")
    )


def is_linked(folder: Path, backup: str, other: str, name: str) -> bool:
    return (folder / backup / "files" / name).samefile(folder / other / name)


def test_what_is_damaged_in_the_older_backup_is_copied(
    open_store: OpenStore, tmp_path: Path
) -> None:
    store = open_store()
    fill(store)
    store.backup(tmp_path / "1")
    name = first_segment(tmp_path / "1")
    flip(tmp_path / "1" / "files" / name, 100)
    report = store.backup(tmp_path / "2", since=tmp_path / "1")
    assert report.linked
    assert not is_linked(tmp_path, "1", "2/files", name)
    assert verify_backup(tmp_path / "2")
    with pytest.raises(ConfigError, match="is no backup"):
        store.backup(tmp_path / "3", since=tmp_path / "data")
    assert not (tmp_path / "3").exists()


def test_where_links_are_impossible(
    open_store: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    fill(store)
    store.backup(tmp_path / "1")

    def refuse(source: str, target: str) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "link", refuse)
    assert store.backup(tmp_path / "2", since=tmp_path / "1").linked == 0
    with pytest.raises(ConfigError, match="leave the option out to copy"):
        store.backup(tmp_path / "3", link=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2", "data"]


# --- refusals -------------------------------------------------------------------------------


@pytest.fixture
def made(open_store: OpenStore, tmp_path: Path) -> Path:
    store = open_store()
    fill(store)
    store.backup(tmp_path / "backup")
    return tmp_path / "backup"


def test_a_place_that_is_taken(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    fill(store)
    (tmp_path / "file").write_text("x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("x")
    (tmp_path / "free").mkdir()
    for name in ("file", "full"):
        with pytest.raises(ConfigError, match=r"exists, and is not empty; name a new folder"):
            store.backup(tmp_path / name)
    with pytest.raises(ConfigError, match="in the store"):
        store.backup(tmp_path / "data" / "queue" / "backup")
    with pytest.raises(ConfigError, match="it is empty"):
        store.backup("")
    store.backup(tmp_path / "free")
    assert verify_backup(tmp_path / "free")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "file", "free", "full"]
    store.close()
    with pytest.raises(Closed):
        store.backup(tmp_path / "other")


def test_a_place_to_restore_to(made: Path, tmp_path: Path) -> None:
    for name in ("file", "full"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_text("x")
    with pytest.raises(ConfigError, match=r"is not empty \(it has 'x'\)"):
        restore_backup(made, tmp_path / "full")
    with pytest.raises(ConfigError, match=r"is a file"):
        restore_backup(made, tmp_path / "file" / "x")
    with pytest.raises(ConfigError, match="in the backup itself"):
        restore_backup(made, made / "restored")
    with pytest.raises(ConfigError, match="is not empty"):
        restore_backup(made, tmp_path / "data")
    assert verify_backup(made)
    disk = tmp_path / "disk"
    (disk / "lost+found").mkdir(parents=True)
    left = disk / ".restore.01234567.tmp" / "content"
    left.mkdir(parents=True)  # by one who was killed
    (left / "x").write_text("x")
    restore_backup(made, disk)
    assert sorted(path.name for path in disk.iterdir()) == ["lost+found", "queue"]


def test_a_file_that_is_damaged(made: Path, tmp_path: Path) -> None:
    files = sorted(path for path in made.rglob("*") if path.is_file())
    assert len(files) > 10
    for path in files:
        data = path.read_bytes()
        for damaged in {data[:-1], data + b"x", None, flipped(data)} - {data}:
            if damaged is None:
                path.unlink()
            else:
                path.write_bytes(damaged)
            with pytest.raises((Corrupt, ConfigError), match=re.escape(path.name)):
                restore_backup(made, tmp_path / "restored")
            path.write_bytes(data)
    assert not (tmp_path / "restored").exists()
    first, second = files[1], files[2]
    for path in (first, second):
        path.unlink()
    with pytest.raises(Corrupt, match=r"is missing \(and 1 more files are wrong\)") as caught:
        verify_backup(made)
    assert caught.value.path in (str(first), str(second))


def flipped(data: bytes) -> bytes:
    changed = bytearray(data)
    if changed:
        changed[len(data) // 2] ^= 1
    return bytes(changed)


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0xFF
    path.write_bytes(data)


def test_a_manifest_that_is_newer_or_leads_elsewhere(made: Path, tmp_path: Path) -> None:
    path = made / "backup.json"
    document = json.loads(path.read_bytes())
    del document["crc32c"]
    assert document["format"] == 1
    store_checked_json(OsFileSystem(), str(path), {**document, "format": 2})
    with pytest.raises(ConfigError, match="upgrade tailrace"):
        restore_backup(made, tmp_path / "restored")
    for name in ("../x", "/x", "a/../../x", ".."):
        entry = {**document["files"][0], "path": name}
        store_checked_json(OsFileSystem(), str(path), {**document, "files": [entry]})
        with pytest.raises(Corrupt, match="which is not in the backup"):
            restore_backup(made, tmp_path / "restored")
    assert not (tmp_path / "restored").exists()


def test_the_format(made: Path) -> None:
    """As FORMAT.md says."""
    assert sorted(path.name for path in made.iterdir()) == ["backup.json", "files"]
    document = json.loads((made / "backup.json").read_bytes())
    assert set(document) == {"format", "began_ms", "ended_ms", "files", "queues", "crc32c"}
    queues = {queue.pop("name"): queue for queue in document["queues"]}
    assert queues["q"] == {"type": "classic", "start_offset": 0, "end_offset": 60, "groups": 1}
    found = {}
    for path in (made / "files").rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            found[str(path.relative_to(made / "files"))] = (len(data), crc32c(data))
    assert found == {each["path"]: (each["size"], each["crc32c"]) for each in document["files"]}
    names = {os.path.basename(path) for path in found}
    assert not names & {"clean", "reserved", "poisoned", "lock", "members", "board", "bell", "open"}
    [journal] = (path for path in found if path.endswith("q/consumers/w/ops.log"))
    last = parse_line((made / "files" / journal).read_bytes().split(b"\n")[-2])
    assert last is not None
    assert (last["t"], last["b"]) == ("boot", "0" * 32)
    [segments] = (made / "files" / "queues" / "q").glob("segments")
    bases = sorted(path.stem for path in segments.glob("*.seg"))
    assert sorted(path.stem for path in segments.glob("*.idx")) == bases[:-1]


def test_the_format_of_the_configuration(open_store: OpenStore, tmp_path: Path) -> None:
    """As FORMAT.md says. Only names that a configuration has are taken back."""
    store = open_store()
    store.queue("q").publish(b"x")
    data = b"storage: {}\n"
    Path(store.path, "tailrace.yaml").write_bytes(data)
    assert store.backup(tmp_path / "made").config == ("tailrace.yaml",)
    made = tmp_path / "made"
    assert (made / "config" / "tailrace.yaml").read_bytes() == data
    document = json.loads((made / "backup.json").read_bytes())
    entry = {"path": "tailrace.yaml", "size": len(data), "crc32c": crc32c(data)}
    assert document["config"] == [entry]
    assert restore_backup(made, tmp_path / "restored").config == ("tailrace.yaml",)
    del document["crc32c"]
    document["config"][0]["path"] = "../evil.yaml"
    store_checked_json(OsFileSystem(), str(made / "backup.json"), document)
    with pytest.raises(Corrupt, match=r"names '\.\./evil\.yaml', which is not in the backup"):
        restore_backup(made, tmp_path / "again")


# --- being watched, and stopped ---------------------------------------------------------------


def test_progress_and_how_to_end_it(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    fill(store)
    told: list[tuple[int, int]] = []
    store.backup(tmp_path / "backup", progress=lambda *numbers: told.append(numbers))
    assert told == sorted(told)
    assert all(done <= total for done, total in told)
    calls = len(told)

    class Enough(BaseException):
        pass

    for last in range(1, calls + 1, 5):
        count = 0

        def stop(done: int, total: int, last: int = last) -> None:
            nonlocal count
            count += 1
            if count == last:
                raise Enough

        with pytest.raises(Enough):
            store.backup(tmp_path / "other", progress=stop)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["backup", "data"]
    told.clear()
    restore_backup(tmp_path / "backup", tmp_path / "restored", progress=lambda *n: told.append(n))
    assert told[-1][0] == told[-1][1] == max(told)[0]


def test_what_a_killed_one_left_is_removed(open_store: OpenStore, tmp_path: Path) -> None:
    """Not so what one is working on."""
    store = open_store()
    fill(store)
    dead = tmp_path / "backup.01234567.tmp"
    alive = tmp_path / "backup.89abcdef.tmp"
    for place in (dead, alive):
        (place / "content").mkdir(parents=True)
    lock = OsFileSystem().lock(str(alive / "lock"))
    lock.acquire()
    store.backup(tmp_path / "backup")
    assert not dead.exists()
    assert alive.exists()
    lock.close()


def test_for_tasks(tmp_path: Path) -> None:
    async def work() -> None:
        async with aio.open(tmp_path / "data") as store:
            queue = await store.queue("q", segment_bytes=500)
            for number in range(50):
                await queue.publish(b"%d" % number)
            report = await store.backup(tmp_path / "1")
            assert report.queues == 1
            started = threading.Event()
            task = asyncio.create_task(
                store.backup(tmp_path / "2", progress=lambda done, total: slowly(started))
            )
            await asyncio.to_thread(started.wait)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    def slowly(started: threading.Event) -> None:
        started.set()
        time.sleep(0.01)

    asyncio.run(work())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "data"]


# --- real processes ---------------------------------------------------------------------------

# Each tells what it was told, and when: by a clock that all processes of a machine share.
_PROGRAM = """
import sys, time
import tailrace

path, role, notes = sys.argv[1:]
notes = open(notes, "a", buffering=1)
store = tailrace.open(path)
queue = store.get("q")


def note(word, message):
    print(time.monotonic_ns(), word, message.offset, file=notes)


if role == "publish":
    while True:
        note("published", queue.publish(b"x" * 50))
elif role == "vacuum":
    while True:
        floor = min(group.committed for group in queue.groups())
        queue.log.truncate_before(max(floor, queue.log.start_offset))
        queue.log.vacuum()
        time.sleep(0.02)
else:
    for message in queue.consume("w", prefetch=5):
        if message.offset % 10 == 7:
            message.reject("no")
            note("rejected", message)
        else:
            message.ack()
            note("acked", message)
"""
_ROLES = ("publish", "publish", "consume", "consume", "vacuum")


@pytest.mark.no_cover
def test_processes_go_on_meanwhile(tmp_path: Path) -> None:
    """What was published before is there, what was settled before is settled, and nothing is lost
    or there twice; whatever is killed."""
    with Store(tmp_path / "data", upkeep=False) as store:
        store.queue("q", segment_bytes=5000, compact_after=200).group("w")
    processes = [start(tmp_path, role, number) for number, role in enumerate(_ROLES)]
    began = []
    try:
        wait_for(lambda: told(tmp_path)["acked"])
        for number in range(4):
            time.sleep(0.3)
            began.append(time.monotonic_ns())
            done = run_backup(tmp_path, number)
            assert done.returncode == 0, done.stderr
            victim = 2 + number % 2
            processes[victim].kill()
            processes[victim].wait(WAIT)
            processes[victim] = start(tmp_path, "consume", len(_ROLES) + number)
    finally:
        for process in processes:
            process.kill()
            process.wait(WAIT)
    notes = told(tmp_path)
    with Store(tmp_path / "data", upkeep=False) as store, store.queue("q").consumer("w") as last:
        left = {message.offset for message in receive_all(last)}
    for number, before in enumerate(began):
        path = tmp_path / f"restored{number}"
        restore_backup(tmp_path / f"backup{number}", path)
        check_against(path, notes, before, left, killed=len(began) + 2)


def start(folder: Path, role: str, number: int) -> subprocess.Popen[bytes]:
    arguments = [str(folder / "data"), role, str(folder / f"notes{number}")]
    return subprocess.Popen([sys.executable, "-c", _PROGRAM, *arguments])


def run_backup(folder: Path, number: int) -> subprocess.CompletedProcess[str]:
    code = "import sys; from tailrace.cli import main; sys.argv[0] = 'tailrace'; main()"
    arguments = ["backup", str(folder / f"backup{number}"), "--store", str(folder / "data")]
    if number:
        arguments += ["--since", str(folder / f"backup{number - 1}")]
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=WAIT,
        check=False,
    )


def told(folder: Path) -> dict[str, dict[int, int]]:
    """When it was published, acked, rejected: by word and offset."""
    found: dict[str, dict[int, int]] = {"published": {}, "acked": {}, "rejected": {}}
    for path in folder.glob("notes*"):
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                moment, word, offset = line.split()
                found[word].setdefault(int(offset), int(moment))
    return found


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def check_against(
    path: Path, notes: dict[str, dict[int, int]], before: int, left: set[int], killed: int
) -> None:
    """`left` is what nobody has settled to this day."""
    assert verify_store(OsFileSystem(), str(path / "queue")).ok
    with Store(path, upkeep=False) as store:
        queue = store.queue("q")
        there = [message.offset for message in queue.read()]
        start = queue.log.start_offset
        assert there == list(range(start, queue.log.end_offset))
        published, settled = notes["published"], notes["acked"] | notes["rejected"]
        earlier = {offset for offset, moment in published.items() if moment < before}
        assert earlier, "it began too early"
        assert max(earlier) < queue.log.end_offset
        letters = Counter(int(each.headers["_dlq_original_offset"]) for each in store.dead("q"))
        assert max(letters.values(), default=1) == 1
        with queue.consumer("w") as consumer:
            delivered = Counter(message.offset for message in receive_all(consumer))
        assert max(delivered.values(), default=1) == 1
        for offset, moment in settled.items():
            assert moment > before or offset not in delivered, f"{offset} comes back"
        for offset, moment in notes["rejected"].items():
            assert moment > before or offset in letters, f"the dead letter of {offset} is lost"
        # Whoever was killed may have settled one without a note.
        unknown = earlier - set(delivered) - set(letters) - set(settled)
        assert len(unknown) <= killed, f"{sorted(unknown)} are lost"
        assert unknown.isdisjoint(left), f"{sorted(unknown & left)} are lost"


def receive_all(consumer: Consumer) -> Iterator[Message]:
    while messages := consumer.receive(100):
        yield from messages
        consumer.ack(messages)


def test_a_folder_in_that_of_the_store(tmp_path: Path) -> None:
    """Who deletes the one deletes the other."""
    with Store(tmp_path / "data") as store:
        store.queue("q")
        with pytest.raises(ConfigError, match=r"in the store .* itself"):
            store.backup(tmp_path / "data" / "backup")
    assert not (tmp_path / "data" / "backup").exists()
