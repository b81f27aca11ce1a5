"""Many writers at once: threads, or tasks of one event loop, each putting one value again and again
for a while. Their latencies are pooled; the rate is that of all together."""

from __future__ import annotations

import asyncio
import threading
from array import array
from collections.abc import Awaitable, Callable
from time import perf_counter_ns
from typing import Any

from tailrace.cli.measure import Sample

__all__ = ["run_tasks", "run_threads"]


def run_threads(put: Callable[[bytes], object], values: list[bytes], seconds: float) -> Sample:
    """One thread per value, each putting it again and again."""
    latencies = [array("q") for _ in values]
    ready = threading.Barrier(len(values) + 1)
    failures: list[Exception] = []

    def work(value: bytes, own: array[int]) -> None:
        note, clock = own.append, perf_counter_ns
        ready.wait()
        before = clock()
        until = before + seconds * 1e9
        try:
            while before < until:
                put(value)
                now = clock()
                note(now - before)
                before = now
        except Exception as error:  # noqa: BLE001 - told to the caller, below
            failures.append(error)

    threads = [
        threading.Thread(target=work, args=pair) for pair in zip(values, latencies, strict=True)
    ]
    for thread in threads:
        thread.start()
    ready.wait()
    began = perf_counter_ns()
    for thread in threads:
        thread.join()
    took = (perf_counter_ns() - began) / 1e9
    if failures:
        raise failures[0]
    return _together(latencies, took)


async def run_tasks(
    put: Callable[[bytes], Awaitable[Any]], values: list[bytes], seconds: float
) -> Sample:
    """One task per value, each putting it again and again."""
    latencies = [array("q") for _ in values]

    async def work(value: bytes, own: array[int]) -> None:
        note, clock = own.append, perf_counter_ns
        before = clock()
        until = before + seconds * 1e9
        while before < until:
            await put(value)
            now = clock()
            note(now - before)
            before = now

    began = perf_counter_ns()
    await asyncio.gather(*(work(*pair) for pair in zip(values, latencies, strict=True)))
    return _together(latencies, (perf_counter_ns() - began) / 1e9)


def _together(latencies: list[array[int]], seconds: float) -> Sample:
    whole = array("q")
    for own in latencies:
        whole += own
    return Sample(len(whole), seconds, whole)
