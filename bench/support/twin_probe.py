"""The plain twin beside the yardstick, in a process that runs with it:
`TAILRACE_KERNEL=pure python -m bench.support.twin_probe RECORDS PASSES`."""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable

from bench.support import yardstick
from tailrace.kernel import IMPLEMENTATION, decode, encode

__all__ = ["measure", "records"]


def records(count: int) -> list[tuple[bytes, bytes]]:
    """Keys of 11 bytes, values of 20 to 200."""
    dice = random.Random(20260102)
    return [(b"key-%07d" % i, dice.randbytes(dice.randint(20, 200))) for i in range(count)]


def measure(count: int, passes: int) -> dict[str, list[float]]:
    """Seconds of each pass, in turns."""
    given = records(count)
    now_ms = time.time_ns() // 1_000_000
    batch = bytes(encode(given, now_ms).place(0))
    plain = yardstick.encode(given)
    assert yardstick.decode(plain) == given
    assert [(r.key, r.value) for r in decode(batch, 0, len(batch))] == given
    work: dict[str, Callable[[], object]] = {
        "twin encode": lambda: encode(given, now_ms).place(0),
        "yardstick encode": lambda: yardstick.encode(given),
        "twin decode": lambda: decode(batch, 0, len(batch)),
        "yardstick decode": lambda: yardstick.decode(plain),
    }
    taken: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(passes):
        for name, run in work.items():
            run()  # or whoever comes first would find cold what the next finds warm
            began = time.perf_counter()
            kept = run()  # kept, so that freeing it is not part of the time
            taken[name].append(time.perf_counter() - began)
            del kept
    return taken


if __name__ == "__main__":
    assert IMPLEMENTATION == "pure", "run this with TAILRACE_KERNEL=pure"
    print(json.dumps(measure(int(sys.argv[1]), int(sys.argv[2]))))
