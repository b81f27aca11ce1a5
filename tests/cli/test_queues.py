"""`tailrace create`, `queues`, `delete` and `purge`, and how a store is found."""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import pty
import subprocess
from pathlib import Path

import pytest

import tailrace
from tailrace.queue.settings import KEYS, OPTIONS, QueueSettings
from tailrace.queue.store import Store
from tests.cli.conftest import Run, Shell, command

LOOKING = [
    ("queues",),
    ("stats",),
    ("stats", "q"),
    ("groups", "q"),
    ("groups", "reset", "q", "g", "--to-latest"),
    ("pending", "q", "g"),
    ("peek", "q"),
    ("peek", "q", "g"),
    ("dead", "q"),
    ("delayed", "q"),
    ("read", "q"),
]
CHANGING = [
    ("publish", "q", "x"),
    ("consume", "q", "-g", "g", "--wait", "0"),
    ("redrive", "q"),
    ("delete", "q", "--yes"),
    ("purge", "q", "--yes"),
    ("create", "q", "--update"),
    ("groups", "delete", "q", "g", "--yes"),
]


@pytest.mark.parametrize("arguments", [*LOOKING, *CHANGING], ids=" ".join)
def test_a_store_that_is_not_there(arguments: tuple[str, ...], shell: Shell) -> None:
    said = shell.refused(*arguments)
    assert "there is no store in data" in said or "there is no queue 'q' in data" in said
    assert list(shell.folder.iterdir()) == []


@pytest.mark.parametrize("arguments", [*LOOKING[2:], *CHANGING], ids=" ".join)
def test_a_queue_that_is_not_there(arguments: tuple[str, ...], shell: Shell) -> None:
    shell.ok("create", "other")
    before = shell.files()
    assert "there is no queue 'q' in " in shell.refused(*arguments)
    assert shell.files() == before


@pytest.mark.parametrize("arguments", LOOKING, ids=" ".join)
def test_looking_changes_nothing(arguments: tuple[str, ...], shell: Shell) -> None:
    with tailrace.open(shell.store) as store:
        queue = store.queue("q")
        queue.publish_many([b"1", b"2", b"3"])
        with queue.consumer("g") as consumer:
            consumer.receive(2)[0].reject("no")
        before = shell.files()
        shell.ok(*arguments)
        assert shell.files() == before
    before = shell.files()
    shell.ok(*arguments)
    assert shell.files() == before


