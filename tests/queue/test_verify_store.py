"""`verify_store`: all damage is found, what is normal is no problem, and nothing is changed."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tailrace import Queue, Stream
from tailrace.log.fs import OsFileSystem
from tailrace.log.offline.findings import Finding
from tailrace.queue.journal import encode_line, parse_line
from tailrace.queue.offline.group_survey import survey_group
from tailrace.queue.offline.verify import QueueReport, StoreReport, logs_of, verify_store
from tailrace.queue.snapshots import Snapshots
from tailrace.testing import Crash, FaultyFileSystem, ShortWrite, SimulatedCrash, SimulatedDisk, at
from tests.project import ROOT
from tests.queue.clocks import Machine

FIXTURES = ROOT.parent / "shared" / "fixtures" / "fluxmq"
STORE = "data/queue"
GROUP = f"{STORE}/queues/orders/consumers/w"
JOURNAL = f"{GROUP}/ops.log"
READERS = f"{STORE}/queues/events/consumers/r"


@pytest.fixture
def machine() -> Iterator[Machine]:
    with Machine() as machine:
        yield machine


def use(machine: Machine, fs: Any = None, **options: Any) -> Any:
    """A store with a queue and a stream; a group of each has settled some, and has some pending."""
    store = machine.open(**options) if fs is None else _store(machine, fs, options)
    queue = store.queue("orders", retry={"initial_backoff": "16s"})
    queue.publish_many([(f"k{i}", b"%d" % i) for i in range(12)])
    stream = store.stream("events")
    stream.publish_many([b"%d" % i for i in range(5)])
    consumer = queue.consumer("w")
    first, second, third, fourth, *others = consumer.receive(9)
    consumer.ack([first, *others[-2:]])
    second.nack(error="no")
    third.release()
    for _ in range(10):
        fourth.extend()
    reader = stream.consumer("r")
    reader.receive(2)[-1].ack()
    reader.receive(1)
    return store


def _store(machine: Machine, fs: Any, options: dict[str, Any]) -> Any:
    from tailrace import Store

    return Store("data", fs=fs, clock=machine.clock, upkeep=False, **options)


def killed(machine: Machine, **options: Any) -> SimulatedDisk:
    use(machine, **options)
    machine.kill()
    forget_members(machine.disk)
    return machine.disk


def forget_members(disk: SimulatedDisk) -> None:
    """The process that is said to write to the logs was killed; the one of this test runs on."""
    for path in disk.files():
        if path.endswith("/segments/.tailrace/members"):
            disk.put(path, b"[]")


def closed(machine: Machine, **options: Any) -> SimulatedDisk:
    use(machine, **options).close()
    return machine.disk


def told(report: StoreReport, severity: str = "problem", path: str = "") -> list[str]:
    """Findings, but for those about the logs, which have tests of their own."""
    return [
        f"{finding.path}: {finding.message}"
        for finding in report.findings
        if finding.severity == severity and path in finding.path and "/segments" not in finding.path
    ]


def only(disk: SimulatedDisk, severity: str = "problem") -> str:
    found = told(verify_store(disk, STORE), severity)
    assert len(found) == 1, found
    return found[0]


def findings_of_group(disk: SimulatedDisk) -> list[Finding]:
    return survey_group(disk, GROUP, "w", "w", "classic", held=False).findings


def queue_of(report: StoreReport, name: str = "orders") -> QueueReport:
    (found,) = [queue for queue in report.queues if queue.name == name]
    return found


def journal_of(disk: SimulatedDisk, path: str = JOURNAL) -> bytes:
    return disk.read(path).rstrip(b"\0")


# --- sound stores ---------------------------------------------------------------------------


@pytest.mark.parametrize("flush", ["sync", "async", "none"])
def test_a_store_that_was_closed(flush: str, machine: Machine) -> None:
    disk = closed(machine, flush=flush)
    before = {path: disk.read(path) for path in disk.files()}
    seen: list[tuple[int, int]] = []
    report = verify_store(disk, STORE, lambda done, total: seen.append((done, total)))
    assert report.findings == []
    assert report.ok
    assert [(queue.name, queue.type) for queue in report.queues] == [
        ("events", "stream"),
        ("orders", "classic"),
    ]
    (group,) = queue_of(report).groups
    assert (group.id, group.cursor, group.committed, group.pending) == ("w", 9, 1, 6)
    (group,) = queue_of(report, "events").groups
    assert (group.id, group.cursor, group.committed, group.pending) == ("r", 3, 2, 0)
    assert seen == sorted(seen)
    assert seen[-1] == (sum(log.bytes for log in report.logs),) * 2
    assert {path: disk.read(path) for path in disk.files()} == before
    assert disk.open_files() == []


@pytest.mark.parametrize("compact_after", [1, 3, 10_000])
def test_a_store_whose_process_was_killed(compact_after: int, machine: Machine) -> None:
    report = verify_store(killed(machine, compact_after=compact_after), STORE)
    assert report.ok, report.problems
    (note,) = told(report, "note", GROUP.removeprefix(f"{STORE}/"))
    assert "alive-" in note
    assert (queue_of(report).groups[0].cursor, queue_of(report).groups[0].pending) == (9, 6)


def test_a_store_in_use(machine: Machine) -> None:
    store = use(machine, compact_after=3)
    report = verify_store(machine.disk, STORE)
    assert told(report) == []
    assert told(report, "note") == []
    assert len(report.writers) == 1
    store.close()


def test_an_empty_store(machine: Machine) -> None:
    machine.open().close()
    report = verify_store(machine.disk, STORE)
    assert report.findings == []
    assert report.queues == []
    assert logs_of(machine.disk, STORE) == []


def test_the_logs_of_a_store(machine: Machine) -> None:
    disk = closed(machine)
    assert logs_of(disk, STORE) == [
        f"{STORE}/queues/events/segments",
        f"{STORE}/queues/orders/segments",
    ]
    segment = f"{STORE}/queues/orders/segments/00000000000000000000.seg"
    disk.corrupt(segment, 50, b"\xff\xff")
    (problem,) = verify_store(disk, STORE).problems
    assert problem.path == segment.removeprefix(f"{STORE}/")


def test_names_that_are_escaped(machine: Machine) -> None:
    store = machine.open()
    queue = store.queue("a/b")
    queue.publish(b"x")
    queue.consumer("w", filter="im/#").receive(1)
    machine.kill()
    report = verify_store(machine.disk, STORE)
    assert report.ok
    assert [group.id for group in queue_of(report, "a/b").groups] == ["w@im/#"]


@pytest.mark.no_cover
@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.long)])
def test_every_moment_at_which_a_process_can_be_killed(step: int, machine: Machine) -> None:
    """What is left is no problem at any moment, and is what the next process goes on from."""
    options = {"compact_after": 4}
    fs = FaultyFileSystem(machine.disk)
    use(machine, fs, **options).close()
    calls = [
        call
        for call in fs.calls
        if call.op in ("pwrite", "rename", "truncate", "unlink")
        and ("/consumers/" in call.path or "/groups/" in call.path)
    ]
    assert len(calls) > 50
    for call in calls[::step]:
        fault = ShortWrite(then=Crash()) if call.op == "pwrite" else Crash(after=True)
        with Machine() as other:
            with contextlib.suppress(SimulatedCrash):
                use(other, FaultyFileSystem(other.disk, at(call.n, fault)), **options).close()
            other.kill()
            report = verify_store(other.disk, STORE)
            assert told(report) == [], f"{call.op} {call.path}"
            assert_it_is_what_opening_finds(other, report)


def assert_it_is_what_opening_finds(machine: Machine, report: StoreReport) -> None:
    with machine.open() as store:
        for queue in report.queues:
            found = store.get(queue.name)
            assert isinstance(found, Queue | Stream)
            for told_of in queue.groups:
                group = found.group(told_of.id)
                if told_of.cursor is not None:
                    progress = group.progress()
                    assert progress[0] == told_of.cursor
                    assert progress[1] == told_of.committed


# --- the journal ----------------------------------------------------------------------------


@pytest.mark.no_cover
@pytest.mark.parametrize("mask", [0x01, 0x20, 0x80, 0xFF])
def test_every_byte_of_a_journal(mask: int, machine: Machine) -> None:
    """A byte that is another is told of, or it makes no difference to any operation."""
    disk = killed(machine)
    data = journal_of(disk)
    ops = [parse_line(line) for line in data.split(b"\n")[:-1]]
    assert None not in ops
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= mask
        disk.put(JOURNAL, bytes(changed) + bytes(100))
        if not findings_of_group(disk):
            lines = bytes(changed).split(b"\n")[:-1]
            assert [parse_line(line) for line in lines] == ops, position


@pytest.mark.no_cover
@pytest.mark.parametrize("room", [0, 100])
def test_a_journal_that_ends_anywhere(room: int, machine: Machine) -> None:
    disk = killed(machine)
    data = journal_of(disk)
    first = data.index(b"\n") + 1
    for size in range(1, len(data)):
        disk.put(JOURNAL, data[:size] + bytes(room))
        found = [(each.severity, each.message) for each in findings_of_group(disk)]
        if size < 6:  # it might as well be FluxMQ's
            assert found == [("note", "a crash tore its last line")]
        elif size < first:
            assert [severity for severity, _ in found] == ["problem"]
            assert "its first line is damaged" in found[0][1]
        elif data[size - 1 : size] == b"\n":
            assert found == []
        else:
            assert [severity for severity, _ in found] == ["note"]
            assert "will be cut off by the next open" in found[0][1]


def test_the_end_of_a_journal_that_is_not_torn(machine: Machine) -> None:
    disk = killed(machine)
    data = journal_of(disk)
    disk.put(JOURNAL, data[:-3] + b"5}\n")
    assert "is damaged, and will be cut off by the next open" in only(disk)


def test_an_end_that_is_just_being_written(machine: Machine) -> None:
    store = use(machine)
    machine.disk.put(JOURNAL, journal_of(machine.disk) + b'{"k":"')
    (note,) = told(verify_store(machine.disk, STORE), "note")
    assert note.endswith("is not whole; it is being written")
    machine.kill()
    del store


def test_a_line_in_the_middle(machine: Machine) -> None:
    disk = killed(machine)
    lines = journal_of(disk).splitlines(keepends=True)
    (claim,) = [number for number, line in enumerate(lines) if b'"claim"' in line]
    position = sum(map(len, lines[:claim]))
    disk.put(JOURNAL, b"".join([*lines[:claim], b"?" * 20 + b"\n", *lines[claim + 1 :]]))
    (finding,) = verify_store(disk, STORE).problems
    assert (finding.position, finding.path) == (position, "queues/orders/consumers/w/ops.log")
    assert "what it said is lost" in finding.message
    disk.put(JOURNAL, b"".join(lines[:claim] + lines[claim + 1 :]))
    assert told(verify_store(disk, STORE)) == []  # nobody can tell: what is missing was at the end
    more = encode_line({"t": "claim", "c": "c", "u": 1, "h": 1, "f": 9, "x": 10, "r": [9, 1]})
    disk.put(JOURNAL, b"".join([*lines[:claim], *lines[claim + 1 :], more]))
    assert "goes on from offset 9, and the cursor is 0" in only(disk)


def test_a_hole_in_the_middle(machine: Machine) -> None:
    disk = killed(machine)
    lines = journal_of(disk).splitlines(keepends=True)
    disk.put(JOURNAL, b"".join([*lines[:-1], bytes(len(lines[-1]) - 1), b"\n"]))
    report = verify_store(disk, STORE)
    assert told(report) == []
    assert "will be cut off" in told(report, "note", "ops.log")[0]
    disk.put(JOURNAL, b"".join([*lines[:-1], bytes(40), lines[-1]]))
    assert "40 bytes did not survive a power cut" in only(disk)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"t": "frobnicate"}, "the operation 'frobnicate' does not fit"),
        ({"t": "ack"}, "the operation 'ack' does not fit"),
        ({"t": "claim", "c": 1}, "the operation 'claim' does not fit"),
        ({"t": "begin", "format": 1, "generation": 7}, "the operation 'begin' does not fit"),
        ({"t": "deleted"}, "the group was deleted"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_operations_that_make_no_sense(
    line: dict[str, Any], message: str, machine: Machine
) -> None:
    disk = killed(machine)
    disk.put(JOURNAL, journal_of(disk) + encode_line(line))
    assert message in only(disk)


def test_a_journal_that_was_about_to_be_replaced(machine: Machine) -> None:
    disk = killed(machine)
    data = journal_of(disk) + encode_line({"t": "moved"})
    disk.put(JOURNAL, data)
    report = verify_store(disk, STORE)
    assert told(report) == []
    assert "the next open does that" in told(report, "note", "ops.log")[0]
    disk.put(JOURNAL, data + encode_line({"t": "ack", "r": [3, 1]}))
    assert "1 line after that count for nobody" in only(disk)


@pytest.mark.parametrize(
    ("begin", "message"),
    [
        ({"t": "begin", "format": 2, "generation": 0}, "is of format 2; this tailrace knows 1"),
        ({"t": "begin"}, "does not say which snapshot"),
        ({"t": "ack", "r": [1, 1]}, "its first line is damaged"),
    ],
    ids=["newer", "without", "another"],
)
def test_how_a_journal_begins(begin: dict[str, Any], message: str, machine: Machine) -> None:
    disk = killed(machine)
    _, _, rest = journal_of(disk).partition(b"\n")
    disk.put(JOURNAL, encode_line(begin) + rest)
    assert message in only(disk)


# --- the snapshot ---------------------------------------------------------------------------


@pytest.mark.no_cover
@pytest.mark.parametrize("name", ["state.json", "pel_1.json", "pel_4.json"])
@pytest.mark.parametrize("end", ["closed", "killed"])
def test_every_byte_of_a_snapshot(name: str, end: str, machine: Machine) -> None:
    disk = closed(machine) if end == "closed" else killed(machine, compact_after=3)
    path = f"{GROUP}/{name}"
    data = disk.read(path)
    for position in range(len(data)):
        disk.corrupt(path, position, bytes([data[position] ^ 0xFF]))
        assert any(finding.severity == "problem" for finding in findings_of_group(disk)), position
        disk.corrupt(path, position, data[position : position + 1])
    assert told(verify_store(disk, STORE)) == []


@pytest.mark.parametrize("name", ["state.json", "pel_1.json"])
def test_files_of_a_snapshot_that_are_missing(name: str, machine: Machine) -> None:
    disk = killed(machine, compact_after=3)
    disk.unlink(f"{GROUP}/{name}")
    assert f"w/{name}: is missing" in only(disk)


def test_a_file_of_another_generation(machine: Machine) -> None:
    disk = killed(machine, compact_after=3)
    old = rewritten(disk.read(f"{GROUP}/pel_1.json"), version=7)
    disk.put(f"{GROUP}/pel_1.json", old)
    assert "pel_1.json: is of generation 7, the journal of " in only(disk)
    # What was not renamed yet counts as if it had been.
    new = disk.read(f"{GROUP}/state.json")
    disk.put(f"{GROUP}/state.json.tmp", new)
    disk.put(f"{GROUP}/state.json", rewritten(new, version=7))
    report = verify_store(disk, STORE)
    assert len(told(report)) == 1
    (note,) = told(report, "note", "state.json.tmp")
    assert "the next open gives it its name" in note


def rewritten(data: bytes, **changes: Any) -> bytes:
    """A file of a snapshot with other contents, and the checksum that belongs to them."""
    document = json.loads(data)
    del document["crc32c"]
    disk = SimulatedDisk()
    disk.make_dirs("g")
    Snapshots(disk, "g", "")._write_new("x", {**document, **changes}, sync=False)
    return disk.read("g/x.tmp")


def test_what_a_snapshot_was_being_written_is_left_over(machine: Machine) -> None:
    disk = killed(machine, compact_after=3)
    for name in ("ops.log", "state.json", "pel_3.json"):
        disk.put(f"{GROUP}/{name}.tmp", b"half of it")
    report = verify_store(disk, STORE)
    assert told(report) == []
    assert [note.partition(":")[0].rpartition("/")[2] for note in told(report, "note", ".tmp")] == [
        "ops.log.tmp",
        "pel_3.json.tmp",
        "state.json.tmp",
    ]


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"2": {"o": 2}}, "which is another file's"),
        ({"9": {"o": 9}}, "has offset 9 pending; the cursor is 9"),
        ({"17": {"o": 1}}, "has the entry of 1 at 17"),
        ({"1": {"o": 1}, "2": {"o": 2}, "3": {"o": 3}}, ", and 1 more fault"),
        ({"1": {"c": ""}}, "does not describe a group"),
        ([], "does not describe a group"),
    ],
    ids=["shard", "cursor", "key", "several", "no entry", "no entries"],
)
def test_entries_that_are_wrong(entries: Any, message: str, machine: Machine) -> None:
    disk = closed(machine)
    if isinstance(entries, dict):
        entries = {key: {"c": "c", "n": 1, **entry} for key, entry in entries.items()}
    data = rewritten(disk.read(f"{GROUP}/pel_1.json"), entries=entries)
    disk.put(f"{GROUP}/pel_1.json", data)
    assert any(message in each for each in told(verify_store(disk, STORE)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"group_id": "x"}, "is of the group 'x'"),
        ({"tailrace": {"cursor": 9}}, "does not describe a group"),
        ({"tailrace": None}, "does not describe a group"),
        ({"state": {"Cursor": 4}}, "says that the cursor is 4, and that it is 9"),
    ],
    ids=["group", "little", "nothing", "two cursors"],
)
def test_a_state_that_is_wrong(changes: dict[str, Any], message: str, machine: Machine) -> None:
    disk = closed(machine)
    data = rewritten(disk.read(f"{GROUP}/state.json"), **changes)
    disk.put(f"{GROUP}/state.json", data)
    assert any(message in each for each in told(verify_store(disk, STORE)))


# --- groups and their log -------------------------------------------------------------------


def test_a_cursor_behind_the_end_of_the_log(machine: Machine) -> None:
    disk = killed(machine)
    line = encode_line({"t": "claim", "c": "", "u": 0, "h": 0, "f": 9, "x": 50})
    disk.put(JOURNAL, journal_of(disk) + line)
    assert "its cursor is 50, and the log ends at 12" in only(disk)
    path = f"{READERS}/ops.log"
    disk.put(path, journal_of(disk, path) + encode_line({"t": "skip", "x": 6}))
    assert len(told(verify_store(disk, STORE))) == 2


def test_pending_messages_that_are_not_below_the_cursor(machine: Machine) -> None:
    disk = killed(machine)
    line = encode_line({"t": "claim", "c": "", "u": 0, "h": 0, "f": 9, "x": 9, "r": [10, 2]})
    disk.put(JOURNAL, journal_of(disk) + line)
    assert "2 messages pending at or above the cursor, which is 9" in only(disk)


def test_ranges_of_a_stream_that_are_not_below_the_cursor(machine: Machine) -> None:
    disk = closed(machine)
    path = f"{READERS}/state.json"
    state = {**json.loads(disk.read(path))["tailrace"], "taken": {"c": [[2, 4]]}}
    disk.put(path, rewritten(disk.read(path), tailrace=state))
    assert "a consumer is at what is not below the cursor, which is 3" in only(disk)


def test_pending_messages_that_were_deleted(machine: Machine) -> None:
    store = use(machine)
    store.get("orders").log.truncate_before(4)
    machine.kill()
    report = verify_store(machine.disk, STORE)
    assert told(report) == []
    (note,) = [note for note in told(report, "note") if "alive" not in note]
    assert "3 messages pending below the log's start, which is 4" in note


# --- the registry, and what is left over ----------------------------------------------------


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"{", "it is not JSON"),
        (b'{"version": 9}', "it is of version 9"),
        (b'{"version": 2, "configs": [{}]}', "a queue without a Name"),
        (None, "is missing"),
    ],
    ids=["broken", "newer", "nameless", "missing"],
)
def test_the_registry(data: bytes | None, message: str, machine: Machine) -> None:
    """Whatever it says, the queues are looked at; what kind a group is, its files tell."""
    disk = closed(machine)
    path = f"{STORE}/config/queues.json"
    disk.unlink(path)
    if data is not None:
        disk.put(path, data)
    assert message in only(disk)
    report = verify_store(disk, STORE)
    assert [queue.type for queue in report.queues] == [None, None]
    assert [queue.groups[0].cursor for queue in report.queues] == [3, 9]


def test_the_board(machine: Machine) -> None:
    disk = closed(machine)
    path = f"{STORE}/.tailrace/board"
    disk.put(path, (7).to_bytes(8, "little") + disk.read(path)[8:])
    assert "the queues were being changed" in only(disk, "note")


def test_leftovers(machine: Machine) -> None:
    disk = closed(machine)
    left = {
        "config/queues.json.77.tmp": "the next open removes it",
        "groups/orders/w.json.77.tmp": "it can be removed",
        ".tailrace/trash/0123/x": "whoever opens the store alone removes it",
        "queues/orders/consumers/.deleted-0123/ops.log": "of a group that was deleted",
        "queues/orders/consumers/w/.tailrace/damaged-3": "a damaged journal was put aside here",
        "queues/orders/consumers/w/.tailrace/alive-0123": "of a process that was killed",
        "queues/orders/.tailrace/deleted": "about to be deleted, and is still there",
        "queues/gone/.tailrace/deleted": "is left of a queue that was deleted",
        "queues/stray/segments/x": "is no queue's",
    }
    for path in left:
        disk.make_dirs(f"{STORE}/{path}".rpartition("/")[0])
        disk.put(f"{STORE}/{path}", b"")
    report = verify_store(disk, STORE)
    assert told(report) == []
    notes = told(report, "note")
    assert len(notes) == len(left)
    for message in left.values():
        assert any(message in note for note in notes), message


# --- the files for FluxMQ -------------------------------------------------------------------


@pytest.mark.no_cover
def test_every_byte_of_a_groups_file(machine: Machine) -> None:
    """It is a copy, so nothing is lost."""
    disk = closed(machine)
    path = f"{STORE}/groups/orders/w.json"
    data = disk.read(path)
    for position in range(0, len(data), 11):
        disk.corrupt(path, position, bytes([data[position] ^ 0x01]))
        report = verify_store(disk, STORE)
        assert report.ok
        assert told(report, "note", "groups/orders/w.json"), position
        disk.corrupt(path, position, data[position : position + 1])


def test_a_groups_file_without_the_group(machine: Machine) -> None:
    disk = closed(machine)
    for path in disk.files():
        if path.startswith(GROUP):
            disk.unlink(path)
    assert told(verify_store(disk, STORE)) == []
    path = f"{STORE}/groups/orders/w.json"
    data = disk.read(path)
    disk.corrupt(path, 30, b"?")
    assert "what it said of the group is not known" in only(disk)
    disk.corrupt(path, 0, data)
    for wrong, message in (
        ({"version": 3}, "it is of version 3"),
        ({"state": None}, "it has no state"),
        ({"state": {"ID": "w", "QueueName": "x"}}, "the group 'w' of the queue 'x'"),
        ({"state": {"ID": "w", "QueueName": "orders", "Mode": "y"}}, "its mode is 'y'"),
        ({"state": {"ID": "w", "QueueName": "orders", "Cursor": 1}}, "where the group is"),
        (
            {"state": {"ID": "w", "QueueName": "orders", "Cursor": {"Cursor": -1}}},
            "its Cursor is -1",
        ),
        ({"state": {"ID": "w", "QueueName": "orders", "PEL": {"c": [1]}}}, "makes no sense"),
    ):
        disk.put(path, json.dumps({"version": 2, **wrong}).encode())
        assert message in only(disk)


def test_a_group_that_fluxmq_has_used_since(machine: Machine) -> None:
    disk = closed(machine)
    path = f"{STORE}/groups/orders/w.json"
    document = json.loads(disk.read(path))
    del document["tailrace"]
    disk.put(path, json.dumps(document).encode())
    assert "FluxMQ has written it since" in only(disk, "note")


def test_a_groups_file_that_is_older(machine: Machine) -> None:
    disk = closed(machine)
    path = f"{STORE}/groups/orders/w.json"
    old = disk.read(path)
    with machine.open() as store, store.queue("orders").consumer("w") as consumer:
        consumer.ack(consumer.receive(20))
    disk.put(path, old)
    assert "says that the cursor is 9; the group's own files say 12" in only(disk, "note")


needs_fixtures = pytest.mark.skipif(not FIXTURES.exists(), reason="FluxMQ's files are not here")


@pytest.fixture
def fluxmq(tmp_path: Path) -> Path:
    shutil.copytree(FIXTURES / "none", tmp_path / "store")
    return tmp_path / "store"


def look(store: Path) -> StoreReport:
    return verify_store(OsFileSystem(), str(store))


@needs_fixtures
def test_a_store_of_fluxmq(fluxmq: Path) -> None:
    report = look(fluxmq)
    assert report.findings == []
    assert [queue.name for queue in report.queues] == ["eph", "events", "orders"]
    assert queue_of(report).groups[0].cursor == 12


@needs_fixtures
def test_a_journal_of_fluxmq(fluxmq: Path) -> None:
    path = fluxmq / "queues/orders/consumers/workers/ops.log"
    data = path.read_bytes()
    path.write_bytes(data[:-9])
    assert "a crash tore its last line" in told(look(fluxmq), "note")[0]
    path.write_bytes(data[:41] + b"?" + data[42:])
    (problem,) = look(fluxmq).problems
    assert problem.position == 36
    assert "nothing from there on counts" in problem.message
    path.write_bytes(data.replace(b"\n", b"", 1))  # two objects in a line are as good
    assert look(fluxmq).findings == []


@needs_fixtures
def test_snapshots_of_fluxmq(fluxmq: Path) -> None:
    folder = fluxmq / "queues/orders/consumers/workers"
    state = {"version": 2, "group_id": "workers", "state": {"Cursor": 12}, "saved_at": 0}
    (folder / "state.json").write_text(json.dumps(state, indent=2))
    for shard in range(8):
        entries = {str(shard): {"o": shard, "c": "c", "n": 1}}
        pel = {"version": 2, "shard_id": shard, "entries": entries, "saved_at": 0}
        (folder / f"pel_{shard}.json").write_text(json.dumps(pel, indent=2))
    assert look(fluxmq).findings == []
    (folder / "pel_1.json").write_text((folder / "pel_2.json").read_text())
    assert "which is another file's" in told(look(fluxmq))[0]
    (folder / "pel_1.json").write_text("{")
    assert "pel_1.json: is damaged (it is not JSON" in told(look(fluxmq))[0]
    (folder / "pel_1.json").write_text("[]")
    assert "it is no JSON object" in told(look(fluxmq))[0]
    (folder / "pel_1.json").write_text('{"version": 1}')
    assert "of several snapshots" in told(look(fluxmq), "note")[0]
    (folder / "state.json").unlink()
    assert "state.json: is missing" in told(look(fluxmq))[0]


def test_a_snapshot_of_ours_says_which_of_its_files_there_are(machine: Machine) -> None:
    """A shard without entries need not be written; what an older snapshot left there is not
    looked at."""
    disk = killed(machine, compact_after=3)
    shards = json.loads(disk.read(f"{GROUP}/state.json"))["tailrace"]["shards"]
    missing = next(shard for shard in range(8) if shard not in shards)
    disk.put(f"{GROUP}/pel_{missing}.json", b"whatever")
    assert told(verify_store(disk, STORE)) == []
