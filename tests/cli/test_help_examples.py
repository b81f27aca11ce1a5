"""The examples in the help of every command, run as they are written.

They run in a folder that has what they name. Whoever writes one that cannot run like this adds it
to a table below, with the reason.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tailrace
from tailrace.queue.delays import Delayed
from tests.cli.conftest import Shell
from tests.test_docs import cli_commands

# What begins like this is left out.
LEFT_OUT = {
    "tailrace pipeline check": "starts a Spark; test_pipeline.py has it",
    "tailrace pipeline run": "starts a Spark; test_pipeline.py has it",
    "tailrace sql": "starts a Spark; test_sql.py has it",
    "tailrace spark verify /shared/data --master": "there is no such cluster",
}

# What is changed in a line: what it says, what runs instead, and why.
CHANGED = [
    ("consume orders -g audit", "consume orders -g audit --wait 0", "goes on for ever"),
    ("consume jobs -g workers", "consume jobs -g workers --wait 0", "goes on for ever"),
    ("--follow --json", "--follow --timeout 0 --json", "goes on for ever"),
    ("--watch --interval 5s", "--watch --interval 5s --times 1", "goes on for ever"),
    ("seq 1000000", "seq 100", "takes seconds"),
    ("--count 100000", "--count 100", "takes a second"),
    ("bench log", "bench log --seconds 0.05", "takes seconds"),
    ("--seconds 0.05 --seconds 1", "--seconds 0.05", "takes a second"),
    ("--followers 10", "--followers 2 --count 3", "takes seconds"),
    ('eval "$(tailrace completion zsh)"', "tailrace completion zsh", "zsh may not be there"),
    ("/var/lib/node_exporter/", "", "is not ours to write to"),
    ("19a8b2f6c00-11-9f86d081", "$(cat delay_id)", "another one in every store"),
]

# Those whose lines go on in the folder that the line before has left.
GO_ON = {"tailrace backup", "tailrace create"}

# What a command needs that is in the way of others: a log where others name a queue, and so on.
LOGS = {
    "tailrace dump": "orders",
    "tailrace recover": "orders",
    "tailrace locks": "data/orders",
    "tailrace read": "some/segments",
    "tailrace vacuum": "some/segments",
}
MISSING = {"tailrace create": ["data", "tailrace.yaml"], "tailrace backup": ["backups"]}

MODULES = {
    "tailrace archive": "pyarrow",
    "tailrace restore": "pyarrow",
    "--format delta": "deltalake",
    ".png": "matplotlib",
}

CONFIG = """\
storage: {segment_bytes: 1MiB}
queues: [{name: logs, type: stream, archive: {to: lake/logs, every: 0}}]
pipelines: [{name: revenue, from: orders, sql: SELECT value FROM orders, to: sums}]
"""


def examples(text: str) -> list[str]:
    lines = map(str.strip, text.partition("Example")[2].splitlines()[1:])
    return [line for line in lines if line]


EXAMPLES = {name: examples(command.help or "") for name, command in cli_commands().items()}


def changed(line: str) -> str:
    for said, instead, _ in CHANGED:
        line = line.replace(said, instead)
    return line


def left_out(line: str) -> bool:
    return any(line.startswith(start) for start in LEFT_OUT)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples")
    (folder / "tailrace.yaml").write_text(CONFIG)
    (folder / "conf").mkdir()
    (folder / "conf" / "tailrace.toml").write_text('[storage]\nsegment_bytes = "1MiB"\n')
    (folder / "handle-job").write_text("cat > /dev/null\n")
    (folder / ".config" / "fish" / "completions").mkdir(parents=True)
    with tailrace.open(folder / "data", upkeep=False, flush="none") as store:
        # What is archived is full segments.
        orders = store.queue("orders", segment_bytes=2_000, compression="none")
        for number in range(40):
            orders.publish(b"%d" % number)
        with orders.consumer("workers", prefetch=1) as consumer:
            for message in consumer.receive(20):
                message.reject("unreadable")
            consumer.receive(1)[0].ack()
        events = store.stream("events", segment_bytes=2_000, compression="none")
        for _ in range(40):
            events.publish(b"x" * 50)
        with events.consumer("readers") as reader:
            reader.receive(1)
        for name in ("a", "jobs"):
            store.queue(name).publish(b"x")
        for name in ("b", "numbers", "load"):
            store.queue(name)
        later = store.queue("reminders").publish(b"call back", delay="100d")
        assert isinstance(later, Delayed)
        (folder / "delay_id").write_text(later.delay_id)
        store.backup(folder / "backups" / "monday")
    with tailrace.Log(folder / "log", flush="none") as log:
        log.append([b"1", b"2"]).wait()
    return folder


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `tailrace` alone, for the path of a shell."""
    folder = tmp_path_factory.mktemp("bin")
    script = folder / "tailrace"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tailrace "$@"\n')
    script.chmod(0o755)
    return folder


