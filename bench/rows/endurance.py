"""Row 13 of queues: ten million messages through one queue, and nothing that grows.

Once: the figures are about one long run, in a process of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys

from bench.support.race import Check, Contestant, Line, Role, Row, Unit, race
from bench.support.setting import Setting
from tailrace.cli.measure import Sample, human_bytes, human_rate

__all__ = ["pass_many"]

_FLAT = 1.1  # the most memory in the last third of the run relative to that in the middle one
_BESIDE_MB = 8.0  # on the disk, beside the last segment: groups, indexes, the reserve


def pass_many(setting: Setting) -> Row:
    count = setting.sizes.queue.passed

    def ours() -> Sample:
        with setting.scratch("store") as folder:
            command = [sys.executable, "-m", "bench.support.endurance_probe"]
            command += [str(folder), str(count)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
        seen = json.loads(done.stdout)
        resident = seen["resident"]
        third = len(resident) // 3
        extra = {
            "resident_bytes": float(max(resident)),
            "growth": max(resident[2 * third :]) / max(resident[third : 2 * third]),
            "growth_in_all": max(resident) / resident[third // 3],
            "disk_filled": float(seen["disk_filled"]),
            "disk_at_end": float(seen["disk_at_end"]),
            "segment_bytes": float(seen["segment_bytes"]),
            **seen["seconds"],
        }
        return Sample(seen["count"], sum(seen["seconds"].values()), extra=extra)

    results = race([Contestant("tailrace", Role.OURS, ours)], rounds=1)
    line = Line(f"{count:,} messages published, consumed, vacuumed", Unit.MEGABYTES, results)
    sample = line.ours.samples[0]
    floor_mb = sample.extra["segment_bytes"] / 1e6 + _BESIDE_MB
    line.target = f"memory that stays within 10 %; one segment ({floor_mb:.0f} MB) left on the disk"
    line.checks = [
        Check(
            "most memory, last third / middle third", sample.extra["growth"], _FLAT, at_least=False
        ),
        Check("MB on the disk", sample.extra["disk_at_end"] / 1e6, floor_mb, at_least=False),
    ]
    rates = ", ".join(
        f"{name} {human_rate(sample.count / max(sample.extra[name], 1e-9))}"
        for name in ("publish", "consume", "vacuum")
    )
    line.notes.append(
        f"{human_rate(sample.rate)} all in all, in {sample.seconds:.0f} s ({rates}); at most "
        f"{human_bytes(sample.extra['disk_filled'])} on the disk before a vacuum. Memory is "
        "looked at after each hundredth; the most that it ever was is "
        f"{sample.extra['growth_in_all'] - 1:.0%} above what it was after a ninth"
    )
    conditions = {"value_bytes": 256, "flush": "async", "messages": count, "core": None}
    return Row(13, "endurance", line.title, [line], conditions)
