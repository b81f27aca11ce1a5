"""The schema is true: its defaults are those that count, it has every option, and it is what the
documentation and editors get."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from tailrace.config.checking import check_nodes
from tailrace.config.keys import json_schema, keys_of, table
from tailrace.config.schema import Disk, File, QueueEntry, QueueManager, Storage
from tailrace.config.toml_text import parse_toml
from tailrace.config.yaml_text import parse_yaml
from tailrace.log.options import LogOptions
from tailrace.queue import settings as rules
from tailrace.queue.disk import DiskSettings
from tailrace.queue.settings import QueueSettings
from tests.project import ROOT

DOCS = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
NOT_FOR_LOGS = ("path", "badger_dir", "disk")
# `name` is no option, `archive` is for those who archive, and `reserved` is the broker's.
NAMES = set(keys_of(QueueEntry)) - {"name", "archive"}


def without_id(settings: QueueSettings) -> dict[str, Any]:
    return {
        name: getattr(settings, name)
        for name in QueueSettings.__dataclass_fields__
        if name not in ("incarnation", "log_options", "flush")
    }


def test_a_queue_has_every_option() -> None:
    options = set(rules.OPTIONS)
    assert options - NAMES == {"reserved"}
    assert options >= NAMES
    for name in rules._NESTED:
        known = set(keys_of(keys_of(QueueEntry)[name].section))
        # Retention has two names for two of its keys: one of each will do.
        assert known == set(rules._NESTED[name]) - {"max_bytes", "max_records"}


def test_a_store_has_every_option_of_a_log() -> None:
    expected = {*rules.LOG_OPTIONS, "flush", "compression", *NOT_FOR_LOGS}
    assert set(keys_of(Storage)) == expected
    assert set(keys_of(Disk)) == set(DiskSettings.__dataclass_fields__)


def test_defaults_of_a_queue() -> None:
    """What the schema says, if it is given, is what is there if it is not."""
    entry = QueueEntry(name="x")
    options = msgspec.to_builtins(entry)
    del options["name"], options["archive"]
    manager = msgspec.to_builtins(QueueManager())
    given = QueueSettings.create(
        "x", **{**options, **manager, "compression": Storage().compression}
    )
    assert without_id(given) == without_id(QueueSettings.create("x"))


def test_defaults_of_a_store() -> None:
    given = msgspec.to_builtins(Storage())
    for name in NOT_FOR_LOGS:
        del given[name]
    default, meant = LogOptions(), LogOptions.parse(**given)
    for name in LogOptions.__dataclass_fields__:
        if name not in ("flush", "codec"):  # a bare log has no compression, and keeps its mode
            assert getattr(meant, name) == getattr(default, name), name
    assert str(meant.flush) == "sync"
    disk = msgspec.to_builtins(Disk())
    assert disk.pop("enough_free") is None  # what that means goes by what else is given
    assert DiskSettings.parse({**disk, "enough_free": DiskSettings().enough_free}) == DiskSettings()


def test_the_table_of_keys_is_that_of_the_schema() -> None:
    """To renew it, replace the rows by what this prints."""
    expected = [
        f"| `{key}` | {value} | {default} | {meaning} |" for key, value, default, meaning in table()
    ]
    part = DOCS.partition("## All keys")[2].partition("\n## ")[0]
    assert re.findall(r"(?m)^\| `.*$", part) == expected, "\n".join(expected)


@pytest.mark.parametrize("language", ["yaml", "toml"])
def test_examples_of_the_documentation_are_good(language: str) -> None:
    examples = re.findall(rf"(?ms)^```{language}\n(.*?)^```", DOCS)
    assert examples
    for text in examples:
        node = parse_yaml(text)[0] if language == "yaml" else parse_toml(text)
        assert not check_nodes(node, "docs").problems


def test_the_json_schema_has_every_key() -> None:
    schema = json_schema()
    assert schema["$schema"].startswith("https://json-schema.org/")

    def walk(section: Any) -> None:
        shown = schema["$defs"][section.__name__]
        assert set(shown["properties"]) == set(keys_of(section))
        assert shown.get("additionalProperties", True) is (section.__name__ == "Cluster")
        for key in keys_of(section).values():
            if key.section is not None:
                walk(key.section)
            else:
                assert shown["properties"][key.name]["description"] == key.meaning

    walk(File)
    assert schema["$defs"]["File"]["patternProperties"] == {"^x-": {}}
    kinds = schema["$defs"]["QueueEntry"]["properties"]["type"]
    assert kinds["enum"] == ["classic", "stream"]
