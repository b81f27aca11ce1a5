"""The bytes of format 1, written out: they open, they read back, and they are written again.

The segment and its two indexes are FluxMQ's, field by field as in its tables; FORMAT.md has the
side files. If one of these tests fails, the format has changed, and logs that exist have not.
"""

from __future__ import annotations

import pytest

from tailrace import ConfigError, Record
from tailrace.kernel import crc32c
from tailrace.testing import SimulatedDisk
from tests.crash.world import (
    CLOCK,
    FOLDER,
    NOW_MS,
    flip,
    image,
    open_log,
    overwrite,
    placed_batches,
    segment,
    side,
)

PRODUCER = {"_producer": b"p", "_sequence": b"7"}
RECORDS = [
    Record(0, NOW_MS, None, b"a"),
    Record(1, NOW_MS - 1, b"k", b"bc", {"h": b"v"}),
    Record(2, NOW_MS + 5, b"", None, PRODUCER),
    Record(3, NOW_MS + 2000, None, b"x" * 40),
]


def unhex(commented: str) -> bytes:
    """Bytes from lines of hex, each with a comment."""
    return b"".join(bytes.fromhex(line.partition("#")[0]) for line in commented.splitlines())


GOLDEN = {
    segment(0): unhex(
        """
        58554c46  # magic
        0f197eac  # CRC-32C of everything behind it
        0000000000000000  # base offset 0
        12000000  # length of the records
        0200  # 2 records
        0e00  # flags
        00  # codec
        01  # version
        0000  # reserved
        0068e5cf8b010000  # base timestamp
        0068e5cf8b010000  # greatest timestamp
        0000  # offset delta 0, timestamp delta 0
        01  # no key
        0261  # value a
        00  # no headers
        0101  # offset delta 1, timestamp delta -1
        026b  # key k
        046263  # value bc
        0101680176  # one header: h, v
        58554c46  # magic
        9a1b34b9  # CRC-32C of everything behind it
        0200000000000000  # base offset 2
        1d000000  # length of the records
        0100  # 1 record
        0e00  # flags
        00  # codec
        01  # version
        0000  # reserved
        0568e5cf8b010000  # base timestamp
        0568e5cf8b010000  # greatest timestamp
        0000  # offset delta 0, timestamp delta 0
        00  # an empty key
        01  # no value
        02  # two headers
        095f70726f64756365720170  # _producer: p
        095f73657175656e63650137  # _sequence: 7
        """
    ),
    segment(0, "idx"): unhex(
        """
        49584c46  # magic
        01  # version
        0000000000000000  # base offset 0
        02000000  # 2 entries
        3c000000  # an entry every 60 bytes
        0000000000000000000000  # zeros
        0000000000000000  # relative offset 0, position 0
        020000003e000000  # relative offset 2, position 62
        """
    ),
    segment(0, "tix"): unhex(
        """
        54584c46  # magic
        01  # version
        0000000000000000  # base offset 0
        02000000  # 2 entries
        0068e5cf8b010000  # least timestamp
        0568e5cf8b010000  # greatest timestamp
        000000  # zeros
        0068e5cf8b01000000000000  # timestamp, relative offset 0
        0568e5cf8b01000002000000  # timestamp, relative offset 2
        """
    ),
    segment(3): unhex(
        """
        58554c46  # magic
        05bfd4b3  # CRC-32C of everything behind it
        0300000000000000  # base offset 3
        2e000000  # length of the records
        0100  # 1 record
        0200  # flags
        00  # codec
        01  # version
        0000  # reserved
        0a68e5cf8b010000  # base timestamp
        d06fe5cf8b010000  # greatest timestamp
        00  # offset delta 0
        8c1f  # timestamp delta 1990
        01  # no key
        50  # value of 40 bytes
        78787878787878787878787878787878787878787878787878787878787878787878787878787878
        00  # no headers
        """
    ),
    segment(3, "idx"): unhex(
        """
        49584c46  # magic
        01  # version
        0300000000000000  # base offset 3
        01000000  # 1 entry
        3c000000  # an entry every 60 bytes
        0000000000000000000000  # zeros
        0000000000000000  # relative offset 0, position 0
        """
    ),
    segment(3, "tix"): unhex(
        """
        54584c46  # magic
        01  # version
        0300000000000000  # base offset 3
        01000000  # 1 entry
        d06fe5cf8b010000  # least timestamp
        d06fe5cf8b010000  # greatest timestamp
        000000  # zeros
        d06fe5cf8b01000000000000  # timestamp, relative offset 0
        """
    ),
    side("watermark"): unhex(
        """
        5452574d  # magic
        01  # format
        000000  # zeros
        0400000000000000  # sequence
        28  # length of the payload
        0400000000000000  # durable offset 4
        0300000000000000  # segment 3
        5a00000000000000  # position 90
        bf06f7891357242c29dc1bd58b74a964  # boot id
        b3c7e7c9  # CRC-32C
        """
    ).ljust(512, b"\0")
    + unhex(
        """
        5452574d  # magic
        01  # format
        000000  # zeros
        0300000000000000  # sequence
        28  # length of the payload
        0400000000000000  # durable offset 4
        0300000000000000  # segment 3
        5a00000000000000  # position 90
        bf06f7891357242c29dc1bd58b74a964  # boot id
        5f10ae94  # CRC-32C
        """
    ),
    side("reserved"): unhex(
        """
        54525253  # magic
        01  # format
        000000  # zeros
        0200000000000000  # sequence
        18  # length of the payload
        0000000000000000  # reserved offset
        bf06f7891357242c29dc1bd58b74a964  # boot id
        54123dc1  # CRC-32C
        """
    ).ljust(512, b"\0")
    + unhex(
        """
        54525253  # magic
        01  # format
        000000  # zeros
        0100000000000000  # sequence
        18  # length of the payload
        0200100000000000  # reserved offset
        bf06f7891357242c29dc1bd58b74a964  # boot id
        bdda068d  # CRC-32C
        """
    ),
    side("start"): unhex(
        """
        54525354  # magic
        01  # format
        000000  # zeros
        0200000000000000  # sequence
        08  # length of the payload
        0100000000000000  # start offset 1
        476ff962  # CRC-32C
        """
    ).ljust(512, b"\0")
    + unhex(
        """
        54525354  # magic
        01  # format
        000000  # zeros
        0100000000000000  # sequence
        08  # length of the payload
        0100000000000000  # start offset 1
        a60bd482  # CRC-32C
        """
    ),
    side("seals"): unhex(
        """
        5452534c  # magic
        01  # format
        000000  # zeros
        0000000000000000  # base offset
        8700000000000000  # size of the segment
        0300000000000000  # next offset
        0300000000000000  # records
        0068e5cf8b010000  # greatest timestamp of the first batch
        0568e5cf8b010000  # greatest timestamp
        30000000cbb22b0d  # size and CRC-32C of the .idx
        3c00000045768149  # size and CRC-32C of the .tix
        7a14559a  # CRC-32C
        5452534c  # magic
        01  # format
        000000  # zeros
        0300000000000000  # base offset
        5a00000000000000  # size of the segment
        0400000000000000  # next offset
        0100000000000000  # records
        d06fe5cf8b010000  # greatest timestamp of the first batch
        d06fe5cf8b010000  # greatest timestamp
        28000000a488abff  # size and CRC-32C of the .idx
        30000000ede20782  # size and CRC-32C of the .tix
        baf73fef  # CRC-32C
        """
    ),
    side("log.json"): b'{"flush":"async","format":1,"sparse_below":0,"crc32c":423463554}\n',
    side("clean"): b'{"boot_id":"","end_offset":4,"segment":3,"size":90,"crc32c":2003022903}\n',
    side("producers"): (
        b'{"next_offset":4,"producers":{"p":{"appended":[[7,2,1]],"last_ms":1700000000005}}'
        b',"crc32c":1453580802}\n'
    ),
}


