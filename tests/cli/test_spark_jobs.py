"""`tailrace spark`: what jobs print, how they exit, and what they refuse."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import tailrace
from tests.cli.conftest import Shell, command, flip
from tests.project import NEEDS_JAVA

T0 = 1_700_000_000_000


@pytest.fixture
def events(shell: Shell) -> Path:
    """A queue with some segments, in a closed store. Returns the folder of its log."""
    with tailrace.open(shell.store, upkeep=False) as store:
        stream = store.stream("events", segment_bytes=3_000, index_interval=200)
        for number in range(200):
            stream.publish(b"x" * (number % 50), key=f"k{number % 7}", timestamp=T0 + number * 10)
        with stream.consumer("readers") as consumer:
            for message in consumer.receive(50):
                message.ack()
        return Path(store.layout.segments("events"))


def findings(written: str) -> list[dict[str, Any]]:
    """Of `tailrace verify --json`."""
    lines = [json.loads(line) for line in written.splitlines()]
    found = [line for line in lines if line["type"] == "finding"]
    for each in found:
        del each["type"]
    return found


def usage(shell: Shell, *arguments: object) -> str:
    done = shell(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1]


# --- verify ---------------------------------------------------------------------------------


def test_a_sound_store(shell: Shell, events: Path) -> None:
    done = shell("spark", "verify", shell.store, "--report", "report.json")
    assert (done.returncode, done.stdout) == (0, shell.ok("verify", shell.store))
    assert "no problems" in done.stdout
    assert "done in this process; --spark has Spark do it" in done.stderr
    document = json.loads((shell.folder / "report.json").read_text())
    [printed] = shell.items("spark", "verify", shell.store)
    assert document["run"].pop("seconds") >= 0
    assert printed["run"].pop("seconds") >= 0
    assert printed == document
    assert document["job"] == "verify"
    assert document["ok"] is True
    assert document["run"]["path"] == "direct"
    assert document["run"]["bytes"] == document["bytes"] > 10_000
    assert document["records"] == 200
    assert document["by_queue"][0]["end_offset"] == 200
    assert document["by_group"][0]["committed"] == 50


def test_damage_is_found_with_the_same_words(shell: Shell, events: Path) -> None:
    first, second, third, *_ = sorted(events.glob("*.seg"))
    flip(first, 60)
    flip(second, second.stat().st_size - 3)
    third.with_suffix(".idx").unlink()
    [snapshot] = events.parent.glob("consumers/readers/state.json")
    flip(snapshot, 5)
    plain = shell("verify", shell.store, "--json")
    done = shell("spark", "verify", shell.store, "--json")
    assert (done.returncode, plain.returncode) == (1, 1)
    document = json.loads(done.stdout)
    assert document["findings"] == findings(plain.stdout)
    assert document["problems"] >= 4
    places = [(Path(each["path"]).name, each["position"]) for each in document["findings"]]
    assert (first.name, 0) in places
    in_text = shell("spark", "verify", shell.store)
    assert in_text.stdout == shell("verify", shell.store).stdout
    assert f"{first.name}:0" in in_text.stdout


def test_a_log_by_itself(shell: Shell, events: Path) -> None:
    assert shell.ok("spark", "verify", events) == shell.ok("verify", events)
    [document] = shell.items("spark", "verify", events)
    assert document["folder"] == str(events)
    assert document["end_offset"] == 200


# --- reindex --------------------------------------------------------------------------------


def test_reindex(shell: Shell, events: Path) -> None:
    indexes = sorted(events.glob("*.idx"))
    before = {path: path.read_bytes() for path in indexes}
    indexes[0].write_bytes(before[indexes[0]][:20])
    indexes[1].unlink()
    assert shell("verify", shell.store).returncode == 1
    [document] = shell.items("spark", "reindex", "--report", "report.json")
    assert json.loads((shell.folder / "report.json").read_text())["renewed"] == 2
    assert document["ok"] is True
    assert document["renewed"] == 2
    assert document["logs"][0]["renewed"] == [path.name for path in indexes[:2]]
    assert document["segments"] == len(indexes)
    assert {path: path.read_bytes() for path in indexes} == before
    assert shell("verify", shell.store).returncode == 0
    assert "the indexes are right" in shell.ok("spark", "reindex", shell.store)


def test_reindex_of_what_is_damaged(shell: Shell, events: Path) -> None:
    first, *_ = sorted(events.glob("*.seg"))
    flip(first, 60)
    done = shell("spark", "reindex")
    assert done.returncode == 1
    assert "indexes are right, but for 1 damaged segment" in done.stdout
    assert f"{first.name}:0: the segment is damaged" in done.stdout
    document = json.loads(shell("spark", "reindex", "--json").stdout)
    assert document["logs"][0]["damaged"] == [{"path": first.name, "position": 0}]


def test_reindex_while_somebody_writes(shell: Shell, events: Path) -> None:
    with tailrace.open(shell.store, upkeep=False) as store:
        store.stream("events").publish(b"more")
        said = shell.refused("spark", "reindex")
    assert "writes to it; stop it first" in said


# --- stats ----------------------------------------------------------------------------------


def test_stats(shell: Shell, events: Path) -> None:
    done = shell("spark", "stats", "events", "--top", "2", "--plot", "plot.html")
    assert done.returncode == 0
    assert "events: 200 messages" in done.stdout
    assert "7 different keys" in done.stdout
    assert "'k0'" in done.stdout
    assert "'k2'" not in done.stdout
    assert "readers" in done.stdout
    assert "<svg" in (shell.folder / "plot.html").read_text()
    [document] = shell.items("spark", "stats", "events", "--report", "report.json")
    written = json.loads((shell.folder / "report.json").read_text())
    assert written["messages"] == document["messages"] == 200
    assert document["bytes"] == sum(n % 50 for n in range(200)) + 2 * 200
    assert document["top_keys"][0] == {"key": "k0", "count": 29}
    assert document["gaps"]["median"] == document["gaps"]["max"] == 10
    assert document["key_gaps"]["median"] == 70
    assert document["span_ms"] == 1_990
    assert document["rates"]["messages_per_second"] == pytest.approx(200 / 1.99)
    assert sum(point["messages"] for point in document["points"]) == 200
    [group] = document["groups"]
    assert (group["id"], group["committed"], group["messages"]) == ("readers", 50, 150)
    assert group["points"][-1] == [group["points"][-1][0], 150]


def test_stats_of_some_time(shell: Shell, events: Path) -> None:
    [document] = shell.items("spark", "stats", "events", "--since", T0 + 500, "--until", T0 + 1_000)
    assert document["messages"] == 50
    assert (document["oldest_ms"], document["newest_ms"]) == (T0 + 500, T0 + 990)
    [nothing] = shell.items("spark", "stats", "events", "--since", "2030-01-01")
    assert nothing["messages"] == 0
    assert nothing["rates"]["messages_per_second"] is None
    assert "events: 0 messages" in shell.ok("spark", "stats", "events", "--since", "2030-01-01")


# --- what is refused ------------------------------------------------------------------------


def test_bad_input(shell: Shell, events: Path) -> None:
    assert "there is no such directory" in shell.refused("spark", "verify", "missing")
    assert "there is no such directory" in shell.refused("spark", "reindex", "--store", "missing")
    assert "there is no store" in shell.refused("spark", "stats", "q", "--store", "missing")
    assert "there is no queue 'q'" in shell.refused("spark", "stats", "q")
    assert "a plot is a .png or a .html" in shell.refused(
        "spark", "stats", "events", "--plot", "plot.svg"
    )
    assert "there is no folder nowhere" in shell.refused(
        "spark", "verify", "--report", "nowhere/report.json"
    )
    for job in (["verify"], ["reindex"], ["stats", "events"]):
        assert "NAME=VALUE" in usage(shell, "spark", *job, "--conf", "ui.port=1")
        assert "not with --no-spark" in usage(
            shell, "spark", *job, "--no-spark", "--master", "local[2]"
        )
    backwards = ("--since", "2026-02-01", "--until", "2026-01-01")
    assert "--since is not before" in usage(shell, "spark", "stats", "events", *backwards)
    assert "soon" in usage(shell, "spark", "stats", "events", "--since", "soon")
    assert "-1" in usage(shell, "spark", "stats", "events", "--top", "-1")


def test_png_needs_an_extra(shell: Shell, events: Path) -> None:
    code = (
        "import sys; sys.modules['matplotlib'] = None; sys.argv[0] = 'tailrace'\n"
        "sys.modules['matplotlib.backends.backend_agg'] = None\n"
        "from tailrace.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "spark", "stats", "events", "--plot", "plot.png"],
        cwd=shell.folder,
        env=shell.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "pip install 'tailrace[plot]'" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("job", [["verify"], ["reindex"], ["stats", "events"]])
def test_without_java(shell: Shell, events: Path, job: list[str]) -> None:
    """What is done in this process does not miss it."""
    pytest.importorskip("pyspark", reason="pyspark is missing: tailrace[spark]")
    nowhere = str(shell.folder)
    assert shell("spark", *job, JAVA_HOME=nowhere).returncode == 0
    assert shell("spark", *job, "--no-spark", JAVA_HOME=nowhere).returncode == 0
    for more in (["--spark"], ["--master", "local[2]"], ["--conf", "spark.ui.port=1"]):
        done = shell("spark", *job, *more, JAVA_HOME=nowhere)
        assert done.returncode == 2, more
        assert done.stdout == ""
        assert done.stderr.count("\n") == 1
        assert "--no-spark does it in this process" in done.stderr


@pytest.mark.parametrize("job", ["verify", "reindex"])
def test_without_what_spark_needs(shell: Shell, events: Path, job: str) -> None:
    """Neither pyspark nor pyarrow: a plain installation."""
    code = (
        "import sys; sys.modules['pyspark'] = sys.modules['pyarrow'] = None\n"
        "sys.modules['py4j'] = None; sys.argv[0] = 'tailrace'\n"
        "from tailrace.cli import main; main()"
    )
    for more, wanted in (([], 0), (["--spark"], 2)):
        done = subprocess.run(
            [sys.executable, "-c", code, "spark", job, *more],
            cwd=shell.folder,
            env=shell.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == wanted, done.stderr
    assert "pip install 'tailrace[spark]'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_job_is_interrupted(shell: Shell, events: Path) -> None:
    """It ends at once, says so in a line, and lets go of the log."""
    code = (
        "import os, sys, time\n"
        "from tailrace.spark.jobs import reindex\n"
        "def slow(task): os.write(1, b'at it\\n'); time.sleep(0.3); return was(task)\n"
        "was, reindex._reindex = reindex._reindex, slow\n"
        "sys.argv[0] = 'tailrace'\n"
        "from tailrace.cli import main; main()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, "spark", "reindex"],
        cwd=shell.folder,
        env=shell.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "at it\n"
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "tailrace: interrupted\n")
    assert time.monotonic() - began < 10
    assert shell("spark", "reindex").returncode == 0


@NEEDS_JAVA
def test_on_spark(shell: Shell, events: Path) -> None:
    """All of it, with a Spark of its own: settings arrive, and what is wrong is a line."""
    pytest.importorskip("pyspark", reason="pyspark is missing: tailrace[spark]")
    next(iter(events.glob("*.idx"))).unlink()
    code = """
