"""The manifest: what counts, for whom, and after which death."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is missing: tailrace[arrow]")

from tailrace import ConfigError, Corrupt, Locked, NotWritten
from tailrace.spark.lake.manifest import (
    ArchivedFile,
    Manifest,
    Origin,
    Step,
    Writing,
)
from tailrace.testing import (
    Crash,
    Fail,
    FaultyFileSystem,
    SimulatedCrash,
    SimulatedDisk,
    on,
)

ORIGIN = Origin("orders", "abc")
PATH = "/lake/_tailrace/manifest.jsonl"


def step(first: int, last: int) -> Step:
    file = ArchivedFile(f"{first}-{last}.parquet", last - first, 100, 7, 1, 2)
    return Step(first, last, (file,))


def made(*steps: Step) -> SimulatedDisk:
    disk = SimulatedDisk()
    with Writing(disk, "/lake", ORIGIN) as writing:
        writing.add(steps)
    return disk


def contents(disk: SimulatedDisk) -> bytes:
    file = disk.open(PATH)
    return file.pread(file.size(), 0)


def replaced(disk: SimulatedDisk, data: bytes) -> None:
    file = disk.open(PATH, write=True)
    file.truncate(0)
    file.pwrite(data, 0)
    file.sync()


def test_steps_are_read_back_in_the_order_of_their_offsets() -> None:
    disk = made(step(10, 20), step(0, 10), step(30, 40))
    found = Manifest.load(disk, "/lake")
    assert found.origin == ORIGIN
    assert found.steps == (step(0, 10), step(10, 20), step(30, 40))
    assert found.added == (step(10, 20), step(0, 10), step(30, 40))
    assert found.ranges() == [(0, 20), (30, 40)]
    assert (found.reaches(0), found.reaches(15), found.reaches(25)) == (20, 20, 25)
    assert list(found.within(19, 31)) == [step(10, 20), step(30, 40)]
    assert (found.steps[0].rows, found.steps[0].size) == (10, 100)


def test_there_is_no_archive() -> None:
    assert Manifest.find(SimulatedDisk(), "/lake") is None
    with pytest.raises(ConfigError, match="no archive in /lake"):
        Manifest.load(SimulatedDisk(), "/lake")


def test_one_at_a_time() -> None:
    disk = SimulatedDisk()
    with Writing(disk, "/lake", ORIGIN), pytest.raises(Locked, match="somebody else"):
        Writing(disk, "/lake", ORIGIN)
    Writing(disk, "/lake", ORIGIN).close()


def test_an_archive_of_another_queue_is_refused() -> None:
    disk = made(step(0, 1))
    for origin, said in (
        (Origin("events", "abc"), "is the archive of the queue 'orders', not of 'events'"),
        (Origin("orders", "other"), "another queue 'orders', which was deleted"),
        (Origin("orders", "abc", "date"), "partitioned by nothing, not by date"),
    ):
        with pytest.raises(ConfigError, match=said):
            Writing(disk, "/lake", origin)
    Writing(disk, "/lake", ORIGIN).close()  # the lock is free again


def test_ranges_never_overlap() -> None:
    disk = made(step(0, 10))
    with Writing(disk, "/lake", ORIGIN) as writing:
        for wrong in ([step(9, 11)], [step(10, 20), step(15, 30)]):
            with pytest.raises(ValueError, match="archived already"):
                writing.add(wrong)
    twice = contents(disk) + contents(made(step(0, 10))).split(b"\n")[1] + b"\n"
    replaced(disk, twice)
    with pytest.raises(Corrupt, match="twice"):
        Manifest.load(disk, "/lake")


def test_every_byte_that_is_cut_off_takes_at_most_the_last_step() -> None:
    disk = made(step(0, 10), step(10, 20))
    data = contents(disk)
    ends = [i + 1 for i, byte in enumerate(data) if byte == ord("\n")]
    for size in range(ends[0], len(data) + 1):
        replaced(disk, data[:size])
        left = sum(end <= size for end in ends) - 1
        assert len(Manifest.load(disk, "/lake").steps) == left
        with Writing(disk, "/lake", ORIGIN) as writing:
            writing.add([step(20, 30)])
        assert len(Manifest.load(disk, "/lake").steps) == left + 1


def test_damage_before_the_last_line_is_told() -> None:
    disk = made(step(0, 10), step(10, 20))
    data = contents(disk)
    last = data.rindex(b"\n", 0, -1) + 1
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 0x55
        replaced(disk, bytes(flipped))
        if position < last:
            with pytest.raises(Corrupt, match=r"manifest\.jsonl"):
                Manifest.load(disk, "/lake")
        else:
            assert Manifest.load(disk, "/lake").steps == (step(0, 10),)


def test_a_newer_manifest_is_refused() -> None:
    from tailrace.queue.journal import encode_line

    disk = made()
    replaced(disk, encode_line({"t": "archive", "format": 3, "queue": "orders"}))
    with pytest.raises(Corrupt, match="newer version"):
        Manifest.load(disk, "/lake")
    disk = made()
    replaced(disk, contents(disk) + encode_line({"t": "step", "first": 0, "more": 1}))
    with pytest.raises(Corrupt, match="newer version"):
        Manifest.load(disk, "/lake")
    replaced(disk, b"")
    with pytest.raises(Corrupt, match="first line is missing"):
        Manifest.load(disk, "/lake")


def test_after_an_error_nothing_is_added_before_it_is_opened_anew() -> None:
    disk = made(step(0, 10))
    fs = FaultyFileSystem(disk)
    with Writing(fs, "/lake", ORIGIN) as writing:
        fs.plan = on("sync", Fail())
        with pytest.raises(OSError, match="Input"):
            writing.add([step(10, 20)])
        fs.plan = lambda call: None
        with pytest.raises(NotWritten, match="open it anew"):
            writing.add([step(20, 30)])
    with Writing(disk, "/lake", ORIGIN) as writing:
        assert writing.manifest.steps[0] == step(0, 10)
        writing.add([step(20, 30)])


@pytest.mark.parametrize("seed", range(30))
def test_power_cuts_at_any_call(seed: int) -> None:
    """What `add` has returned for is there; at most the one that was being added is as well."""
    rng = random.Random(seed)
    disk = SimulatedDisk(seed)
    acked: list[Step] = []
    tried: set[Step] = set()
    for _life in range(12):
        fs = FaultyFileSystem(disk)
        count = rng.randrange(2, 30)
        fs.plan = lambda call, count=count: (
            Crash(after=bool(count % 2)) if call.n == count else None
        )
        try:
            with Writing(fs, "/lake", ORIGIN) as writing:
                steps = list(writing.manifest.steps)
                assert steps[: len(acked)] == acked, f"seed {seed}"
                assert len(steps) <= len(acked) + 1
                acked = steps
                while True:
                    first = acked[-1].last if acked else 0
                    trying = step(first, first + rng.randrange(1, 1000))
                    tried.add(trying)
                    writing.add([trying])
                    acked.append(trying)
        except SimulatedCrash:
            if rng.random() < 0.7:
                disk.crash(rng.randrange(1 << 30))
            else:
                disk.kill()
        found = Manifest.find(disk, "/lake")
        assert found is not None or not acked, f"seed {seed}"
        if found is not None:
            assert list(found.steps[: len(acked)]) == acked, f"seed {seed}"
            assert set(found.steps[len(acked) :]) <= tried, f"seed {seed}"
            assert len(found.steps) <= len(acked) + 1
