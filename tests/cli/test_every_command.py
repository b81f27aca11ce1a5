"""Every command as people run it, in a process of its own: once right, once wrong.

The tables have all commands there are, so whoever adds one adds what it does and how it fails. What
fails says so in a line, ends with 2, and leaves the store as it was. What each command does in
detail is tested beside this.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import click
import pytest
from click.testing import CliRunner

import tailrace
from tailrace.cli import main
from tailrace.queue.delays import Delayed
from tests.cli.conftest import Shell
from tests.project import NEEDS_JAVA

HAS_ARROW = importlib.util.find_spec("pyarrow") is not None
NEEDS_ARROW = pytest.mark.skipif(not HAS_ARROW, reason="pyarrow is missing: tailrace[arrow]")
# Each starts a Spark of its own. test_pipeline.py and test_sql.py have these in every run.
NEEDS_SPARK = (NEEDS_JAVA, pytest.mark.long)
MARKS = {
    "archive": (NEEDS_ARROW,),
    "restore": (NEEDS_ARROW,),
    "pipeline check": NEEDS_SPARK,
    "pipeline run": NEEDS_SPARK,
    "sql": NEEDS_SPARK,
}


class Case(NamedTuple):
    """A command line, and what it says."""

    line: str
    says: str
    stdin: str = ""


# On a store that has the queue `q`, with five messages of which the group `w` has settled one, one
# is a dead letter, and one was handed out; a stream `s`, for which a message is delayed, under the
# id that is in the file `delay_id`; a stream `old`, of which all is in the archive `archived`, and
# nothing else; a log in `log`; and a backup of it all.
RIGHT = {
    "archive": Case("archive q --to lake", "5 messages not archived yet"),
    "backup": Case("backup copied", "copied"),
    "bench log": Case("bench log --seconds 0.05 --json", '"flush": "sync"'),
    "bench wake": Case("bench wake --count 3 --json", '"count": 3'),
    "cancel": Case("cancel s DELAY_ID", "s: 1 message cancelled"),
    "completion": Case("completion bash", "_TAILRACE_COMPLETE"),
    "config check": Case("config check tailrace.yaml", ""),
    "config schema": Case("config schema", '"$schema"'),
    "config show": Case("config show tailrace.yaml", "segment_bytes"),
    "consume": Case("consume q --group other --wait 0 --values", "a\nb\nc\nd\ne\n"),
    "create": Case("create jobs --type stream", "jobs"),
    "dead": Case("dead q", "unreadable"),
    "delayed": Case("delayed s", "value 'later'"),
    "delete": Case("delete q --yes", "q"),
    "dump": Case("dump data/queue/config/queues.json", "q"),
    "groups delete": Case("groups delete q w --yes", "w"),
    "groups list": Case("groups list q", "w"),
    "groups reset": Case("groups reset q w --to-earliest", "w"),
    "locks": Case("locks log", ""),
    "peek": Case("peek q w", "value 'c'"),
    "pending": Case("pending q w", "1"),
    "pipeline check": Case("pipeline check", "pipeline 'copy': no problem"),
    "pipeline list": Case("pipeline list", "copy"),
    "pipeline run": Case("pipeline run copy --once", "copy: 1 batch, 1 row in, 1 out"),
    "pipeline status": Case("pipeline status", "never ran"),
    "publish": Case("publish q", "published 2 messages", "one\ntwo\n"),
    "purge": Case("purge q --yes", "q"),
    "queues": Case("queues --json", '"name": "q"'),
    "read": Case("read q --start 4 --json", '"e"'),
    "recover": Case("recover log", ""),
    "redrive": Case("redrive q", "1"),
    "restore": Case("restore old --from archived", "old: 2 messages are back"),
    "restore-backup": Case("restore-backup kept --store elsewhere", "elsewhere"),
    "spark reindex": Case("spark reindex", "the indexes are right"),
    "spark stats": Case("spark stats q", "q: 5 messages, 5 B"),
    "spark verify": Case("spark verify data", "no problems"),
    "sql": Case("sql VALUES(40+2)", "42"),
    "stats": Case("stats q --json", '"dead": 1'),
    "vacuum": Case("vacuum q", "q"),
    "verify": Case("verify data", ""),
}

CONFIG = """\
storage: {segment_bytes: 1MiB}
pipelines: [{name: copy, from: s, sql: SELECT value FROM s, to: copied}]
"""

WRONG = {
    "archive": Case("archive missing --to lake", "missing"),
    "backup": Case("backup kept", "kept"),
    "bench log": Case("bench log --size none", "none"),
    "bench wake": Case("bench wake --count 0", "0"),
    "cancel": Case("cancel missing 0-0-00000000", "missing"),
    "completion": Case("completion tcsh", "tcsh"),
    "config check": Case("config check missing.yaml", "missing.yaml"),
    "config schema": Case("config schema more", "more"),
    "config show": Case("config show wrong.yaml", "segment_size"),
    "consume": Case("consume missing --group w --wait 0", "missing"),
    "create": Case("create q --type stream", "q"),
    "dead": Case("dead missing", "missing"),
    "delayed": Case("delayed missing", "missing"),
    "delete": Case("delete missing --yes", "missing"),
    "dump": Case("dump data/missing", "missing"),
    "groups delete": Case("groups delete q missing --yes", "missing"),
    "groups list": Case("groups list missing", "missing"),
    "groups reset": Case("groups reset q w --to-offset some", "some"),
    "locks": Case("locks missing", "missing"),
    "peek": Case("peek missing w", "missing"),
    "pending": Case("pending s readers", "s"),
    "pipeline check": Case("pipeline check missing", "missing"),
    "pipeline list": Case("pipeline list --config wrong.yaml", "segment_size"),
    "pipeline run": Case("pipeline run missing", "missing"),
    "pipeline status": Case("pipeline status missing", "missing"),
    "publish": Case("publish missing value", "missing"),
    "purge": Case("purge missing --yes", "missing"),
    "queues": Case("queues --store missing", "missing"),
    "read": Case("read q --start soon", "soon"),
    "recover": Case("recover missing", "missing"),
    "redrive": Case("redrive missing", "missing"),
    "restore": Case("restore old --from missing", "missing"),
    "restore-backup": Case("restore-backup kept --store data", "data"),
    "spark reindex": Case("spark reindex missing", "missing"),
    "spark stats": Case("spark stats missing", "missing"),
    "spark verify": Case("spark verify --store missing", "missing"),
    "sql": Case("sql VALUES(1) --store missing", "missing"),
    "stats": Case("stats missing", "missing"),
    "vacuum": Case("vacuum missing", "missing"),
    "verify": Case("verify missing", "missing"),
}


def commands(group: click.Group, prefix: str = "") -> list[str]:
    """All that can be run, with the groups they are in."""
    context, found = click.Context(group), []
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            found += commands(command, f"{prefix}{name} ")
        else:
            found.append(prefix + name)
    return found


def test_the_tables_have_every_command() -> None:
    assert sorted(RIGHT) == sorted(WRONG) == sorted(commands(main))


def make_old(stream: tailrace.Stream, folder: Path) -> None:
    from tests.spark.lake.making import make_archive

    stream.publish_many([b"1", b"2"])
    incarnation = stream.settings.incarnation
    make_archive(folder, stream.log, [(0, 2)], queue="old", incarnation=incarnation)
    stream.log.truncate_before(2)
    stream.log.vacuum()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("commands")
    with tailrace.open(folder / "data", upkeep=False) as store:
        queue, stream = store.queue("q"), store.stream("s")
        queue.publish_many([b"a", b"b", b"c", b"d", b"e"])
        consumer = queue.consumer("w")
        consumer.receive(1)[0].ack()
        consumer.receive(1)[0].reject("unreadable")
        consumer.receive(1)
        stream.publish(b"x")
        stream.consumer("readers").close()
        delayed = stream.publish(b"later", delay="100d")
        assert isinstance(delayed, Delayed)
        (folder / "delay_id").write_text(delayed.delay_id)
        if HAS_ARROW:
            make_old(store.stream("old"), folder / "archived")
        store.backup(folder / "kept")
    with tailrace.Log(folder / "log") as log:
        log.append([b"1", b"2"]).wait()
    (folder / "tailrace.yaml").write_text(CONFIG)
    (folder / "wrong.yaml").write_text("storage: {segment_size: 1MiB}\n")
    return folder


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Shell:
    """A folder of one's own with all that."""
    shutil.copytree(made, tmp_path / "here")
    return Shell(tmp_path / "here")


