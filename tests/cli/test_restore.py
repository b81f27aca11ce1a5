"""`tailrace restore`: what was archived is in its queue again."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

import tailrace
from tailrace.log.fs import OsFileSystem
from tailrace.queue.offline.verify import verify_store
from tests.cli.conftest import Shell, command

pytest.importorskip("pyarrow", reason="pyarrow is missing: tailrace[arrow]")

from tests.spark.lake.making import make_archive

T0 = 1_700_000_000_000
SMALL: dict[str, Any] = {"segment_bytes": 2_000, "compression": "none"}


def prepare(shell: Shell, kind: str, count: int = 100, **options: Any) -> None:
    """A queue `q`, of which all is archived, and the first half is deleted."""
    with tailrace.open(shell.store, upkeep=False) as store:
        made = store.queue("q", **SMALL) if kind == "queue" else store.stream("q", **SMALL)
        for number in range(count):
            made.publish(f"{number}", timestamp=T0 + number * 1000)
        incarnation = made.settings.incarnation
        folder = shell.folder / "archive"
        make_archive(folder, made.log, [(0, 30), (30, count)], queue="q", incarnation=incarnation)
        if kind == "queue":
            consumer = made.consumer("g")
            for message in consumer.receive(count // 2):
                message.ack()
            consumer.close()
        made.log.truncate_before(count // 2)
        made.log.vacuum()


def offsets(shell: Shell) -> list[int]:
    done = shell("read", "q", "--json")
    return [json.loads(line)["offset"] for line in done.stdout.splitlines()]


def test_all_that_fits(shell: Shell) -> None:
    prepare(shell, "stream")
    done = shell("restore", "q", "--from", "archive")
    assert done.stdout.startswith("q: 50 messages are back, offsets 0 to 49")
    assert done.stderr == ""
    assert offsets(shell) == list(range(100))
    assert shell("verify", "data").returncode == 0


def test_a_range(shell: Shell) -> None:
    prepare(shell, "stream")
    done = shell("restore", "q", "--from", "archive", "--since", T0 + 40_000, "--json")
    report = json.loads(done.stdout)
    assert (report["type"], report["queue"]) == ("report", "q")
    assert (report["first"], report["last"], report["missing"]) == (40, 50, 0)
    assert report["warning"] is None
    shell("restore", "q", "--from", "archive", "--start", "10")
    assert offsets(shell) == list(range(10, 100))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--from", "nowhere"], "there is no archive"),
        (["--from", "s3://bucket/lake"], "is an address"),
        (["--from", "archive", "--end", "20"], "--end 50"),
        (["--from", "archive", "--until", str(T0)], "--end 50"),
        (["--from", "archive", "--start", "50"], "nothing to restore"),
        (["--from", "archive", "--start", "1", "--since", "2026-01-01"], "exclude each other"),
        (["--from", "archive", "--end", "1", "--until", "2026-01-01"], "exclude each other"),
        (["--from", "archive", "--since", "2030-01-01", "--until", "2020-01-01"], "not before"),
        (["--from", "archive", "--start", "20", "--end", "20"], "--start is not before --end"),
    ],
)
def test_what_is_wrong_is_said(shell: Shell, arguments: list[str], says: str) -> None:
    prepare(shell, "stream")
    done = shell("restore", "q", *arguments)
    assert done.returncode == 2
    assert says in done.stderr.splitlines()[-1]
    assert offsets(shell) == list(range(50, 100))


def test_another_queue(shell: Shell) -> None:
    """Into one that never had a message, and no other."""
    prepare(shell, "stream")
    shell.ok("create", "new")
    shell("restore", "new", "--from", "archive")
    done = shell("read", "new", "--json")
    assert [json.loads(line)["value"] for line in done.stdout.splitlines()] == [
        f"{number}" for number in range(100)
    ]
    shell.ok("create", "used")
    shell("publish", "used", "x")
    said = shell.refused("restore", "used", "--from", "archive")
    assert "the archive of the queue 'q', not of 'used'" in said


def test_a_damaged_file_is_named(shell: Shell) -> None:
    prepare(shell, "stream")
    path = next((shell.folder / "archive").glob("*-00000000000000000030.parquet"))
    path.write_bytes(path.read_bytes()[:-1])
    assert path.name in shell.refused("restore", "q", "--from", "archive")
    assert offsets(shell) == list(range(50, 100))


def test_a_work_queue_would_delete_it_again(shell: Shell) -> None:
    prepare(shell, "queue")
    said = shell.refused("restore", "q", "--from", "archive")
    assert "have settled what comes back" in said
    assert "--update --max-age" in said
    done = shell("restore", "q", "--from", "archive", "--force")
    assert "lets go of offsets 0 to" in done.stderr
    assert offsets(shell) == list(range(100))
    shell.ok("vacuum", "q")
    assert offsets(shell)[0] > 30


def test_a_work_queue_that_keeps_some(shell: Shell) -> None:
    """Its group goes on where it was, until somebody has it begin again."""
    prepare(shell, "queue")
    shell.ok("create", "q", "--update", "--max-messages", "1000")
    done = shell("restore", "q", "--from", "archive")
    assert done.stderr == ""
    shell.ok("vacuum", "q")
    assert offsets(shell) == list(range(100))
    done = shell("consume", "q", "--group", "g", "--max", "1", "--wait", "0", "--values")
    assert done.stdout == "50\n"
    shell.ok("groups", "reset", "q", "g", "--to-earliest", "--execute")
    done = shell("consume", "q", "--group", "g", "--max", "1", "--wait", "0", "--values")
    assert done.stdout == "0\n"


def test_retention_that_lets_go_is_told(shell: Shell) -> None:
    prepare(shell, "stream")
    shell.ok("create", "q", "--update", "--max-age", "1h")
    done = shell("restore", "q", "--from", "archive", "--json")
    report = json.loads(done.stdout)
    assert "lets go of offsets 0 to 49 at its next round" in report["warning"]
    assert "--max-age" in report["warning"]
    assert offsets(shell) == list(range(100))


def test_an_archive_that_deletes_is_told(shell: Shell) -> None:
    prepare(shell, "stream")
    shell.ok("archive", "q", "--to", "lake", "--delete")
    done = shell("restore", "q", "--from", "archive", "--json")
    assert "archive q --release" in json.loads(done.stdout)["warning"]
    shell.ok("archive", "q", "--delete")
    assert offsets(shell)[0] > 50
    shell.ok("archive", "q", "--release")
    done = shell("restore", "q", "--from", "archive")
    assert done.stderr == ""
    shell.ok("archive", "q")
    assert offsets(shell) == list(range(100))


def test_an_interrupt_leaves_nothing(shell: Shell) -> None:
    prepare(shell, "stream", count=3_000)
    with subprocess.Popen(
        command("restore", "q", "--from", "archive"),
        cwd=shell.folder,
        env=shell.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        staging = shell.folder / "data/queue/queues/q/segments/.tailrace/staging"
        while process.poll() is None and not list(staging.glob("*/*.seg")):
            pass
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode in (0, 130)
    first = offsets(shell)[0]
    assert first == (0 if process.returncode == 0 else 1500)
    assert not list(staging.glob("*"))


MANY = 20_000
KILLS = 4


def prepare_many(shell: Shell, count: int) -> None:
    """Enough for a restore that takes a while: it has a hundred segments to bring back."""
    values = [(f"k{number % 7}", b"%d " % number + b"." * 90) for number in range(count)]
    with tailrace.open(shell.store, upkeep=False, flush="async") as store:
        made = store.stream("q", segment_bytes=20_000, compression="none")
        for first in range(0, count, 50):
            made.publish_many(values[first : first + 50])
        made.log.flush()
        folder, incarnation = shell.folder / "archive", made.settings.incarnation
        steps = [(first, first + 2_000) for first in range(0, count, 2_000)]
        make_archive(folder, made.log, steps, queue="q", incarnation=incarnation, row_group=1_000)


def killed(shell: Shell, staging: Path, after: float) -> bool:
    """Was a restore killed, so long after it had begun to write?"""
    with shell.started("restore", "q", "--from", "archive") as process:
        while process.poll() is None and not list(staging.glob("*/*.seg")):
            time.sleep(0.001)
        time.sleep(after)
        process.kill()
        process.communicate(timeout=60)
    return process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("left", [0, MANY // 4], ids=["all is gone", "some are left"])
def test_it_is_killed(shell: Shell, left: int) -> None:
    """With kill -9, at some moment: all is back or nothing is, the log is whole, and the next one
    completes it."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    prepare_many(shell, MANY)
    staging = shell.store / "queue/queues/q/segments/.tailrace/staging"
    kills = 0
    for _ in range(2 * KILLS):
        with tailrace.open(shell.store, upkeep=False) as store:
            log = store.stream("q").log
            log.truncate_before(MANY - left)
            log.vacuum()
            start = log.start_offset
        assert start > MANY // 2
        after = chance.uniform(0, 0.6) if kills else 0.0  # it may have ended by then
        kills += killed(shell, staging, after)
        assert verify_store(OsFileSystem(), str(shell.store / "queue")).ok
        with tailrace.open(shell.store, upkeep=False) as store:
            log = store.stream("q").log
            assert (log.start_offset, log.end_offset) in ((0, MANY), (start, MANY))
            was_done = log.start_offset == 0
        again = shell("restore", "q", "--from", "archive")
        assert again.returncode == (2 if was_done else 0), again.stderr
        assert not was_done or "nothing to restore" in again.stderr
        assert verify_store(OsFileSystem(), str(shell.store / "queue")).ok
        with tailrace.open(shell.store, upkeep=False) as store:
            numbers = [int((m.value or b"").split()[0]) for m in store.stream("q").read()]
        assert numbers == list(range(MANY))
        if kills == KILLS:
            break
    assert kills