@pytest.mark.parametrize("arguments", LOOKING, ids=" ".join)
def test_looking_at_a_store_that_may_only_be_read(arguments: tuple[str, ...], shell: Shell) -> None:
    """Nobody has used its queue yet."""
    shell.ok("create", "q")
    if "g" in arguments:
        with tailrace.open(shell.store) as store:
            store.queue("q").consumer("g").close()
    folders = [shell.store, *(path for path in shell.store.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    try:
        shell.ok(*arguments)
    finally:
        for folder in folders:
            folder.chmod(0o755)


def test_how_a_store_is_found(shell: Shell, tmp_path: Path) -> None:
    shell.ok("create", "a")
    shell.ok("create", "b", "--store", "elsewhere")
    assert [q["name"] for q in shell.items("queues")[0]["queues"]] == ["a"]
    [found] = shell.items("queues", "--store", "elsewhere")
    assert [q["name"] for q in found["queues"]] == ["b"]
    done = shell("queues", "--json", TAILRACE_STORE=str(tmp_path / "elsewhere"))
    assert [q["name"] for q in json.loads(done.stdout)["queues"]] == ["b"]
    [found] = shell.items("queues", "--store", "elsewhere/queue")
    assert [q["name"] for q in found["queues"]] == ["b"]
    assert "there is no store in a" in shell.refused("queues", "--store", "a")


def test_a_file_is_no_store(shell: Shell) -> None:
    (shell.folder / "file").touch()
    assert "there is no store in file" in shell.refused("queues", "--store", "file")
    assert "file is a file" in shell.refused("create", "q", "--store", "file")


def test_create(shell: Shell) -> None:
    assert shell.ok("create", "orders") == "made the queue 'orders' in data\n"
    written = shell.ok("create", "events/all", "--type", "stream", "--max-age", "7d")
    assert written == "made the stream 'events/all' in data\n"
    arguments = ["--visibility-timeout", "5m", "--max-retries", "3", "--message-ttl", "1h"]
    arguments += ["--max-message-size", "1KiB", "--max-depth", "9", "--on-full", "block"]
    arguments += ["--topic", "a/#", "--topic", "b", "--flush", "async", "--max-bytes", "1GiB"]
    arguments += ["--max-messages", "7", "--set", "retry.initial_backoff=1s"]
    arguments += ["--set", "dlq.enabled=false", "--set", "compact_after=50"]
    [made] = shell.items("create", "jobs", *arguments)
    assert made["name"] == "jobs"
    with tailrace.open(shell.store) as store:
        settings = store.get("jobs").settings
        assert settings.topics == ("a/#", "b")
        assert settings.visibility_timeout_ms == 300_000
        assert settings.retry.max_retries == 3
        assert settings.retry.initial_backoff_ms == 1_000
        assert settings.limits.max_message_size == 1024
        assert settings.limits.max_depth == 9
        assert settings.limits.on_full == "block"
        assert settings.limits.message_ttl_ms == 3_600_000
        assert settings.retention.max_bytes == 1 << 30
        assert settings.retention.max_records == 7
        assert not settings.dlq.enabled
        assert settings.compact_after == 50
        assert store.get("events/all").settings.type == "stream"


def test_create_what_is_there(shell: Shell) -> None:
    shell.ok("create", "jobs", "--max-retries", "unlimited")
    assert "--update changes it" in shell.refused("create", "jobs")
    written = shell.ok("create", "jobs", "--update", "--visibility-timeout", "7s")
    assert written == "changed the queue 'jobs' in data\n"
    assert "cannot become" in shell.refused("create", "jobs", "--update", "--type", "stream")
    with tailrace.open(shell.store) as store:
        settings = store.get("jobs").settings
        assert (settings.retry.max_retries, settings.visibility_timeout_ms) == (None, 7_000)
        assert settings.type == "classic"


def test_update_without_a_change(shell: Shell) -> None:
    shell.ok("create", "jobs", "--visibility-timeout", "7s")
    for given in ([], ["--visibility-timeout", "7000ms"], ["--set", "retry.max_retries=10"]):
        written = shell.ok("create", "jobs", "--update", *given)
        assert written == "the queue 'jobs' in data is as it was\n"
    assert shell.items("create", "jobs", "--update")[0]["name"] == "jobs"


def arguments_of_settings() -> list[str]:
    """What an option of --set might be taken for."""
    functions = (QueueSettings.create, QueueSettings.declared, QueueSettings.changed, Store.queue)
    names = {name for each in functions for name in inspect.signature(each).parameters}
    names.update(field.name for field in dataclasses.fields(QueueSettings))
    nested = {f"{name}.max_depth" for name in names}
    return sorted({"", ".", "cls", "kind", *names, *nested, *OPTIONS, *KEYS})


@pytest.mark.sample(8)
@pytest.mark.parametrize("update", [[], ["--update"]], ids=["new", "update"])
@pytest.mark.parametrize("key", arguments_of_settings())
def test_set_takes_options_of_a_queue_and_nothing_else(
    key: str, update: list[str], run: Run, tmp_path: Path
) -> None:
    """Whatever is wrong is one line."""
    store = tmp_path / "data"
    with tailrace.open(store, upkeep=False) as opened:
        opened.queue("q")
    for value in ("1", "1s", "true", "stream", "", "nan", "-1", "9" * 5000):
        name = "q" if update else f"new{len(value)}{value[:1]}"
        done = run("create", name, *update, "--set", f"{key}={value}", "--store", store)
        if done.exit_code == 0:
            assert key in KEYS - {"type", "topics"}
            continue
        assert done.exit_code == 2, done.exception
        assert done.stderr.startswith("tailrace: ")
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["q", "--max-retries", "many"], "retry.max_retries"),
        (["q", "--visibility-timeout", "soon"], "visibility_timeout: 'soon' is not a duration"),
        (["q", "--set", "colour=red"], "colour: unknown option"),
        (["q", "--set", "retry.colour=red"], "retry.colour: unknown option"),
        (["q", "--set", "retry"], "write it as KEY=VALUE"),
        (["q", "--set", "a.b.c=1"], "a.b.c: unknown option"),
        (["q", "--set", "limits=5", "--set", "limits.max_depth=5"], "limits: unknown option"),
        (["q", "--set", "type=stream"], "--set type=stream: use --type"),
        (["q", "--set", "topics=a/#"], "--set topics=a/#: use --topic"),
        (["q", "--set", "name=other"], "name: unknown option"),
        (["q", "--set", "defaults=1"], "defaults: unknown option"),
        (["", "--max-retries", "1"], "must not be empty"),
        (["q", "--topic", "a/#/b"], "a/#/b"),
    ],
)
def test_create_with_mistakes(arguments: list[str], message: str, shell: Shell) -> None:
    """No store is made for a queue that is not."""
    assert message in shell.refused("create", *arguments)
    assert list(shell.folder.iterdir()) == []