def golden_disk() -> SimulatedDisk:
    disk = SimulatedDisk()
    for path, data in GOLDEN.items():
        disk.put(path, data)
    return disk


def write_golden_log(disk: SimulatedDisk) -> None:
    """What wrote the bytes above."""
    CLOCK.now_ms = NOW_MS
    log = open_log(disk, flush="async", segment_bytes=150, index_interval=60)
    log.append(
        [
            Record(timestamp=r.timestamp, key=r.key, value=r.value, headers=r.headers)
            for r in RECORDS[:2]
        ]
    )
    CLOCK.tick(5)
    log.append([Record(timestamp=CLOCK.now_ms, key=b"")], producer="p", sequence=7)
    log.flush()
    CLOCK.tick(5)
    log.append_one(RECORDS[3].value, timestamp=RECORDS[3].timestamp)
    log.flush()
    log.truncate_before(1)
    log.close()


@pytest.mark.parametrize("read_only", [False, True], ids=["writer", "observer"])
def test_golden_bytes_read_back(read_only: bool) -> None:
    with open_log(golden_disk(), read_only=read_only) as log:
        assert list(log.read()) == RECORDS[1:]
        assert (log.start_offset, log.end_offset, log.durable_offset) == (1, 4, 4)
        assert log.flush_mode == "async"
        assert [log.offset_at(NOW_MS + ms) for ms in (-1, 0, 5, 6, 2000, 2001)] == [
            1,
            2,
            2,
            3,
            3,
            4,
        ]


