"""`tailrace consume`: what is written is acknowledged, what is not comes back."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import termios
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import tailrace
from tests.cli.conftest import Shell


@pytest.fixture
def queue(shell: Shell) -> str:
    with tailrace.open(shell.store) as store:
        queue = store.queue("q", retry={"max_retries": 1, "initial_backoff": 0})
        queue.publish(b"one", key="k", headers={"a": "b"}, routing_key="eu/it", message_id="mine")
        queue.publish_many([b"two", b"\xff\x00", None])
    return "q"


@contextmanager
def opened(shell: Shell) -> Iterator[tailrace.Store]:
    with tailrace.open(shell.store) as store:
        yield store


def left(shell: Shell, group: str = "g") -> list[int]:
    """The offsets that a group has not settled; nobody has a lease on one."""
    with opened(shell) as store:
        queue = store.get("q")
        assert isinstance(queue, tailrace.Queue)
        assert {each.state for each in queue.pending(group)} <= {"free", "waiting"}
        return sorted(message.offset for message in queue.peek(group, 100_000))


def test_for_people(shell: Shell, queue: str) -> None:
    first, second, third, fourth = shell.ok("consume", queue, "-g", "g", "--wait", "0").splitlines()
    assert first.startswith("0  20")
    assert first.endswith("key 'k'  value 'one'  headers 'a'='b'  routing key 'eu/it'")
    assert second.endswith("value 'two'")
    assert third.endswith(r"value b'\xff\x00'")
    assert fourth.endswith("value null")
    assert left(shell) == []
    assert shell.ok("consume", queue, "-g", "g", "--wait", "0") == ""
    assert len(shell.ok("consume", queue, "-g", "other", "--wait", "0").splitlines()) == 4


def test_for_programs(shell: Shell, queue: str) -> None:
    first, *_, third, fourth = shell.items("consume", queue, "-g", "g", "--wait", "0")
    timestamp = first.pop("timestamp")
    assert abs(timestamp - time.time() * 1000) < 3_600_000
    assert first == {
        "type": "message",
        "queue": "q",
        "offset": 0,
        "key": "k",
        "value": "one",
        "headers": [["a", "b"]],
        "topic": "$queue/q/eu/it",
        "routing_key": "eu/it",
        "message_id": "q:0",
        "id": "mine",
        "group": "g",
        "delivery_count": 1,
    }
    assert third["value_base64"] == "/wA="
    assert "value" not in third
    assert fourth["value"] is None


def test_values_alone(shell: Shell, queue: str) -> None:
    written = shell.ok("consume", queue, "-g", "g", "--wait", "0", "--max", "2", "--values")
    assert written == "one\ntwo\n"
    assert left(shell) == [2, 3]


def test_a_filter(shell: Shell, queue: str) -> None:
    [item] = shell.items("consume", queue, "-g", "g", "--filter", "eu/#", "--wait", "0")
    assert item["offset"] == 0
    with opened(shell) as store:
        assert store.get(queue).group_ids() == ["g@eu/#"]


def test_no_ack(shell: Shell, queue: str) -> None:
    """Each is shown once, and all of them are as they were."""
    for _ in range(2):
        items = shell.items("consume", queue, "-g", "g", "--no-ack", "--wait", "0.2")
        assert [(item["offset"], item["delivery_count"]) for item in items] == [
            (0, 1),
            (1, 1),
            (2, 1),
            (3, 1),
        ]
    assert left(shell) == [0, 1, 2, 3]
    assert len(shell.ok("consume", queue, "-g", "g", "--no-ack", "--max", "2").splitlines()) == 2


def test_no_ack_keeps_what_it_shows(shell: Shell, queue: str) -> None:
    """However short leases are, none comes twice."""
    shell.ok("create", queue, "--update", "--visibility-timeout", "300ms")
    items = shell.items("consume", queue, "-g", "g", "--no-ack", "--wait", "1")
    assert [item["offset"] for item in items] == [0, 1, 2, 3]
    assert left(shell) == [0, 1, 2, 3]


def test_what_comes_later(shell: Shell, queue: str) -> None:
    with shell.started("consume", queue, "-g", "g", "--max", "6", "--json") as process:
        assert process.stdout is not None
        seen = [json.loads(process.stdout.readline())["offset"] for _ in range(4)]
        with opened(shell) as store:
            store.get(queue).publish(b"five")
            seen.append(json.loads(process.stdout.readline())["offset"])
            store.get(queue).publish(b"six")
            seen.append(json.loads(process.stdout.readline())["offset"])
        assert process.wait(30) == 0
    assert seen == [0, 1, 2, 3, 4, 5]
    assert left(shell) == []


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals(signum: int, code: int, shell: Shell, queue: str) -> None:
    with shell.started("consume", queue, "-g", "g") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for _ in range(4):
            process.stdout.readline()
        wait_for(lambda: left(shell) == [])
        process.send_signal(signum)
        assert process.wait(30) == code
        assert process.stderr.read() == ""
    assert left(shell) == []


def wait_for(condition: object) -> None:
    deadline = time.monotonic() + 30
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_signal_while_nobody_reads(shell: Shell, queue: str) -> None:
    """Of what does not fit into the pipe nothing is acknowledged, and it comes back."""
    with opened(shell) as store:
        store.get(queue).publish_many([b"x" * 10_000 for _ in range(100)])
    with shell.started("consume", queue, "-g", "g", "--values") as process:
        assert process.stderr is not None
        wait_for(lambda: waiting_bytes(process) > 50_000)
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stderr.read() == ""
    assert left(shell)[-1] == 103
    assert len(left(shell)) >= 4


def waiting_bytes(process: subprocess.Popen[str]) -> int:
    """What it has written and we have not read."""
    assert process.stdout is not None
    size = array("i", [0])
    fcntl.ioctl(process.stdout, termios.FIONREAD, size)
    return size[0]


def test_a_reader_that_goes_away(shell: Shell, queue: str) -> None:
    with opened(shell) as store:
        store.get(queue).publish_many([b"x" * 1000 for _ in range(1000)])
    with shell.started("consume", queue, "-g", "g", "--values") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "one\n"
        process.stdout.close()
        assert process.wait(30) == 141
        assert process.stderr.read() == ""
    assert left(shell)[-1] == 1003


def test_one_that_is_killed(shell: Shell, queue: str) -> None:
    """Its messages come back by themselves."""
    with shell.started("consume", queue, "-g", "g", "--exec", "sleep 3") as process:
        wait_for(lambda: leased(shell) == 1)
        process.kill()
        process.wait(30)
    shell.ok("consume", queue, "-g", "g", "--wait", "2", "--max", "4")
    assert left(shell) == []


def leased(shell: Shell) -> int:
    with opened(shell) as store:
        return store.get("q").stats().leased


# --- commands -------------------------------------------------------------------------------


def test_a_command_for_each(shell: Shell, queue: str) -> None:
    words = "$TAILRACE_QUEUE $TAILRACE_OFFSET $TAILRACE_KEY $TAILRACE_ROUTING_KEY"
    words += " $TAILRACE_DELIVERY_COUNT $TAILRACE_MESSAGE_ID $TAILRACE_ID"
    script = f'cat; echo " {words}"'
    written = shell.ok("consume", queue, "-g", "g", "--max", "2", "--exec", script)
    assert written.splitlines() == ["one q 0 k eu/it 1 q:0 mine", "two q 1   1 q:1 "]
    assert left(shell) == [2, 3]


def test_a_command_that_fails(shell: Shell, queue: str) -> None:
    """It is tried again as the queue says, and becomes a dead letter."""
    done = shell("consume", queue, "-g", "g", "--wait", "0.5", "--exec", "exit 3")
    assert done.returncode == 0
    assert done.stderr.count("exit 3: exit status 3") == 8
    assert left(shell) == []
    with opened(shell) as store:
        letters = store.dead(queue)
        assert sorted(m.headers["_dlq_original_offset"] for m in letters) == [
            b"0",
            b"1",
            b"2",
            b"3",
        ]
        assert b"exit status 3" in letters[0].headers["_dlq_reason"]


def test_a_message_that_no_command_can_get(shell: Shell, queue: str) -> None:
    """It fails, and the others are worked on."""
    with opened(shell) as store:
        store.get(queue).publish(b"five", key=b"k" * 200_000)
        store.get(queue).publish(b"six")
    done = shell("consume", queue, "-g", "g", "--wait", "0.5", "--exec", "true")
    assert done.returncode == 0
    said = "true: TAILRACE_KEY would be 200,000 bytes: Argument list too long"
    assert done.stderr.count(said) == 2
    assert left(shell) == []
    with opened(shell) as store:
        [letter] = store.dead(queue)
        assert letter.value == b"five"
        assert said.encode() in letter.headers["_dlq_reason"]


def test_a_command_that_reads_nothing(shell: Shell, queue: str) -> None:
    with opened(shell) as store:
        store.get(queue).publish(b"x" * 1_000_000)
    shell.ok("consume", queue, "-g", "g", "--max", "5", "--exec", "true")
    assert left(shell) == []


def test_a_command_keeps_its_lease(shell: Shell, queue: str) -> None:
    shell.ok("create", queue, "--update", "--visibility-timeout", "300ms")
    done = shell("consume", queue, "-g", "g", "--max", "1", "--exec", "sleep 1")
    assert (done.returncode, done.stderr) == (0, "")
    assert left(shell) == [1, 2, 3]


def test_a_signal_while_a_command_runs(shell: Shell, queue: str) -> None:
    """The command is told, and its message given back, as if it had not been delivered."""
    with shell.started("consume", queue, "-g", "g", "--exec", "exec sleep 60") as process:
        wait_for(lambda: leased(shell) == 1)
        time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 143
    assert left(shell) == [0, 1, 2, 3]
    [item] = shell.items("consume", queue, "-g", "g", "--max", "1")
    assert item["delivery_count"] == 1


# --- streams --------------------------------------------------------------------------------


@pytest.fixture
def stream(shell: Shell) -> str:
    with opened(shell) as store:
        store.stream("s").publish_many([b"1", b"2", b"3"])
    return "s"


def committed(shell: Shell, group: str = "g") -> int:
    with opened(shell) as store:
        return next(each.committed for each in store.get("s").groups() if each.id == group)


def test_a_stream(shell: Shell, stream: str) -> None:
    assert shell.ok("consume", stream, "-g", "g", "--max", "2", "--values") == "1\n2\n"
    assert committed(shell) == 2
    written = shell.ok("consume", stream, "-g", "g", "--no-ack", "--wait", "0", "--values")
    assert written == "3\n"
    assert committed(shell) == 2
    assert shell.ok("consume", stream, "-g", "g", "--wait", "0", "--values") == "3\n"
    assert committed(shell) == 3


def test_a_command_for_a_stream(shell: Shell, stream: str) -> None:
    """What fails there is not tried again by itself: the group stays before it."""
    done = shell("consume", stream, "-g", "g", "--exec", "grep -v 2")
    assert done.returncode == 2
    assert done.stdout == "1\n"
    assert "s:1: grep -v 2: exit status 1; the group 'g' has not gone on" in done.stderr
    assert committed(shell) == 1


# --- mistakes -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Missing option '--group'"),
        (["-g", "g", "--json", "--values"], "exclude each other"),
        (["-g", "g", "--exec", "true", "--json"], "--exec takes none of"),
        (["-g", "g", "--exec", "true", "--no-ack"], "--exec takes none of"),
        (["-g", "g", "--wait", "soon"], "is not a duration"),
        (["-g", "g", "--max", "0"], "0"),
        (["-g", ""], "must not be empty"),
        (["-g", "g", "--filter", "a/#/b"], "a/#/b"),
    ],
)
def test_wrong_usage(arguments: list[str], message: str, shell: Shell, queue: str) -> None:
    done = shell("consume", queue, *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    with opened(shell) as store:
        assert store.get(queue).group_ids() == []


def test_a_full_pipe_is_written_to_the_end(shell: Shell, queue: str) -> None:
    """Nothing is lost between two commands, whatever the sizes."""
    with opened(shell) as store:
        store.get(queue).publish_many([os.urandom(3000) for _ in range(500)])
        store.queue("copy")
    with shell.started("consume", queue, "-g", "g", "--wait", "0", "--json") as first:
        second = shell("publish", "copy", "--json", stdin=first.communicate(timeout=60)[0])
    assert second.returncode == 0
    with opened(shell) as store:
        assert [m.value for m in store.get("copy").read()] == [
            m.value for m in store.get(queue).read()
        ]


def test_processes_share_a_group(shell: Shell, queue: str) -> None:
    with opened(shell) as store:
        store.get(queue).publish_many([b"%d" % number for number in range(500)])
    workers: list[subprocess.Popen[str]] = [
        shell.started("consume", queue, "-g", "g", "--wait", "1", "--json") for _ in range(3)
    ]
    seen: list[int] = []
    for worker in workers:
        written, errors = worker.communicate(timeout=60)
        assert (worker.returncode, errors) == (0, "")
        seen += [json.loads(line)["offset"] for line in written.splitlines()]
    assert sorted(seen) == list(range(504))


def test_the_help_says_for_how_long_it_waits(shell: Shell) -> None:
    said = " ".join(shell.ok("consume", "--help").split())
    assert "Without --wait it waits until N have come, for ever if need be." in said
    assert "To take up to N of those that are there: --max N --wait 0." in said
