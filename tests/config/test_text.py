"""YAML and TOML: what is read, and from which line."""

from __future__ import annotations

import tomllib
from datetime import date, datetime, time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tailrace.config.nodes import Node, Unreadable
from tailrace.config.toml_text import locate, parse_toml
from tailrace.config.yaml_text import parse_yaml
from tests.config.support import loaded, problems


def plain(node: Node) -> Any:
    if isinstance(node.value, dict):
        return {key: plain(each) for key, each in node.value.items()}
    if isinstance(node.value, list):
        return [plain(each) for each in node.value]
    return node.value


def from_yaml(text: str) -> Any:
    node, wrong = parse_yaml(text)
    assert not wrong
    return plain(node)


@pytest.fixture(params=["CSafeLoader", "SafeLoader"])
def loader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyYAML may have been built without libyaml."""
    if not hasattr(yaml, request.param):
        pytest.skip("there is no libyaml")
    monkeypatch.setattr("tailrace.config.yaml_text._LOADER", getattr(yaml, request.param))


# --- YAML -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("on", "on"),
        ("yes", "yes"),
        ("Off", "Off"),
        ("true", True),
        ("FALSE", False),
        ("~", None),
        ("", None),
        ("null", None),
        ("010", 10),
        ("0o17", 15),
        ("0x1f", 31),
        ("-3", -3),
        ("1_000", "1_000"),
        ("12:30:45", "12:30:45"),
        ("2001-01-01", "2001-01-01"),
        ("1.5", 1.5),
        (".5", 0.5),
        ("1e3", 1000.0),
        (".inf", float("inf")),
        ("'12'", "12"),
        ('"true"', "true"),
        ("!!str 12", "12"),
        ("!!int '12'", 12),
        ("! 12", "12"),
        ("5s", "5s"),
        ("|-\n  a\n  b", "a\nb"),
        ("[1, a, {b: c}]", [1, "a", {"b": "c"}]),
    ],
)
@pytest.mark.usefixtures("loader")
def test_values_are_those_of_yaml_1_2(text: str, value: Any) -> None:
    found = from_yaml(f"k: {text}\n")["k"]
    assert found == value
    assert type(found) is type(value)


def test_lines_are_those_of_the_keys() -> None:
    node, _ = parse_yaml("# one\na: 1\nb:\n  c:\n\n    - d\n    - e: 2\n")
    assert node.value["a"].line == 2
    assert node.value["b"].line == 3
    assert node.value["b"].value["c"].line == 4
    first, second = node.value["b"].value["c"].value
    assert (first.line, second.line, second.value["e"].line) == (6, 7, 7)


def test_anchors_and_merges() -> None:
    text = "x: &x {a: 1, b: 2}\ny: &y {b: 3, c: 4}\nz: {<<: [*x, *y], a: 0}\nw: *x\n"
    found = from_yaml(text)
    assert found["z"] == {"a": 0, "b": 2, "c": 4}
    assert found["w"] == found["x"]


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("a: [1\nb: 2", 2, "this is not YAML"),
        ("a: 1\n\tb: 2", 2, "this is not YAML"),
        ("a: 1\n---\nb: 2", 2, "a second document"),
        ("a:\n  - &x [*x]", 2, "inside what it stands for"),
        ("a: 1\nb: *no", 2, "there is no &no"),
        ("a: 1\n? [b]\n: 1", 2, "a key is a name"),
        ("a: 1\nb: !!python/object:os.system x", 2, "the tag"),
        ("a: 1\nb: !!set {x}", 2, "the tag"),
        ("a: 1\nb: !!int x", 2, "is not a value of the tag"),
        ("a: 1\nb:\n  <<: 1", 3, "<< takes a mapping"),
        ("a: 1\nb: \x07", 2, "does not allow"),
        ('a: 1\nb: "\\ud800"', 2, "half a character|not YAML"),
        ("a: 1\nb: " + "9" * 5000, 2, "too long"),
        ("a: 1\nb: " + "9" * 200, 2, "too large"),
        ("a: 1\nb: 0x" + "f" * 900, 2, "too large"),
        ("a: 1\nb: " + "[" * 20_000, 2, "nested too deeply"),
    ],
)
@pytest.mark.usefixtures("loader")
def test_what_yaml_is_refused(text: str, line: int, said: str) -> None:
    with pytest.raises(Unreadable, match=said) as caught:
        parse_yaml(text)
    assert caught.value.line == line


def test_a_key_that_is_there_twice(tmp_path: Path) -> None:
    text = "storage:\n  flush: sync\n  flush: async\nqueues: []\nstorage: {}\n"
    assert problems(tmp_path, text) == [
        "3: the key 'flush' is there twice, first on line 2",
        "5: the key 'storage' is there twice, first on line 1",
    ]


def test_aliases_of_aliases_take_no_time(tmp_path: Path) -> None:
    lines = ["x-0: &a0 [1, 2]"]
    lines += [f"x-{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 40)]
    lines += ["queues: [{name: q, limits: *a39, topics: [*a39]}]"]
    assert problems(tmp_path, "\n".join(lines)) == [
        (
            "41: queues[0].limits: expected a mapping of max_message_size, max_depth, message_ttl, "
            "on_full, got a list"
        ),
        "41: queues[0].topics[0]: expected text, got a list",
    ]


# --- TOML -----------------------------------------------------------------------------------

TOML = '''\
# a comment with [brackets] and "quotes
top = 1

[storage] # here
path = "data"
"flush" = 'sync'
text = """
[not.a.table]
x = 1 \\""" """
raw = \'\'\'
[[nor]]
\'\'\'

