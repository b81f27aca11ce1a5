"""A real cluster, on this machine: a master and two workers, and a driver that reads, writes and
streams through them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import tailrace
from tests.project import LIGHT_JVM, NEEDS_JAVA, ROOT

pyspark = pytest.importorskip("pyspark")

from tailrace.spark.versions import LIMITS  # noqa: E402

pytestmark = NEEDS_JAVA
PATIENCE_S = 120
MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def environment() -> dict[str, str]:
    path = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": LIGHT_JVM,
        "SPARK_NO_DAEMONIZE": "1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "PYTHONWARNINGS": "ignore",
    }


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the workers have their folders."""
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def master(ground: Path) -> Iterator[str]:
    """The address of a cluster with two workers."""
    port, web = free_port(), free_port()
    spark_class = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    commands = [
        [spark_class, MASTER, "--host", "127.0.0.1", "--port", str(port), "--webui-port", str(web)]
    ]
    address = f"spark://127.0.0.1:{port}"
    for number in range(2):
        folder = ground / f"worker-{number}"
        folder.mkdir()
        worker = [spark_class, WORKER, address, "--host", "127.0.0.1", "--cores", "1"]
        limits = ["--memory", "1g", "--work-dir", str(folder), "--webui-port", str(free_port())]
        commands.append([*worker, *limits])
    processes = []
    log = (ground / "cluster.log").open("wb")
    try:
        for command in commands:
            process = subprocess.Popen(
                command,
                env=environment(),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            processes.append(process)
            if len(processes) == 1:  # a worker that finds no master waits before it tries again
                wait_for(port, ground / "cluster.log")
        wait_for_workers(web, ground / "cluster.log")
        yield address
    finally:
        for process in processes:
            process.kill()
            process.wait()
        log.close()


def wait_for(port: int, log: Path) -> None:
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
            return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(log.read_text(errors="replace")[-3000:])


def wait_for_workers(port: int, log: Path) -> None:
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
                connection.sendall(b"GET /json/ HTTP/1.0\r\n\r\n")
                answer = b""
                while part := connection.recv(65536):
                    answer += part
            if b'"aliveworkers" : 2' in answer:
                return
        except OSError:  # it is not up yet
            time.sleep(0.2)
        time.sleep(0.2)
    raise AssertionError(log.read_text(errors="replace")[-3000:])


def test_a_cluster_reads_writes_and_streams(tmp_path: Path, ground: Path, master: str) -> None:
    store = str(tmp_path / "data")
    with tailrace.open(store, flush="none") as opened:
        events = opened.stream("events", segment_bytes=20_000)
        for first in range(0, 2_000, 100):
            events.publish_many([(f"k{n % 4}", b"%d" % n) for n in range(first, first + 100)])
        opened.stream("sums")
        opened.stream("copy")
        opened.stream("places")
    job = subprocess.run(
        [
            sys.executable,
            str(ROOT / "tests" / "spark" / "cluster_job.py"),
            master,
            store,
            str(tmp_path / "checkpoint"),
        ],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert job.returncode == 0, job.stderr[-3000:]
    found = json.loads(job.stdout.strip().splitlines()[-1])
    assert found["by_key"] == {f"k{n}": 500 for n in range(4)}
    assert found["batches"] == ([700, 700, 600] if LIMITS else [2_000])
    workers = {str(ground / f"worker-{number}") for number in range(2)}
    assert workers_of(found["places"]) == workers, "each has read"
    with tailrace.open(store) as opened:
        places = [(message.value or b"").decode() for message in opened.stream("places").read()]
        assert len(places) == 4
        assert workers_of(places) == workers, "each has written"
        sums = {message.key: message.value for message in opened.stream("sums").read()}
        assert sums == {b"k%d" % n: b"500" for n in range(4)}
        copied = [message.value for message in opened.stream("copy").read()]
    assert sorted(copied, key=lambda value: int(value or b"")) == [b"%d" % n for n in range(2_000)]


def workers_of(places: list[str]) -> set[str]:
    """Whose executors these folders are of: a worker makes them below its own."""
    return {str(Path(place).parents[1]) for place in places}


@pytest.mark.long
def test_a_cluster_archives(tmp_path: Path, master: str) -> None:
    """The executors write the files, and the driver's manifest names them."""
    store, lake = tmp_path / "data", tmp_path / "lake"
    with tailrace.open(store, flush="async", upkeep=False) as opened:
        events = opened.stream("events", segment_bytes=20_000, compression="none")
        for first in range(0, 2_000, 100):
            events.publish_many([(f"k{n % 4}", b"%d" % n) for n in range(first, first + 100)])
        events.log.flush()
    settings = ("executor.cores=1", "executor.memory=512m", "cores.max=2")
    conf = [word for each in settings for word in ("--conf", f"spark.{each}")]
    conf += ["--conf", f"spark.executor.extraJavaOptions={LIGHT_JVM}"]
    line = [sys.executable, "-m", "tailrace", "archive", "events", "--store", str(store), "--to"]
    line += [str(lake), "--partition-by", "date", "--delete", "--json", "--master", master, *conf]
    done = subprocess.run(
        line, env=environment(), capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout)
    assert report["engine"] == "spark"
    assert report["rows"] == report["verified"] > 1_000
    assert report["deleted_segments"] > 2
    files = list(lake.glob("date=*/*.parquet"))
    assert len(files) == report["files"]
    parquet = pytest.importorskip("pyarrow.parquet")
    offsets = [n for path in files for n in parquet.read_table(path)["offset"].to_pylist()]
    assert sorted(offsets) == list(range(report["verified"]))