def run(place: Shell, case: Case) -> subprocess.CompletedProcess[str]:
    line = case.line.replace("DELAY_ID", (place.folder / "delay_id").read_text())
    return subprocess.run(
        [sys.executable, "-m", "tailrace", *line.split()],
        cwd=place.folder,
        env=place.environment,
        input=case.stdin,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


@pytest.mark.parametrize("name", [pytest.param(n, marks=MARKS.get(n, ())) for n in RIGHT])
def test_it_does_what_it_says(place: Shell, name: str) -> None:
    assert RIGHT[name].line.startswith(name)
    done = run(place, RIGHT[name])
    assert done.returncode == 0, done.stderr
    assert RIGHT[name].says in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", WRONG)
def test_it_says_what_is_wrong_and_changes_nothing(place: Shell, name: str) -> None:
    assert WRONG[name].line.startswith(name)
    before = place.files()
    done = run(place, WRONG[name])
    assert done.returncode == 2, done.stdout + done.stderr
    assert WRONG[name].says in done.stderr
    assert done.stderr.startswith("tailrace: ")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert place.files() == before


def takes_config(name: str) -> bool:
    command: click.Command = main
    for part in name.split():
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), part)
        assert found is not None
        command = found
    return any(parameter.name == "config" for parameter in command.params)


@pytest.mark.parametrize("file", ["missing.yaml", "wrong.yaml"])
@pytest.mark.parametrize("name", [name for name in RIGHT if takes_config(name)])
def test_a_configuration_that_cannot_be_used(
    made: Path, name: str, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused also by those who only look, and also if the store is named."""
    monkeypatch.chdir(made)
    before = Shell(made).files()
    words = RIGHT[name].line.split()
    if name.startswith("config") or name == "spark verify":
        words.pop()  # is the file, or the store
    if "--store" not in words:
        words += ["--store", "data"]
    done = CliRunner().invoke(main, [*words, "--config", file], input=RIGHT[name].stdin)
    if name == "config check" and file == "wrong.yaml":
        assert done.exit_code == 1
        assert "wrong.yaml:1: storage.segment_size" in done.stdout
        return
    assert done.exit_code == 2, done.output
    assert done.stdout == ""
    assert done.stderr.startswith(f"tailrace: {file}:")
    assert Shell(made).files() == before


def test_what_is_no_command(place: Shell) -> None:
    done = run(place, Case("comsume q", ""))
    assert done.returncode == 2
    assert "comsume" in done.stderr
    assert not done.stdout
