"""`tailrace read` of a queue in a store, by its name."""

from __future__ import annotations

import io
import json
import signal
import sys
import time

import pytest

import tailrace
from tailrace.cli import main
from tests.cli.conftest import Shell

T0 = 1_700_000_000_000


@pytest.fixture
def queue(shell: Shell) -> str:
    with tailrace.open(shell.store) as store:
        queue = store.queue("q")
        queue.publish(b"zero", key="k", headers={"a": "b"}, routing_key="eu", timestamp=T0)
        queue.publish(b"\xff\x00", timestamp=T0 + 1000)
        queue.publish(None, timestamp=T0 + 2000, ttl="1h", message_id="mine")
        with queue.consumer("g") as consumer:
            consumer.ack(consumer.receive(2))
    return "q"


def test_for_people(shell: Shell, queue: str) -> None:
    """All of them, settled or not, and without what is ours of their headers."""
    first, second, third = shell.ok("read", queue).splitlines()
    head = "0  2023-11-14T22:13:20.000Z  key 'k'  value 'zero'"
    assert first == f"{head}  headers 'a'='b'  routing key 'eu'"
    assert second == r"1  2023-11-14T22:13:21.000Z  value b'\xff\x00'"
    assert third.startswith("2  2023-11-14T22:13:22.000Z  value null  expires 20")


def test_for_programs(shell: Shell, queue: str) -> None:
    first, second, third = shell.items("read", queue)
    assert first == {
        "type": "message",
        "queue": "q",
        "offset": 0,
        "timestamp": T0,
        "key": "k",
        "value": "zero",
        "headers": [["a", "b"]],
        "topic": "$queue/q/eu",
        "routing_key": "eu",
        "message_id": "q:0",
    }
    assert second["value_base64"] == "/wA="
    assert (third["message_id"], third["id"]) == ("q:2", "mine")
    assert third["expires_at"] - time.time() * 1000 == pytest.approx(3_600_000, abs=60_000)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--start", "1"], [1, 2]),
        (["--start", "last"], [2]),
        (["--start", "next"], []),
        (["--end", "2"], [0, 1]),
        (["--max", "1"], [0]),
        (["--limit", "1"], [0]),
        (["--timestamp", str(T0 + 500)], [1, 2]),
        (["--timestamp", "2023-11-14T22:13:21Z"], [1, 2]),
        (["--start", "timestamp=2023-11-14T22:13:21Z"], [1, 2]),
        (["--start", "timestamp=1h"], []),
        (["--timestamp", "2023-11-14T23:13:21.001+01:00"], [2]),
        (["--follow", "--timeout", "0"], [0, 1, 2]),
    ],
)
def test_a_part(shell: Shell, queue: str, options: list[str], expected: list[int]) -> None:
    assert [item["offset"] for item in shell.items("read", queue, *options)] == expected


@pytest.mark.parametrize("timeout", ["0.1", "0.1s", "100ms"])
def test_how_long_to_follow(shell: Shell, queue: str, timeout: str) -> None:
    assert len(shell.items("read", queue, "--follow", "--timeout", timeout)) == 3


@pytest.mark.parametrize("timeout", ["nan", "-1", "inf", "soon", ""])
def test_what_is_no_timeout(shell: Shell, queue: str, timeout: str) -> None:
    said = shell.refused("read", queue, "--follow", "--timeout", timeout)
    assert f"'--timeout': '{timeout}' is not a duration; write it as 250ms" in said


def test_mistakes(shell: Shell, queue: str) -> None:
    assert "there is no queue 'x' in data/queue" in shell.refused("read", "x")
    assert "there is no queue 'x'" in shell.refused("read", "x", "--store", "data")
    assert "no such directory" in shell.refused("read", "some/where")
    assert "offset 9 is not in the log" in shell.refused("read", queue, "--start", "9")
    assert "is neither a time" in shell("read", queue, "--timestamp", "soon").stderr


def test_a_log_of_the_same_name_comes_first(shell: Shell, queue: str) -> None:
    with tailrace.Log(shell.folder / queue, upkeep=False) as log:
        log.append([b"the log's"]).wait()
    assert "the log's" in shell.ok("read", queue)
    assert "zero" in shell.ok("read", queue, "--store", "data")


def test_a_folder_of_the_same_name_is_no_log(shell: Shell, queue: str) -> None:
    (shell.folder / queue).mkdir()
    assert "zero" in shell.ok("read", queue)


def test_a_queue_with_a_slash(shell: Shell, queue: str) -> None:
    with tailrace.open(shell.store) as store:
        opened = store.queue(queue)
        opened.consumer("other").receive()[0].reject("no")
    assert "'_dlq_reason'='no'" in shell.ok("read", "$dlq/q")


def test_following(shell: Shell, queue: str) -> None:
    with shell.started("read", queue, "--start", "2", "-f", "--json") as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["id"] == "mine"  # it is there
        with tailrace.open(shell.store) as store:
            store.queue(queue).publish(b"new")
            assert json.loads(process.stdout.readline())["value"] == "new"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130


def test_following_a_queue_that_nobody_has_used(shell: Shell) -> None:
    shell.ok("create", "new")
    assert shell.ok("read", "new") == ""
    assert shell.ok("read", "new", "--follow", "--timeout", "0.1") == ""
    with shell.started("read", "new", "--follow", "--max", "1", "--values") as process:
        time.sleep(0.5)
        shell.ok("publish", "new", "first")
        written, errors = process.communicate(timeout=30)
    assert (written, errors) == ("first\n", "")


class Output(io.StringIO):
    """Knows how often somebody wanted it written."""

    flushes = 0

    def flush(self) -> None:
        self.flushes += 1


@pytest.mark.parametrize("arguments", [["read"], ["consume", "--group", "g", "--wait", "0"]])
def test_many_lines_are_written_together(
    arguments: list[str], shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not with a call of the system for each; the bytes are those of `json.dumps`."""
    with tailrace.open(shell.store, flush="none") as store:
        store.queue("q").publish_many([f"é {n}" for n in range(200)])
    output = Output()
    monkeypatch.setattr(sys, "stdout", output)
    main([*arguments, "q", "--json", "--store", str(shell.store)], standalone_mode=False)
    lines = output.getvalue().splitlines()
    assert [json.loads(line)["value"] for line in lines] == [f"é {n}" for n in range(200)]
    assert [json.dumps(json.loads(line)) for line in lines] == lines
    assert output.flushes < 10
