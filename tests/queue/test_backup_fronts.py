"""A backup while segments are put in front of a log, under names that it has copied."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import tailrace
from tailrace.kernel import encode
from tailrace.log.prepending import Front, joint_of, prepend
from tailrace.queue.backup_log import LogCopy


def test_segments_that_were_put_in_front_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may have names that are copied already, of files that were others."""
    done: list[int] = []
    with tailrace.open(tmp_path / "data", upkeep=False) as store:
        queue = store.stream("q", segment_bytes=300)
        for number in range(40):
            queue.publish(b"%d" % number)
        records = list(queue.log.read())
        inner = LogCopy.catch_up

        def catch_up(copy: LogCopy) -> bool:
            is_unbroken = inner(copy)
            if not done and "/q/" in f"{copy.path}/":
                queue.log.truncate_before(30)
                queue.log.vacuum()
                done.append(joint_of(queue.log).first)
                with Front(queue.log, "t") as front:
                    front._options = replace(front._options, segment_bytes=10_000)
                    for first in range(0, done[0], 2):
                        part = records[first : min(first + 2, done[0])]
                        front.add(encode(part, 0, 0), first)
                    prepend(queue.log, front, front.finish(), 0, joint_of(queue.log).seam)
            return is_unbroken

        monkeypatch.setattr(LogCopy, "catch_up", catch_up)
        store.backup(tmp_path / "kept")
        assert done
    tailrace.restore_backup(tmp_path / "kept", tmp_path / "copy")
    with tailrace.open(tmp_path / "copy", upkeep=False) as store:
        assert [message.value for message in store.stream("q").read()] == [
            b"%d" % number for number in range(40)
        ]
