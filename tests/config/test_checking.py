"""Every problem of a file is named, with its line and its key."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace import ConfigError
from tailrace.config import check, load
from tests.config.support import EVERYTHING, problems, write

MESSAGES = [
    # unknown keys
    (
        "queues:\n- name: a\n  limits:\n    max_dept: 1",
        "4: queues[0].limits.max_dept: unknown key; did you mean max_depth?",
    ),
    (
        "xyz: 1",
        (
            "1: xyz: unknown key; there are storage, listeners, queue_manager, queues, pipelines, "
            "cluster"
        ),
    ),
    ("storage: {x-mine: 1}", "1: storage.'x-mine': unknown key; there are path"),
    ("storage: {'a.b': 1}", "1: storage.'a.b': unknown key; there are path"),
    # shapes
    ("- a", "1: expected a mapping of storage, "),
    ("text", "1: expected a mapping of storage, "),
    ("storage: text", "1: storage: expected a mapping of path, "),
    ("queues: {name: a}", "1: queues: expected a list, got a mapping"),
    ("queues:\n-\n", "2: queues[0]: expected a mapping of name, "),
    ("queues:\n- a\n", "2: queues[0]: expected a mapping of name, "),
    ("queues:\n- type: stream\n", "2: queues[0].name: it is missing"),
    ("queues:\n- name:\n", "2: queues[0].name: it is missing"),
    ("queues:\n- name: 1\n", "2: queues[0].name: expected text, got 1"),
    ("queues: [{name: a, topics: text}]", "1: queues[0].topics: expected a list such as"),
    (
        "queues: [{name: a, dlq: {enabled: yes}}]",
        "1: queues[0].dlq.enabled: expected true or false, got 'yes'",
    ),
    ("storage: {flush: true}", "1: storage.flush: expected one of sync, async, none, got true"),
    ("pipelines: [{name: p, from: a, to: b}]", "1: pipelines[0].sql: it is missing"),
    (
        "listeners: {mqtt: 1883}",
        (
            "1: listeners.mqtt: expected an address such as '127.0.0.1:1883', with a port up to "
            "65535, got 1883"
        ),
    ),
    ('listeners: {mqtt: "1.2.3.4:99999"}', "1: listeners.mqtt: expected an address"),
    ('listeners: {mqtt: "[::1]:65536"}', "1: listeners.mqtt: expected an address"),
    ("listeners: {mqtt: here}", "1: listeners.mqtt: expected an address"),
    ("listeners: {'M Q': 'a:1'}", "1: listeners.'M Q': a name here is made of"),
    ("listeners: [a]", "1: listeners: expected a mapping, got a list"),
    # rules of those who use a value
    (
        "queues: [{name: a, limits: {max_message_size: 1XB}}]",
        "1: queues[0].limits.max_message_size: '1XB' is not a size; write it as",
    ),
    (
        "queues: [{name: a, visibility_timeout: 0}]",
        "1: queues[0].visibility_timeout: 0 is no time ",
    ),
    ("queues: [{name: a, retry: {multiplier: .nan}}]", "1: queues[0].retry.multiplier: nan is "),
    ("queues: [{name: a, topics: [a/#/b]}]", "1: queues[0].topics[0]: the filter 'a/#/b'"),
    (
        "queues: [{name: a, type: stack}]",
        "1: queues[0].type: 'stack' is not one of classic, stream",
    ),
    ('queues: [{name: "a\\tb"}]', "1: queues[0].name: the name of a queue"),
    ("queues: [{name: a+b}]", "1: queues[0].topics: 'a+b' cannot be a level of a filter"),
    ("queues: [{name: a, dlq: {topic: a}}]", "1: queues[0].dlq.topic: 'a' leads back to a"),
    ("queues: [{name: a, ephemeral: true, flush: sync}]", "1: queues[0].flush: a is ephemeral"),
    (
        "queues: [{name: a, segment_bytes: 8GiB}]",
        "1: queues[0].segment_bytes: 8589934592 is outside",
    ),
    ("storage: {flush: fast}", "1: storage.flush: 'fast' is not one of sync, async, none"),
    ("storage: {segment_age: soon}", "1: storage.segment_age: 'soon' is not a duration"),
    ("storage: {path: ''}", "1: storage.path: it is empty"),
    ("queue_manager: {auto_commit_interval: -1}", "1: queue_manager.auto_commit_interval: a dur"),
    ("storage: {disk: {max_used_ratio: 85}}", "1: storage.disk.max_used_ratio: expected a ratio "),
    ("storage: {disk: {refuse_ratio: .nan}}", "1: storage.disk.refuse_ratio: expected a ratio "),
    (
        "storage:\n  disk:\n    max_used_ratio: 0.95\n    refuse_ratio: 0.5",
        "4: storage.disk.refuse_ratio: 0.5 is below disk.max_used_ratio, 0.95: publishing would",
    ),
    (
        "storage: {disk: {max_used_ratio: 0.95}}",
        "1: storage.disk.max_used_ratio: disk.refuse_ratio: 0.9 is below disk.max_used_ratio, 0.95",
    ),
    ("storage: {disk: {delete_when: noon}}", "1: storage.disk.delete_when: expected 'always', "),
    # one key and another
    (
        "queues:\n- name: a\n  limits: {max_message_size: 50MiB}",
        (
            "3: queues[0].limits.max_message_size: 52,428,800 bytes are more than a batch can "
            "hold, and a message is in one: max_batch_bytes is 16,777,216"
        ),
    ),
    (
        "storage: {max_batch_bytes: 1MiB}\nqueues: [{name: a, limits: {max_message_size: 2MiB}}]",
        "2: queues[0].limits.max_message_size: 2,097,152 bytes are more than a batch can hold",
    ),
    (  # the usual size, which somebody has chosen
        "storage: {max_batch_bytes: 1MiB}\nqueues: [{name: a, limits: {max_message_size: 10MiB}}]",
        "2: queues[0].limits.max_message_size: 10,485,760 bytes are more than a batch can hold",
    ),
    (
        "queues:\n- name: a\n  retry:\n    initial_backoff: 5s\n    max_backoff: 1s",
        "5: queues[0].retry.max_backoff: 1s is less than retry.initial_backoff, which is 5s",
    ),
    (
        "queues:\n- name: a\n  primary_group: w",
        "3: queues[0].primary_group: a is a classic queue, and only a stream can have one",
    ),
    (
        "queues:\n- name: s\n  type: stream\n- name: a\n  dlq:\n    topic: $queue/s/dead",
        "6: queues[1].dlq.topic: s is a stream; dead letters need a classic queue",
    ),
    (
        "queues:\n- name: a\n- {name: $dlq/a, type: stream}",
        "2: queues[0].dlq.topic: $dlq/a is a stream; dead letters need a classic queue",
    ),
    (
        (
            "queues:\n- {name: a, dlq: {topic: b}}\n- {name: b, dlq: {topic: c}}\n"
            "- {name: c, dlq: {topic: a}}"
        ),
        "2: queues[0].dlq.topic: dead letters would go round in a circle, from a to b to c to a,",
    ),
    (
        "storage:\n  path: a\n  badger_dir: b",
        "3: storage.badger_dir: it is another folder than storage.path",
    ),
    ("queues:\n- name: a\n- name: a", "3: queues[1].name: 'a' is there twice, first on line 2"),
    (
        "cluster: {enabled: true}",
        "1: cluster: a store is on one machine; set cluster.enabled to false, or remove cluster",
    ),
    ("cluster: {raft: {write_policy: forward}}", "1: cluster: a store is on one machine"),
    ("cluster: 3", "1: cluster: expected a mapping of enabled, got 3"),
]


def test_each_wrong_entry_of_a_list_has_its_line(tmp_path: Path) -> None:
    said = "the filter 'a/#/b'"
    text = "queues:\n- name: a\n  topics:\n  - a/#/b\n  - good\n  - 7\n  -\n"
    assert problems(tmp_path, text) == [
        "6: queues[0].topics[2]: expected text, got 7",
        "7: queues[0].topics[3]: expected text, got nothing",
    ]
    [first, second] = problems(tmp_path, text.replace("  - 7\n  -\n", "  - c/#/d\n"))
    assert first.startswith(f"4: queues[0].topics[0]: {said}")
    assert second.startswith("6: queues[0].topics[2]: the filter 'c/#/d'")
    toml = '[[queues]]\nname = "a"\ntopics = [\n  "good",\n  "a/#/b",\n]\n'
    (tmp_path / "tailrace.toml").write_text(toml)
    [found] = check(tmp_path / "tailrace.toml")
    assert (found.line, found.key) == (5, "queues[0].topics[1]")
    assert found.message.startswith(said)


@pytest.mark.parametrize(("text", "said"), MESSAGES)
def test_message(text: str, said: str, tmp_path: Path) -> None:
    [found] = problems(tmp_path, text)
    assert found.startswith(said)


@pytest.mark.parametrize(
    "text",
    ['listeners: {mqtt: ":0", ws: "h:65535"}',
     "queues: [{name: a, max_batch_bytes: 64MiB, limits: {max_message_size: 50MiB}}]",
     "queues: [{name: a, max_batch_bytes: 1MiB}]",  # which the usual limit may be above
     "queues: [{name: a, dlq: {topic: b}}, {name: b, dlq: {topic: a, enabled: false}}]",
     "queues: [{name: a, dlq: {topic: b, enabled: false}}, {name: b, type: stream}]",
     "", "# nothing", "---", "{}", "queues:", "queues: []", "storage:\n  disk:\n", "x-mine: [1]",
     "cluster:", "cluster: {enabled: false, raft: {enabled: true}}", "listeners: {mqtt: }",
     "queues: [{name: a, limits: , topics: }]", EVERYTHING,
     "storage: {path: a, badger_dir: a}", "queues: [{name: a+b, topics: [x]}]",
     "\ufeffqueues: []"],
)  # fmt: skip
def test_good_files(text: str, tmp_path: Path) -> None:
    assert problems(tmp_path, text) == []


def test_every_problem_is_listed_in_the_order_of_lines(tmp_path: Path) -> None:
    text = (
        "storage:\n  flush: fast\n  segment_bytes: 0\n  foo: 1\n"
        "queues:\n- name: ''\n  type: stack\n  limits:\n    max_depth: -1\n    message_ttl: soon\n"
        "  topics: ['']\n  flush: slow\n- limits: {on_full: explode}\n"
    )
    found = problems(tmp_path, text)
    assert [each.split(": ")[:2] for each in found] == [
        ["2", "storage.flush"],
        ["3", "storage.segment_bytes"],
        ["4", "storage.foo"],
        ["6", "queues[0].name"],
        ["7", "queues[0].type"],
        ["9", "queues[0].limits.max_depth"],
        ["10", "queues[0].limits.message_ttl"],
        ["11", "queues[0].topics[0]"],
        ["12", "queues[0].flush"],
        ["13", "queues[1].name"],
        ["13", "queues[1].limits.on_full"],
    ]


def test_a_wrong_option_hides_no_contradiction(tmp_path: Path) -> None:
    text = (
        "queues:\n- name: a\n  type: stack\n  dlq: {topic: a}\n"
        "- name: b\n  visibility_timeout: soon\n  max_batch_bytes: 64MiB\n"
        "  limits: {max_message_size: 50MiB}\n  dlq: {topic: x}\n"
    )
    assert [each.split(": ")[:2] for each in problems(tmp_path, text)] == [
        ["3", "queues[0].type"],
        ["4", "queues[0].dlq.topic"],
        ["6", "queues[1].visibility_timeout"],
    ]


def test_loading_says_the_first_and_how_many_more(tmp_path: Path) -> None:
    path = write(tmp_path, "a1: 1\nb2: 2\nc3: 3\n")
    with pytest.raises(ConfigError) as caught:
        load(path)
    said = str(caught.value)
    assert said.startswith(f"{path}:1: a1: unknown key; ")
    assert said.endswith("(and 2 more: tailrace config check shows them)")


def test_a_long_value_does_not_make_a_long_message(tmp_path: Path) -> None:
    [found] = problems(tmp_path, f"storage: {{flush: {'f' * 100_000}}}")
    assert len(found) < 500


def test_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no\.yaml: No such file or directory; name a file"):
        load(tmp_path / "no.yaml")
    with pytest.raises(ConfigError, match="Is a directory"):
        check(tmp_path)


def test_text_that_is_not_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "tailrace.yaml"
    path.write_bytes(b"storage:\n  path: \xff\n")
    with pytest.raises(ConfigError, match=r"tailrace.yaml:2: this is not UTF-8"):
        load(path)
