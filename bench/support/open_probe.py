"""A process that opens a log and says what that took: `python -m bench.support.open_probe DIR`."""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

from tailrace import Log


def resident_bytes() -> int:
    """The most that this process ever had in memory. `ru_maxrss` is not good for that where it can
    be avoided: on Linux a process inherits the figure of the one that started it."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return 0


def main(path: str, read_only: bool) -> None:
    before = resident_bytes()
    began = time.perf_counter()
    log = Log(path, read_only=read_only)
    seconds = time.perf_counter() - began
    after = resident_bytes()
    assert log.end_offset > 0
    log.close()
    print(json.dumps({"seconds": seconds, "resident_bytes": after, "before_opening": before}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:] == ["read-only"])
