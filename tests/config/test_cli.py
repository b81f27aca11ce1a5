"""`tailrace config`, as a person or a script runs it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tailrace import ConfigError
from tailrace import open as open_store
from tailrace.queue.settings import LOG_OPTIONS
from tests.cli.conftest import Run, lines, run, tailrace
from tests.config.support import EVERYTHING, SMALL, write

__all__ = ["run"]  # a fixture


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TAILRACE_STORE", raising=False)
    return tmp_path


def test_check_a_good_file(here: Path) -> None:
    write(here, SMALL)
    done = tailrace("config", "check", "tailrace.yaml")
    assert (done.returncode, done.stdout) == (0, "tailrace.yaml: no problem; 1 queue\n")
    assert tailrace("config", "check").stdout == done.stdout  # beside ./data


def test_check_lists_every_problem(here: Path) -> None:
    write(here, "storge: {}\nqueues:\n- name: a\n  limits: {max_dept: 1}\n")
    done = tailrace("config", "check")
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        "tailrace.yaml:1: storge: unknown key; did you mean storage?",
        "tailrace.yaml:4: queues[0].limits.max_dept: unknown key; did you mean max_depth?",
    ]
    assert not done.stderr


def test_check_for_programs(here: Path, run: Run) -> None:
    path = write(here, "[storage]\nflush = 1\n", "conf.toml")
    result = run("config", "check", path, "--json")
    assert result.exit_code == 1
    problem, report = lines(result)
    assert problem == {
        "type": "problem",
        "file": str(path),
        "line": 2,
        "key": "storage.flush",
        "message": "expected one of sync, async, none, got 1",
    }
    assert report == {"type": "report", "file": str(path), "problems": 1}


def test_check_without_a_file(run: Run) -> None:
    result = run("config", "check")
    assert result.exit_code == 2
    assert "there is no tailrace.yaml, tailrace.yml, tailrace.toml in data or" in result.stderr
    result = run("config", "check", "no.yaml")
    assert result.exit_code == 2
    assert result.stderr.startswith("tailrace: no.yaml: No such file or directory")


def test_the_store_says_which_file(here: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "there").mkdir()
    write(here / "there", SMALL, "tailrace.yml")
    shown = f"{Path('there', 'tailrace.yml')}: no problem; 1 queue\n"
    assert run("config", "check", "--store", "there/data").stdout == shown
    monkeypatch.setenv("TAILRACE_STORE", "there/data")
    assert run("config", "check").stdout == shown


def test_the_file_in_the_working_folder(here: Path, run: Run) -> None:
    write(here, f"storage: {{path: store}}\n{SMALL}")
    result = run("config", "check")
    assert (result.exit_code, result.stdout) == (0, "tailrace.yaml: no problem; 1 queue\n")
    assert shown(run)["storage.path"] == ("store", "tailrace.yaml:1")
    (here / "store").mkdir()
    write(here / "store", SMALL)  # comes first, but does not say where the store is
    assert run("config", "check").stdout.startswith("store/tailrace.yaml: ")
    assert shown(run)["storage.path"] == ("store", "tailrace.yaml")


def test_a_file_that_is_passed_over_is_named(
    here: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(here, f"storage: {{path: store}}\n{SMALL}")
    said = "tailrace.yaml is for the store in store; name a file\n"
    (here / "there").mkdir()
    for given in ("data", "there/data"):
        result = run("config", "check", "--store", given)
        assert result.exit_code == 2
        assert result.stderr.endswith(f" in {given} or beside it; {said}")
    write(here / "there", "storage: {path: more}\n")
    monkeypatch.setenv("TAILRACE_STORE", "there/data")
    both = "there/tailrace.yaml is for the store in there/more; "
    assert run("config", "check").stderr.endswith(f" in there/data or beside it; {both}{said}")


def test_check_against_the_store(here: Path, run: Run) -> None:
    with open_store("data") as store:
        store.stream("events")
        store.queue("a", dlq={"topic": "letters"})
        store.queue("old", flush="async")
    write(
        here,
        "queues:\n"
        "  - name: old\n"
        "    flush: sync\n"
        "  - name: events\n"
        "  - name: letters\n"
        "    type: stream\n"
        "  - name: b\n"
        "    dlq: {topic: events}\n"
        "  - name: mqtt\n",
    )
    result = run("config", "check")
    assert result.exit_code == 1
    said = [line.removeprefix("tailrace.yaml:") for line in result.stdout.splitlines()]
    expected = [
        "3: queues[0].flush: old is async, and cannot become sync; ",
        "4: queues[1].type: events is a stream, and cannot become a classic queue; ",
        "6: queues[2].type: the dead letters of a go to letters, and they need a classic queue; ",
        "8: queues[3].dlq.topic: events is a stream; dead letters need a classic queue",
        "9: queues[4].name: the name of a queue, 'mqtt', is reserved for the broker, ",
    ]
    assert len(said) == len(expected)
    for line, begin in zip(said, expected, strict=True):
        assert line.startswith(begin)
    found = lines(run("config", "check", "--json"))
    assert [each.get("key") for each in found][1:3] == ["queues[1].type", "queues[2].type"]
    assert found[-1] == {"type": "report", "file": "tailrace.yaml", "problems": 5}
    with pytest.raises(ConfigError, match=r"tailrace\.yaml:3: queues\[0\]\.flush: old is async"):
        open_store("data", config=here / "tailrace.yaml")
    with open_store("data") as store:  # where they are, they can be declared
        store.queue("mqtt", reserved=True)
    write(here, "queues: [{name: mqtt}, {name: events, type: stream}]\n")
    assert run("config", "check").stdout == "tailrace.yaml: no problem; 2 queues\n"
    open_store("data", config=here / "tailrace.yaml").close()


@pytest.mark.parametrize("given", [[], ["tailrace.yaml"]])
def test_every_problem_at_once(given: list[str], here: Path, run: Run) -> None:
    """What a file has wrong hides nothing that its store is against, and one option no other."""
    with open_store("data") as store:
        store.stream("events", flush="async")
        store.queue("old", flush="async")
    write(
        here,
        "storage: {flush: somehow}\n"
        "queues:\n"
        "  - name: events\n"
        "    flush: none\n"
        "    ephemeral: true\n"
        "    retry: {max_retries: -1}\n"
        "  - name: mqtt\n"
        "  - flush: sync\n"
        "  - name: old\n"
        "    type: strem\n"
        "  - name: new\n"
        "    type: stream\n"
        "    primary_group: g\n",
    )
    result = run("config", "check", *given)
    assert result.exit_code == 1
    assert result.stderr == ""
    said = [line.removeprefix("tailrace.yaml:") for line in result.stdout.splitlines()]
    expected = [
        "1: storage.flush: 'somehow' is not one of ",
        "3: queues[0].type: events is a stream, and cannot become a classic queue; ",
        "4: queues[0].flush: events is async, and cannot become none; ",
        "5: queues[0].ephemeral: events is durable, and cannot become ephemeral; ",
        "6: queues[0].retry.max_retries: ",
        "7: queues[1].name: the name of a queue, 'mqtt', is reserved for the broker, ",
        "8: queues[2].name: it is missing",
        "10: queues[3].type: 'strem' is not one of ",
    ]
    assert len(said) == len(expected), said
    for line, begin in zip(said, expected, strict=True):
        assert line.startswith(begin)


def test_options_are_judged_by_the_type_that_is_wanted(here: Path, run: Run) -> None:
    with open_store("data") as store:
        store.queue("events")
    write(here, "queues:\n  - name: events\n    type: stream\n    primary_group: g\n")
    [said] = run("config", "check").stdout.splitlines()
    assert said.startswith("tailrace.yaml:3: queues[0].type: events is a classic queue, and cannot")


def test_a_wrong_file_of_a_store_that_is_damaged(here: Path, run: Run) -> None:
    with open_store("data") as store:
        store.queue("a")
    (here / "data/queue/config/queues.json").write_text("{")
    write(here, "queues: [{name: 5}]\n")
    result = run("config", "check")
    assert result.exit_code == 1
    assert "queues[0].name" in result.stdout
    assert "the store was not looked at" in result.stderr
    write(here, SMALL)
    assert run("config", "check").exit_code == 2


def test_what_nobody_asked_for_can_be_declared(here: Path, run: Run) -> None:
    """It is ephemeral until then, and durable from then on."""
    path = write(here, "queues: [{name: a, flush: sync}]\n")
    with open_store("data") as store:
        store.consumer("a", "g").close()
        result = run("config", "check")
        assert (result.exit_code, result.stdout) == (0, "tailrace.yaml: no problem; 1 queue\n")
        with open_store("data", config=path) as other:
            assert not other.get("a").settings.ephemeral


def test_check_without_the_right_to_see_the_store(
    here: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store("data") as store:
        store.queue("a")
    write(here, SMALL)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", "data/queue/config/queues.json")

    monkeypatch.setattr("tailrace.cli.config.look_at_store", refuse)
    result = run("config", "check")
    assert (result.exit_code, result.stdout) == (0, "tailrace.yaml: no problem; 1 queue\n")
    assert "the store was not looked at: data/queue/config/queues.json: Perm" in result.stderr


@pytest.mark.parametrize(
    ("text", "enough"), [("", "10GiB"), ("storage: {disk: {refuse_ratio: 0.95}}", 0)]
)
def test_how_much_is_enough_is_shown(here: Path, run: Run, text: str, enough: object) -> None:
    write(here, text)
    assert shown(run)["storage.disk.enough_free"] == (enough, "default")
    again = write(here, run("config", "show").stdout, "again.yaml")
    assert shown(run, again)["storage.disk.enough_free"][0] == enough
    with open_store("data", config=again) as store:
        assert store.disk.settings.enough_free == (10 * 2**30 if enough else 0)


def test_show(here: Path, run: Run) -> None:
    write(here, EVERYTHING)
    shown = run("config", "show", "tailrace.yaml")
    assert shown.exit_code == 0
    assert "\n  flush: async\n" in shown.stdout
    with_origin = run("config", "show", "tailrace.yaml", "--origin").stdout.splitlines()
    assert [line.partition("  #")[0].rstrip() for line in with_origin] == shown.stdout.splitlines()
    [flush] = [line.split() for line in with_origin if line.startswith("  flush: ")]
    assert flush == ["flush:", "async", "#", "tailrace.yaml:6"]
    write(here, shown.stdout, "again.yaml")
    assert run("config", "show", "again.yaml").stdout == shown.stdout


def test_show_for_programs(here: Path, run: Run) -> None:
    write(here, SMALL)
    values = lines(run("config", "show", "--json"))
    assert {value["type"] for value in values} == {"value"}
    [ttl] = [value for value in values if value["key"] == "queues[0].limits.message_ttl"]
    assert (ttl["value"], ttl["origin"]) == ("30m", "tailrace.yaml:5")


def test_show_without_a_file(run: Run) -> None:
    result = run("config", "show", "--json")
    assert result.exit_code == 0
    assert {value["origin"] for value in lines(result)} == {"default"}


def shown(run: Run, *arguments: object) -> dict[str, tuple[object, str]]:
    result = run("config", "show", *arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return {item["key"]: (item["value"], item["origin"]) for item in lines(result)}


def test_what_the_store_has_counts(here: Path, run: Run) -> None:
    """`storage` and defaults are for queues that are made; what the file says of one is not."""
    options: dict[str, Any] = {
        "flush": "sync",
        "visibility_timeout": "90s",
        "segment_bytes": "3MiB",
        "segment_age": "36h",
        "index_interval": 5000,
        "retry": {"max_retries": "unlimited"},
        "retention": {"max_age": "7d"},
        "topics": ["a/#"],
    }
    with open_store("data") as store:
        store.queue("a", **options)
        store.queue("brief", ephemeral=True)
    write(
        here,
        "storage: {flush: async, compression: zstd, flush_interval: 9s, segment_bytes: 1MiB}\n"
        "queues:\n"
        "  - name: a\n"
        "    limits: {max_depth: 7}\n"
        "  - name: brief\n"
        "    ephemeral: true\n"
        "  - name: new\n",
    )
    found = shown(run)
    assert found["storage.flush"] == ("async", "tailrace.yaml:1")
    expected = {
        "flush": ("sync", "store"),
        "compression": ("s2", "store"),
        "limits.max_depth": (7, "tailrace.yaml:4"),
        "limits.max_message_size": ("10MiB", "store"),
        "visibility_timeout": ("90s", "store"),
        "segment_bytes": ("3MiB", "store"),
        "segment_age": ("36h", "store"),
        "index_interval": (5000, "store"),
        "flush_interval": ("1s", "default"),  # nobody gave it when the queue was made
        "retry.max_retries": ("unlimited", "store"),
        "retry.multiplier": (2.0, "store"),
        "retention.max_age": ("7d", "store"),
        "retention.max_length_bytes": (0, "store"),
        "topics": (["a/#"], "store"),
        "primary_group": ("", "store"),
        "type": ("classic", "store"),
        "replication.enabled": (False, "default"),
    }
    assert {key: found[f"queues[0].{key}"] for key in expected} == expected
    assert found["queues[1].flush"] == ("none", "store")
    assert found["queues[2].flush"] == ("async", "tailrace.yaml:1")
    assert found["queues[2].compression"] == ("zstd", "tailrace.yaml:1")
    again = write(here, run("config", "show").stdout, "again.yaml")
    both = []
    for file in (here / "tailrace.yaml", again):  # what is shown says the same
        with open_store("data", config=file) as store:
            settings = [store.get(name).settings for name in ("a", "new")]
        both.append([replace(each, log_options=()) for each in settings])
    assert both[0] == both[1]
    assert [each.compression for each in both[0]] == ["s2", "zstd"]


def test_every_setting_has_a_key(here: Path, run: Run) -> None:
    """Of a queue that is there nothing comes from the file that does not say it."""
    with open_store("data", index_interval=4096) as store:
        store.queue("a")
    write(here, "queues: [{name: a}]\n")
    found = shown(run)
    mine = {key: origin for key, (_, origin) in found.items() if key.startswith("queues[0].")}
    not_stored = {key.partition(".")[2] for key, origin in mine.items() if origin == "default"}
    not_stored = {key for key in not_stored if not key.startswith("archive.")}
    assert not_stored == {"replication.enabled", *LOG_OPTIONS} - {"index_interval"}
    assert set(mine.values()) == {"store", "default", "tailrace.yaml:1"}


def test_where_the_store_is(here: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(here, "storage: {path: data}\n", "tailrace.yaml")
    assert shown(run)["storage.path"] == ("data", "tailrace.yaml:1")
    (here / "there" / "data").mkdir(parents=True)
    write(here / "there" / "data", "queues: [{name: a}]\n")
    given = ("there/data", "--store")
    assert shown(run, "--store", "there/data")["storage.path"] == given
    assert shown(run, path, "--store", "there/data")["storage.path"] == given
    monkeypatch.setenv("TAILRACE_STORE", "there/data")
    assert shown(run)["storage.path"] == ("there/data", "TAILRACE_STORE")
    # As with every command, a file that is named tells where the store is.
    assert shown(run, path)["storage.path"] == ("data", f"{path}:1")
    monkeypatch.delenv("TAILRACE_STORE")
    monkeypatch.chdir(here / "there")
    assert shown(run)["storage.path"] == ("data", "default")  # it is the file in the store itself


def test_the_file_as_everywhere(here: Path) -> None:
    write(here, SMALL, "conf.yaml")
    done = tailrace("config", "check", "--config", "conf.yaml")
    assert (done.returncode, done.stdout) == (0, "conf.yaml: no problem; 1 queue\n")
    done = tailrace("config", "show", "--config", "conf.yaml")
    assert (done.returncode, done.stdout) == (0, tailrace("config", "show", "conf.yaml").stdout)
    for command in ("check", "show"):
        done = tailrace("config", command, "conf.yaml", "--config", "conf.yaml")
        assert done.returncode == 2
        assert "FILE and --config exclude each other" in done.stderr


def test_show_a_wrong_file(here: Path) -> None:
    write(here, "storge: {}\n")
    done = tailrace("config", "show")
    assert done.returncode == 2
    assert done.stderr == (
        "tailrace: tailrace.yaml:1: storge: unknown key; did you mean storage?\n"
    )


def test_schema() -> None:
    done = tailrace("config", "schema")
    assert done.returncode == 0
    assert json.loads(done.stdout)["title"] == "tailrace"


def test_help_has_examples(run: Run) -> None:
    for command in ("check", "show", "schema"):
        shown = run("config", command, "--help").stdout
        assert f"tailrace config {command}" in shown.partition("Example")[2]
