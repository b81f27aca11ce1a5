"""The journal of a group, on a disk that fails: a line is there whole or not at all."""

from __future__ import annotations

import errno
import logging

import pytest

from tailrace import Closed, NotWritten, OutcomeUnknown
from tailrace.errors import Corrupt
from tailrace.kernel import crc32c
from tailrace.queue.journal import FORMAT, Journal, Op, encode_line, parse_line
from tailrace.testing import Fail, FaultyFileSystem, Machine, ShortWrite, SimulatedDisk, on

FIRST: Op = {"t": "ack", "r": [0, 1]}
SECOND: Op = {"t": "ack", "r": [1, 1]}


@pytest.fixture
def fs() -> FaultyFileSystem:
    fs = FaultyFileSystem(SimulatedDisk(0))
    fs.make_dirs("g")
    return fs


@pytest.fixture
def journal(fs: FaultyFileSystem) -> Journal:
    journal = Journal(fs, "g")
    journal.group = "g1"
    journal.begin_next(sync=False)
    journal.put_next()
    assert journal.open()
    return journal


def read(fs: FaultyFileSystem) -> list[Op]:
    """What another process finds."""
    found: list[Op] = []
    other = Journal(fs, "g")
    assert other.open()
    assert other.load(found.append)
    other.close()
    return found


def put(fs: FaultyFileSystem, data: bytes, position: int = 0) -> None:
    file = fs.open("g/ops.log", write=True)
    assert file.pwrite(data, position) == len(data)
    file.close()


def test_a_short_write_is_completed(fs: FaultyFileSystem, journal: Journal) -> None:
    fs.plan = on("pwrite", ShortWrite(0.5))
    journal.write([FIRST, SECOND])
    assert len(fs.hits) == 1
    assert read(fs) == [FIRST, SECOND]


def test_a_failed_write_leaves_nothing(fs: FaultyFileSystem, journal: Journal) -> None:
    fs.plan = on("pwrite", ShortWrite(0.5, then=Fail(errno.ENOSPC)))
    with pytest.raises(NotWritten, match="cannot write"):
        journal.write([FIRST])
    journal.write([SECOND])
    assert read(fs) == [SECOND]


