"""`tailrace stats`, for people and for programs, once and again and again."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
from pathlib import Path

import click
import pytest

import tailrace
from tailrace.cli.output import table_lines
from tests.cli.conftest import Shell, command


@pytest.fixture
def filled(shell: Shell) -> Shell:
    with tailrace.open(shell.store) as store:
        orders = store.queue("orders", segment_bytes=4096, compression="none")
        for _ in range(5):
            orders.publish_many([b"x" * 1000] * 4)
        with orders.consumer("w") as consumer:
            consumer.ack(consumer.receive(3))
            consumer.receive(1)[0].reject("no")
        orders.consumer("idle").close()
        store.stream("events").publish_many([b"1", b"2"])
    return shell


def test_for_people(filled: Shell) -> None:
    dead, events, idle, work, remark, disk = filled.ok("stats").splitlines()[1:]
    assert dead.split()[:6] == ["$dlq/orders", "$dead", "1", "0", "0", "1"]
    assert events.split()[:5] == ["events", "2", "0", "0", "2"]
    assert idle.split()[:6] == ["orders", "idle", "20", "0", "0", "20"]
    assert idle.split()[-3:-2] == ["1"]  # one dead letter
    assert work.split()[:5] == ["w", "16", "0", "0", "16"]
    assert remark.startswith("orders: the group 'idle' keeps ")
    assert remark.endswith(" KiB from being deleted")
    assert re.fullmatch(r"disk: \d+% used, [\d.]+ .?i?B free", disk)


def test_a_disk_that_is_too_full(filled: Shell) -> None:
    """As the configuration says; without queues as well."""
    file = filled.store / "tailrace.yaml"
    file.write_text("storage: {disk: {max_used_ratio: 0.000000001, refuse_ratio: 1.0}}\n")
    assert filled.ok("stats").splitlines()[-1].endswith(" free; what may go is deleted at once")
    assert filled.items("stats")[0]["disk"]["level"] == "high"
    (filled.store / "queue" / ".tailrace" / "reserve").unlink()
    file.write_text("storage: {disk: {max_used_ratio: 1e-9, refuse_ratio: 1e-9}}\n")
    last = filled.ok("stats", "events").splitlines()[-1]
    assert last.endswith("; publishing is refused; the reserve for consumers is not there")
    [found] = filled.items("stats")
    assert (found["disk"]["level"], found["disk"]["reserve"]) == ("refusing", False)
    assert "tailrace_disk_refusing 1\n" in filled.ok("stats", "--prometheus")


def test_what_was_dropped(shell: Shell) -> None:
    limits = ("--set", "limits.max_depth=1", "--set", "limits.on_full=drop_oldest")
    shell.ok("create", "small", *limits)
    shell.ok("consume", "small", "-g", "w", "--wait", "0")
    shell.ok("publish", "small", "x")
    shell.ok("publish", "small", "y")
    assert "small: to make room, 1 message of 'w' was dropped" in shell.ok("stats")
    shell.ok("create", "events", "--type", "stream", *limits)
    shell.ok("publish", "events", stdin="x\n")
    shell.ok("publish", "events", stdin="y\n")
    assert "events: to make room, 1 message was dropped" in shell.ok("stats")
    [found] = [each for each in shell.items("stats")[0]["queues"] if each["name"] == "events"]
    assert found["dropped"] == 1


def test_a_damaged_schedule(filled: Shell) -> None:
    """It is shown as such, and hides nothing else."""
    filled.ok("create", "broken")
    filled.ok("publish", "broken", "x", "--delay", "1h")
    before = filled.items("stats")[0]["queues"]
    assert [each["delayed"] for each in before if each["name"] == "broken"] == [1]
    [manifest] = filled.store.rglob("schedule.json")
    manifest.write_text('{"format": 1}')
    text = filled.ok("stats")
    [row] = [line for line in text.splitlines() if line.startswith("broken ")]
    assert row.split()[-4:-2] == ["?", "0"]
    assert "broken: what is delayed cannot be read: " in text
    after = filled.items("stats")[0]["queues"]
    assert [each["name"] for each in after if "error" in each] == ["broken"]
    assert len(after) == len(before)
    assert 'tailrace_queue_damaged{queue="broken"} 1' in filled.ok("stats", "--prometheus")
    assert "is damaged" in filled.refused("delayed", "broken")


def test_for_programs(filled: Shell) -> None:
    [found] = filled.items("stats", "orders")
    assert found["type"] == "stats"
    [orders] = found["queues"]
    assert orders["kind"] == "classic"
    assert (orders["name"], orders["ready"], orders["dead"]) == ("orders", 36, 1)
    assert orders["estimated"] is False
    assert orders["pinned_by"] == "idle"
    assert 0 < orders["pinned_bytes"] < orders["bytes"]
    assert orders["rates"] is None
    idle, work = orders["groups"]
    assert (idle["id"], idle["lag"]) == ("idle", 20)
    assert (work["id"], work["lag"], work["settled"], work["leased"]) == ("w", 16, 4, 0)
    [everything] = filled.items("stats")
    assert [each["name"] for each in everything["queues"]] == ["$dlq/orders", "events", "orders"]


def test_estimates_are_marked(shell: Shell) -> None:
    with tailrace.open(shell.store) as store:
        queue = store.queue("q", flush="async")
        queue.publish_many([b"x"] * 1500, routing_key="eu")
        queue.publish_many([b"x"] * 1500, routing_key="am")
        queue.consumer("g", filter="eu/#").close()
        store.queue("none", flush="async").publish_many([b"x"] * 1500)
    written = shell.ok("stats")
    assert " ~3,000 " in written
    assert " ~1,500 " in written
    assert "~" in shell.ok("groups", "q")
    [found] = shell.items("stats")
    assert {each["estimated"] for each in found["queues"]} == {True}
    [found] = shell.items("stats", "--exact")
    none, queue_item = found["queues"]
    assert (queue_item["ready"], queue_item["estimated"]) == (1500, False)
    assert (none["ready"], none["estimated"]) == (1500, False)
    assert "~" not in shell.ok("groups", "q", "--exact")


def test_rates(shell: Shell) -> None:
    shell.ok("create", "q")
    with (
        shell.started("stats", "--watch", "--interval", "200ms", "--json") as process,
        tailrace.open(shell.store) as store,
    ):
        queue = store.queue("q")
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["queues"][0]["rates"] is None
        queue.publish_many([b"x"] * 10)
        with queue.consumer("g") as consumer:
            consumer.receive(1)
            rates: list[dict[str, float]] = []
            while not any(rate["settled"] for rate in rates):
                held = consumer.receive(1)
                consumer.ack(held)
                rates.append(json.loads(process.stdout.readline())["queues"][0]["rates"])
        assert any(rate["published"] > 0 for rate in rates)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    [found] = shell.items("stats", "--rates", "--interval", "10ms")
    assert found["queues"][0]["rates"] == {"published": 0.0, "settled": 0.0}
    titles = shell.ok("stats", "--rates", "--interval", "10ms").splitlines()[0]
    assert titles.endswith("published/s  settled/s")


def test_watching(filled: Shell) -> None:
    written = filled.ok("stats", "events", "--watch", "--times", "3", "--interval", "10ms")
    assert written.count("events") == 3
    assert "\x1b" not in written
    assert "--times goes with --watch" in filled("stats", "--times", "3").stderr


@pytest.mark.parametrize("how", [["--watch", "--times", "2"], ["--rates"]])
def test_an_interval_that_nobody_lives_through(filled: Shell, how: list[str]) -> None:
    said = filled.refused("stats", *how, "--interval", "292000d")
    assert "'--interval': '292000d' is too long; 292 years are the most" in said
    with filled.started("stats", "--watch", "--times", "2", "--interval", "106751d") as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("queue ")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "")


def test_watching_on_a_terminal(filled: Shell, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command("stats", "--watch", "--times", "2", "--interval", "10ms"),
        cwd=filled.folder,
        env={**filled.environment, "TERM": "xterm", "COLUMNS": "80"},
        stdout=theirs,
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
    assert shown.count(b"\x1b[2J") == 2
    lines = shown.decode().replace("\x1b[H\x1b[2J", "").splitlines()
    plain = [line for line in lines if "\x1b" not in line]
    assert plain
    assert max(map(len, plain)) <= 80


def test_a_queue_that_goes_while_it_is_watched(filled: Shell) -> None:
    with filled.started("stats", "events", "--watch", "--interval", "50ms", "--json") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        with tailrace.open(filled.store) as store:
            store.delete("events")
        assert process.wait(30) == 2
        assert "there is no queue 'events'" in process.stderr.read()


@pytest.mark.parametrize("columns", [30, 60, 79, 120])
def test_a_number_stays_whole_in_a_narrow_terminal(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"COLUMNS": str(columns), "TERM": "xterm", "FORCE_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    titles = ("queue", "group", "ready", "leased", "waiting", "lag", "oldest", "delayed", "size")
    name = "a-long-name-of-a-queue"
    rows = [
        (name, "workers", "~148,000", 3, 0, 1_148_000, "3 d 4 h", 123_456, "1.5 MiB"),
        ("", "others", 20_000, 0, 0, 9, "", "", ""),
    ]
    found = table_lines(titles, rows)
    whole = ("~148,000", "1,148,000", "3 d 4 h", "123,456", "1.5 MiB", "20,000", "workers")
    for text in whole:
        assert any(text in line for line in found), text
    assert all(len(click.unstyle(line)) <= columns for line in found)
    if columns == 120:
        assert len(found) == 3
    else:
        assert found[0].startswith(f"queue: {name}")
