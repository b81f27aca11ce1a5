"""More than a machine counts to is as many as there are."""

from __future__ import annotations

import pytest

import tailrace
from tests.cli.conftest import Shell


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("peek q w --limit", "value '2'"),
        ("read q --limit", "value '2'"),
        ("dead q --limit", "value '0'"),
        ("pending q w --max", "waiting"),
        ("delayed q --limit", "value 'later'"),
        ("redrive q --limit", "1 dead letter brought back"),
        ("consume q --group w --wait 0 --max", "value '2'"),
        ("dump data/queue/.tailrace/retained --limit", "looked"),
    ],
)
def test_as_many_as_there_are(shell: Shell, line: str, says: str) -> None:
    with tailrace.open(shell.store) as store:
        queue = store.queue("q")
        queue.publish_many([b"0", b"1", b"2"])
        queue.publish(b"later", delay=3600)
        with queue.consumer("w") as consumer:
            first, second = consumer.receive(2)
            first.reject("bad")
            second.nack(delay=3600)
    assert says in shell.ok(*line.split(), 10**23)
