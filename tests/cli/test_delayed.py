"""`tailrace delayed` and `tailrace cancel`: what is to come, and what is not to come after all."""

from __future__ import annotations

import pytest

import tailrace
from tailrace.queue.delays import Delayed
from tests.cli.conftest import Shell

AT_MS = 4_000_000_000_000


@pytest.fixture
def ids(shell: Shell) -> list[str]:
    """Of three messages, in the order in which they come."""
    with tailrace.open(shell.store) as store:
        queue = store.queue("q")
        found = [
            queue.publish(b"last", deliver_at=AT_MS + 2_000),
            queue.publish(b"\xff\x00", deliver_at=AT_MS, key="k", routing_key="eu"),
            queue.publish(None, deliver_at=AT_MS + 1_000, headers={"a": "b"}),
        ]
    assert all(isinstance(each, Delayed) for each in found)
    return [found[index].delay_id for index in (1, 2, 0)]


def test_what_is_to_come(shell: Shell, ids: list[str]) -> None:
    assert shell.ok("delayed", "q").splitlines() == [
        f"{ids[0]}  2096-10-02T07:06:40.000Z  key 'k'  value b'\\xff\\x00'",
        f"{ids[1]}  2096-10-02T07:06:41.000Z  value null",
        f"{ids[2]}  2096-10-02T07:06:42.000Z  value 'last'",
    ]
    assert shell.ok("delayed", "q", "--limit", "1").splitlines()[1:] == ["… and 2 more"]


def test_for_programs(shell: Shell, ids: list[str]) -> None:
    first, second, third = shell.items("delayed", "q")
    assert first == {
        "type": "delayed",
        "queue": "q",
        "delay_id": ids[0],
        "deliver_at": AT_MS,
        "key": "k",
        "value_base64": "/wA=",
        "headers": [],
        "topic": "$queue/q/eu",
        "routing_key": "eu",
    }
    assert (second["value"], second["headers"]) == (None, [["a", "b"]])
    assert third["value"] == "last"
    assert [item["delay_id"] for item in shell.items("delayed", "q", "--limit", "2")] == ids[:2]


def test_to_another_queue(shell: Shell, ids: list[str]) -> None:
    """It comes there at the same time."""
    shell.ok("create", "other")
    shell.ok("publish", "other", "--json", stdin=shell.ok("delayed", "q", "--json"))

    def facts(queue: str) -> list[object]:
        left = ("queue", "topic", "delay_id")
        items = shell.items("delayed", queue)
        return [{key: item[key] for key in item if key not in left} for item in items]

    assert facts("other") == facts("q")


def test_to_another_queue_with_its_name_and_its_life(shell: Shell) -> None:
    with tailrace.open(shell.store) as store:
        store.queue("q").publish(b"x", delay=60, ttl=3600, message_id="mine")
        [before] = store.get("q").delayed()
        store.queue("other")
    assert before.id == "mine"
    assert before.expires_at is not None
    shell.ok("publish", "other", "--json", stdin=shell.ok("delayed", "q", "--json"))
    [item] = shell.items("delayed", "other")
    assert (item["id"], item["deliver_at"]) == ("mine", before.deliver_at)
    assert isinstance(item["expires_at"], int)
    assert abs(item["expires_at"] - before.expires_at) < 30_000  # it was counted from then on


def test_cancel(shell: Shell, ids: list[str]) -> None:
    assert shell.ok("cancel", "q", ids[1], ids[0]) == "q: 2 messages cancelled\n"
    assert [item["delay_id"] for item in shell.items("delayed", "q")] == ids[2:]
    [report] = shell.items("cancel", "q", ids[2])
    assert report == {"type": "cancelled", "queue": "q", "cancelled": ids[2:], "missing": []}
    assert shell.ok("delayed", "q") == "q: nothing is delayed\n"
    assert shell.items("delayed", "q") == []


def test_what_is_not_there(shell: Shell, ids: list[str]) -> None:
    """The others are cancelled all the same."""
    wrong = ["0-0-00000000", "nonsense"]
    done = shell("cancel", "q", wrong[0], ids[0], wrong[1])
    assert done.returncode == 1
    assert done.stdout == "q: 1 message cancelled\n"
    assert done.stderr.splitlines() == [
        f"tailrace: q: no message waits under the delay id {each}" for each in wrong
    ]
    done = shell("cancel", "q", *wrong, "--json")
    assert done.returncode == 1
    assert '"cancelled": [], "missing": ["0-0-00000000", "nonsense"]' in done.stdout


def test_what_was_delivered_is_not_cancelled(shell: Shell) -> None:
    shell.ok("create", "q")
    [report] = shell.items("publish", "q", "x", "--count", "1", "--delay", "200ms")
    shell.ok("consume", "q", "-g", "g", "--wait", "5", "--max", "1")
    assert shell("cancel", "q", *report["delay_ids"]).returncode == 1


def test_wrong_usage(shell: Shell, ids: list[str]) -> None:
    assert "there is no queue 'nope'" in shell.refused("delayed", "nope")
    assert "there is no queue 'nope'" in shell.refused("cancel", "nope", ids[0])
    assert "there is no store" in shell.refused("delayed", "q", "--store", "nowhere")
    for arguments in (["cancel", "q"], ["delayed", "q", "--limit", "0"], ["delayed"]):
        assert shell.refused(*arguments).endswith(f"; see tailrace {arguments[0]} --help")
    assert len(shell.items("delayed", "q")) == 3


def complete(shell: Shell, *words: str) -> list[str]:
    done = shell(
        _TAILRACE_COMPLETE="bash_complete",
        COMP_WORDS=" ".join(["tailrace", *words]),
        COMP_CWORD=str(len(words)),
    )
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


def test_a_shell_completes(shell: Shell, ids: list[str]) -> None:
    assert complete(shell, "del") == ["delayed", "delete"]
    assert complete(shell, "delayed", "") == ["q"]
    assert complete(shell, "cancel", "") == ["q"]
    assert complete(shell, "cancel", "q", ids[0][:3]) == ids
    before = shell.files()
    assert complete(shell, "cancel", "nope", "") == []
    assert shell.files() == before