def test_a_command_makes_no_ephemeral_queue(shell: Shell) -> None:
    """It would be gone with the command, and `queues` would show it all the same."""
    said = shell.refused("create", "q", "--set", "ephemeral=true")
    assert said.startswith("ephemeral: such a queue is gone when everybody has closed the store")
    assert "store.queue('q', ephemeral=True)" in said
    assert not shell.store.exists()
    shell.ok("create", "q", "--set", "ephemeral=false")


def test_an_ephemeral_queue_lasts_as_long_as_somebody_has_the_store_open(shell: Shell) -> None:
    with tailrace.open(shell.store) as store:
        store.queue("brief", ephemeral=True)
        shell.ok("publish", "brief", "x")
        shell.ok("create", "brief", "--update", "--set", "ephemeral=true", "--max-depth", "9")
        assert "classic, ephemeral" in shell.ok("queues")
    said = shell.refused("publish", "brief", "x")
    assert said == (
        "the queue 'brief' in data is gone: it was ephemeral, so it lasted until everybody had "
        "closed the store"
    )
    assert shell.ok("queues") == "data/queue: no queues\n"
    assert "there is no queue 'brief'" in shell.refused("publish", "brief", "x")


def test_a_file_of_queues_that_is_a_folder_is_named(shell: Shell) -> None:
    path = shell.store / "queue" / "config" / "queues.json"
    path.mkdir(parents=True)
    for arguments in (["queues"], ["publish", "q", "x"], ["create", "q"], ["stats"]):
        assert shell.refused(*arguments) == "data/queue/config/queues.json: Is a directory"


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["backup"], "DIR"),
        (["backup", "new", "--since"], "--since"),
        (["restore-backup"], "DIR"),
        (["restore-backup", "--check"], "DIR"),
        (["verify"], "DIR"),
        (["recover"], "DIR"),
        (["locks"], "DIR"),
        (["dump"], "FILE..."),
        (["restore", "q", "--from"], "--from"),
        (["config", "check"], "[FILE]"),
        (["spark", "verify"], "[DIR]"),
        (["spark", "reindex"], "[DIR]"),
        (["delete", "q", "--yes", "--store"], "--store"),
        (["queues", "--config"], "--config"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else "",
)
def test_a_path_that_is_empty(shell: Shell, arguments: list[str], name: str) -> None:
    """Such as that of a variable that is not set."""
    shell.ok("create", "q")
    said = shell.refused(*arguments, "")
    assert said.startswith(
        f"Invalid value for '{name}': the path is empty; name a file or a folder"
    )
    assert "q" in shell.ok("queues")


def test_queues(shell: Shell) -> None:
    shell.ok("create", "orders")
    shell.ok("create", "events", "--type", "stream", "--flush", "async")
    assert shell.ok("queues").splitlines() == [
        "queue   type     flush  lease  retries  topics",
        "events  stream   async                  $queue/events/#",
        "orders  classic  sync   30 s   10       $queue/orders/#",
    ]
    [found] = shell.items("queues")
    assert found["type"] == "queues"
    events, orders = found["queues"]
    assert (events["kind"], events["flush"]) == ("stream", "async")
    assert orders["retry"]["max_retries"] == 10