def test_what_cannot_be_taken_back_is_passed_over(
    fs: FaultyFileSystem, journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    short, kept = on("pwrite", ShortWrite(0.5, then=Fail())), on("truncate", Fail())
    fs.plan = lambda call: short(call) or kept(call)
    with caplog.at_level(logging.ERROR), pytest.raises(NotWritten):
        journal.write([FIRST])
    assert "an unfinished line is left at" in caplog.text
    fs.plan = None
    assert read(fs) == []


def test_a_journal_that_is_being_replaced(journal: Journal) -> None:
    journal.close()
    with pytest.raises(NotWritten, match="is being replaced; try again"):
        journal.write([FIRST])


def test_the_replacement_waits_for_a_line_in_the_old_one(
    fs: FaultyFileSystem, journal: Journal
) -> None:
    """Or those who have it open would not learn that there is another."""
    journal.write([FIRST])
    journal.begin_next(sync=True)
    fs.plan = on("pwrite", ShortWrite(0.5, then=Fail()))
    with pytest.raises(OSError, match="Input/output error"):
        journal.put_next()
    assert read(fs) == [FIRST]
    journal.write([SECOND])
    journal.put_next()
    assert read(fs) == []


def test_what_a_snapshot_has_needs_no_sync(fs: FaultyFileSystem, journal: Journal) -> None:
    journal.write([FIRST])
    mark = journal.mark
    journal.begin_next(sync=True)
    journal.put_next()
    assert journal.open()
    fs.plan = on("sync", Fail())
    assert journal.wait_durable(mark) == 0.0
    assert not fs.hits


def test_after_a_sync_that_failed_only_a_snapshot_helps(
    fs: FaultyFileSystem, journal: Journal
) -> None:
    """Another sync would succeed, and the pages be lost all the same."""
    journal.write([FIRST])
    fs.plan = on("sync", Fail())
    for _ in range(2):  # of two threads, say, that wait together
        with pytest.raises(OSError, match=r"Input/output error|failed before"):
            journal.wait_durable(journal.mark)
    mark = journal.mark
    journal.begin_next(sync=True)
    journal.put_next()
    assert journal.open()
    assert journal.wait_durable(mark) == 0.0
    journal.write([SECOND])
    assert journal.wait_durable(journal.mark) > 0.0


def test_a_first_line_that_is_damaged(
    fs: FaultyFileSystem, journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    """The generation is known otherwise, and the rest counts."""
    journal.write([FIRST])
    put(fs, b"?")
    other = Journal(fs, "g")
    found: list[Op] = []
    assert other.open(lambda: 7)
    assert other.load(found.append)
    assert (other.generation, other.is_damaged, found) == (7, True, [FIRST])
    assert "the line at 0 is damaged" in caplog.text


def test_a_newer_format_is_refused(fs: FaultyFileSystem, journal: Journal) -> None:
    journal.close()
    put(fs, encode_line({"t": "begin", "format": FORMAT + 1, "generation": 1, "id": "g1"}))
    with pytest.raises(Corrupt, match=f"is of format {FORMAT + 1}; this version reads {FORMAT}"):
        Journal(fs, "g").open()


def test_a_hole_is_passed_over(fs: FaultyFileSystem, journal: Journal) -> None:
    """One who was killed left room in the file, and half a line; somebody else went on behind."""
    other = Journal(fs, "g")
    assert other.open()
    line = encode_line(FIRST)
    put(fs, line[:5] + b"\0" * 11 + encode_line(SECOND), journal.position)
    found: list[Op] = []
    assert other.catch_up(found.append)
    assert found == []  # the two are one line, which is damaged
    journal.position = other.position
    journal.write([SECOND])
    assert other.catch_up(found.append)
    assert found == [SECOND]


# --- and the group that has it --------------------------------------------------------------------


def test_a_sync_that_fails_is_made_good_by_a_snapshot(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    store, fs = machine.open_faulty()
    queue = store.queue("q")
    queue.publish_many([b"1", b"2"])
    first, second = queue.consumer("g").receive(2)
    fs.plan = on("sync", Fail(), path="*/ops.log")
    first.ack()
    assert len(fs.hits) == 1
    assert "cannot sync the journal" in caplog.text
    broken, full = on("sync", Fail(), path="*/ops.log"), on("pwrite", Fail(), path="*.tmp")
    fs.plan = lambda call: broken(call) or full(call)
    with pytest.raises(OutcomeUnknown, match="may not survive a power cut"):
        second.ack()
    fs.plan = None
    machine.power_cut(1)
    left = machine.open().queue("q").consumer("g").receive(2)
    assert [message.value for message in left] in ([], [b"2"])


def test_a_group_that_others_have_deleted(machine: Machine) -> None:
    store, other = machine.open(), machine.open()
    store.queue("q").publish_many([b"1", b"2"])
    consumer = store.queue("q").consumer("g")
    assert len(consumer.receive(1)) == 1
    other.queue("q").delete_group("g")
    with pytest.raises(Closed, match="the group 'g' was deleted"):
        consumer.receive(1)


def test_others_may_be_two_snapshots_ahead(machine: Machine) -> None:
    store, other = machine.open(compact_after=3), machine.open()
    store.queue("q").publish_many([b"%d" % number for number in range(40)])
    consumer = store.queue("q").consumer("g")
    consumer.receive(1)[0].ack()
    theirs = other.queue("q").consumer("g")
    for _ in range(20):
        theirs.receive(1)[0].ack()
    assert [message.offset for message in consumer.receive(1)] == [21]


def test_a_damaged_part_of_a_snapshot(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    """What it may have been about comes again."""
    store = machine.open(compact_after=3)
    queue = store.queue("q")
    queue.publish_many([b"%d" % number for number in range(60)])
    consumer = queue.consumer("g")
    assert len(consumer.receive(3)) == 3
    for _ in range(40):
        consumer.receive(1)[0].ack()
    name = f"{store.layout.group('q', 'g')}/pel_2.json"
    machine.kill()
    file = machine.disk.open(name, write=True)
    file.pwrite(file.pread(10_000, 0).replace(b"entries", b"entires"), 0)
    file.close()
    machine.clock.advance("1h")
    again = machine.open().queue("q").consumer("g")
    found = set()
    for _ in range(20):
        [message] = again.receive(1)
        found.add(message.offset)
        message.ack()
    assert "pel_2.json damaged; messages may be delivered again" in caplog.text
    assert {0, 1, 2} <= found
    assert {offset for offset in found if offset < 40} - {0, 1} == set(range(2, 40, 8))


def test_a_line_with_a_good_checksum_that_is_no_json() -> None:
    body = b'"t":"ack","r":[0,1}'
    assert parse_line(b'{"k":"%08x",%b' % (crc32c(body), body)) is None


def test_room_that_another_process_has_made(fs: FaultyFileSystem) -> None:
    journals = [Journal(fs, "g", extend=True) for _ in range(2)]
    journals[0].group = "g1"
    journals[0].begin_next(sync=False)
    journals[0].put_next()
    assert all(journal.open() for journal in journals)
    journals[0].write([FIRST])
    size = fs.stat("g/ops.log").size
    journals[1].catch_up(lambda op: None)
    journals[1].write([SECOND])
    assert fs.stat("g/ops.log").size == size
