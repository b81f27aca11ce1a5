"""Large work lets other threads run, and threads may share what is immutable."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tailrace.kernel.layout import S2
from tests.kernel.twins import NOW, Twin, fields


def others_run_during(work: Callable[[], object]) -> bool:
    """Whether a second thread made progress inside one call of `work`.

    The interpreter is told not to switch threads by itself, so that only a call that releases the
    GIL can let the other one in (which gives it back at once). No time is measured: the work is
    repeated until it happened.
    """
    counter = 0
    stop = False
    started = threading.Event()

    def count() -> None:
        nonlocal counter
        while not stop:
            counter += 1
            started.set()
            time.sleep(0)

    interval = sys.getswitchinterval()
    thread = threading.Thread(target=count)
    thread.start()
    started.wait()
    try:
        for _ in range(200):
            sys.setswitchinterval(1000)
            before = counter
            work()
            progressed = counter != before
            sys.setswitchinterval(interval)
            if progressed:
                return True
        return False
    finally:
        sys.setswitchinterval(interval)
        stop = True
        thread.join()


@pytest.fixture(scope="module")
def compiled(twins: tuple[Twin, Twin]) -> Twin:
    return twins[0]


def test_crc(compiled: Twin) -> None:
    data = bytes(64 << 20)
    assert others_run_during(lambda: compiled.crc32c(data))


def test_check(compiled: Twin) -> None:
    data = compiled.encode_one(bytes(64 << 20)).place(0)
    assert others_run_during(lambda: compiled.check(data, 0, len(data)))


def test_s2(compiled: Twin) -> None:
    from tailrace.kernel.compression import compress

    data = compress(S2, bytes(64 << 20))
    assert others_run_during(lambda: compiled.s2_decompress(data, 64 << 20))


def test_encoding_of_a_large_batch(compiled: Twin) -> None:
    value = bytes(64 << 20)
    assert others_run_during(lambda: compiled.encode_one(value))


def test_columns(compiled: Twin) -> None:
    values = [bytes(1000)] * 50_000
    data = compiled.encode(values, NOW).place(0)
    assert others_run_during(lambda: compiled.measure_columns(data, 0, len(data)))


def test_tally(compiled: Twin) -> None:
    data = b"".join(bytes(compiled.encode_one(b"").place(offset)) for offset in range(100_000))
    state = {
        "position": 0,
        "base": 0,
        "next_offset": 0,
        "contiguous_from": None,
        "last_indexed": -1,
        "unindexed_bytes": 0,
        "index_interval": 4096,
        "next_timestamp": 1,
        "time_index_interval_ms": 1000,
    }
    assert others_run_during(lambda: compiled.tally(data, 0, len(data), **state))


def test_many_threads_on_one_chunk(kernel: Twin) -> None:
    records = [(b"k", bytes(50), {"a": b"b"})] * 500
    data = bytes(kernel.encode(records, NOW, S2).place(0))
    expected = [fields(record) for record in kernel.decode(data, 0, len(data))]
    shared = kernel.decode(data, 0, len(data))

    def read(_: int) -> bool:
        fresh = kernel.decode(data, 0, len(data))
        return all(
            [fields(record) for record in records] == expected for records in (fresh, shared)
        )

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(32)))
