"""One of several writers dies, or fails, wherever it may be; the others go on, and lose nothing."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tailrace import Log, NotWritten, TailraceError
from tailrace.log.fs import FileSystem, OsFileSystem
from tailrace.log.offline.verify import Finding, verify
from tailrace.testing import (
    Call,
    Crash,
    Fail,
    Fault,
    FaultyFileSystem,
    ShortWrite,
    SimulatedCrash,
    at,
)
from tailrace.testing import SimulatedDisk as Disk
from tests.log.conftest import OpenLog
from tests.log.helpers import offsets
from tests.log.processes import another_process

pytestmark = pytest.mark.no_cover

FOLDER = "log"
Acked = dict[int, bytes]


def open_log(fs: FileSystem, **options: Any) -> Log:
    options = {"segment_bytes": 300, "index_interval": 60, "mode": "shared", **options}
    return Log(FOLDER, fs=fs, upkeep=False, **options)


def work(log: Log, acked: Acked, name: bytes) -> None:
    """A bit of everything. What was appended is acknowledged by and by."""
    for number in range(8):
        receipt = log.append_one(name + b" %d" % number)
        acked[receipt.offset] = name + b" %d" % number
        if number % 4 == 3:
            receipt.wait()
    for _ in range(2):
        receipt = log.append([name], producer=name.decode(), sequence=1)
    acked[receipt.offset] = name
    log.flush()
    log.truncate_before(2)
    log.vacuum()
    log.append([name] * 2)


def go_on(log: Log, acked: Acked) -> None:
    """What the others do then: enough for a new segment."""
    for number in range(6):
        acked[log.append_one(b"after %d" % number).offset] = b"after %d" % number
    receipt = log.append([b"after"], producer="after", sequence=1).wait()
    acked[receipt.offset] = b"after"


class Death:
    """A plan that ends a process at call `n`, and remembers the memory that it shared: a process
    that is dead changes nothing there, whatever is tidied up after it here."""

    def __init__(self, disk: Disk, n: int, fault: Fault) -> None:
        self._disk = disk
        self._n = n
        self._fault = fault
        self._memory = b""

    def __call__(self, call: Call) -> Fault | None:
        if call.n != self._n:
            return None
        self._memory = bytes(self._board())
        return self._fault

    def leave(self) -> None:
        self._board()[:] = self._memory

    def _board(self) -> memoryview:
        memory = self._disk.map(f"{FOLDER}/.tailrace/board", 4096, write=False)
        assert memory is not None
        return memory


def let_go(log: Log) -> None:
    """What the kernel does for a process that has died: close its files, and drop its locks."""
    assert log._writer is not None
    log._closed = True
    log._observer.close()
    log._writer.abandon()


def check(disk: Disk, log: Log, acked: Acked) -> None:
    """Everything is there, in order, and the log is whole."""
    log.flush()
    records = list(log.read())
    first = records[0].offset or 0
    assert first in (1, 2)  # before or after it was moved
    assert offsets(records) == list(range(first, log.end_offset))
    found = {record.offset: record.value for record in records}
    for offset, value in acked.items():
        assert offset < first or found[offset] == value
    log.close()
    assert not problems(disk)
    with open_log(disk) as again:
        assert again._writer is not None
        assert again._writer.diagnosis is not None
        assert again._writer.diagnosis.clean
        assert offsets(again.read()) == offsets(records)


def problems(disk: Disk) -> list[Finding]:
    """But for those of index files, which nobody relies on: they are not synced, and if one cannot
    be written that is nobody's error."""
    found = verify(disk, FOLDER).problems
    return [finding for finding in found if not finding.path.endswith((".idx", ".tix"))]


def begin(flush: str) -> tuple[Disk, Log, Acked]:
    """A log that a survivor has open."""
    disk = Disk()
    survivor = open_log(disk, flush=flush)
    acked = {survivor.append_one(b"first").wait().offset: b"first" for _ in range(2)}
    survivor.truncate_before(1)
    return disk, survivor, acked


def list_calls(flush: str, run: Callable[[FaultyFileSystem, Acked], Log]) -> list[Call]:
    """The calls of a run without faults."""
    disk, survivor, acked = begin(flush)
    fs = FaultyFileSystem(disk)
    let_go(run(fs, acked))
    survivor.close()
    return fs.calls


