"""The bytes of the three files, as the reference has them."""

from __future__ import annotations

import struct
import time
from pathlib import Path

import pytest

from tailrace import Log, Record
from tailrace.log import log as log_module
from tailrace.log.index import OffsetIndex, TimeIndex
from tests.log import fluxmq
from tests.log.conftest import OpenLog
from tests.log.helpers import T0, at, bases, segment

# The first batch of the reference's own example: key empty, value "hello", three headers.
GOLDEN = bytes.fromhex(
    "58554c46 91995bfe 0000000000000000 33000000 0100 0e00 00 01 0000 b092a5e0a1010000"
    "b092a5e0a1010000 00 00 00 0a 68656c6c6f 03 06 5f746f706963 0d 2471756575652f6f7264657273"
    "03 5f6964 01 37 06 5f7374617465 06 717565756564"
)
GOLDEN_TIME = int.from_bytes(bytes.fromhex("b092a5e0a1010000"), "little")
GOLDEN_HEADERS = [("_topic", "$queue/orders"), ("_id", "7"), ("_state", "queued")]


@pytest.fixture
def golden_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (log_module, time):  # one imports the function, the other the module
        monkeypatch.setattr(module, "time_ns", lambda: GOLDEN_TIME * 1_000_000)


@pytest.mark.usefixtures("golden_clock")
def test_the_golden_batch(log: Log, path: Path) -> None:
    log.append([Record(key=b"", value=b"hello", headers=GOLDEN_HEADERS)])
    assert segment(path, 0).read_bytes().rstrip(b"\0") == GOLDEN
    log.close()
    assert segment(path, 0).read_bytes() == GOLDEN


@pytest.mark.usefixtures("golden_clock")
def test_the_golden_batch_one_by_one(log: Log, path: Path) -> None:
    log.append_one("hello", key="", headers=GOLDEN_HEADERS)
    log.close()
    assert segment(path, 0).read_bytes() == GOLDEN


@pytest.mark.usefixtures("golden_clock")
def test_the_golden_indexes(log: Log, path: Path) -> None:
    log.append_one("hello", key="", headers=GOLDEN_HEADERS)
    log.close()
    assert segment(path, 0, "idx").read_bytes() == bytes.fromhex(
        "49584c46 01 0000000000000000 01000000 00100000 0000000000000000000000 00000000 00000000"
    )
    assert segment(path, 0, "tix").read_bytes() == bytes.fromhex(
        "54584c46 01 0000000000000000 01000000 b092a5e0a1010000 b092a5e0a1010000 000000"
        "b092a5e0a1010000 00000000"
    )


def test_every_record_by_the_independent_decoder(open_log: OpenLog, path: Path) -> None:
    log = open_log(segment_bytes=500, index_interval=150, time_index_interval="5ms")
    given = [
        Record(timestamp=T0 - 3 * n, key=key, value=value, headers=headers)
        for n, (key, value, headers) in enumerate(
            [
                (None, b"v", None),
                (b"", None, {"a": b""}),
                (b"k" * 200, b"v" * 200, [("n", b"1"), ("n", b"2")]),
                (None, None, None),
                ("ü", "ö", {"ä": "ß"}),
            ]
            * 4
        )
    ]
    for first in range(0, 20, 2):
        log.append(given[first : first + 2])
    log.close()
    batches = fluxmq.check_folder(path)
    assert len(bases(path)) > 1
    assert [batch.records for batch in batches] == [2] * 10
    assert [fluxmq.decode(batch)[0].offset for batch in batches] == list(range(0, 20, 2))
    found = [record for batch in batches for record in fluxmq.decode(batch)]
    assert found == [
        fluxmq.Rec(
            offset,
            record.timestamp or 0,
            record.key,
            record.value,
            [(name.encode(), value) for name, value in record.headers.items()],
        )
        for offset, record in enumerate(given)
    ]
    for batch in batches:
        assert batch.max_ts == max(record.timestamp for record in fluxmq.decode(batch))


@pytest.mark.parametrize(("compression", "codec"), [("none", 0), ("s2", 1), ("zstd", 2)])
def test_the_compression_byte_and_flag(
    open_log: OpenLog, path: Path, compression: str, codec: int
) -> None:
    log = open_log(compression=compression)
    log.append([b"short"])
    log.append([b"x" * 252])  # a section of 258 bytes; up to 256 it is not tried
    log.append([b"x" * 250])
    log.close()
    short, long, edge = fluxmq.scan(segment(path, 0))
    assert {short.codec, long.codec, edge.codec} == {codec}
    assert (short.flags & 1, long.flags & 1, edge.flags & 1) == (0, int(codec > 0), 0)
    assert short.flags & 2


# --- .idx ---------------------------------------------------------------------------------------


def test_offset_lookup() -> None:
    index = OffsetIndex(1000, interval=1)
    for base_offset, position in ((1000, 0), (1100, 10_000), (1200, 20_000), (1300, 30_000)):
        assert index.observe(base_offset, position, 10_000)
    found = [index.lookup(offset)[1] for offset in (1000, 1050, 1100, 1250, 1350)]
    assert found == [0, 0, 10_000, 20_000, 30_000]
    assert index.lookup(1250) == (1200, 20_000)
    assert index.lookup(5) == (1000, 0)  # below the base: the start


