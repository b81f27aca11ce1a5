"""`Config`: what it gives, where it is found, what it does to a store."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

import tailrace
from tailrace import Config, ConfigError, aio
from tailrace.config.show import to_yaml
from tests.config.support import EVERYTHING, loaded, write

QUEUES = """\
storage: {compression: zstd, segment_bytes: 1MiB}
queues:
  - name: jobs
    visibility_timeout: 2m
    limits: {max_depth: 5}
  - name: events
    type: stream
    compression: none
"""


def open_with(folder: Path, config: Config | Path | str, **options: object) -> tailrace.Store:
    return tailrace.open(folder / "data", config=config, upkeep=False, **options)


def test_what_it_gives(tmp_path: Path) -> None:
    config = loaded(tmp_path, EVERYTHING)
    assert config.store_path == str(tmp_path / "store")
    assert config.disk.delete_when == "04;16"
    assert config.disk.enough_free is None
    assert config.listeners == {"mqtt": "127.0.0.1:1883", "ws": "[::1]:8083"}
    assert [(p.name, p.source) for p in config.pipelines] == [("revenue", "jobs"), ("lake", "jobs")]
    assert config.store_options() == {
        "flush": "async",
        "flush_interval": "250ms",
        "segment_bytes": "8MiB",
        "retention_check_interval": "1m",
        "disk": {
            "max_used_ratio": 0.8,
            "refuse_ratio": 0.95,
            "force": True,
            "delete_when": "04;16",
        },
        "auto_commit_interval": "2s",
    }
    jobs, events = config.queues
    assert (jobs.name, jobs.type, events.name, events.type) == (
        "jobs",
        "classic",
        "events",
        "stream",
    )
    assert jobs.options == {
        "flush": "sync",
        "limits": {"max_depth": 10, "on_full": "block"},
        "visibility_timeout": "45s",
        "retry": {"max_retries": "unlimited", "multiplier": 1.5},
    }


def test_values_have_an_origin(tmp_path: Path) -> None:
    config = loaded(tmp_path, EVERYTHING)
    file = tmp_path / "tailrace.yaml"
    found = {value.key: (value.value, value.origin) for value in config.values()}
    assert found["storage.path"] == ("store", f"{file}:5")
    assert "storage.badger_dir" not in found
    assert found["storage.compression"] == ("s2", "default")
    assert found["storage.disk.force"] == (True, f"{file}:10")
    assert found["storage.disk.enough_free"] == (0, "default")  # there is a ratio
    assert found["listeners.ws"] == ("[::1]:8083", f"{file}:11")
    assert found["queues[0].visibility_timeout"] == ("45s", f"{file}:2")  # where it is written
    assert found["queues[0].flush"] == ("sync", f"{file}:16")
    assert found["queues[1].flush"] == ("async", f"{file}:6")  # from storage
    assert found["queues[1].auto_commit_interval"] == ("2s", f"{file}:12")
    assert found["queues[0].topics"] == (["$queue/jobs/#"], "default")
    assert found["queues[0].limits.max_message_size"] == ("10MiB", "default")
    assert found["pipelines[0].from"] == ("jobs", f"{file}:23")


def test_what_is_shown_says_the_same_when_it_is_loaded(tmp_path: Path) -> None:
    config = loaded(tmp_path, EVERYTHING)
    shown = "\n".join(to_yaml(config.values(), origins=True))
    again = loaded(tmp_path, shown, "again.yaml")
    assert [(v.key, v.value) for v in again.values()] == [(v.key, v.value) for v in config.values()]


def test_without_a_file_all_are_defaults() -> None:
    config = Config.empty()
    assert config.store_path == "data"
    assert not config.store_options()
    assert {value.origin for value in config.values()} == {"default"}


# --- where it is found ----------------------------------------------------------------------


def test_found_in_the_store_before_beside_it(tmp_path: Path) -> None:
    store = tmp_path / "data"
    assert Config.find(store) is None
    beside = write(tmp_path, "storage: {flush: async}")
    assert Config.find(store) == Config.load(beside)
    tailrace.open(store, upkeep=False).close()
    assert Config.find(store / "queue") == Config.load(beside)  # the same store
    inside = write(store, 'storage.flush = "none"', "tailrace.toml")
    found = Config.find(store)
    assert found is not None
    assert found.path == str(inside)
    below = Config.find(store / "queue")
    assert below is not None
    assert below.path == str(inside)


def test_one_that_names_another_store_is_not_meant(tmp_path: Path) -> None:
    write(tmp_path, "storage: {path: data}")
    assert Config.find(tmp_path / "data") is not None
    assert Config.find(tmp_path / "other") is None


def test_two_of_them_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "")
    write(tmp_path, "", "tailrace.toml")
    with pytest.raises(ConfigError, match=r"tailrace.yaml: there is tailrace.toml beside it"):
        Config.find(tmp_path / "data")


def test_a_wrong_one_is_found(tmp_path: Path) -> None:
    path = write(tmp_path, "storge: {}")
    assert Config.find_file(tmp_path / "data") == str(path)
    with pytest.raises(ConfigError, match="did you mean storage"):
        Config.find(tmp_path / "data")


# --- what it does ---------------------------------------------------------------------------


def test_opening_makes_the_queues(tmp_path: Path) -> None:
    with open_with(tmp_path, write(tmp_path, QUEUES)) as store:
        jobs, events = store.get("jobs").settings, store.get("events").settings
    assert jobs.visibility_timeout_ms == 120_000
    assert jobs.compression == "zstd"
    assert dict(jobs.log_options)["segment_bytes"] == 2**20
    assert (events.type, events.compression) == ("stream", "none")


def test_options_that_are_given_come_first(tmp_path: Path) -> None:
    config = loaded(tmp_path, QUEUES)
    with open_with(tmp_path, config, compression="s2", flush=None) as store:
        assert store.get("jobs").settings.compression == "s2"
        assert store.get("events").settings.compression == "none"


def test_opening_again_changes_nothing(tmp_path: Path) -> None:
    config = loaded(tmp_path, QUEUES)
    file = tmp_path / "data" / "queue" / "config" / "queues.json"
    open_with(tmp_path, config).close()
    before = file.read_bytes()
    open_with(tmp_path, config).close()
    assert file.read_bytes() == before


def test_what_the_file_says_counts_and_the_rest_stays(tmp_path: Path) -> None:
    with open_with(tmp_path, loaded(tmp_path, QUEUES)) as store:
        store.queue("jobs", visibility_timeout="1s", limits={"message_ttl": "1h"})
        store.queue("mine")
    with open_with(tmp_path, loaded(tmp_path, QUEUES.replace("zstd", "s2"))) as store:
        jobs = store.get("jobs").settings
        assert store.get("mine")
    assert jobs.visibility_timeout_ms == 120_000
    assert jobs.limits.message_ttl_ms == 3_600_000
    assert jobs.compression == "zstd"  # of storage: for those that are made from then on


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            "    type: classic",
            ":9: queues[1].type: events is a stream, and cannot become a classic",
        ),
        ("    type: stream\n    flush: async", ":10: queues[1].flush: events is sync, and cannot"),
        ("    type: stream\n    ephemeral: true", ":10: queues[1].ephemeral: events is durable"),
    ],
)
def test_what_cannot_be_changed_changes_nothing(tmp_path: Path, changed: str, said: str) -> None:
    open_with(tmp_path, loaded(tmp_path, QUEUES)).close()
    text = QUEUES.replace("    type: stream", changed).replace(": 2m", ": 3m")
    text = text.replace("queues:\n", "queues:\n  - name: first\n    visibility_timeout: 1s\n")
    text = text.replace("queues[1]", "queues[2]")
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        open_with(tmp_path, path)
    assert str(caught.value).startswith(f"{path}{said.replace('[1]', '[2]')}")
    with tailrace.open(tmp_path / "data", upkeep=False) as store:
        assert [queue.name for queue in store.queues()] == ["events", "jobs"]
        assert store.get("jobs").settings.visibility_timeout_ms == 120_000


def test_a_wrong_file_opens_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown key"):
        open_with(tmp_path, write(tmp_path, "foo: 1"))
    assert not (tmp_path / "data").exists()


def test_for_tasks(tmp_path: Path) -> None:
    path = write(tmp_path, QUEUES)

    async def main() -> list[str]:
        async with aio.open(tmp_path / "data", config=path, upkeep=False) as store:
            return [queue.name for queue in await store.queues()]

    assert asyncio.run(main()) == ["events", "jobs"]


def test_for_tasks_a_wrong_file_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    async def main() -> None:
        store = aio.open(tmp_path / "data", config=tmp_path / "no.yaml")
        with pytest.raises(ConfigError, match="No such file"):
            await store
        await store.close()

    asyncio.run(main())


def test_nothing_is_imported_for_those_without_a_file(tmp_path: Path) -> None:
    code = (
        "import sys, tailrace, tailrace.aio\n"
        "tailrace.open(sys.argv[1]).close(); tailrace.aio.open\n"
        "print([name for name in ('msgspec', 'yaml', 'tomllib') if name in sys.modules])\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "data")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"