class Noted:
    """Says where the fault was if a test fails."""

    def __init__(self, fs: FaultyFileSystem, fault: Fault, flush: str) -> None:
        self._fs = fs
        self._what = f"{fault} in a {flush} log"

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            error.add_note(f"{self._what}, at {self._fs.hits}")


@pytest.mark.parametrize("flush", ["sync", "async", "none"])
@pytest.mark.parametrize("fault", [Crash(), ShortWrite(then=Crash())], ids=["before", "in"])
@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.long)])
def test_a_writer_dies_at_every_call(step: int, fault: Fault, flush: str) -> None:
    opened: list[Log] = []

    def run(fs: FaultyFileSystem, acked: Acked) -> Log:
        opened.append(open_log(fs))
        work(opened[-1], acked, b"dying")
        return opened[-1]

    calls = list_calls(flush, run)
    assert len(calls) > 80
    for call in calls[::step]:
        if isinstance(fault, ShortWrite) and call.op != "pwrite":
            continue
        disk, survivor, acked = begin(flush)
        death = Death(disk, call.n, fault)
        fs = FaultyFileSystem(disk, death)
        opened.clear()
        with Noted(fs, fault, flush):
            with pytest.raises(SimulatedCrash):
                run(fs, acked)
            for log in opened:
                let_go(log)
            death.leave()
            go_on(survivor, acked)
            check(disk, survivor, acked)


@pytest.mark.parametrize("flush", ["sync", "async", "none"])
@pytest.mark.parametrize(
    "fault", [Fail(), Fail(after=True), ShortWrite(then=Fail())], ids=["before", "after", "in"]
)
@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.long)])
def test_a_writer_fails_at_every_call(step: int, fault: Fault, flush: str) -> None:
    """If a flush is what has failed, the log has to be opened again, and has what was durable."""

    def run(fs: FaultyFileSystem, acked: Acked) -> Log:
        log = open_log(fs)
        with contextlib.suppress(TailraceError, OSError):
            work(log, acked, b"failing")
        with contextlib.suppress(TailraceError):
            acked[log.append([b"again"]).offset] = b"again"
        return log

    for call in list_calls(flush, run)[::step]:
        if isinstance(fault, ShortWrite) and call.op != "pwrite":
            continue
        disk, survivor, acked = begin(flush)
        fs = FaultyFileSystem(disk, at(call.n, fault))
        with Noted(fs, fault, flush):
            with contextlib.suppress(TailraceError, OSError):  # of opening it
                let_go(run(fs, acked))
            assert fs.hits
            if is_poisoned(survivor):
                durable = survivor.durable_offset
                survivor.close()
                survivor = open_log(disk)
                found = {record.offset: record.value for record in survivor.read(end=durable)}
                for offset in acked.keys() & range(survivor.start_offset, durable):
                    assert found[offset] == acked[offset]
                survivor.close()
                continue
            go_on(survivor, acked)
            check(disk, survivor, acked)


def is_poisoned(log: Log) -> bool:
    assert log._writer is not None
    return log._writer.board.poisoned


@pytest.mark.parametrize("fault", [Crash(), Fail()])
@pytest.mark.parametrize("step", range(12))
@pytest.mark.parametrize("first", ["survivor", "new"])
def test_the_start_of_the_log_is_the_same_for_all(first: str, step: int, fault: Fault) -> None:
    """Wherever one stopped that was moving it, and whether or not it was moved; whoever finds out,
    one who is here or one who comes."""
    disk, survivor, _acked = begin("async")
    other = FaultyFileSystem(disk)
    dying = open_log(other)
    dying.append_one(b"second")
    dying.flush()
    other.plan = death = Death(disk, len(other.calls) + step, fault)
    with contextlib.suppress(SimulatedCrash, TailraceError):
        dying.truncate_before(2)
    other.plan = None
    if other.crashed:
        let_go(dying)
        death.leave()
    if first == "new":
        with open_log(disk) as new:
            new.append_one(b"new", producer="new", sequence=1)
    survivor.append_one(b"third")
    with open_log(disk) as late, Log(FOLDER, fs=disk, read_only=True) as reader:
        starts = {log.start_offset for log in (survivor, late, reader)}
        assert len(starts) == 1
        for log in (survivor, late, reader):
            assert {offsets(log.read())[0]} == starts
            assert {offsets(log.read(log.start_offset))[0]} == starts
    dying.close()
    survivor.close()


