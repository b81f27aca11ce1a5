"""A pipeline on a real cluster: a master and two workers, on this machine."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("pyspark")

from tests.project import LIGHT_JVM, NEEDS_JAVA
from tests.spark.pipelines.support import Place
from tests.spark.test_cluster import environment, ground, master  # noqa: F401  fixtures


@NEEDS_JAVA
@pytest.mark.long
def test_a_pipeline_on_a_cluster(place: Place, master: Any) -> None:  # noqa: F811
    for who in range(4):
        place.publish("events", *range(who, 400, 4), key=f"w{who}")
    place.define(
        sql="SELECT key, sum(int(string(value))) AS total FROM events GROUP BY key",
        output_mode="update",
        conf=["spark.cores.max=2", "spark.executor.memory=512m", "spark.sql.shuffle.partitions=2"],
    )
    command = [sys.executable, "-m", "tailrace", "pipeline", "run", "p", "--once", "--json"]
    light = f"spark.executor.extraJavaOptions={LIGHT_JVM}"
    done = subprocess.run(
        [*command, "--master", master, "--conf", light],
        cwd=place.folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *_, last = [json.loads(line) for line in done.stdout.splitlines()]
    assert (last["state"], last["rows_in"]) == ("stopped", 400)
    found = {message.key: message.value for message in place.messages("out")}
    totals = {b"w%d" % who: sum(range(who, 400, 4)) for who in range(4)}
    assert found == {key: b'{"total":%d}' % total for key, total in totals.items()}
