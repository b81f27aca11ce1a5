"""Segments that FluxMQ wrote, decoded to what its own reader says."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from tailrace.kernel.layout import COMPLETE
from tests.kernel.twins import GOLDEN, Twin

FIXTURES = Path(__file__).resolve().parents[3] / "shared" / "fixtures" / "fluxmq"

pytestmark = pytest.mark.skipif(
    not FIXTURES.is_dir(), reason="needs ../shared/fixtures/fluxmq beside the checkout"
)


def as_message(record: Any) -> dict[str, Any]:
    """A record as the expected files describe it."""
    headers = {name: value.decode() for name, value in record.headers.items()}
    known = {name: headers.pop(name, "") for name in ("_topic", "_id", "_state", "_expires_at")}
    return {
        "offset": record.offset,
        "null": record.value is None,
        "payload": None if record.value is None else base64.b64encode(record.value).decode(),
        "topic": known["_topic"],
        "id": known["_id"],
        "state": known["_state"],
        "expires": int(known["_expires_at"] or 0),
        "props": headers or None,
    }


@pytest.mark.parametrize("codec", ["s2", "none"])
def test_every_record(kernel: Twin, codec: str) -> None:
    expected = json.loads((FIXTURES / f"{codec}.expected.json").read_text())
    messages: list[dict[str, Any]] = []
    for path in sorted((FIXTURES / codec / "queues" / "orders" / "segments").glob("*.seg")):
        data = path.read_bytes()
        end, next_offset, status = kernel.check(data, 0, len(data))
        assert (end, status) == (len(data), COMPLETE), path
        infos = kernel.batches(data, 0, len(data))
        assert infos[0].base_offset == int(path.stem)
        for info in infos:
            records = kernel.decode(data, info.position, info.position + info.size)
            assert [r.offset for r in records] == list(range(info.base_offset, info.next_offset))
            messages += map(as_message, records)
        assert next_offset == infos[-1].next_offset
        flat = kernel.inflate(data, 0, len(data))
        assert kernel.check(flat, 0, len(flat)) == (len(flat), next_offset, COMPLETE)
    assert messages == expected
    assert len(messages) == 53


def test_what_we_decode_we_encode_the_same(kernel: Twin) -> None:
    for path in (FIXTURES / "none" / "queues" / "orders" / "segments").glob("*.seg"):
        data = path.read_bytes()
        for info in kernel.batches(data, 0, len(data)):
            end = info.position + info.size
            records = kernel.decode(data, info.position, end)
            again = kernel.encode(records, info.base_timestamp)
            stored = bytearray(data[info.position : end])
            assert again.place(info.base_offset)[44:] == stored[44:]
            assert again.max_timestamp == info.max_timestamp


def test_golden_is_the_first_batch(kernel: Twin) -> None:
    path = FIXTURES / "none" / "queues" / "orders" / "segments" / f"{0:020}.seg"
    assert path.read_bytes().startswith(GOLDEN)
