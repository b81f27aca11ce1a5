"""Idempotent append: a repeated sequence gives back the first receipt, whatever happened."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tailrace import Log, NotWritten, Receipt, Record
from tailrace.kernel import encode
from tailrace.log import log as log_module
from tailrace.log.producers import REMEMBERED
from tailrace.testing import SimulatedDisk
from tests.log.conftest import OpenLog
from tests.log.helpers import (
    DAY,
    bases,
    copy_as_killed,
    flip,
    forget_clean_close,
    in_threads,
    offsets,
    side_file,
    values,
)


def where(receipt: Receipt) -> tuple[int, int, int]:
    return receipt.offset, receipt.count, receipt.end_offset


def test_a_repeated_sequence(log: Log) -> None:
    first = log.append([b"a", b"b"], producer="p", sequence=7)
    again = log.append([b"a", b"b"], producer="p", sequence=7)
    assert where(first) == where(again) == (0, 2, 2)
    assert log.end_offset == 2
    again.wait()
    assert first.done
    assert values(log.read()) == [b"a", b"b"]


def test_what_was_first_stays(log: Log) -> None:
    log.append([b"first"], producer="p", sequence=0)
    assert where(log.append([b"second", b"third"], producer="p", sequence=0)) == (0, 1, 1)
    log.flush()
    assert values(log.read()) == [b"first"]


def test_append_one(log: Log) -> None:
    for _ in range(2):
        receipt = log.append_one(
            b"v", key=b"k", headers={"a": "b"}, timestamp=5, producer="p", sequence=0
        )
        assert where(receipt) == (0, 1, 1)
    log.flush()
    (record,) = log.read()
    assert (record.timestamp, record.key, record.value) == (5, b"k", b"v")


def test_the_log_carries_it_in_reserved_headers(log: Log) -> None:
    log.append([("k", b"1", {"own": "h"}), b"2"], producer="p", sequence=12).wait()
    first, second = log.read()
    assert first.headers == [("_producer", b"p"), ("_sequence", b"12"), ("own", b"h")]
    assert second.headers == {}


def test_sequences_rise_and_may_leave_numbers_out(log: Log) -> None:
    receipts = [log.append([b"x"], producer="p", sequence=n) for n in (3, 4, 100, 2**63 - 1)]
    assert [receipt.offset for receipt in receipts] == [0, 1, 2, 3]
    assert log.append([b"x"], producer="p", sequence=100).offset == 2


@pytest.mark.parametrize("sequence", [0, 2, 50])
def test_a_sequence_that_goes_back_is_refused(log: Log, sequence: int) -> None:
    for known in (1, 3, 100):
        log.append([b"x"], producer="p", sequence=known)
    with pytest.raises(NotWritten, match=f"sequence {sequence} of producer 'p' is below the last"):
        log.append([b"x"], producer="p", sequence=sequence)
    assert log.end_offset == 3


def test_the_last_ones_are_remembered(open_log: OpenLog, path: Path) -> None:
    total = REMEMBERED + 10
    with open_log(flush="async") as log:
        for n in range(total):
            log.append([b"x"], producer="p", sequence=n)
    for _ in ("from the snapshot", "from the log"):
        with open_log() as log:
            for n in range(10, total):
                assert log.append([b"x"], producer="p", sequence=n).offset == n
            with pytest.raises(NotWritten, match=f"not among the {REMEMBERED} remembered"):
                log.append([b"x"], producer="p", sequence=9)
            assert log.end_offset == total
        side_file(path, "producers").unlink()


def test_two_producers(log: Log) -> None:
    assert log.append([b"1"], producer="p", sequence=0).offset == 0
    assert log.append([b"2"], producer="q", sequence=0).offset == 1
    assert log.append([b"1"], producer="p", sequence=0).offset == 0
    assert log.append([b"2"], producer="q", sequence=0).offset == 1
    assert log.append([b"3"], producer="p", sequence=1).offset == 2
    assert log.end_offset == 3


def test_other_appends_in_between(log: Log) -> None:
    log.append([b"1"], producer="p", sequence=0)
    log.append([b"other"])
    log.append_many([b"other"] * 3)
    assert log.append([b"1"], producer="p", sequence=0).offset == 0
    assert log.append([b"2"], producer="p", sequence=1).offset == 5


@pytest.mark.parametrize(
    ("producer", "sequence", "message"),
    [
        ("p", None, "sequence"),
        (None, 0, "producer"),
        ("", 0, "producer"),
        ("x" * 256, 0, "producer"),
        (5, 0, "producer"),
        ("p", -1, "sequence"),
        ("p", 1.5, "sequence"),
        ("p", True, "sequence"),
        ("p", 2**63, "sequence"),
    ],
)
def test_what_is_no_producer_or_sequence(
    log: Log, producer: Any, sequence: Any, message: str
) -> None:
    for append in (log.append, log.append_one):
        given: Any = [b"x"] if append == log.append else b"x"
        with pytest.raises(ValueError, match=message):
            append(given, producer=producer, sequence=sequence)
    assert log.end_offset == 0


def test_names_of_any_script(open_log: OpenLog) -> None:
    for _ in range(2):
        with open_log() as log:
            assert log.append([b"x"], producer="ü 漢/\0'", sequence=0).offset == 0
            assert log.end_offset == 1


# --- after reopening ----------------------------------------------------------------------------


def cleanly(path: Path) -> None:
    """Nothing happens."""


def without_snapshot(path: Path) -> None:
    side_file(path, "producers").unlink()


def corrupt_snapshot(path: Path) -> None:
    flip(side_file(path, "producers"), 20)


def cut_snapshot(path: Path) -> None:
    file = side_file(path, "producers")
    file.write_bytes(file.read_bytes()[:-10])


def empty_snapshot(path: Path) -> None:
    side_file(path, "producers").write_bytes(b"")


def killed_without_snapshot(path: Path) -> None:
    without_snapshot(path)
    forget_clean_close(path)


STATES: list[Callable[[Path], None]] = [
    cleanly,
    forget_clean_close,
    without_snapshot,
    corrupt_snapshot,
    cut_snapshot,
    empty_snapshot,
    killed_without_snapshot,
]


@pytest.mark.parametrize("happens", STATES, ids=lambda happens: happens.__name__)
@pytest.mark.parametrize("compression", ["none", "s2"])
def test_after_reopening(
    open_log: OpenLog, path: Path, happens: Callable[[Path], None], compression: str
) -> None:
    options: dict[str, Any] = {"segment_bytes": 700, "compression": compression}
    with open_log(**options) as log:
        for n in range(20):
            log.append([b"p%d" % n] * 3, producer="p", sequence=10 * n)
            log.append([b"q%d" % n * 100], producer="q", sequence=n)
            log.append([b"other"])
    assert len(bases(path)) > 2
    happens(path)
    with open_log(**options) as log:
        for n in range(20):
            assert where(log.append([b"x"], producer="p", sequence=10 * n)) == (5 * n, 3, 5 * n + 3)
            assert where(log.append([b"x"], producer="q", sequence=n)) == (5 * n + 3, 1, 5 * n + 4)
        with pytest.raises(NotWritten):
            log.append([b"x"], producer="p", sequence=5)
        assert log.end_offset == 100
        assert log.append([b"new"], producer="p", sequence=191).offset == 100


def test_a_snapshot_that_is_behind_the_log(open_log: OpenLog, path: Path) -> None:
    with open_log() as log:
        log.append([b"1"], producer="p", sequence=0)
    old = side_file(path, "producers").read_bytes()
    with open_log() as log:
        log.append([b"2"], producer="p", sequence=1)
    side_file(path, "producers").write_bytes(old)
    with open_log() as log:
        assert log.append([b"2"], producer="p", sequence=1).offset == 1


def test_a_snapshot_that_is_ahead_of_the_log(open_log: OpenLog, path: Path, tmp_path: Path) -> None:
    """As after a folder was put back from a copy, but for this file."""
    with open_log() as log:
        log.append([b"1"], producer="p", sequence=0).wait()
        copy = copy_as_killed(path, tmp_path / "copy")
        log.append([b"2"], producer="p", sequence=1)
    side_file(copy, "producers").write_bytes(side_file(path, "producers").read_bytes())
    with Log(copy) as log:
        assert log.append([b"1"], producer="p", sequence=0).offset == 0
        assert log.append([b"other 2"], producer="p", sequence=1).wait().offset == 1
        assert values(log.read()) == [b"1", b"other 2"]


def test_a_roll_leaves_a_snapshot(open_log: OpenLog, path: Path, tmp_path: Path) -> None:
    log = open_log(segment_bytes=300)
    for n in range(10):
        log.append([b"x" * 20], producer="p", sequence=n).wait()
    assert len(bases(path)) > 1
    assert side_file(path, "producers").exists()
    with Log(copy_as_killed(path, tmp_path / "copy")) as log:
        for n in range(10):
            assert log.append([b"x"], producer="p", sequence=n).offset == n


def test_what_a_power_cut_took_can_be_appended_again() -> None:
    for seed in range(20):
        disk = SimulatedDisk(seed)
        log = Log("/log", fs=disk, segment_bytes=300)
        for n in range(5):
            log.append([b"%d" % n], producer="p", sequence=n)
        log.flush()
        for n in range(5, 10):
            log.append([b"%d" % n], producer="p", sequence=n)
        disk.crash(seed)
        with Log("/log", fs=disk) as log:
            for n in range(10):
                log.append([b"%d" % n], producer="p", sequence=n)
            log.flush()
            assert values(log.read()) == [b"%d" % n for n in range(10)]


def test_deleted_batches_are_remembered_by_the_snapshot(open_log: OpenLog) -> None:
    with open_log(segment_bytes=1) as log:
        for n in range(5):
            log.append([b"x"], producer="p", sequence=n)
        log.flush()
        log.truncate_before(4)
        log.vacuum()
    with open_log() as log:
        assert log.append([b"x"], producer="p", sequence=2).offset == 2
        assert log.end_offset == 5


@pytest.mark.parametrize("flush", ["sync", "async", "none"])
@pytest.mark.parametrize("vacuums", [False, True], ids=["truncated", "vacuumed"])
def test_what_is_deleted_is_remembered_after_a_kill(
    open_log: OpenLog, path: Path, tmp_path: Path, flush: str, vacuums: bool
) -> None:
    """The log does not have it any more, so the snapshot is stored before it goes."""
    log = open_log(flush=flush, upkeep=False)
    for n in range(5):
        log.append([b"x"], producer="p", sequence=n).wait()
    log.truncate_before(4)
    if vacuums:
        log.truncate_before(5)
        assert log.vacuum().segments == 1
    with Log(copy_as_killed(path, tmp_path / "copy"), flush=flush) as log:
        assert [log.append([b"x"], producer="p", sequence=n).offset for n in range(5)] == [
            0, 1, 2, 3, 4,
        ]  # fmt: skip
        assert log.end_offset == 5


def test_one_who_never_asked_keeps_what_it_deletes(
    open_log: OpenLog, path: Path, tmp_path: Path
) -> None:
    log = open_log()
    log.append([b"1"], producer="p", sequence=0).wait()
    killed = copy_as_killed(path, tmp_path / "killed")
    with Log(killed, upkeep=False) as log:
        log.append([b"2"]).wait()
        log.truncate_before(1)
    with Log(killed) as log:
        assert log.append([b"1"], producer="p", sequence=0).offset == 0
        assert log.end_offset == 2


def test_what_another_handle_deleted_is_remembered(path: Path) -> None:
    """Whose own table ends before the start of the log goes by the snapshot, and leaves it."""
    with Log(path, mode="shared", upkeep=False) as one:
        one.append([b"0"], producer="p", sequence=0).wait()
        with Log(path, mode="shared", upkeep=False) as other:
            for n in range(1, 4):
                other.append([b"%d" % n], producer="p", sequence=n).wait()
            other.truncate_before(4)
            other.vacuum()
        assert one.append([b"2"], producer="p", sequence=2).offset == 2
    with Log(path) as log:
        assert log.append([b"3"], producer="p", sequence=3).offset == 3
        assert log.end_offset == 4


def test_on_a_full_disk_it_is_deleted_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    disk = SimulatedDisk()
    with Log("log", fs=disk, upkeep=False) as log:
        log.append([bytes(80)]).wait()
        log.truncate_before(1)
        log.append([bytes(80)], producer="p", sequence=0).wait()
        space = disk.space("log")
        disk.capacity = space.total - space.free
        log.truncate_before(2)
        assert "who appended what is deleted cannot be noted" in caplog.text
        disk.capacity = None
        assert log.vacuum().segments == 1
        assert log.append([bytes(80)], producer="p", sequence=0).offset == 1  # it knows that still


# --- who is forgotten ---------------------------------------------------------------------------


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ms = 1_700_000_000_000
        for module in (log_module, time):  # one imports the function, the other the module
            monkeypatch.setattr(module, "time_ns", lambda: self.now_ms * 1_000_000)


@pytest.mark.parametrize("snapshot", [True, False])
def test_silent_producers_are_forgotten(
    open_log: OpenLog, path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: bool
) -> None:
    clock = Clock(monkeypatch)
    with open_log(producer_expiry="1d") as log:
        log.append([b"1"], producer="silent", sequence=5)
        clock.now_ms += DAY
        log.append([b"2"], producer="busy", sequence=5)
    if not snapshot:
        side_file(path, "producers").unlink()
    clock.now_ms += 1
    with open_log(producer_expiry="1d") as log:
        assert log.append([b"2"], producer="busy", sequence=5).offset == 1
        assert log.append([b"1"], producer="silent", sequence=5).offset == 2  # new again
        assert log.append([b"1"], producer="silent", sequence=5).offset == 2


def test_producers_are_forgotten_while_the_log_stays_open(
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    log = open_log(producer_expiry="1d", segment_bytes=300)
    for n in range(50):
        log.append([b"x"], producer=f"p{n}", sequence=0)
        clock.now_ms += DAY
    assert log._writer is not None
    assert log._writer.producers._producers is not None
    assert len(log._writer.producers._producers) < 50


# --- concurrency --------------------------------------------------------------------------------


def test_threads_with_the_same_sequence_write_one_record(log: Log) -> None:
    found: list[tuple[int, int, int]] = []

    def work(number: int) -> None:
        for sequence in range(20):
            receipt = log.append([b"%d" % sequence], producer="p", sequence=sequence)
            found.append(where(receipt.wait()))

    in_threads(8, work)
    assert values(log.read()) == [b"%d" % n for n in range(20)]
    assert sorted(set(found)) == [(n, 1, n + 1) for n in range(20)]
    assert len(found) == 160


def test_headers_that_only_look_like_ours(open_log: OpenLog, path: Path) -> None:
    """The log refuses them, but another program may have written them."""
    with open_log() as log:
        assert log._writer is not None
        for headers in (
            {"_producer": b"\xff", "_sequence": b"0"},
            {"_producer": b"p", "_sequence": b"many"},
            {"_producer": b"p"},
        ):
            log._writer.append(encode([Record(value=b"x", headers=headers)], 0))
        log.append([b"4"], producer="p", sequence=0)
    side_file(path, "producers").unlink()
    with open_log() as log:
        assert log.append([b"4"], producer="p", sequence=0).offset == 3
        assert offsets(log.read()) == [0, 1, 2, 3]


@pytest.mark.parametrize("name", ["_producer", "_sequence", "_settled"])
def test_nobody_can_pretend_to_be_a_producer(log: Log, name: str) -> None:
    headers = {name: b"7"}
    appends: list[Callable[[], Receipt]] = [
        lambda: log.append_one(b"x", headers=headers),
        lambda: log.append([Record(value=b"x", headers=headers)]),
        lambda: log.append([(b"k", b"x", list(headers.items()))]),
    ]
    for append in appends:
        with pytest.raises(ValueError, match=f"the header '{name}' is the log's own"):
            append()
    assert log.end_offset == 0
    log.append_one(b"x", headers={"_topic": b"t"}).wait()


def test_an_async_log_stores_its_producers_with_a_flush() -> None:
    """Not with a roll, which would make the append wait for the disk."""
    disk = SimulatedDisk()
    log = Log("log", fs=disk, flush="async", upkeep=False, segment_bytes=200)
    for sequence in range(10):
        log.append([bytes(80)], producer="p", sequence=sequence)
    snapshot = "log/.tailrace/producers"
    assert snapshot not in disk.files()
    log.flush()
    assert snapshot in disk.files()
    disk.crash(0)
    with Log("log", fs=disk, upkeep=False) as log:
        assert log.append([b"again"], producer="p", sequence=9).offset == 9
