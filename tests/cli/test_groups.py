"""`tailrace groups` and `groups reset`, `pending`, `peek`, `dead` and `redrive`."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

import tailrace
from tests.cli.conftest import Shell

T0 = 1_700_000_000_000


@pytest.fixture
def queue(shell: Shell) -> str:
    """Ten messages, a second apart, of which the group `w` has settled 0 and 2, waits for 1, and
    has given back 3."""
    with tailrace.open(shell.store) as store:
        queue = store.queue("q")
        for number in range(10):
            queue.publish(b"%d" % number, key="k", timestamp=T0 + 1000 * number)
        with queue.consumer("w", id="me") as consumer:
            zero, one, two, three = consumer.receive(4)
            consumer.ack([zero, two])
            one.nack(delay=3600, error="why not")
            three.release()
    return "q"


@pytest.fixture
def stream(shell: Shell) -> str:
    with tailrace.open(shell.store) as store:
        stream = store.stream("s")
        stream.publish_many([b"%d" % number for number in range(10)])
        with stream.consumer("r", auto_commit=False) as consumer:
            consumer.receive(4)
            consumer.commit()
            consumer.receive(2)
    return "s"


def group_of(shell: Shell, queue: str, group: str) -> tailrace.GroupInfo:
    with tailrace.open(shell.store) as store:
        return next(each for each in store.get(queue).groups() if each.id == group)


# --- groups ---------------------------------------------------------------------------------


def test_groups(shell: Shell, queue: str) -> None:
    titles, row = shell.ok("groups", queue).splitlines()
    assert titles.split() == [
        "group",
        "committed",
        "ready",
        "leased",
        "waiting",
        "lag",
        "oldest",
        "members",
    ]
    name, committed, ready, leased, waiting, lag, *_oldest, members = row.split()
    assert (name, committed, ready, leased, waiting) == ("w", "1", "7", "0", "1")
    assert (lag, members) == ("9", "0")
    [found] = shell.items("groups", queue)
    [group] = found.pop("groups")
    assert found == {"type": "groups", "queue": "q"}
    assert (group["id"], group["cursor"], group["committed"]) == ("w", 4, 1)
    assert (group["ready"], group["waiting"], group["estimated"]) == (7, 1, False)


def test_the_long_form(shell: Shell, queue: str) -> None:
    """A queue may be called like a verb."""
    shell.ok("create", "reset")
    assert shell.ok("groups", "list", "reset") == "reset: no groups\n"
    assert shell.ok("groups", "list", queue).splitlines()[1].startswith("w ")
    assert "Usage: tailrace groups" in shell("groups").stderr


def test_members(shell: Shell, queue: str) -> None:
    with tailrace.open(shell.store) as store:
        opened = store.queue(queue)
        consumer = opened.consumer("w", id="somebody")
        consumer.receive(2)
        text = shell.ok("groups", queue, "--members")
        [found] = shell.items("groups", queue)
    assert "somebody" in text
    [member] = found["groups"][0]["members"]
    assert (member["id"], member["alive"]) == ("somebody", True)
    assert found["groups"][0]["leased"] == 2
    assert "somebody" not in shell.ok("groups", queue, "--members")


def test_a_stream_has_groups(shell: Shell, stream: str) -> None:
    [found] = shell.items("groups", stream)
    [group] = found["groups"]
    assert (group["committed"], group["ready"], group["lag"]) == (4, 6, 6)
    assert shell.items("peek", stream, "r")[0]["offset"] == 4


def test_a_damaged_group(shell: Shell, queue: str) -> None:
    """It is shown as such, and hides nothing else."""
    with tailrace.open(shell.store) as store:
        opened = store.queue(queue, compact_after=1)
        opened.consumer("fine").close()
        with opened.consumer("w") as consumer:
            for message in consumer.receive(5):
                message.ack()
        state = shell.store / "queue/queues/q/consumers/w/state.json"
        whole = state.read_bytes()
        state.write_bytes(whole.replace(b"cursor", b"cursed"))
        done = shell("groups", queue)
        assert done.returncode == 0
        assert [line.split()[0] for line in done.stdout.splitlines()] == ["group", "fine", "w"]
        assert done.stderr.startswith("!! the group 'w' of the queue 'q' cannot be read: ")
        assert "the group 'w' of the queue 'q' cannot be read" in shell.ok("stats")
        assert "cannot be read" in shell.refused("pending", queue, "w")
        state.write_bytes(whole)
        assert shell.items("groups", queue)[0]["groups"][1]["settled"] == 7


# --- reset ----------------------------------------------------------------------------------


def at(number: int) -> str:
    return datetime.fromtimestamp(T0 / 1000 + number, UTC).isoformat()


@pytest.mark.parametrize(
    ("arguments", "target"),
    [
        (["--to-earliest"], 0),
        (["--to-latest"], 10),
        (["--to-offset", "3"], 3),
        (["--to-offset", "10"], 10),
        (["--shift-by", "2"], 3),
        (["--shift-by", "-1"], 0),
        (["--shift-by", "-100"], 0),
        (["--shift-by", "100"], 10),
        (["--to-datetime", at(5)], 5),
        (["--to-datetime", at(5).removesuffix("+00:00")], 5),
        (["--to-datetime", str(T0 + 5001)], 6),
        (["--to-datetime", "2099-01-01"], 10),
        (["--to-datetime", "1999-01-01T00:00Z"], 0),
    ],
)
def test_reset(arguments: list[str], target: int, shell: Shell, queue: str) -> None:
    before = shell.files()
    [plan] = shell.items("groups", "reset", queue, "w", *arguments)
    assert plan == {
        "type": "reset",
        "queue": "q",
        "group": "w",
        "committed": 1,
        "target": target,
        "pending": 2,
        "members": [],
        "executed": False,
    }
    assert shell.files() == before
    [done] = shell.items("groups", "reset", queue, "w", *arguments, "--execute")
    assert done == {**plan, "executed": True}
    group = group_of(shell, queue, "w")
    assert (group.cursor, group.committed, group.pending) == (target, target, 0)


def test_reset_for_people(shell: Shell, queue: str) -> None:
    assert shell.ok("groups", "reset", queue, "w", "--to-earliest").splitlines() == [
        "q w: 1 → 0, delivers 1 offset again; drops 2 pending",
        "nothing was changed; to do it: --execute",
    ]
    said = shell.ok("groups", "reset", queue, "w", "--to-latest", "--execute")
    assert said == "q w: 1 → 10, leaves out 9 offsets; drops 2 pending\n"
    said = shell.ok("groups", "reset", queue, "w", "--to-latest", "--execute")
    assert said == "q w: 10 → 10, stays where it is\n"


def test_reset_of_a_stream(shell: Shell, stream: str) -> None:
    shell.ok("groups", "reset", stream, "r", "--to-offset", "2", "--execute")
    assert group_of(shell, stream, "r").committed == 2
    items = shell.items("consume", stream, "-g", "r", "--wait", "0")
    assert [item["offset"] for item in items] == list(range(2, 10))


def test_reset_is_refused_while_somebody_consumes(shell: Shell, queue: str) -> None:
    with tailrace.open(shell.store) as store:
        opened = store.queue(queue)
        consumer = opened.consumer("w", id="somebody")
        held = consumer.receive(2)
        plan = shell.ok("groups", "reset", queue, "w", "--to-latest")
        assert "in use by somebody" in plan
        said = shell.refused("groups", "reset", queue, "w", "--to-latest", "--execute")
        assert "is in use by somebody: stop them first, or use --force" in said
        consumer.extend(held)
        shell.ok("groups", "reset", queue, "w", "--to-latest", "--execute", "--force")
        with pytest.raises(tailrace.LeaseLost):
            consumer.ack(held)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["q", "w"], "tailrace: say where to: --to-earliest, "),
        (["q", "w", "--to-latest", "--to-earliest"], "tailrace: give one of --to-earliest, "),
        (["q", "w", "--shift-by", "-2", "--to-offset", "0"], "tailrace: give one of "),
        (["q", "w", "--to-offset", "11"], "offset 11 is not in the queue; a group can go to 0 to"),
        (["q", "w", "--to-offset", "-1"], "-1"),
        (["q", "w", "--to-datetime", "soon"], "is neither a time"),
        (["q", "nobody", "--to-latest", "--execute"], "has no group 'nobody'; it has 'w'"),
        (["nothing", "w", "--to-latest", "--execute"], "there is no queue 'nothing'"),
    ],
)
def test_reset_with_mistakes(arguments: list[str], message: str, shell: Shell, queue: str) -> None:
    before = shell.files()
    done = shell("groups", "reset", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert shell.files() == before


# --- pending and peek -----------------------------------------------------------------------


def test_pending(shell: Shell, queue: str) -> None:
    [found] = shell.items("pending", queue, "w")
    waiting, free = found.pop("messages")
    assert found == {"type": "pending", "queue": "q", "group": "w", "count": 2}
    assert (waiting["offset"], waiting["state"], waiting["last_error"]) == (1, "waiting", "why not")
    assert 3500 < waiting["left"] <= 3600
    assert (waiting["delivery_count"], waiting["consumer"]) == (1, "me")
    assert (free["offset"], free["state"], free["delivery_count"]) == (3, "free", 0)
    titles, first, second = shell.ok("pending", queue, "w").splitlines()
    assert titles.split() == ["offset", "state", "left", "deliveries", "consumer", "last", "error"]
    assert first.split()[:2] == ["1", "waiting"]
    assert second.split() == ["3", "free", "0", "me"]
    assert shell.ok("pending", queue, "w", "--limit", "1").endswith("… and 1 more\n")


def test_nothing_is_pending(shell: Shell, queue: str) -> None:
    shell.ok("groups", "reset", queue, "w", "--to-latest", "--execute")
    assert shell.ok("pending", queue, "w") == "q w: nothing is pending\n"


def test_pending_with_mistakes(shell: Shell, queue: str, stream: str) -> None:
    assert "has no group 'x'; it has 'w'" in shell.refused("pending", queue, "x")
    assert "is a stream" in shell.refused("pending", stream, "r")


def test_leases_that_are_over(shell: Shell, queue: str) -> None:
    """One who was killed has nothing any more, and one who is too slow does not keep it."""
    with tailrace.open(shell.store) as store:
        opened = store.queue(queue, visibility_timeout="50ms")
        consumer = opened.consumer("w")
        assert [message.offset for message in consumer.receive(2)] == [3, 4]
        states: list[str] = []
        while "expired" not in states:
            [found] = shell.items("pending", queue, "w")
            states = [each["state"] for each in found["messages"]]
        assert states == ["waiting", "expired", "expired"]
        assert [item["offset"] for item in shell.items("peek", queue, "w")] == list(range(3, 10))


def test_peek(shell: Shell, queue: str) -> None:
    items = shell.items("peek", queue, "w", "--limit", "3")
    assert [item["offset"] for item in items] == [3, 4, 5]
    assert [item["offset"] for item in shell.items("peek", queue)] == list(range(10))
    first, second = shell.ok("peek", queue, "w", "--limit", "2").splitlines()
    assert first == "3  2023-11-14T22:13:23.000Z  key 'k'  value '3'"
    assert second.startswith("4  ")
    assert "has no group 'x'" in shell.refused("peek", queue, "x")


@pytest.mark.parametrize("command", ["pending", "peek"])
def test_a_group_is_named_as_in_consume(shell: Shell, queue: str, command: str) -> None:
    plain = shell.ok(command, queue, "w")
    assert shell.ok(command, queue, "--group", "w") == plain
    assert shell.ok(command, "-g", "w", queue) == plain
    assert "has no group 'x'" in shell.refused(command, queue, "--group", "x")
    both = shell(command, queue, "w", "--group", "w")
    assert (both.returncode, "give one of them" in both.stderr) == (2, True)
    neither = shell(command, queue)
    assert neither.returncode == (2 if command == "pending" else 0)
    assert ("Missing argument 'GROUP'" in neither.stderr) == (command == "pending")


def test_peek_agrees_with_what_comes(shell: Shell) -> None:
    """With a filter, the order of keys, messages that have expired, and those for another group."""
    with tailrace.open(shell.store) as store:
        queue = store.queue("q", retry={"initial_backoff": 0})
        for number in range(40):
            where, ttl = ("eu" if number % 3 else "am"), ("1ms" if number % 7 == 0 else None)
            queue.publish(b"%d" % number, key=f"k{number % 4}", routing_key=where, ttl=ttl)
        for group, is_by_key in [("plain", False), ("keys", True)]:
            with queue.consumer(group, filter="eu/#", key_order=is_by_key) as consumer:
                for message in consumer.receive(5):
                    message.nack(error="again", delay=0)
    for group in ("plain@eu/#", "keys@eu/#"):
        peeked = [item["offset"] for item in shell.items("peek", "q", group, "--limit", "100")]
        with tailrace.open(shell.store) as store:
            opened = store.get("q")
            assert isinstance(opened, tailrace.Queue)
            assert peeked == [message.offset for message in opened.peek(group, 100)]
            assert peeked


# --- dead letters ---------------------------------------------------------------------------


@pytest.fixture
def dead(shell: Shell, queue: str) -> str:
    with tailrace.open(shell.store) as store:
        opened = store.queue(queue)
        for group in ("a", "b"):
            with opened.consumer(group) as consumer:
                for message in consumer.receive(3):
                    message.reject(f"{group} says no")
    return queue


def origins(items: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(item["group"], dict(item["headers"])["_dlq_original_offset"]) for item in items]


def test_dead(shell: Shell, dead: str) -> None:
    items = shell.items("dead", dead)
    expected = [(group, str(offset)) for group in "ab" for offset in range(3)]
    assert origins(items) == expected
    assert items[0]["reason"] == "a says no"
    assert origins(shell.items("dead", dead, "--group", "b")) == expected[3:]
    assert origins(shell.items("dead", dead, "--limit", "2")) == expected[:2]
    first, *_ = shell.ok("dead", dead).splitlines()
    assert first.startswith("0  20")
    assert first.endswith("group 'a'  was 0  key 'k'  value '0'  reason 'a says no'")


def test_no_dead_letters(shell: Shell, queue: str, stream: str) -> None:
    assert shell.ok("dead", queue) == ""
    assert shell.ok("dead", stream) == ""
    assert shell.ok("redrive", queue) == "q: 0 dead letters brought back\n"


def test_redrive(shell: Shell, dead: str) -> None:
    assert shell.ok("redrive", dead, "--offset", "1") == "q: 1 dead letter brought back\n"
    assert origins(shell.items("dead", dead))[:2] == [("a", "0"), ("a", "2")]
    [report] = shell.items("redrive", dead, "--group", "b", "--limit", "2")
    assert report == {"type": "redriven", "queue": "q", "count": 2, "missing": []}
    assert origins(shell.items("dead", dead)) == [("a", "0"), ("a", "2"), ("b", "2")]
    assert shell.items("redrive", dead)[0]["count"] == 3
    assert shell.ok("dead", dead) == ""
    consumed = shell.items("consume", dead, "-g", "b", "--wait", "0")
    assert [item["value"] for item in consumed] == [*"3456789", *"012"]
    assert {item["delivery_count"] for item in consumed} == {1}


def test_redrive_what_is_not_there(shell: Shell, dead: str) -> None:
    """Whoever names a letter is told that it did not come back."""
    done = shell("redrive", dead, "--offset", "99", "--offset", "1", "--offset", "99")
    assert done.returncode == 1
    assert done.stdout == "q: 1 dead letter brought back\n"
    assert done.stderr == "tailrace: q: no dead letter is at offset 99\n"
    again = shell("redrive", dead, "--offset", "1", "--json")  # somebody has dealt with it
    assert again.returncode == 1
    assert json.loads(again.stdout)["count"] == 0
    assert json.loads(again.stdout)["missing"] == [1]
    other = shell("redrive", dead, "--offset", "0", "--group", "b")
    assert other.returncode == 1
    assert other.stderr == "tailrace: q: no dead letter of the group 'b' is at offset 0\n"
    assert shell.items("redrive", dead, "--offset", "0", "--offset", "2", "--limit", "1") == [
        {"type": "redriven", "queue": "q", "count": 1, "missing": []}
    ]
    assert len(shell.items("dead", dead)) == 4


def test_redrive_an_offset_of_two_letters(shell: Shell, queue: str) -> None:
    with tailrace.open(shell.store) as store:
        for topic in ("", "graves"):
            opened = store.queue(queue, dlq={"topic": topic})
            opened.publish(b"x")
            opened.consumer("one").receive(1)[0].reject("no")
    assert "0 is a dead letter of 'q' both in" in shell.refused("redrive", queue, "--offset", "0")
    assert shell.items("redrive", queue)[0]["count"] == 2


def test_dead_letters_that_queues_share(shell: Shell) -> None:
    """Each sees its own."""
    with tailrace.open(shell.store) as store:
        for name in ("x", "y"):
            queue = store.queue(name, dlq={"topic": "dead"})
            queue.publish(name.encode())
            queue.consumer("g").receive()[0].reject("no")
    for name in ("x", "y"):
        assert [item["value"] for item in shell.items("dead", name)] == [name]
        [found] = shell.items("stats", name)
        assert found["queues"][0]["dead"] == 1
    shell.ok("redrive", "x")
    assert shell.ok("dead", "x") == ""
    assert json.loads(shell.ok("dead", "y", "--json"))["value"] == "y"


def test_letters_of_a_group_that_is_gone(shell: Shell) -> None:
    with tailrace.open(shell.store) as store:
        queue = store.queue("q")
        queue.publish(b"x")
        with queue.consumer("w") as consumer:
            consumer.reject(consumer.receive(1), "bad")
        queue.delete_group("w")
    done = shell("redrive", "q")
    assert done.stdout == "q: 0 dead letters brought back\n"
    assert done.stderr == "there are some of 'w': a group that is gone, so they stay\n"
    named = shell("redrive", "q", "--offset", "0")  # it is there
    assert (named.returncode, named.stderr) == (0, done.stderr)
