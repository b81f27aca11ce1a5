"""The examples of FluxMQ's documentation load as they are; its other keys are mapped in ours."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tailrace
from tailrace import ConfigError
from tests.config.support import FLUXMQ, SEEDS, SMALL, WHOLE, loaded, needs_seeds, problems
from tests.project import ROOT

EXAMPLE = re.compile(r"(?ms)^(?:queue_manager|queues):\n.*?(?=^\S(?!ueues:))")
DOCS = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")


def test_the_small_example(tmp_path: Path) -> None:
    [queue] = loaded(tmp_path, SMALL).queues
    assert (queue.name, queue.type) == ("tasks", "classic")
    assert queue.options == {"topics": ["$queue/tasks/#"], "limits": {"message_ttl": "30m"}}


def test_the_whole_example(tmp_path: Path) -> None:
    config = loaded(tmp_path, WHOLE)
    with tailrace.open(tmp_path / "data", config=config, upkeep=False) as store:
        settings = store.get("orders").settings
    assert settings.topics == ("$queue/orders/#",)
    assert settings.limits.max_depth == 100_000
    assert settings.limits.message_ttl_ms == 168 * 3_600_000
    assert settings.retention.max_age_ms == 168 * 3_600_000
    assert settings.retention.max_bytes is None
    assert settings.retry.max_retries == 10
    assert settings.auto_commit_interval_ms == 5_000


def test_replication_is_refused(tmp_path: Path) -> None:
    text = WHOLE.replace("enabled: false", "enabled: true")
    [found] = problems(tmp_path, text)
    assert found == (
        "11: queues[0].replication.enabled: a queue is on one machine, and cannot be replicated; "
        "set it to false, or remove replication"
    )


def test_the_document_itself(tmp_path: Path) -> None:
    needs_seeds()
    examples = EXAMPLE.findall(FLUXMQ.read_text(encoding="utf-8"))
    assert len(examples) == 3
    small, replicated, whole = examples
    assert [queue.name for queue in loaded(tmp_path, small).queues] == ["tasks"]
    assert loaded(tmp_path, whole).queues == loaded(tmp_path, WHOLE).queues
    with pytest.raises(ConfigError, match=r"queues\[0\]\.replication\.enabled: .*one machine"):
        loaded(tmp_path, replicated)


def test_every_key_that_other_systems_have_is_in_the_table() -> None:
    """As `a.b` in backticks, or as the last part of one."""
    needs_seeds()
    texts = {path.name[:3]: path.read_text(encoding="utf-8") for path in SEEDS.glob("*.txt")}
    named = set(re.findall(r"`(log\.[a-z.]+)`", texts["001"]))
    named |= set(re.findall(r"(?m)^([a-z_]+) = ", texts["004"].partition("[broker]")[2]))
    named |= set(re.findall(r'"(x-(?:queue|max|consumer|stream|auto)[a-z-]*)"', texts["003"]))
    for example in EXAMPLE.findall(texts["003"]):
        named |= set(re.findall(r"(?m)^ +(?:- )?(\w+): *\S", example))
    named |= set(re.findall(r"`?(storage\.\w+)", texts["000"])) | {"cluster.raft"}
    assert len(named) > 40
    table = DOCS.partition("## Coming from another system")[2]
    for key in named:
        assert re.search(rf"[`.]{re.escape(key)}\b", table), key