# Locks, and what is only shared while the log is open.
FOR_PROCESSES = [side(name) for name in ("lock", "lock.next", "lock.flush", "members", "board")]


def test_golden_bytes_are_written_to() -> None:
    with open_log(golden_disk()) as log:
        again = log.append([b"whatever"], producer="p", sequence=7)
        assert (again.offset, again.count) == (2, 1)
        assert log.append_one(b"next").offset == 4


def test_golden_bytes_are_written_again() -> None:
    disk = SimulatedDisk()
    write_golden_log(disk)
    written = {path: data for path, data in image(disk).items() if path not in FOR_PROCESSES}
    assert sorted(written) == sorted(GOLDEN)
    for path, data in GOLDEN.items():
        assert written[path].hex(" ") == data.hex(" "), path


GAPS = (
    b'683dfe80 {"first":2,"next":3,"kind":"lost",'
    b'"acknowledged":true,"reason":"a test","time_ms":1700000000000}\n'
)
POISONED = b'{"durable":4,"position":90,"reason":"a test","segment":3,"crc32c":3416912756}\n'


def test_golden_gaps() -> None:
    """Offset 2 is lost, and somebody has acknowledged that."""
    disk = golden_disk()
    disk.put(side("gaps"), GAPS)
    overwrite(disk, segment(0), GOLDEN[segment(0)][:62])
    for read_only in (True, False):
        with open_log(disk, read_only=read_only) as log:
            assert [r.offset for r in log.read()] == [1, 3]


def test_golden_poison() -> None:
    """A flush failed behind the last batch; what is behind it is not believed."""
    disk = golden_disk()
    disk.put(side("poisoned"), POISONED)
    overwrite(disk, segment(3), GOLDEN[segment(3)] + b"not to be believed")
    with open_log(disk) as log:
        assert list(log.read()) == RECORDS[1:]
        assert side("poisoned") not in disk.files()


# --- what is newer than this version --------------------------------------------------------


@pytest.mark.parametrize("read_only", [False, True], ids=["writer", "observer"])
def test_a_newer_log_is_refused(read_only: bool) -> None:
    disk = golden_disk()
    body = (
        GOLDEN[side("log.json")].replace(b'"format":1', b'"format":2').rpartition(b',"crc32c"')[0]
    )
    body += b"}"
    overwrite(disk, side("log.json"), body[:-1] + b',"crc32c":%d}\n' % crc32c(body))
    before = image(disk)
    with pytest.raises(ConfigError, match=r"format 2.*upgrade"):
        open_log(disk, read_only=read_only)
    assert unchanged(disk, before)


@pytest.mark.parametrize("known", ["by the watermark", "not yet"])
@pytest.mark.parametrize("ours", [True, False], ids=["ours", "foreign"])
def test_a_newer_batch_is_refused(ours: bool, known: str) -> None:
    """Whole by its checksum and of a version that we don't know: that is no damage, and nothing may
    be cut off or written behind it."""
    disk = golden_disk()
    if not ours:
        for path in disk.files():
            if ".seg" not in path:
                disk.unlink(path)
    else:
        disk.unlink(side("clean"))
        if known == "not yet":
            log = open_log(disk)
            log.append([b"in flight"])
            disk.kill()
    batch = placed_batches(disk)[-1]
    flip(disk, batch.path, batch.start + 25, 1 ^ 2)
    data = disk.read(batch.path)
    checksum = crc32c(data[batch.start + 8 : batch.end]).to_bytes(4, "little")
    disk.corrupt(batch.path, batch.start + 4, checksum)
    before = image(disk)
    with pytest.raises(ConfigError, match=r"format 2.*upgrade"):
        open_log(disk)
    assert unchanged(disk, before)


def unchanged(disk: SimulatedDisk, before: dict[str, bytes]) -> bool:
    disk.kill()
    after = image(disk)
    for path in FOR_PROCESSES:
        before.pop(path, None)
        after.pop(path, None)
    assert sorted(after) == sorted(before)
    return after == before


def test_foreign_files_are_left_alone() -> None:
    """Somebody keeps a note in the folder."""
    disk = golden_disk()
    disk.put(f"{FOLDER}/README", b"mine")
    with open_log(disk) as log:
        log.append([b"x"])
    assert disk.read(f"{FOLDER}/README") == b"mine"
