"""Files that FluxMQ itself wrote: read, appended to, and left such that it reads them again."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tailrace import Log, Record
from tests.log import fluxmq
from tests.log.helpers import bases, tree, values
from tests.project import ROOT

FIXTURES = ROOT.parent / "shared" / "fixtures" / "fluxmq"

pytestmark = pytest.mark.skipif(not FIXTURES.exists(), reason="FluxMQ's files are not here")


@pytest.fixture(params=["none", "s2"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(kind: str, tmp_path: Path) -> Path:
    """A copy of the queue "orders", to do with as we like."""
    target = tmp_path / "segments"
    shutil.copytree(FIXTURES / kind / "queues" / "orders" / "segments", target)
    for path in (target, *target.iterdir()):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return target


@pytest.fixture
def expected(kind: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((FIXTURES / f"{kind}.expected.json").read_text())
    return found


def as_expected(record: Record) -> dict[str, Any]:
    headers = {name: value.decode() for name, value in record.headers.items()}
    payload = None if record.value is None else base64.b64encode(record.value).decode()
    return {
        "offset": record.offset,
        "payload": payload,
        "null": record.value is None,
        "topic": headers.pop("_topic"),
        "id": headers.pop("_id"),
        "state": headers.pop("_state"),
        "expires": int(headers.pop("_expires_at", "0")),
        "props": headers or None,
    }


def test_read_only(folder: Path, expected: list[dict[str, Any]]) -> None:
    before = tree(folder)
    with Log(folder, read_only=True) as log:
        assert [as_expected(record) for record in log.read()] == expected
        assert (log.start_offset, log.end_offset) == (0, len(expected))
        for offset in range(len(expected)):
            assert as_expected(next(log.read(offset))) == expected[offset]
    assert tree(folder) == before


def test_by_time(folder: Path) -> None:
    with Log(folder, read_only=True) as log:
        stamps = [record.timestamp or 0 for record in log.read()]
        for stamp in sorted({*stamps, stamps[0] - 1, stamps[-1] + 1}):
            first = next((n for n, other in enumerate(stamps) if other >= stamp), len(stamps))
            assert log.offset_at(stamp) == first


def test_open_for_writing(folder: Path, expected: list[dict[str, Any]]) -> None:
    segments = {file.name: file.read_bytes() for file in folder.glob("*.seg")}
    with Log(folder) as log:
        assert [as_expected(record) for record in log.read()] == expected
        assert log.end_offset == log.durable_offset == len(expected)
    assert {file.name: file.read_bytes() for file in folder.glob("*.seg")} == segments


@pytest.mark.parametrize("compression", ["none", "s2", "zstd"])
def test_append_and_leave_it_to_fluxmq(
    folder: Path, expected: list[dict[str, Any]], compression: str
) -> None:
    count, old_bases = len(expected), bases(folder)
    added = [b"%d" % n * 100 for n in range(200)]
    with Log(folder, compression=compression, segment_bytes="24KiB", flush="async") as log:
        for value in added[:100]:
            assert log.append_one(value, key=b"", headers={"_topic": "t"}).offset >= count
        log.append_many(added[100:])
        assert values(log.read(count)) == added
        assert [as_expected(record) for record in log.read(0, count)] == expected
    assert len(bases(folder)) > len(old_bases)
    batches = fluxmq.check_folder(folder)
    assert batches[-1].base_offset + batches[-1].records == count + 200
    if compression == "none":
        ours = [batch for batch in batches if batch.base_offset >= count]
        assert [record.value for batch in ours for record in fluxmq.decode(batch)] == added
    with Log(folder) as log:
        assert [as_expected(record) for record in log.read(0, count)] == expected
        assert values(log.read(count)) == added


def test_without_its_indexes(folder: Path, expected: list[dict[str, Any]]) -> None:
    for file in folder.glob("*.?ix"):
        file.unlink()
    with Log(folder) as log:
        assert [as_expected(record) for record in log.read()] == expected
        assert [as_expected(next(log.read(n))) for n in range(len(expected))] == expected
    fluxmq.check_folder(folder)


def test_the_decoder_reads_what_fluxmq_wrote(folder: Path, kind: str) -> None:
    """A check of the little decoder that these tests rely on."""
    batches = fluxmq.check_folder(folder)
    assert sum(batch.records for batch in batches) == 53
    if kind == "none":
        assert fluxmq.decode(batches[0])[0].value == b"hello"
    assert any(batch.flags & 1 for batch in batches) == (kind == "s2")


def test_a_queue_that_never_had_a_record(kind: str, tmp_path: Path) -> None:
    target = tmp_path / "segments"
    shutil.copytree(FIXTURES / kind / "queues" / "eph" / "segments", target)
    for path in (target, *target.iterdir()):
        path.chmod(0o755 if path.is_dir() else 0o644)
    with Log(target, read_only=True) as log:
        assert list(log.read()) == []
    with Log(target) as log:
        assert log.append([b"first"]).wait().offset == 0
    assert bases(target) == [0]
