"""Each small file beside the segments, damaged in every way: a typed error, or the same answers.

No promised record is lost, no offset is used again, and nothing that was truncated comes back
unless the file that said so is gone as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import NamedTuple

import pytest

from tailrace import Log, OutcomeUnknown, TailraceError
from tailrace.testing import FaultyFileSystem, LoseDirty, SimulatedDisk, on
from tests.crash.oracle import Oracle
from tests.crash.world import (
    CLOCK,
    cut,
    flip,
    open_log,
    overwrite,
    reboot,
    record,
    remove,
    side,
)

PRODUCER = "worker"


class Kept(NamedTuple):
    """A log with every kind of side file, and what it must still know afterwards."""

    disk: SimulatedDisk
    oracle: Oracle
    end: int
    sequences: dict[int, int]  # of `PRODUCER`: the offset that each went to


def append(log: Log, oracle: Oracle, text: str) -> int:
    batch = [record(f"{text}.{k}", timestamp=CLOCK.tick()) for k in range(2)]
    told = oracle.tell(batch, log.end_offset)
    offset = log.append(batch).offset
    log.flush()
    oracle.promise(told, offset)
    return offset


def append_once(log: Log, oracle: Oracle, sequence: int) -> int:
    batch = [record(f"once {sequence}", timestamp=NOW)]
    told = oracle.tell(batch, log.end_offset)
    offset = log.append(batch, producer=PRODUCER, sequence=sequence).offset
    log.flush()
    oracle.promise(told, offset)
    return offset


NOW = CLOCK.now_ms


def kept(end: str) -> Kept:
    disk = SimulatedDisk()
    oracle = Oracle(disk)
    log = open_log(disk, flush="async", segment_bytes=400)
    sequences = {}
    for i in range(3):
        append(log, oracle, f"a{i}")
        sequences[i] = append_once(log, oracle, i)
    reboot(disk)  # which an async log answers with a gap
    log = open_log(disk)
    for i in range(3, 5):
        append(log, oracle, f"b{i}")
        sequences[i] = append_once(log, oracle, i)
    log.truncate_before(2)
    oracle.truncate(2)
    if end == "closed":
        log.close()
    elif end == "poisoned":
        disk.kill()
        fs = FaultyFileSystem(disk, on("sync", LoseDirty(), path="*.seg", nth=1))
        log = open_log(fs)
        batch = [record("never durable", timestamp=NOW)]
        oracle.hand_out(oracle.tell(batch, log.end_offset), log.append(batch).offset)
        with pytest.raises(OutcomeUnknown):
            log.flush()
    after = log.end_offset
    disk.kill()
    return Kept(disk, oracle, after, sequences)


FILES = {
    "closed": ("log.json", "watermark", "start", "clean", "seals", "gaps", "producers"),
    "killed": ("log.json", "watermark", "reserved", "start", "seals", "gaps", "producers"),
    "poisoned": ("watermark", "reserved", "poisoned"),
}


class Damage(NamedTuple):
    """Something done to a file; `whole` when nothing of it may be left."""

    what: str
    inflict: Callable[[SimulatedDisk, str], None]
    whole: bool = True


def flips(data: bytes) -> Iterator[Damage]:
    for position, byte in enumerate(data):
        if byte or position % 64 == 0:  # of the padding between two slots a few are enough
            inflict = partial(flip, position=position, mask=0x11)
            yield Damage(f"byte {position} flipped", inflict, whole=False)


def cuts(data: bytes) -> Iterator[Damage]:
    for size in range(len(data)):
        if size == 0 or data[size - 1] or size % 64 == 0:
            yield Damage(f"cut to {size} bytes", partial(cut, size=size))


def wholesale(data: bytes) -> Iterator[Damage]:
    yield Damage("gone", remove)
    yield Damage("zeros", partial(overwrite, data=bytes(len(data))))
    yield Damage("junk", partial(overwrite, data=b"\xa5" * len(data)))
    yield Damage("junk behind it", partial(overwrite, data=data + b"\xa5" * 40))
    yield Damage("twice", partial(overwrite, data=data + data))


@pytest.mark.parametrize("end", ["closed", "killed", "poisoned"])
@pytest.mark.parametrize(
    ("damages", "step"),
    [
        (flips, 11),
        (cuts, 11),
        (wholesale, 1),
        *(pytest.param(each, 1, marks=pytest.mark.long) for each in (flips, cuts)),
    ],
)
def test_damage(damages: Callable[[bytes], Iterator[Damage]], step: int, end: str) -> None:
    case = kept(end)
    present = set(case.disk.files())
    for number, name in enumerate(FILES[end]):
        path = side(name)
        assert path in present, f"this log should have a {name}"
        for damage in islice(damages(case.disk.read(path)), number % step, None, step):
            disk = case.disk.clone()
            damage.inflict(disk, path)
            try:
                still_right(case, disk, name, damage.whole)
            except Exception as error:
                error.add_note(f"{name}: {damage.what}")
                raise


def still_right(case: Kept, disk: SimulatedDisk, name: str, gone: bool) -> None:
    oracle = case.oracle.on(disk)
    if name == "start" and gone:
        oracle.start = 0  # nothing else says where the log starts
    try:
        reader = open_log(disk, read_only=True)
        with reader:
            oracle.check(reader, gaps_known=name != "gaps")
        log = open_log(disk)
    except TailraceError:
        return
    with log:
        oracle.check(log, gaps_known=name != "gaps")
        assert log.end_offset >= case.end, "an offset would be used again"
        for sequence in (min(case.sequences), max(case.sequences)):
            offset = case.sequences[sequence]
            again = log.append([b"again"], producer=PRODUCER, sequence=sequence).offset
            assert again == offset, f"sequence {sequence} is not known any more"
        end = log.end_offset
        assert log.append([b"new"]).offset == end
    with open_log(disk) as log:
        assert [r.value for r in log.read(end)] == [b"new"]


def test_everything_but_the_segments_gone() -> None:
    """What the segments hold is enough to read, and to go on behind it."""
    case = kept("killed")
    for path in case.disk.files():
        if not path.endswith(".seg"):
            remove(case.disk, path)
    case.oracle.start = 0
    with open_log(case.disk, flush="async") as log:
        case.oracle.check(log, gaps_known=False)
        assert log.append([b"new"]).offset >= case.end
