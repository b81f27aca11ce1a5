"""A program that ends without closing its store ends all the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import tailrace
from tests.log.helpers import WAIT

pytestmark = pytest.mark.no_cover

# Each may hit the threads somewhere else.
TIMES = [4, pytest.param(12, marks=pytest.mark.long)]

_FORGETFUL = """
import sys, tailrace
store = tailrace.open(sys.argv[1])
jobs = store.queue("jobs")
jobs.publish(b"two cups")
consumer = jobs.consumer(group="workers")
for message in consumer.receive(10, wait=1.0):
    message.ack()
"""


@pytest.mark.parametrize("end", ["", "raise SystemExit(0)", "jobs.publish(b'later', delay='1h')"])
@pytest.mark.parametrize("times", TIMES)
def test_a_store_that_nobody_closes(tmp_path: Path, end: str, times: int) -> None:
    line = [sys.executable, "-c", _FORGETFUL + end, str(tmp_path)]
    programs = []
    for _ in range(times):
        with subprocess.Popen(line) as program:
            programs.append(program.wait(WAIT))
    assert programs == [0] * times
    with tailrace.open(tmp_path) as store:
        assert store.queue("jobs").consumer("workers").receive(1) == []
