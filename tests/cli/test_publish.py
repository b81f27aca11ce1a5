"""`tailrace publish`: from arguments, lines, files and JSON, and what it says to mistakes."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import pty
import signal
import subprocess
import time
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

import tailrace
from tailrace.cli.messages import Line
from tailrace.cli.publish import _from_lines, _Publisher
from tailrace.queue.message import given_id
from tests.cli.conftest import Shell, command


@pytest.fixture
def queue(shell: Shell) -> str:
    with tailrace.open(shell.store) as store:
        store.queue("q")
    return "q"


def published(shell: Shell, queue: str = "q") -> list[tailrace.Message]:
    with tailrace.open(shell.store) as store:
        return list(store.get(queue).read())


def values(shell: Shell, queue: str = "q") -> list[bytes | None]:
    return [message.value for message in published(shell, queue)]


def test_a_value(shell: Shell, queue: str) -> None:
    arguments = ["--key", "k", "--header", "a=b", "--header", "a=c=d", "--routing-key", "eu/it"]
    arguments += ["--message-id", "mine", "--ttl", "1h"]
    said = shell.ok("publish", queue, "two cups", *arguments)
    assert said == "published 1 message to q, offset 0\n"
    [message] = published(shell)
    assert (message.value, message.key) == (b"two cups", b"k")
    assert list(message.headers.items()) == [("a", b"b"), ("a", b"c=d")]
    assert (message.routing_key, message.id) == ("eu/it", "mine")
    assert message.expires_at is not None
    assert message.expires_at - message.timestamp == pytest.approx(3_600_000, abs=5_000)


@pytest.mark.parametrize("dash", [[], ["-"]])
def test_lines(dash: list[str], shell: Shell, queue: str) -> None:
    """Bytes as they are; the last line need not have an end, and an empty one is a message."""
    said = shell.ok("publish", queue, *dash, "--key", "k", stdin=b"one\n\n\xff\x00\r\nlast")
    assert said == "published 4 messages to q, offsets 0 to 3\n"
    assert values(shell) == [b"one", b"", b"\xff\x00\r", b"last"]
    assert {message.key for message in published(shell)} == {b"k"}


def test_no_lines(shell: Shell, queue: str) -> None:
    assert shell.ok("publish", queue, stdin="") == "published 0 messages to q\n"


def test_many_lines(shell: Shell, queue: str) -> None:
    """In batches, and not one by one."""
    given = "".join(f"{number}\n" for number in range(100_000))
    said = shell.ok("publish", queue, "-", stdin=given)
    assert said.startswith("published 100000 messages to q, offsets 0 to 99999; ")
    assert values(shell) == [b"%d" % number for number in range(100_000)]
    with tailrace.open(shell.store) as store:
        assert sum(1 for _ in store.get(queue).log.read_batches()) < 1_000


def test_lines_as_they_come(shell: Shell, queue: str) -> None:
    """Whoever writes to a pipe need not fill it before something is published."""
    with subprocess.Popen(
        command("publish", queue),
        cwd=shell.folder,
        env=shell.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        with tailrace.open(shell.store) as store:
            follower = store.get(queue).read(follow=True, timeout=30)
            for number in range(3):
                process.stdin.write(f"{number}\n")
                process.stdin.flush()
                assert next(follower).value == b"%d" % number
        said, _ = process.communicate(timeout=30)
    assert said == "published 3 messages to q, offsets 0 to 2\n"


def test_files(shell: Shell, queue: str) -> None:
    for name, data in (("a", b"two\nlines\n"), ("b", b"\x00\xff")):
        (shell.folder / name).write_bytes(data)
    shell.ok("publish", queue, "--file", "a", "--file", "b", "--key", "k")
    assert values(shell) == [b"two\nlines\n", b"\x00\xff"]


def test_a_load(shell: Shell, queue: str) -> None:
    [report] = shell.items("publish", queue, "--count", "2500", "--size", "1KiB")
    assert report["count"] == 2500
    found = values(shell)
    assert len(found) == 2500
    assert {len(value or b"") for value in found} == {1024}
    assert len(set(found)) > 1000
    shell.ok("publish", queue, "same", "--count", "3")
    assert values(shell)[2500:] == [b"same"] * 3


# --- JSON -----------------------------------------------------------------------------------


def lines(*items: Any) -> str:
    return "".join(json.dumps(item) + "\n" for item in items)


def test_json(shell: Shell, queue: str) -> None:
    given = lines(
        {"value": "text", "key": "k", "headers": {"a": "b"}, "routing_key": "eu", "ttl": "1h"},
        {"value_base64": base64.b64encode(b"\xff\x00").decode(), "key_base64": "/w=="},
        {
            "value": None,
            "id": "mine",
            "message_id": "q:9",
            "headers": [["a", "1"], ["a", {"base64": "/w=="}]],
        },
        {"value": {"base64": "/wA="}, "key": {"base64": "/w=="}, "ttl": 60},
    )
    [report] = shell.items("publish", queue, stdin=given + "\n \n")
    assert (report["count"], report["first_offset"], report["last_offset"]) == (4, 0, 3)
    first, second, third, fourth = published(shell)
    assert (first.value, first.key, first.routing_key) == (b"text", b"k", "eu")
    assert first.headers["a"] == b"b"
    assert first.expires_at is not None
    assert (second.value, second.key) == (b"\xff\x00", b"\xff")
    assert (third.value, third.id) == (None, "mine")
    assert list(third.headers.items()) == [("a", b"1"), ("a", b"\xff")]
    assert (fourth.value, fourth.key) == (b"\xff\x00", b"\xff")


def test_from_one_queue_to_another(shell: Shell, queue: str) -> None:
    """What `read` and `consume` write, `publish` takes, and it is the same message."""
    with tailrace.open(shell.store) as store:
        source = store.queue("a")
        source.publish(b"plain")
        source.publish(b"\xff\x00", key=b"\xfe", routing_key="eu/it", message_id="mine")
        source.publish(None, headers=[("h", b"1"), ("h", b"\xff")], ttl="1h")
        store.queue("b")
        store.queue("c")
    shell.ok("publish", "b", "--json", stdin=shell.ok("read", "a", "--json"))
    consumed = shell.ok("consume", "b", "-g", "g", "--wait", "0", "--json")
    shell.ok("publish", "c", "--json", stdin=consumed)
    shell.ok("publish", "c", "--json", stdin=shell.ok("peek", "a", "--json"))

    def facts(message: tailrace.Message) -> object:
        headers = list(message.headers.items())
        named = given_id(message.record)
        return message.value, message.key, headers, message.routing_key, named

    expected = [facts(message) for message in published(shell, "a")]
    assert [facts(message) for message in published(shell, "b")] == expected
    assert [facts(message) for message in published(shell, "c")] == expected * 2
    until, again = (published(shell, name)[2].expires_at for name in "ab")
    assert until is not None
    assert again == until


def test_what_is_read_is_published_in_batches(shell: Shell, queue: str) -> None:
    """A number that nobody gave is no name, also of what has headers, or was a dead letter."""
    with tailrace.open(shell.store) as store:
        source = store.queue("a")
        source.publish_many([b"%d" % number for number in range(500)])
        source.publish_many([(None, b"%d" % number, {"h": "1"}) for number in range(500)])
        consumer = source.consumer("g")
        for message in consumer.receive(500):
            message.reject("no")
    shell.ok("publish", queue, "--json", stdin=shell.ok("read", "a", "--json"))
    shell.ok("publish", queue, "--json", stdin=shell.ok("dead", "a", "--json"))
    with tailrace.open(shell.store) as store:
        assert len(store.get(queue)) == 1_500
        assert sum(1 for _ in store.get(queue).log.read_batches()) < 50


def test_ids(shell: Shell, queue: str) -> None:
    """`message_id` is where a message is; `id` what its publisher called it, if anything."""
    for arguments in (["x"], ["y"], ["z", "--message-id", "7"]):
        shell.ok("publish", queue, *arguments)
    shell.ok("publish", queue, "--json", stdin=lines({"value": "u", "id": "8", "ttl": "1h"}))
    shell.ok("publish", queue, "--json", stdin=lines({"value": "v", "ttl": "1h"}))
    items = shell.items("read", queue)
    assert [item["message_id"] for item in items] == [f"q:{offset}" for offset in range(5)]
    assert [item.get("id") for item in items] == [None, None, "7", "8", None]


def test_once(shell: Shell, queue: str) -> None:
    once = ["--producer", "billing", "--sequence", "7", "--message-id", "mine", "--ttl", "1h"]
    for _ in range(2):
        said = shell.ok("publish", queue, "42.00", *once)
        assert said == "published 1 message to q, offset 0\n"
    given = lines(
        {"value": "42.00", "producer": "billing", "sequence": 7},
        {"value": "plain"},
        {"value": "43.00", "producer": "billing", "sequence": 8},
    )
    shell.ok("publish", queue, "--json", stdin=given)
    shell.ok("publish", queue, "--json", stdin=given)
    assert values(shell) == [b"42.00", b"plain", b"43.00", b"plain"]
    assert published(shell)[0].id == "mine"
    said = shell.refused("publish", queue, "x", "--producer", "billing", "--sequence", "3")
    assert "sequence 3 of producer 'billing' is below the last one, 8" in said
    said = shell.refused("publish", queue, "x", *once, "--delay", "1s")
    assert "a delayed message cannot have them" in said
    said = shell.refused("publish", queue, "--json", stdin=lines({"value": "x", "producer": "p"}))
    assert "a sequence is a whole number from 0 on, not None" in said


def test_a_message_whose_life_is_over_stays_so(shell: Shell, queue: str) -> None:
    shell.ok("publish", queue, "--json", stdin=lines({"value": "x", "expires_at": 1}))
    assert shell.ok("consume", queue, "-g", "g", "--wait", "0") == ""
    assert values(shell) == [b"x"]


def test_the_lines_of_a_bare_log(shell: Shell, queue: str, log: Path) -> None:
    written = shell.ok("read", log, "--json", "--limit", "3")
    shell.ok("publish", queue, "--json", stdin=written)
    assert values(shell) == [b"value 0", b"\xff\x00", None]


def test_dead_letters_are_published_without_what_became_of_them(shell: Shell, queue: str) -> None:
    with tailrace.open(shell.store) as store:
        work = store.queue("work")
        work.publish(b"x", headers={"a": "b"})
        work.consumer("g").receive()[0].reject("no")
    shell.ok("publish", queue, "--json", stdin=shell.ok("dead", "work", "--json"))
    [message] = published(shell)
    assert list(message.headers.items()) == [("a", b"b")]


def test_json_from_a_file(shell: Shell, queue: str) -> None:
    (shell.folder / "lines").write_text(lines({"value": "1"}, {"value": "2"}))
    shell.ok("publish", queue, "--json", "--file", "lines")
    assert values(shell) == [b"1", b"2"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "it is not JSON"),
        ("[1]", "it is no JSON object"),
        ('{"key": "k"}', 'it has no "value"'),
        ('{"value": 1}', "'value' is text or null, not 1"),
        ('{"value": "x", "vaule": 1}', "'vaule' is not known"),
        ('{"value": "x", "value_base64": ""}', "it has both 'value' and 'value_base64'"),
        ('{"value_base64": "%"}', "'value_base64' is not base64"),
        ('{"value_base64": 1}', "'value_base64' is not base64"),
        ('{"value": {"base64": "%"}}', "'value' is not base64"),
        ('{"value": "x", "headers": "a"}', "'headers' is an object"),
        ('{"value": "x", "headers": [["a"]]}', "'headers' is an object"),
        ('{"value": "x", "headers": {"a": null}}', "'headers' is an object"),
        ('{"value": "x", "routing_key": 1}', "'routing_key' is text"),
        ('{"value": "x", "ttl": true}', "'ttl' is a duration"),
        ('{"value": "x", "ttl": "soon"}', "not a duration"),
        ('{"value": "x", "ttl": "106752d"}', "ttl: '106752d' is too long; 292 years are the"),
        ('{"value": "x", "routing_key": "a/#"}', "#"),
        ('{"value": "x", "expires_at": "now"}', "'expires_at' is a number of milliseconds"),
        ('{"value": "x", "deliver_at": 2020}', "'deliver_at': 2020 milliseconds since 1970 are"),
        ('{"value": "x", "deliver_at": 999999999999999}', "not before the year 10000"),
        ('{"value": "x", "ttl": "soon", "id": "a"}', "not a duration"),
        ('{"value": "x", "id": "\\ud800"}', "'id' is no text: \"\\ud800\" has half of a"),
        ('{"value": "x", "producer": "p", "sequence": -1}', "sequence"),
        ('{"value": "x", "sequence": 1}', "producer"),
    ],
)
def test_a_wrong_line(line: str, message: str, shell: Shell, queue: str) -> None:
    """What was before it is published, and said so."""
    given = lines({"value": "1"}, {"value": "2"}) + line + "\n" + lines({"value": "3"})
    done = shell("publish", queue, "--json", stdin=given)
    assert done.returncode == 2
    assert done.stdout == ""
    first, second = done.stderr.splitlines()
    assert first == "published 2 messages to q, offsets 0 to 1"
    assert second.startswith("tailrace: line 3: ")
    assert message in second
    assert values(shell) == [b"1", b"2"]


@pytest.mark.parametrize("way", ["-", "--json"])
def test_a_line_that_does_not_end(way: str, shell: Shell) -> None:
    """It is refused when it is longer than any message: nobody reads on until memory ends."""
    with tailrace.open(shell.store) as store:
        options: dict[str, Any] = {"compression": "none", "max_batch_bytes": "1MiB"}
        store.queue("small", limits={"max_message_size": "1MiB"}, **options)
    begin = b"1\n" if way == "-" else b'{"value": "1"}\n'
    with subprocess.Popen(
        command("publish", "small", way),
        cwd=shell.folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(begin)
        with pytest.raises(BrokenPipeError):
            process.stdin.write(b" " * (64 << 20))
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        said = process.stderr.read().decode()
    assert process.returncode == 2
    first, second = said.splitlines()
    assert first == "published 1 message to small, offset 0"
    assert second.startswith("tailrace: line 2, as far as it was read: a ")
    assert second.endswith("_size is 1,048,576" if way == "-" else "_bytes is 1,048,576")
    assert values(shell, "small") == [b"1"]


@pytest.mark.parametrize("length", [1, 2, 3, 5, 1000, 69_999, 100_000])
def test_lines_in_pieces(length: int, tmp_path: Path) -> None:
    """What a pipe holds ends anywhere: lines, and their numbers, are the same."""
    given = b"one\n\n" + b"x" * 70_000 + b"\ntwo\nlast"

    class Pipe(io.BytesIO):
        def read1(self, size: int | None = -1, /) -> bytes:
            return super().read1(length)

    with tailrace.open(tmp_path) as store:
        publisher = _Publisher(store.queue("q"), keep_ids=False)
        portions = list(_from_lines(Line(None), Pipe(given), "line", False, publisher))
    found = [line.value for portion in portions for line in portion.lines]
    assert found == given.split(b"\n")
    counts = [len(portion.lines) for portion in portions]
    assert [each.number for each in portions] == [0, *accumulate(counts[:-1])]


def test_a_message_that_is_too_large(shell: Shell) -> None:
    shell.ok("create", "small", "--max-message-size", "3")
    done = shell("publish", "small", stdin="1\n22\n4444\n5\n")
    assert done.returncode == 2
    assert "published 2 messages to small, offsets 0 to 1" in done.stderr
    assert "tailrace: line 3: a message of 4 bytes is more than the queue" in done.stderr
    assert "limits.max_message_size is 3" in done.stderr
    assert values(shell, "small") == [b"1", b"22"]
    done = shell("publish", "small", "--json", stdin=lines({"value": "3"}, {"value": "4444"}))
    assert "tailrace: line 2: a message of 4 bytes is more than the queue" in done.stderr
    (shell.folder / "large").write_text("4444")
    said = shell.refused("publish", "small", "--file", "large")
    assert said.startswith("large: a message of 4 bytes is more than the queue 'small' takes")
    assert shell.refused("publish", "small", "4444").startswith("a message of 4 bytes ")


@pytest.mark.parametrize("size", ["100GiB", "99999999999999GiB"])
@pytest.mark.parametrize("limit", ["1KiB", "0"])
def test_a_load_for_which_there_is_no_memory(shell: Shell, size: str, limit: str) -> None:
    """Nobody asks for it before it is known to be too large."""
    shell.ok("create", "q", "--max-message-size", limit)
    said = shell.refused("publish", "q", "--count", "1", "--size", size)
    bytes_ = f"{int(size.removesuffix('GiB')) << 30:,}"
    assert said.startswith(f"a message of {bytes_} bytes")
    which = "max_batch_bytes is 16,777,216" if limit == "0" else "max_message_size is 1,024"
    assert said.endswith(which)


def test_a_file_for_which_there_is_no_memory(shell: Shell, queue: str) -> None:
    with open(shell.folder / "sparse", "wb") as file:
        file.truncate(100 << 30)
    said = shell.refused("publish", queue, "--file", "sparse")
    assert said.startswith("sparse: a message of 107,374,182,400 bytes is more than the queue 'q'")


def test_a_message_that_no_batch_holds(shell: Shell) -> None:
    with tailrace.open(shell.store) as store:
        store.queue("q", max_batch_bytes="1KiB", compression="none")
    done = shell("publish", "q", stdin="1\n" + "x" * 900 + "\n" + "x" * 2000 + "\n")
    assert "published 2 messages to q" in done.stderr
    said = done.stderr.splitlines()[-1]
    assert said.startswith("tailrace: line 3: a message of 2,0")
    assert said.endswith(" is more than the queue 'q' takes: max_batch_bytes is 1,024")
    key = lines({"value": "1"}, {"value": "2", "key": "k" * 2000})
    assert "tailrace: line 2: a message of 2,0" in shell("publish", "q", "--json", stdin=key).stderr


def test_a_queue_that_is_full_is_no_matter_of_a_line(shell: Shell) -> None:
    shell.ok("create", "q", "--max-depth", "1")
    shell.ok("publish", "q", "x")
    assert not shell.refused("publish", "q", stdin="1\n").startswith("line")


def test_until_when_does_not_drift(shell: Shell) -> None:
    """However often it is passed on, and however slowly."""
    at_ms = 4_000_000_000_000
    shell.ok("create", "a")
    written = lines(
        {"value": "x", "expires_at": at_ms + 7, "deliver_at": at_ms},
        {"value": "y", "expires_at": at_ms + 7},
        {"value": "z", "expires_at": at_ms + 7, "id": "mine"},
        {"value": "over", "expires_at": at_ms - 10**12 - 10**12},
    )
    for name in "abc":
        shell.ok("create", name, *(["--update"] if name == "a" else []))
        shell.ok("publish", name, "--json", stdin=written)
        items = [*shell.items("delayed", name), *shell.items("read", name)]
        assert [(item["value"], item["expires_at"]) for item in items] == [
            ("x", at_ms + 7),
            ("y", at_ms + 7),
            ("z", at_ms + 7),
            ("over", at_ms - 2 * 10**12),
        ]
        written = lines(*items)
    early = lines({"value": "x", "expires_at": at_ms, "deliver_at": at_ms})
    said = shell.refused("publish", "a", "--json", stdin=early)
    assert said.startswith("line 1: ttl: what is left of it from now on is over before it is due")


def test_a_life_that_ends_too_soon_has_a_unit(shell: Shell, queue: str) -> None:
    said = shell.refused("publish", queue, "x", "--ttl", "30m", "--delay", "1h")
    assert said == (
        "ttl: 1800 seconds from now on is over before it is due, in 3600 seconds: nobody would "
        "ever get the message"
    )


def test_a_short_life_ends(shell: Shell, queue: str) -> None:
    shell.ok("publish", queue, "x", "--ttl", "0.4ms")
    [message] = published(shell)
    assert message.expires_at is not None
    assert shell.ok("consume", queue, "-g", "g", "--wait", "0") == ""


def test_a_value_and_a_report_for_programs(shell: Shell) -> None:
    shell.ok("create", "q")
    text = '{"value": "not looked into"}'
    [report] = shell.items("publish", "q", text, "--key", "k", "--header", "a=b")
    assert (report["type"], report["queue"], report["count"]) == ("published", "q", 1)
    assert (report["first_offset"], report["last_offset"]) == (0, 0)
    [later] = shell.items("publish", "q", "later", "--delay", "1h")
    assert len(later["delay_ids"]) == 1
    [message] = shell.items("read", "q")
    assert (message["value"], message["key"], message["headers"]) == (text, "k", [["a", "b"]])


# --- mistakes -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["x", "--file", "data/queue/config/queues.json"], "exclude each other"),
        (["--size", "3"], "--size goes with --count"),
        (["-", "--count", "3"], "--count goes with VALUE or --size"),
        (["--json", "--key", "k"], "with --json everything is in the lines"),
        (["-", "--json", "--ttl", "1h"], "with --json everything is in the lines"),
        (["--json", "--file", "data/queue/config/queues.json", "--key", "k"], "with --json"),
        (["--message-id", "m"], "--message-id goes with one message"),
        (["x", "--producer", "p"], "--producer and --sequence go together"),
        (["x", "--sequence", "1"], "--producer and --sequence go together"),
        (["--producer", "p", "--sequence", "1"], "go with one message"),
        (["x", "--count", "2", "--producer", "p", "--sequence", "1"], "go with one message"),
        (["x", "--producer", "p", "--sequence", "-1"], "-1 is not in the range x>=0"),
        (["--json", "--producer", "p", "--sequence", "1"], "everything is in the lines"),
        (["x", "--header", "a"], "'a' is not NAME=VALUE"),
        (["x", "--header", "_a=b"], "reserved"),
        (["x", "--ttl", "soon"], "is not a duration"),
        (["x", "--ttl", "106752d"], "'106752d' is too long; 292 years are the most"),
        (["x", "--delay", "1s", "--deliver-at", "2030-01-01"], "exclude each other"),
        (["x", "--deliver-at", "soon"], "is neither a time"),
        (
            ["x", "--deliver-at", "2020"],
            "2020 milliseconds since 1970 are 1970-01-01T00:00:02.020Z",
        ),
        (["x", "--deliver-at", "1800000000"], "are 1970-01-21T20:00:00.000Z, which is long over"),
        (["x", "--deliver-at", "-5"], "which is long over"),
        (["x", "--deliver-at", "9" * 15], "not before the year 10000"),
        (["x", "--delay", "999999999d"], "not before the year 10000"),
        (["--file", "nothing"], "does not exist"),
    ],
)
def test_wrong_usage(arguments: list[str], message: str, shell: Shell, queue: str) -> None:
    done = shell("publish", queue, *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert values(shell) == []


def test_a_wrong_routing_key(shell: Shell, queue: str) -> None:
    assert "$ack" in shell.refused("publish", queue, "x", "--routing-key", "a/$ack")


def test_nobody_types(shell: Shell, queue: str) -> None:
    """On a terminal one has to say that one wants to type."""
    ours, theirs = pty.openpty()
    done = subprocess.run(
        command("publish", queue),
        cwd=shell.folder,
        env=shell.environment,
        stdin=theirs,
        capture_output=True,
        timeout=60,
        check=False,
    )
    os.close(ours)
    os.close(theirs)
    assert done.returncode == 2
    assert b"give a VALUE, or -" in done.stderr


def test_ctrl_c_says_what_was_published(shell: Shell, queue: str) -> None:
    with subprocess.Popen(
        command("publish", queue),
        cwd=shell.folder,
        env=shell.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"1\n2\n")
        process.stdin.flush()
        with tailrace.open(shell.store) as store:
            follower = store.get(queue).read(follow=True, timeout=30)
            assert [next(follower).value for _ in range(2)] == [b"1", b"2"]
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == b"published 2 messages to q, offsets 0 to 1\n"
        assert process.wait(30) == 130


def test_progress_for_those_who_watch(shell: Shell, queue: str) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command("publish", queue, "--count", "5000", "--size", "1KiB"),
        cwd=shell.folder,
        env={**shell.environment, "TERM": "xterm", "COLUMNS": "80"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                data = os.read(ours, 4096)
            except OSError:  # the other end is closed
                break
            shown += data
        assert process.wait(30) == 0
    os.close(ours)
    assert b"publish" in shown
    assert b"\xe2\x94\x81" in shown  # the bar


# --- later ----------------------------------------------------------------------------------


def test_a_delay(shell: Shell, queue: str) -> None:
    said = shell.ok("publish", queue, "later", "--delay", "1h")
    assert said.startswith("published 1 message to q, delay id ")
    at_ms = 4_000_000_000_000
    given = lines(
        {"value": "1", "delay": "1h"}, {"value": "2", "deliver_at": at_ms}, {"value": "3"}
    )
    [report] = shell.items("publish", queue, stdin=given)
    assert (report["count"], report["first_offset"], report["last_offset"]) == (3, 0, 0)
    assert len(set(report["delay_ids"])) == 2
    assert values(shell) == [b"3"]
    [found] = shell.items("stats", queue)
    assert found["queues"][0]["delayed"] == 3


def test_several_delays(shell: Shell, queue: str) -> None:
    """All ids for programs, the first and the last for people."""
    [report] = shell.items("publish", queue, "x", "--count", "3", "--delay", "1h")
    items = shell.items("delayed", queue)
    assert report["delay_ids"] == [item["delay_id"] for item in items]
    said = shell.ok("publish", queue, "y", "--count", "5", "--delay", "2h")
    ids = [item["delay_id"] for item in shell.items("delayed", queue)][3:]
    assert said == (f"published 5 messages to q, 5 to come later: delay ids {ids[0]} … {ids[-1]}\n")


def test_what_is_due_comes(shell: Shell, queue: str) -> None:
    shell.ok("publish", queue, "now", "--deliver-at", "2020-01-01T00:00Z")
    shell.ok("publish", queue, "soon", "--delay", "300ms")
    items = shell.items("consume", queue, "-g", "g", "--wait", "3", "--max", "2")
    assert [item["value"] for item in items] == ["now", "soon"]


def test_what_is_long_due_is_kept_as_if_published_now(shell: Shell) -> None:
    shell.ok("create", "q", "--type", "stream", "--max-age", "1h")
    shell.ok("publish", "q", "option", "--deliver-at", "2020-01-01T00:00Z")
    shell.ok("publish", "q", "--json", stdin=lines({"value": "json", "deliver_at": 1577836800000}))
    shell.ok("consume", "q", "-g", "g", "--wait", "3", "--max", "2")
    shell.ok("vacuum", "q")
    items = shell.items("read", "q")
    assert [item["value"] for item in items] == ["option", "json"]
    assert min(item["timestamp"] for item in items) > (time.time() - 600) * 1000


def test_json_that_only_python_takes(shell: Shell, queue: str) -> None:
    """Half of a surrogate pair is what `--json` writes of bytes that it shows as text, and a number
    too large for others is one."""
    lines = '{"value": "\\ud800", "timestamp": 1e999}\n{"value": "b", "offset": NaN}\n'
    shell.ok("publish", queue, "--json", stdin=lines)
    with tailrace.open(shell.store) as store:
        assert [each.value for each in store.get(queue).read()] == [b"\xed\xa0\x80", b"b"]