def test_an_empty_offset_index() -> None:
    assert OffsetIndex(1000, 4096).lookup(2000) == (1000, 0)


def test_the_live_rule_of_the_offset_index() -> None:
    """The first batch is indexed and not counted; then the one that fills the interval."""
    index = OffsetIndex(0, interval=1_000)
    indexed = [index.observe(n, 100 * n, 100) for n in range(22)]
    assert [n for n, got_entry in enumerate(indexed) if got_entry] == [0, 10, 20]


def test_a_huge_interval_means_one_entry(open_log: OpenLog, path: Path) -> None:
    with open_log(index_interval=2**32 - 1) as log:
        for _ in range(5):
            log.append([b"x"])
    assert fluxmq.read_idx(segment(path, 0, "idx")).entries == [(0, 0)]
    assert fluxmq.read_idx(segment(path, 0, "idx")).interval == 2**32 - 1


@pytest.mark.parametrize("kind", [OffsetIndex, TimeIndex])
def test_what_is_not_the_index_of_this_segment(kind: type[OffsetIndex] | type[TimeIndex]) -> None:
    index = kind(1000, 1)
    if isinstance(index, OffsetIndex):
        index.observe(1000, 0, 10)
    else:
        index.observe(1000, T0)
    data = index.to_bytes()

    def load(data: bytes, base: int = 1000) -> object:
        if kind is OffsetIndex:
            return OffsetIndex.from_bytes(data, base)
        return TimeIndex.from_bytes(data, base, 1)

    assert load(data) is not None
    assert load(data, base=1001) is None
    assert load(data[:-1]) is None
    assert load(data[:20]) is None
    assert load(b"") is None
    assert load(b"\0" + data[1:]) is None
    assert load(data[:4] + b"\x02" + data[5:]) is None
    assert load(data[:13] + struct.pack("<I", 99) + data[17:]) is not None  # a stale count


def test_indexes_round_trip() -> None:
    offsets, times = OffsetIndex(7, 10), TimeIndex(7, 5)
    for n in range(50):
        offsets.observe(7 + n, 20 * n, 20)
        times.observe(7 + n, T0 + 3 * n)
    again = OffsetIndex.from_bytes(offsets.to_bytes(), 7)
    assert again is not None
    assert again.entries() == offsets.entries()
    assert again.to_bytes() == offsets.to_bytes()
    assert again.interval == 10
    later = TimeIndex.from_bytes(times.to_bytes(), 7, 5)
    assert later is not None
    assert later.entries() == times.entries()
    assert later.to_bytes() == times.to_bytes()
    assert later.next_timestamp == times.next_timestamp
    assert (len(again), len(later)) == (50, 25)


def test_an_interval_of_zero_is_the_default_one() -> None:
    data = bytearray(OffsetIndex(0, 77).to_bytes())
    data[17:21] = bytes(4)
    index = OffsetIndex.from_bytes(bytes(data), 0)
    assert index is not None
    assert index.interval == 4096


# --- .tix ---------------------------------------------------------------------------------------


def test_time_lookup() -> None:
    index = TimeIndex(1000, interval_ms=1_000)
    for n, timestamp in enumerate((5_000, 6_000, 7_000)):
        assert index.observe(1000 + 10 * n, timestamp)
    assert index.lookup(1) == 1000  # before: the start
    assert index.lookup(5_000) == 1000
    assert index.lookup(5_500) == 1000  # between: the entry before
    assert index.lookup(6_000) == 1000  # batches before the entry may reach into its second
    assert index.lookup(6_001) == 1010
    assert index.lookup(99_000) == 1020  # after: the last
    assert TimeIndex(1000, 1_000).lookup(5) == 1000


def test_the_time_index_has_one_entry_per_second() -> None:
    index = TimeIndex(0, interval_ms=1_000)
    timestamps = [0, -5, 1, 1_000, 1_001, 500, 2_000, 2_001, 10_000]
    indexed = [t for n, t in enumerate(timestamps) if index.observe(n, t)]
    assert indexed == [1, 1_001, 2_001, 10_000]


def test_the_time_index_of_a_log(open_log: OpenLog, path: Path) -> None:
    log = open_log()
    for n in range(10):
        log.append([at(T0 + 400 * n), at(T0 + 400 * n + 50)])
    log.close()
    tix = fluxmq.read_tix(segment(path, 0, "tix"))
    assert tix.entries == [(T0 + 50 + 1_200 * n, 6 * n) for n in range(4)]
    assert (tix.header_count, tix.low, tix.high) == (4, T0 + 50, T0 + 3_650)


def test_records_without_a_positive_time_have_no_entry(open_log: OpenLog, path: Path) -> None:
    log = open_log()
    log.append([at(0)])
    log.append([at(-1)])
    log.close()
    tix = fluxmq.read_tix(segment(path, 0, "tix"))
    assert (tix.entries, tix.low, tix.high) == ([], 0, 0)
