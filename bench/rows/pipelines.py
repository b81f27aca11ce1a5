"""The rows about pipelines: how many rows a second one sustains, and how long it takes to start."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import tailrace
from bench.support.race import Check, Contestant, Line, Role, Row, Unit, race
from bench.support.setting import Setting
from bench.support.sparking import ROOT, Sparking
from tailrace.cli.measure import Sample
from tailrace.config import load
from tailrace.spark.pipelines.definition import definitions
from tailrace.spark.pipelines.running import Run, told_apart

__all__ = ["starting", "windows"]

_KEYS = 1_000
_AT_ONCE = 10_000
_STEPS = 5  # batches of a run; the first is not counted
_ROWS_PER_SECOND = 500_000
_START_S = 12.0
_STATEMENT = """
SELECT key, window.start AS since, count(*) AS n
FROM events GROUP BY key, window(timestamp, '1 minute')
"""


def windows(setting: Setting) -> Row:
    """A count for each key and minute, of values of 100 bytes, to another queue."""
    rows = setting.sizes.spark.small
    with setting.scratch("pipelines") as folder:
        sparking = Sparking(folder)
        store = _events(folder, rows)
        config = folder / "tailrace.yaml"
        entry = {
            "name": "counts",
            "from": "events",
            "sql": _STATEMENT,
            "to": "counts",
            "watermark": {"column": "timestamp", "delay": "1m"},
            "max_offsets_per_trigger": max(rows // _STEPS, 1),
        }
        config.write_text(json.dumps({"pipelines": [entry]}))  # JSON is YAML
        [definition] = definitions(load(config)).values()

        def run() -> Sample:
            session = told_apart(sparking.spark, definition, {})
            pipeline = Run(session, str(store), definition, once=True)
            shutil.rmtree(pipeline.home.folder, ignore_errors=True)
            batches: list[Any] = []
            with pipeline.home.held():
                pipeline.start()
                while pipeline.poll(lambda _, progress: batches.append(progress)):
                    time.sleep(0.05)
                pipeline.poll(lambda _, progress: batches.append(progress))
                pipeline.stop()
            steady = [each for each in batches[1:] if each["numInputRows"]] or batches
            took = sum(each["durationMs"]["triggerExecution"] for each in steady)
            return Sample(sum(each["numInputRows"] for each in steady), took / 1e3)

        ours = Contestant("tailrace pipeline", Role.OURS, run)
        ours.run()
        line = Line(
            "count by key and window", Unit.RECORDS_PER_SECOND, race([ours], setting.sizes.rounds)
        )
        line.target = "500,000 rows/s on two cores"
        line.checks = [Check("rows/s", line.value(line.ours), _ROWS_PER_SECOND)]
        sparking.stop()
    return Row(4, "windows", "a pipeline with windows", [line], {"rows": rows, "keys": _KEYS})


def starting(setting: Setting) -> Row:
    """From the command to its first batch, of a small queue; Spark has its archive of classes."""
    with setting.scratch("pipelines") as folder:
        store = _events(folder, _KEYS)
        entry = {"name": "copy", "from": "events", "sql": "SELECT value FROM events", "to": "copy"}
        (folder / "tailrace.yaml").write_text(json.dumps({"pipelines": [entry]}))
        command = [sys.executable, "-m", "tailrace", "pipeline", "run", "copy", "--once", "--json"]
        command += ["--restart-from-scratch", "--master", "local[2]", "--store", str(store)]
        environment = {**os.environ, "PYTHONPATH": _path()}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # what is installed is compiled

        def run() -> Sample:
            began = time.perf_counter()
            with subprocess.Popen(
                command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True,
                stderr=subprocess.DEVNULL,
            ) as process:  # fmt: skip
                assert process.stdout is not None
                first = json.loads(process.stdout.readline())
                took = time.perf_counter() - began
                assert first["rows_in"] == _KEYS
                process.communicate()
            assert process.returncode == 0
            return Sample(1, took)

        ours = Contestant("tailrace pipeline run --once", Role.OURS, run)
        ours.run()
        line = Line(
            "start to the first batch", Unit.MILLISECONDS, race([ours], setting.sizes.rounds)
        )
        line.target = "under 12 s"
        line.checks = [Check("s", line.value(line.ours) / 1e3, _START_S, at_least=False)]
    return Row(5, "start", "a pipeline's start", [line])


def _path() -> str:
    known = os.environ.get("PYTHONPATH", "")
    return os.pathsep.join([str(ROOT), str(ROOT / "src"), *filter(None, [known])])


def _events(folder: Path, rows: int) -> Path:
    """Twenty minutes of them, in order, from a thousand keys."""
    path = folder / "store"
    first_ms = time.time_ns() // 1_000_000 - 20 * 60_000
    with tailrace.open(path, flush="none") as store:
        events = store.stream("events", compression="none")
        value = os.urandom(50).hex().encode()
        for first in range(0, rows, _AT_ONCE):
            numbers = range(first, min(first + _AT_ONCE, rows))
            records = [
                tailrace.Record(
                    key=b"key-%04d" % (number % _KEYS),
                    value=value,
                    timestamp=first_ms + number * 20 * 60_000 // rows,
                )
                for number in numbers
            ]
            events.log.append_many(records)
    return path
