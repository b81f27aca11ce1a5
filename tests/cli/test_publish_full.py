"""`tailrace publish` to a queue that holds only so many messages: lines go in as there is room."""

from __future__ import annotations

import signal
import subprocess

import pytest

import tailrace
from tests.cli.conftest import Shell, command
from tests.cli.test_publish import values

HOW_MANY = 50

WAYS = {
    "lines": (["-"], "".join(f"{number}\n" for number in range(HOW_MANY))),
    "json": (["--json"], "".join(f'{{"value": "{number}"}}\n' for number in range(HOW_MANY))),
    "names": (
        ["--json"],
        "".join(f'{{"value": "{n}", "id": "{n}"}}\n' for n in range(HOW_MANY)),
    ),
    "count": (["x", "--count", str(HOW_MANY)], ""),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("depth", [1, 7, 32])
def test_more_lines_than_the_queue_holds(shell: Shell, way: str, depth: int) -> None:
    """As many are published as fit, whatever came at once, and that is said."""
    shell.ok("create", "q", "--max-depth", depth)
    options, given = WAYS[way]
    done = shell("publish", "q", *options, stdin=given)
    assert (done.returncode, done.stdout) == (2, "")
    first, second = done.stderr.splitlines()
    offsets = "offset 0" if depth == 1 else f"offsets 0 to {depth - 1}"
    assert first == f"published {depth} message{'s' if depth > 1 else ''} to q, {offsets}"
    assert second.startswith("tailrace: the queue 'q' has as many messages that are not settled as")
    assert len(values(shell)) == depth


def test_more_lines_than_there_is_room_for(shell: Shell) -> None:
    shell.ok("create", "q", "--max-depth", "40")
    shell.ok("publish", "q", "x", "--count", "21")
    done = shell("publish", "q", stdin=WAYS["lines"][1])
    assert "published 19 messages to q, offsets 21 to 39\n" in done.stderr
    assert values(shell)[21:] == [b"%d" % number for number in range(19)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("depth", [1, 32])
def test_lines_that_wait_for_room(shell: Shell, way: str, depth: int) -> None:
    """Those who make it see what was published so far."""
    shell.ok("create", "q", "--max-depth", depth, "--on-full", "block")
    options, given = WAYS[way]
    with shell.started(
        "consume", "q", "-g", "g", "--max", HOW_MANY, "--values", "--wait", "50"
    ) as consumer:
        done = shell("publish", "q", *options, stdin=given)
        assert (done.returncode, done.stderr) == (0, "")
        out, _ = consumer.communicate(timeout=60)
    expected = ["x"] * HOW_MANY if way == "count" else list(map(str, range(HOW_MANY)))
    assert out.split() == expected


def test_lines_take_the_room_that_there_is(shell: Shell) -> None:
    """Some of it is taken for long: the others go on, and Ctrl-C says how many they were."""
    shell.ok("create", "q", "--max-depth", "10", "--on-full", "block")
    shell.ok("publish", "q", "kept", "--count", "4")
    with subprocess.Popen(
        command("publish", "q"),
        cwd=shell.folder,
        env=shell.environment,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(WAYS["lines"][1].encode())
        process.stdin.flush()
        with tailrace.open(shell.store) as store:
            follower = store.get("q").read(start=4, follow=True, timeout=30)
            assert [next(follower).value for _ in range(6)] == [b"%d" % n for n in range(6)]
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == b"published 6 messages to q, offsets 4 to 9\n"
        assert process.wait(30) == 130


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("depth", [1, 32])
def test_lines_that_take_the_place_of_others(shell: Shell, way: str, depth: int) -> None:
    shell.ok("create", "q", "--max-depth", depth, "--on-full", "drop_oldest")
    shell.ok("consume", "q", "-g", "g", "--wait", "0")
    options, given = WAYS[way]
    shell.ok("publish", "q", *options, stdin=given)
    left = shell.ok("consume", "q", "-g", "g", "--values", "--wait", "0").split()
    every = ["x"] * HOW_MANY if way == "count" else list(map(str, range(HOW_MANY)))
    assert left == every[-depth:]


def test_what_is_worked_on_is_not_dropped(shell: Shell) -> None:
    shell.ok("create", "q", "--max-depth", "10", "--on-full", "drop_oldest")
    shell.ok("publish", "q", "kept", "--count", "4")
    with tailrace.open(shell.store) as store:
        queue = store.get("q")
        assert isinstance(queue, tailrace.Queue)
        with queue.consumer("g") as consumer:
            held = consumer.receive(4)
            shell.ok("publish", "q", stdin=WAYS["lines"][1])
            consumer.ack(held)
            left = [message.value for message in consumer.receive(99)]
    assert left == [b"%d" % number for number in range(HOW_MANY - 6, HOW_MANY)]