import json, sys
from click.testing import CliRunner
from tailrace.cli import main

done = []
for line in json.load(sys.stdin):
    result = CliRunner().invoke(main, line)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    done.append((result.exit_code, result.stdout, result.stderr))
json.dump(done, sys.stdout)
"""
    spark = ["--spark", "--master", "local[2]", "--conf", "spark.driver.memory=1g"]
    lines = [
        ["spark", "verify", "--json", *spark],
        ["spark", "reindex", "--json", *spark],
        ["spark", "verify", *spark],
        ["spark", "stats", "events", "--json", *spark],
    ]
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=shell.folder,
        env=shell.environment,
        input=json.dumps(lines),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    broken, indexed, sound, counted = json.loads(done.stdout)
    assert broken[0] == 1
    assert json.loads(broken[1])["run"]["path"] == "spark"
    assert json.loads(broken[1])["findings"][0]["message"].startswith("is missing")
    assert indexed[0] == 0
    assert json.loads(indexed[1])["renewed"] == 1
    assert sound[0] == 0
    assert "no problems" in sound[1]
    assert "done by Spark" in sound[2]
    assert json.loads(counted[1])["messages"] == 200


@NEEDS_JAVA
def test_a_master_that_is_none(shell: Shell, events: Path) -> None:
    pytest.importorskip("pyspark", reason="pyspark is missing: tailrace[spark]")
    done = subprocess.run(
        command("spark", "verify", "--master", "nowhere"),
        cwd=shell.folder,
        env=shell.environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("tailrace: ")
    assert done.stderr.count("\n") == 1
    assert "Master must" in done.stderr
