"""What an editor is told by the published schema is what the loader says.

The schema takes every good file. Of the wrong ones it refuses those that are wrong by their shape;
a few rules are about several keys at once, or only the loader knows them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tailrace.config import check
from tailrace.config.keys import json_schema
from tailrace.config.nodes import Node
from tailrace.config.toml_text import parse_toml
from tailrace.config.yaml_text import parse_yaml
from tests.config.support import EVERYTHING, FLUXMQ, SMALL, WHOLE, needs_seeds, write
from tests.config.test_checking import MESSAGES
from tests.config.test_seeds import EXAMPLE
from tests.project import ROOT

SCHEMA = json_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

# By what the loader says of them.
ONLY_THE_LOADER = (
    "is no time",
    "nan is",
    "expected a ratio above 0 and up to 1, got nan",
    "the filter 'a/#/b'",
    "the name of a queue",
    "cannot be a level of a filter",
    "is ephemeral",
    "leads back to",
    "is a stream; dead letters need",
    "would go round in a circle",
    "more than a batch can hold",
    "8589934592 is outside",
    "is below disk.max_used_ratio",
    "it is another folder",
    "is there twice",
    "is less than retry.initial_backoff",
    "is a classic queue, and only a stream can have one",
)


def plain(node: Node) -> Any:
    value = node.value
    if isinstance(value, dict):
        return {name: plain(child) for name, child in value.items()}
    return [plain(child) for child in value] if isinstance(value, list) else value


def is_valid(text: str, *, is_toml: bool = False) -> bool:
    given = plain(parse_toml(text) if is_toml else parse_yaml(text)[0])
    return bool(VALIDATOR.is_valid(given))


def test_it_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("text", [SMALL, WHOLE, EVERYTHING])
def test_good_files(text: str) -> None:
    assert is_valid(text)


def test_the_examples_of_fluxmq() -> None:
    needs_seeds()
    small, replicated, whole = EXAMPLE.findall(FLUXMQ.read_text(encoding="utf-8"))
    assert is_valid(small)
    assert is_valid(whole)
    assert not is_valid(replicated)


def test_the_examples_of_the_documentation() -> None:
    found = [
        (text, language == "toml")
        for page in PAGES
        for language, text in re.findall(
            r"(?ms)^```(yaml|toml)\n(.*?)^```", page.read_text(encoding="utf-8")
        )
    ]
    assert len(found) >= 4
    for text, is_toml in found:
        assert is_valid(text, is_toml=is_toml), text


@pytest.mark.parametrize(("text", "said"), MESSAGES)
def test_wrong_files(text: str, said: str, tmp_path: Path) -> None:
    [problem] = check(write(tmp_path, text))
    is_known = any(words in problem.message for words in ONLY_THE_LOADER)
    assert is_valid(text) is is_known


@pytest.mark.parametrize(
    "value",
    [
        *("250ms", "30s", "1h30m", "1.5h", "' 5M '", "1 h 30 m", "'30'", "30", "0.5", "0"),
        *("soon", "-1", "5x", "1h-", "''", "[1]", "true", "1e3s"),
    ],
)
def test_durations(value: str, tmp_path: Path) -> None:
    text = f"queues: [{{name: a, expire_groups: {value}}}]"
    assert is_valid(text) is not bool(check(write(tmp_path, text)))


@pytest.mark.parametrize(
    "value",
    [
        *("4096", "'4096'", "64KiB", "64kb", "1.5 GiB", "1k", "' 3 MB '", "0"),
        *("1XB", "1 2", "-1", "''", "1.5", "false", "1KiBs"),
    ],
)
def test_sizes(value: str, tmp_path: Path) -> None:
    text = f"queues: [{{name: a, retention: {{max_length_bytes: {value}}}}}]"
    assert is_valid(text) is not bool(check(write(tmp_path, text)))


@pytest.mark.parametrize(
    "value", ["always", "disk_full", "'04;16'", "'4 ; 16'", "4", "23", "24", "noon", "'4,5'", "''"]
)
def test_hours(value: str, tmp_path: Path) -> None:
    text = f"storage: {{disk: {{delete_when: {value}}}}}"
    assert is_valid(text) is not bool(check(write(tmp_path, text)))


@pytest.mark.parametrize("value", ["10", "0", "unlimited", "-1", "forever", "1.5"])
def test_retries(value: str, tmp_path: Path) -> None:
    text = f"queues: [{{name: a, retry: {{max_retries: {value}}}}}]"
    assert is_valid(text) is not bool(check(write(tmp_path, text)))


def test_what_is_not_given_yet(tmp_path: Path) -> None:
    """A key without a value was not given, says the loader; an editor says that it is not done."""
    text = "queues:\n  - name: a\n    limits:\n"
    assert not check(write(tmp_path, text))
    assert not is_valid(text)