[storage.disk]
force = true

[[queues]]
name = "a"
limits = { max_depth = 1, on_full = "raise" }
topics = [
  "x/#", # ] is no end
  "y",
]
retry.max_retries = 3
retry . "multi\\u0070lier" = 2.0

[queues.dlq]
enabled = false

[[queues]]
name = "b"
[[queues.nested]]
deep = [[1, 2], [{ k = 1 }]]
[[queues.nested]]
deep = []
'''


def test_toml_is_what_python_reads() -> None:
    assert plain(parse_toml(TOML)) == tomllib.loads(TOML)


def test_lines_of_toml() -> None:
    lines = {".".join(map(str, path)): line for path, line in locate(TOML).items()}
    expected = {
        "top": "top = 1",
        "storage": "[storage] # here",
        "storage.flush": "\"flush\" = 'sync'",
        "storage.disk.force": "force = true",
        "queues.0.limits.on_full": 'limits = { max_depth = 1, on_full = "raise" }',
        "queues.0.topics.1": '  "y",',
        "queues.0.retry.multiplier": 'retry . "multi\\u0070lier" = 2.0',
        "queues.0.dlq": "[queues.dlq]",
        "queues.0.dlq.enabled": "enabled = false",
        "queues.1.name": 'name = "b"',
        "queues.1.nested.0.deep.1.0.k": "deep = [[1, 2], [{ k = 1 }]]",
        "queues.1.nested.1.deep": "deep = []",
    }
    for path, line in expected.items():
        assert TOML.splitlines()[lines[path] - 1] == line, path
    assert lines["storage.raw"] == 10


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("a = 1\nb = ", 2, "this is not TOML"),
        ("a = 1\nb = 2\na = 3", 3, "this is not TOML"),
        ("a = 1\nb = [1,\n", 2, "this is not TOML"),
        ("a = 1\nb = " + "9" * 5000, 2, "too long"),
        ("a = 1\nb = 0x" + "f" * 5000, 2, "too large"),
        ("a = 1\nb = " + "[" * 200 + "]" * 200, 2, "nested too deeply"),
        ("a = 1\nb = " + "[" * 20_000 + "]" * 20_000, 2, "nested too deeply|not TOML"),
    ],
)
def test_what_toml_is_refused(text: str, line: int, said: str) -> None:
    with pytest.raises(Unreadable, match=said) as caught:
        parse_toml(text)
    assert caught.value.line == line


def test_lines_of_carriage_returns(tmp_path: Path) -> None:
    assert problems(tmp_path, "[storage]\r\n\r\nflsh = 1\r\n", "t.toml") == [
        "3: storage.flsh: unknown key; did you mean flush?"
    ]


KEYS = st.sampled_from(["a", "b-c", "d e", 'q"uote', "#", "[x]", "ä", "", "1"])
SCALARS = st.one_of(
    st.integers(-(2**60), 2**60),
    st.booleans(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["", "x", "]", "}", ",", "#", '"', "'", "\n", '"""', "'''", "\\", "a = 1"]),
    st.sampled_from([date(2026, 1, 31), time(9, 26), datetime(2026, 1, 31, 9, 26)]),  # noqa: DTZ001
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


