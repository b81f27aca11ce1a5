"""Row 10: the kernel's plain Python twin, beside the least that a codec in Python can do."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from bench.support.race import Check, Line, Result, Role, Row, Unit
from bench.support.setting import Setting
from tailrace.cli.measure import Sample, pinned

__all__ = ["pure_twin"]


def pure_twin(setting: Setting) -> Row:
    sizes = setting.sizes
    with pinned() as core:
        taken = _probe(sizes.twin_records, sizes.twin_passes)

    def result(name: str, title: str, role: Role) -> Result:
        samples = [Sample(sizes.twin_records, seconds) for seconds in taken[name]]
        return Result(title, role, samples)

    lines = []
    for verb in ("encode", "decode"):
        ours = result(f"twin {verb}", "tailrace, pure kernel", Role.OURS)
        least = result(f"yardstick {verb}", "hand-tuned (key, value) varints", Role.LIMIT)
        line = Line(f"pure Python twin, {verb}", Unit.NANOSECONDS_PER_RECORD, [ours, least])
        line.target = "no worse than half of the hand-tuned codec"
        line.checks = [Check("of the hand-tuned", line.speed_against(line.limit()), 0.5)]
        lines.append(line)
    lines[0].notes.append(
        "the twin writes offsets, timestamps, headers and a checksum besides; keys of 11 bytes, "
        "values of 20 to 200"
    )
    conditions = {"records": sizes.twin_records, "codec": "none", "core": core}
    return Row(10, "pure-twin", "pure Python twin", lines, conditions)


def _probe(records: int, passes: int) -> dict[str, list[float]]:
    command = [sys.executable, "-m", "bench.support.twin_probe", str(records), str(passes)]
    environment = {**os.environ, "TAILRACE_KERNEL": "pure"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    taken: dict[str, list[float]] = json.loads(done.stdout)
    return taken