def prepare(place: Path, name: str) -> None:
    """What only this command needs, or only others."""
    if name in LOGS:
        shutil.copytree(place / "log", place / LOGS[name])
    for missing in MISSING.get(name, ()):
        path = place / missing
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    if name == "tailrace restore":
        archive_orders(place)


def archive_orders(place: Path) -> None:
    """All that `orders` has ever had is in the archive, and nothing of it in the queue."""
    from tests.spark.lake.making import make_archive

    with tailrace.open(place / "data", upkeep=False, flush="none") as store:
        store.delete("orders")
        orders = store.stream("orders")
        late_ms = 1_800_000_000_000  # in 2027
        for _ in range(2):
            orders.log.append([tailrace.Record(timestamp=late_ms, value=b"x")] * 60_005)
        end = orders.log.end_offset
        make_archive(
            place / "archive" / "orders",
            orders.log,
            [(0, end)],
            queue="orders",
            incarnation=orders.settings.incarnation,
            row_group=end,
        )
        orders.log.truncate_before(end)
        orders.log.vacuum()


def run(line: str, place: Path, programs: Path) -> subprocess.CompletedProcess[str]:
    """With a shell if it takes one, which starts an interpreter for each command."""
    shell = Shell(place)
    if not set(line) & set("|>$*~"):
        return shell(*shlex.split(line)[1:])
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        cwd=place,
        env={**shell.environment, "PATH": path, "HOME": str(place)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def lacks(line: str) -> str | None:
    """A program or a module that is missing here."""
    if "jq " in line and shutil.which("jq") is None:
        return "jq"
    needed = [module for words, module in MODULES.items() if words in line]
    return next((each for each in needed if importlib.util.find_spec(each) is None), None)


@pytest.mark.parametrize("name", [name for name, lines in EXAMPLES.items() if lines])
def test_examples(name: str, made: Path, programs: Path, tmp_path: Path) -> None:
    base = tmp_path / "base"
    shutil.copytree(made, base)
    prepare(base, name)
    wrong, missing = [], set()
    for number, line in enumerate(EXAMPLES[name]):
        if left_out(line):
            continue
        if lack := lacks(line):
            missing.add(lack)
            continue
        place = base
        if name not in GO_ON:
            place = tmp_path / str(number)
            shutil.copytree(base, place)
        done = run(changed(line), place, programs)
        if done.returncode != 0 or "Traceback" in done.stderr:
            wrong.append(f"{line}\n{done.returncode}: {done.stderr}")
    assert not wrong, "\n".join(wrong)
    if missing:
        pytest.skip(f"without {', '.join(sorted(missing))}")


def test_the_tables_name_what_there_is() -> None:
    lines = [line for lines in EXAMPLES.values() for line in lines]
    for start in LEFT_OUT:
        assert any(line.startswith(start) for line in lines), start
    text = "\n".join(lines)
    for said, instead, _ in CHANGED:
        text, before = text.replace(said, instead), text
        assert text != before, said
    assert {*GO_ON, *LOGS, *MISSING} <= EXAMPLES.keys()