def quoted(text: str, how: int) -> str:
    """One of the ways to write it."""
    if how == 1 and "'" not in text and "\n" not in text:
        return f"'{text}'"
    if how == 2 and "'''" not in text and not text.endswith("'"):
        return f"'''\n{text}'''"
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"""\n{escaped}"""' if how == 3 else f'"{escaped}"'


def written(value: Any, draw: Any) -> str:
    if isinstance(value, dict):
        pairs = [f"{quoted(key, 0)} = {written(each, draw)}" for key, each in value.items()]
        return "{ " + ", ".join(pairs) + " }"
    if isinstance(value, list):
        between: str = draw(st.sampled_from([", ", ",\n  ", ", # ]\n\n"]))
        return "[\n" + between.join(written(each, draw) for each in value) + "\n]"
    if isinstance(value, str):
        how: int = draw(st.integers(0, 3))
        return quoted(value, how)
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def paths(value: Any, above: tuple[str | int, ...] = ()) -> set[tuple[str | int, ...]]:
    children: Any = ()
    if isinstance(value, dict):
        children = value.items()
    elif isinstance(value, list):
        children = enumerate(value)
    found = {above} if above else set()
    for key, each in children:
        found |= paths(each, (*above, key))
    return found


@given(st.data())
def test_every_key_of_a_toml_document_has_its_line(data: st.DataObject) -> None:
    """Each is found, nothing else is, and a key at the top is on the line where it was written."""
    lines: list[str] = []
    expected: dict[tuple[str | int, ...], int] = {}
    for name in data.draw(st.lists(KEYS, unique=True, max_size=4)):
        kind = data.draw(st.sampled_from(["[", "[["]))
        for number in range(1 if kind == "[" else data.draw(st.integers(1, 3))):
            table = (name,) if kind == "[" else (name, number)
            lines += [""] * data.draw(st.integers(0, 2))
            lines.append(f"{kind} {quoted(name, 0)} {']' * len(kind)} # [[")
            expected[table] = len(lines)
            entries = data.draw(st.dictionaries(KEYS, VALUES, max_size=3))
            for key, value in entries.items():
                expected[*table, key] = len(lines) + 1
                lines += f"{quoted(key, 0)} = {written(value, data.draw)}".split("\n")
    text = "\n".join(lines)
    found = locate(text)
    assert set(found) == paths(tomllib.loads(text))
    for path, line in expected.items():
        assert found[path] == line, (path, text)


def test_both_say_the_same(tmp_path: Path) -> None:
    toml = loaded(
        tmp_path, '[[queues]]\nname = "a"\nlimits.max_depth = 3\n[queues.dlq]\nenabled = false\n',
        "tailrace.toml",
    )  # fmt: skip
    text = "queues:\n- name: a\n  limits: {max_depth: 3}\n  dlq: {enabled: false}\n"
    assert toml.queues == loaded(tmp_path, text).queues
    assert toml.origin("queues[0].dlq.enabled").endswith("tailrace.toml:5")
