"""Which modules have to notice a mistake, and the tests that have to notice it.

These are the ones that say what is on the disk and who has which message. The tests are those that
know most of a module and take seconds, not all that would notice.
"""

from __future__ import annotations

__all__ = ["LEAST", "TARGETS"]

LEAST = 80  # percent of the mistakes that have to be noticed

# The name of a module, where it is below `src/tailrace`, and its tests below `tests`.
TARGETS: dict[str, tuple[str, tuple[str, ...]]] = {
    "codec": (
        "kernel/pure/codec.py",
        (
            "kernel/test_decode.py",
            "kernel/test_check.py",
            "kernel/test_twins.py",
            "kernel/test_regions.py",
        ),
    ),
    "encoding": ("kernel/pure/encoding.py", ("kernel/test_encode.py", "kernel/test_twins.py")),
    "records": ("kernel/pure/records.py", ("kernel/test_record.py", "kernel/test_decode.py")),
    "segments": ("log/segments.py", ("log/test_roll.py", "log/test_vacuum.py", "log/test_read.py")),
    "index": ("log/index.py", ("log/test_indexes.py", "log/test_offset_at.py")),
    "scan": ("log/scan.py", ("log/test_scan.py", "log/test_lifecycle.py")),
    "retention": ("log/retention.py", ("log/test_vacuum.py", "queue/test_retention.py")),
    "ledger": ("queue/ledger.py", ("queue/test_ledger.py", "queue/test_checklist.py")),
    "stream_ledger": ("queue/stream_ledger.py", ("queue/test_stream_ledger.py",)),
    "journal": (
        "queue/journal.py",
        ("queue/test_journal.py", "queue/test_groups.py", "queue/test_format.py"),
    ),
    "runs": ("queue/runs.py", ("queue/test_runs.py", "queue/test_ledger.py")),
    "timers": ("queue/timers.py", ("queue/test_timers.py", "queue/test_ledger.py")),
    "depth": ("queue/depth.py", ("queue/test_depth.py",)),
    "retaining": ("queue/retaining.py", ("queue/test_retention.py",)),
    "disk": ("queue/disk.py", ("queue/test_disk.py",)),
    "space": ("queue/space.py", ("queue/test_depth.py", "queue/test_retention.py")),
    "reserve": ("queue/reserve.py", ("queue/test_reserve.py",)),
    "caretaker": ("queue/caretaker.py", ("queue/test_disk.py", "queue/test_retention.py")),
    "classic": (
        "queue/classic.py",
        ("queue/test_checklist.py", "queue/test_checklist_dead.py", "queue/test_groups.py"),
    ),
    "delivery": ("queue/delivery.py", ("queue/test_delays.py", "queue/test_delays_files.py")),
    "delays": ("queue/delays.py", ("queue/test_delays.py", "queue/test_delays_files.py")),
    "schedule": ("queue/schedule.py", ("queue/test_delays.py", "queue/test_delays_model.py")),
}