# --- power cuts -----------------------------------------------------------------------------


@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("seed", range(15))
def test_a_power_cut(seed: int, flush: str) -> None:
    """What was promised is there, whoever had promised it, and whoever had flushed it."""
    rng = random.Random(seed)
    disk = Disk(seed)
    handles = [open_log(disk, flush=flush) for _ in range(3)]
    appended: Acked = {}
    promised = 0
    for number in range(rng.randrange(20, 150)):
        i = rng.randrange(3)
        log = handles[i]
        match rng.randrange(12):
            case 0:
                log.flush()
                promised = log.end_offset
            case 1:
                log.close()
                promised = log.end_offset
                handles[i] = open_log(disk)
            case 2:
                let_go(log)
                handles[i] = open_log(disk)
            case _:
                receipt = log.append_one(b"%d" % number)
                appended[receipt.offset] = b"%d" % number
                if flush == "sync" and rng.random() < 0.3:
                    receipt.wait()
                    promised = receipt.end_offset
    disk.crash(seed)
    with open_log(disk) as log:
        assert log.start_offset == 0
        assert log.end_offset >= promised
        records = list(log.read())
        assert offsets(records)[:promised] == list(range(promised))
        assert all(appended[record.offset or 0] == record.value for record in records)
        offset = log.append_one(b"on").wait().offset
        # Readers of an `async` log may have seen what is gone: its offsets do not come again.
        assert offset not in appended or flush == "sync"
    assert not problems(disk)


# --- processes ------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["owner", "shared"])
def test_producers_of_a_process_that_is_killed(mode: str, path: Path, open_log: OpenLog) -> None:
    log = open_log(flush="async", upkeep=False)
    assert log.append([b"a"], producer="p", sequence=1).offset == 0
    with another_process(path) as other:
        other.ask(f"(log := Log(path, mode={mode!r}, upkeep=False)).path")
        assert other.ask("log.append([b'a'], producer='p', sequence=1).offset") == "0"
        assert other.ask("log.append([b'b', b'c'], producer='p', sequence=2).offset") == "1"
        assert other.ask("[log.append_one(b'x') for _ in range(300)][-1].offset") == "302"
        other.tell("log.append([b'd'], producer='q', sequence=9) and os.kill(os.getpid(), 9)")
        assert other.answer() == ""
    assert log.append([b"b", b"c"], producer="p", sequence=2).offset == 1
    assert log.append([b"d"], producer="q", sequence=9).offset == 303
    assert log.append([b"e"], producer="p", sequence=3).offset == 304
    with pytest.raises(NotWritten, match="sequences must rise"):
        log.append([b"d"], producer="q", sequence=8)
    log.close()
    log = open_log()
    assert log.append([b"d"], producer="q", sequence=9).offset == 303


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_processes_that_are_killed_at_random(flush: str, path: Path, open_log: OpenLog) -> None:
    """Each appends what is its own; nothing that one had appended is lost, or there twice."""
    rng = random.Random(3)
    log = open_log(flush=flush, upkeep=False, segment_bytes=20_000)
    counts: dict[str, int] = {}
    for number in range(2):
        with another_process(path) as first, another_process(path) as second:
            names = {first: f"{number} owner", second: f"{number} shared"}
            for other, name in names.items():
                mode = name.split()[1]
                other.ask(f"(log := Log(path, mode={mode!r}, segment_bytes=20_000)).path")
                append = f"log.append_one(b'{name} %d' % i)"
                other.tell(f"[print(i if {append} else '', flush=True) for i in range(10**9)]")
            for other, name in names.items():
                for _ in range(rng.randrange(200, 600)):
                    counts[name] = int(other.answer())
                log.append_one(b"ours")
                other.kill()
    log.append_one(b"ours")
    log.flush()
    records = list(log.read())
    assert offsets(records) == list(range(log.end_offset))
    for name, last in counts.items():
        start = name.encode() + b" "
        mine = [r.value for r in records if r.value is not None and r.value.startswith(start)]
        assert mine == [start + b"%d" % i for i in range(len(mine))]
        assert len(mine) > last
    log.close()
    assert not verify(OsFileSystem(), str(path)).problems
