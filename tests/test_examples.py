"""Each example runs as it is, says what it should, and leaves its store as it says."""

from __future__ import annotations

import json
import os
import re
import runpy
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import persistqueue
import pytest

import tailrace
from tests.project import NEEDS_JAVA, ROOT

EXAMPLES = ROOT / "examples"
WITH_SPARK = ("declarative_pipeline.py", "demo.py", "spark_pipeline.py")
TIMEOUT_S = 280  # Spark takes its time where others use the machine, too
PYTHON = [sys.executable, "-u", "-W", "error::ResourceWarning"]


def run(name: str, *arguments: Path | str, env: dict[str, str] | None = None) -> str:
    """What an example prints. It says nothing on stderr, where leaks would be reported, too."""
    command = [*PYTHON, str(EXAMPLES / name), *map(str, arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, env=env
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout


def values(messages: Any) -> list[bytes]:
    return [message.value for message in messages]


def number_before(words: str, text: str) -> int:
    found = re.search(rf"(\d+) {words}", text)
    assert found, text
    return int(found[1])


def examples() -> list[Any]:
    """Those with Spark take long, and what they show has tests of its own."""
    marks: dict[str, Any] = dict.fromkeys(WITH_SPARK, (NEEDS_JAVA, pytest.mark.long))
    return [
        pytest.param(path, marks=marks.get(path.name, ()), id=path.name)
        for path in sorted(EXAMPLES.glob("*.py"))
    ]


@pytest.mark.parametrize("path", examples())
def test_it_runs_in_a_folder_of_its_own(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without arguments it leaves nothing behind."""
    here, scratch = tmp_path / "here", tmp_path / "scratch"
    here.mkdir()
    scratch.mkdir()
    monkeypatch.chdir(here)
    assert run(path.name, env={**os.environ, "TMPDIR": str(scratch)})
    assert [*here.iterdir(), *scratch.iterdir()] == []


def test_demo_without_java(tmp_path: Path) -> None:
    """It shows what needs no Spark, says what it has shown, and where that is."""
    folder = tmp_path / "kept"
    env = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    printed = run(
        "demo.py", "--seconds", "0.2", "--keep", str(folder), env={**env, "PATH": str(tmp_path)}
    )
    assert "left out: what needs Spark" in printed
    shown, _, summary = printed.partition("Every promise kept:")
    assert re.search(r"two workers, kill -9 one +\d+ orders were in its hands", shown)
    promises = re.findall("✓ (.+)", summary)
    assert len(promises) == 6
    assert re.match(r"a log kept all of [\d,]+ records that it had acknowledged", promises[0])
    assert promises[3] == "all of 20,000 orders were shipped, and each of them once"
    assert "went to Parquet" in promises[-1]
    for name in ("log", "store", "lake/sales", "sales.html"):
        assert re.search(rf"^    {name} +\w", summary, re.MULTILINE)
        assert (folder / name).exists()
    with tailrace.open(folder / "store") as store:
        [group] = store.queue("orders").groups()
        assert (group.pending, group.lag) == (0, 0)
        assert store.dead("orders") == []


def test_every_example_is_documented() -> None:
    text = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
    named = re.findall(r"\]\(\.\./examples/(\w+\.py)\)", text)
    assert sorted(named) == sorted(path.name for path in EXAMPLES.glob("*.py"))


def test_worker_pool(tmp_path: Path) -> None:
    for times in (1, 2):  # another pool may go on with the same store
        printed = run("worker_pool.py", tmp_path)
        assert "ben hangs with job 0" in printed
        assert re.search(r"job 0 was done by (anna|carla)", printed)
        assert "30 jobs are done, 0 are left" in printed
        with tailrace.open(tmp_path) as store:
            done = [value.partition(b" by ") for value in values(store.queue("done").read())]
            assert sorted(job for job, _, _ in done) == sorted(
                b"job %d" % number for number in range(30) for _ in range(times)
            )
            assert {who for _, _, who in done} <= {b"anna", b"carla"}
            [group] = store.queue("jobs").groups()
            assert (group.pending, group.lag) == (0, 0)


def test_stream_replay(tmp_path: Path) -> None:
    for times in (1, 2):
        printed = run("stream_replay.py", tmp_path).splitlines()
        everything = "gold 100, silver 20, gold 101, gold 99, silver 21"
        assert printed == [
            f"alarms: {everything}",
            "report: gold 100, silver 20",
            "report, and not committed: gold 101",
            "report, after a restart: gold 101, gold 99, silver 21",
            "report, since midnight: gold 99, silver 21",
            f"report, from the beginning: {everything}",
            "read, since midnight: gold 99, silver 21",
            "read, two offsets: gold 100, silver 20",
        ]
        with tailrace.open(tmp_path) as store:
            prices = store.stream("prices")
            assert b", ".join(values(prices.read())).decode() == ", ".join([everything] * times)
            committed = {group.id: group.committed for group in prices.groups()}
            assert committed == {"alarms": 5 * times, "report": 5 * times}


@NEEDS_JAVA
def test_spark_pipeline(tmp_path: Path) -> None:
    assert run("spark_pipeline.py", tmp_path).splitlines() == [
        "published 5 orders; totals has 0 messages",
        "cups: 7",
        "plates: 3",
        "spoons: 12",
    ]
    with tailrace.open(tmp_path) as store:
        assert sorted(values(store.queue("totals").read())) == [b"12", b"3", b"7"]


@NEEDS_JAVA
@pytest.mark.long
def test_declarative_pipeline(tmp_path: Path) -> None:
    """Another run of it goes on where the first one ended: `spark-pipelines` has a checkpoint."""
    assert run("declarative_pipeline.py", tmp_path).splitlines() == [
        "published 5 orders; large has 0 messages",
        *LARGE,
    ]
    with tailrace.open(tmp_path / "data") as store:
        assert values(store.stream("large").read()) == [b"30", b"120", b"11"]


LARGE = ["cups: 30", "spoons: 120", "plates: 11"]


def test_spark_pipeline_without_java(tmp_path: Path) -> None:
    done = subprocess.run(
        [*PYTHON, str(EXAMPLES / "spark_pipeline.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env={**os.environ, "JAVA_HOME": str(tmp_path)},
    )
    assert done.returncode == 1
    assert done.stderr.startswith("JAVA_HOME is ")
    assert done.stderr.count("\n") == 1


def test_dead_letters(tmp_path: Path) -> None:
    printed = run("dead_letters.py", tmp_path)
    tries = re.findall(r"try (\d) for ada@example.org: the mail server does not answer", printed)
    assert tries == ["1", "2", "3"]
    assert re.findall(r"dead letters: (\d)", printed) == ["2", "1"]
    assert printed.count("sent to ada@example.org") == 1
    with tailrace.open(tmp_path) as store:
        [letter] = store.dead("mails")
        assert letter.value == b"{to: nobody"
        assert letter.headers["_dlq_reason"].startswith(b"not JSON")
        [group] = store.queue("mails").groups()
        assert (group.pending, group.lag) == (0, 0)


def orders_left(folder: Path) -> int:
    with tailrace.open(folder) as store:
        return store.queue("orders").stats(exact=True).ready


def test_asyncio_service(tmp_path: Path) -> None:
    left = 0
    for _ in range(2):  # it goes on with what it left
        printed = run("asyncio_service.py", tmp_path)
        assert "100 orders were taken" in printed
        shipped = number_before("orders were shipped", printed)
        assert shipped > 0
        left += 100 - shipped
        assert number_before("orders wait for the next start", printed) == left
        assert orders_left(tmp_path) == left


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_asyncio_service_is_told_to_stop(tmp_path: Path, number: signal.Signals) -> None:
    command = [*PYTHON, str(EXAMPLES / "asyncio_service.py"), str(tmp_path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as service:
        assert service.stdout is not None
        first = service.stdout.readline()
        service.send_signal(number)
        printed, errors = service.communicate(timeout=TIMEOUT_S)
    assert (service.returncode, errors) == (0, ""), errors
    printed = first + printed
    assert "stopping" in printed
    shipped = number_before("orders were shipped", printed)
    assert orders_left(tmp_path) == 100 - shipped
    assert number_before("orders wait", printed) == 100 - shipped


def test_delayed_jobs(tmp_path: Path) -> None:
    for times in (1, 2):
        printed = run("delayed_jobs.py", tmp_path)
        assert "4 reminders are scheduled" in printed
        assert "the invoice is taken back" in printed
        assert re.search(r"at \d\d:\d\d:\d\d: the tea is ready", printed)
        came = re.findall(r"after [\d.]+ s: (.+)", printed)
        assert came == ["call Ada", "water the plants"]
        assert printed.endswith("\n0 reminders are scheduled\n")
        with tailrace.open(tmp_path) as store:
            reminders = store.queue("reminders")
            assert reminders.delayed_count() == 0
            assert values(reminders.read()) == [b"call Ada", b"water the plants"] * times
            [group] = reminders.groups()
            assert (group.pending, group.lag) == (0, 0)


ORDERS = [
    {"item": "cups", "amount": 2},
    {"item": "plates", "amount": 6},
    {"item": "lamps", "amount": 1},
]


def orders_placed(folder: Path) -> list[Any]:
    with tailrace.open(folder / "queues") as store:
        return [json.loads(value) for value in values(store.queue("orders-placed").read())]


def test_outbox(tmp_path: Path) -> None:
    for times in (1, 2):
        printed = run("outbox.py", tmp_path)
        assert "rolled back: an order of 0 spoons" in printed
        assert re.findall(r"in the outbox: (\d)", printed) == ["2", "3", "0"]
        assert printed.count("shipping gets") == 3
        assert orders_placed(tmp_path) == ORDERS * times
        with closing(sqlite3.connect(tmp_path / "shop.db")) as database:
            [orders] = database.execute("SELECT count(*) FROM orders").fetchone()
            [waiting] = database.execute("SELECT count(*) FROM outbox").fetchone()
        assert (orders, waiting) == (3 * times, 0)


def test_outbox_of_a_new_database(tmp_path: Path) -> None:
    """Its ids begin anew, and yet its rows are not taken for those of the old one."""
    run("outbox.py", tmp_path)
    (tmp_path / "shop.db").unlink()
    run("outbox.py", tmp_path)
    assert orders_placed(tmp_path) == ORDERS * 2


def test_outbox_whose_relay_dies_each_time(tmp_path: Path) -> None:
    """It is killed after publishing, before it deletes; more rows than the log remembers."""
    outbox = runpy.run_path(str(EXAMPLES / "outbox.py"))
    with (
        closing(sqlite3.connect(tmp_path / "shop.db")) as database,
        tailrace.open(tmp_path / "queues") as store,
    ):
        database.executescript(outbox["SCHEMA"])
        queue = store.queue("orders-placed")
        for number in range(200):
            outbox["place_order"](database, "cups", number + 1)
        while rows := outbox["waiting"](database):
            outbox["publish"](database, queue, rows)
            again = outbox["waiting"](database)
            outbox["publish"](database, queue, again)
            outbox["delete"](database, again)
        assert outbox["relay"](database, queue) == 0
    assert [order["amount"] for order in orders_placed(tmp_path)] == list(range(1, 201))


def test_from_persist_queue(tmp_path: Path) -> None:
    for times in (1, 2):  # each time it makes another old queue
        printed = run("from_persist_queue.py", tmp_path)
        assert "moved: 3\nmoved, the second time: 0\n" in printed
        assert 'next: {"job": 2}\nnext: {"job": 3}\nnext: {"job": 4}\n' in printed
        with tailrace.open(tmp_path) as store:
            moved = [json.loads(value)["job"] for value in values(store.queue("jobs").read())]
            assert moved == [2, 3, 4] * times


def test_from_persist_queue_that_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it ends, the next attempt goes on, and each item is there once, in its order."""
    example = runpy.run_path(str(EXAMPLES / "from_persist_queue.py"))
    old_folder, folder = tmp_path / "old", tmp_path / "store"
    old = persistqueue.SQLiteAckQueue(str(old_folder))
    for number in range(150):
        old.put(b"%d" % number)
    old.close()

    ack = persistqueue.SQLiteAckQueue.ack
    acks_left = 0

    def ack_or_die(self: Any, item: Any = None, id: int | None = None) -> Any:
        nonlocal acks_left
        if not acks_left:
            raise InterruptedError("a power cut")
        acks_left -= 1
        return ack(self, item, id)

    monkeypatch.setattr(persistqueue.SQLiteAckQueue, "ack", ack_or_die)
    for survives in (0, 5, 64, 40, 0):
        acks_left = survives
        with tailrace.open(folder) as store, pytest.raises(InterruptedError):
            example["move"](str(old_folder), store.queue("jobs"))
    acks_left = 1000
    run("from_persist_queue.py", folder, old_folder)
    with tailrace.open(folder) as store:
        assert values(store.queue("jobs").read()) == [b"%d" % number for number in range(150)]


def test_from_persist_queue_without_the_package(tmp_path: Path) -> None:
    (tmp_path / "persistqueue.py").write_text("raise ImportError('it is not here')\n")
    done = subprocess.run(
        [*PYTHON, str(EXAMPLES / "from_persist_queue.py"), str(tmp_path / "store")],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 1
    assert done.stderr == "persist-queue is not installed: pip install persist-queue\n"
    assert not (tmp_path / "store").exists()


def test_from_persist_queue_where_there_is_none(tmp_path: Path) -> None:
    done = subprocess.run(
        [*PYTHON, str(EXAMPLES / "from_persist_queue.py"), str(tmp_path / "new"), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 1
    assert f"there is no queue of persist-queue in {tmp_path}" in done.stderr
    assert not (tmp_path / "data.db").exists()