def test_no_queues(shell: Shell) -> None:
    with tailrace.open(shell.store):
        pass
    shell.ok("create", "q")
    shell.ok("delete", "q", "--yes")
    assert shell.ok("queues") == "data/queue: no queues\n"
    assert shell.ok("stats").startswith("data/queue: no queues\n")


# --- what cannot be undone ------------------------------------------------------------------


def fill(shell: Shell) -> None:
    with tailrace.open(shell.store) as store:
        queue = store.queue("q")
        queue.publish_many([b"1", b"2"])
        queue.consumer("g").close()


def test_delete_and_purge_need_a_word(shell: Shell) -> None:
    fill(shell)
    before = shell.files()
    what = "the queue 'q' with 2 messages and 1 group"
    said = f"Delete {what}? Nobody can be asked: say so with --yes"
    assert shell.refused("delete", "q") == said
    assert "say so with --yes" in shell.refused("purge", "q")
    assert "say so with --yes" in shell.refused("groups", "delete", "q", "g")
    assert shell.files() == before


def test_purge(shell: Shell) -> None:
    fill(shell)
    assert shell.ok("purge", "q", "--yes") == "q: deleted 2 messages\n"
    assert shell.ok("read", "q") == ""
    nothing = {"type": "purged", "queue": "q", "messages": 0, "delayed": 0}
    assert shell.items("purge", "q", "-y") == [nothing]


def test_what_is_delayed_goes_too_and_is_told(shell: Shell) -> None:
    def delay() -> None:
        with tailrace.open(shell.store) as store:
            for _ in range(3):
                store.queue("q").publish(b"later", delay=3600)

    fill(shell)
    delay()
    what = "the queue 'q' with 2 messages, 3 delayed messages and 1 group"
    assert f"Delete all messages of {what}?" in shell.refused("purge", "q")
    assert f"Delete {what}?" in shell.refused("delete", "q")
    said = "q: deleted 2 messages and 3 delayed messages\n"
    assert shell.ok("purge", "q", "--yes") == said
    delay()
    purged = {"type": "purged", "queue": "q", "messages": 0, "delayed": 3}
    assert shell.items("purge", "q", "--yes") == [purged]
    delay()
    deleted = {"type": "deleted", "queue": "q", "delayed": 3}
    assert shell.items("delete", "q", "--yes") == [deleted]


def test_a_queue_can_be_deleted_although_nobody_knows_what_is_delayed(shell: Shell) -> None:
    with tailrace.open(shell.store) as store:
        queue = store.queue("q")
        queue.publish(b"later", delay=3600)
        folder = Path(store.layout.delayed(queue.incarnation))
    (folder / "schedule.json").write_text("{}")
    said = "deleted the queue 'q' with 0 messages and delayed messages that cannot be counted\n"
    assert shell.ok("delete", "q", "--yes") == said


def test_delete(shell: Shell) -> None:
    fill(shell)
    assert shell.ok("groups", "delete", "q", "g", "-y") == "deleted the group 'g' of q\n"
    assert "has no group 'g'; it has none" in shell.refused("groups", "delete", "q", "g", "-y")
    deleted = {"type": "deleted", "queue": "q", "delayed": 0}
    assert shell.items("delete", "q", "--yes") == [deleted]
    assert "there is no queue 'q'" in shell.refused("delete", "q", "--yes")


@pytest.mark.parametrize(("answer", "code"), [(b"y\n", 0), (b"n\n", 1), (b"\x04", 1)])
def test_a_person_is_asked(answer: bytes, code: int, shell: Shell) -> None:
    fill(shell)
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command("delete", "q"),
        cwd=shell.folder,
        env=shell.environment,
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        os.write(ours, answer)
        _, errors = process.communicate(timeout=60)
    os.close(theirs)
    os.close(ours)
    assert process.returncode == code
    assert b"Delete the queue 'q' with 2 messages and 1 group? [y/N]" in errors
    assert (b"nothing was changed" in errors) == bool(code)
    with tailrace.open(shell.store) as store:
        assert len(store.queues()) == bool(code)
