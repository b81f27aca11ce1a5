"""Whatever is in a file, it is good, or `ConfigError` says in which line it is not."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import tailrace
from tailrace import Config, ConfigError
from tailrace.config import check
from tailrace.config.show import to_yaml
from tests.config.support import EVERYTHING, WHOLE

TOML = """\
[storage]
path = "data"
disk = { force = true, delete_when = "04;16" }
segment_bytes = 1_048_576

[[queues]]
name = "jobs"
topics = ["$queue/jobs/#", 'a/+']
retry.max_retries = 3
limits = { max_depth = 0x10, message_ttl = 1.5 }

[[queues]]
name = \"\"\"events\"\"\"
type = "stream"
[queues.retention]
max_age = "7d"
"""
GOOD = {"yaml": [EVERYTHING, WHOLE], "toml": [TOML]}
PIECES = st.one_of(
    st.text(max_size=8),
    st.sampled_from(
        ["\n", "  ", "\t", ":", ": ", "- ", "[", "]", "{", "}", "[[", "]]", '"', "'", '"""', "'''",
         "&a ", "*a", "*common", "<<: ", "!!int ", "!!binary ", "? ", "|\n", "---\n", "...\n",
         "%TAG", "#", "=", ".", ",", "null", "~", "true", "yes", "-1", "0", "1e999", ".nan", "nan",
         "inf",
         "0x" + "f" * 80, "9" * 120, "2026-01-31", "09:26:53", "2026-01-31T09:26:53Z", "\\ud800",
         '"\\ud800"', "\ud7ff", "\ufeff", "\x85", "\u2028", "\0", "\r", "\r\n", "name", "queues",
         "limits:", "x-", "enabled: true", "cluster:\n", "replication: {enabled: true}"]
    ),
)  # fmt: skip


def mutated(text: str, data: st.DataObject) -> str:
    """Some pieces of it left out, moved, repeated or put in."""
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        end = min(len(text), start + data.draw(st.sampled_from([0, 0, 1, 2, 5, 20, 80])))
        cut = text[start:end]
        put = data.draw(st.one_of(PIECES, st.just(""), st.just(cut + cut)))
        text = text[:start] + put + text[end:]
    return text


def examine(data: bytes, ending: str) -> None:
    descriptor, name = tempfile.mkstemp(f".{ending}")
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
        found = check(name)
        if found:
            with pytest.raises(ConfigError, match=rf"^{re.escape(name)}:[1-9]\d*: "):
                Config.load(name)
            last = max(len(data.decode(errors="replace").splitlines()), 1)
            assert all(1 <= problem.line <= last for problem in found)
            for problem in found:
                str(problem).encode()
        else:
            "\n".join(to_yaml(Config.load(name).values(), origins=True)).encode()
    finally:
        os.unlink(name)


@pytest.mark.parametrize("ending", ["yaml", "toml"])
@given(st.data())
def test_any_change_of_a_good_file(ending: str, data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(GOOD[ending]))
    examine(mutated(text, data).encode("utf-8", "surrogatepass"), ending)


@pytest.mark.parametrize("ending", ["yaml", "toml"])
@given(st.binary(max_size=60))
@example(b"")
@example(b"\xff")
@example(b"\xef\xbb\xbf")
def test_any_bytes(ending: str, data: bytes) -> None:
    examine(data, ending)


@given(st.data())
def test_what_is_good_can_be_shown_and_loaded_and_opened(data: st.DataObject) -> None:
    """Any settings that are found good are taken by a store, and survive being shown."""
    names = data.draw(st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=3))
    topics = st.lists(st.sampled_from(["a/#", "$queue/x", "+/b", "ä", "#", "a b"]), max_size=2)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "tailrace.yaml")
        lines = ["queues:"]
        for name in names:
            quoted = "".join(f"\\U{ord(character):08x}" for character in name)
            lines += [f'  - name: "{quoted}"', f"    topics: {data.draw(topics)}"]
        path.write_text("\n".join(lines), encoding="utf-8")
        if check(path):
            return
        config = Config.load(path)
        again = Path(folder, "again.yaml")
        again.write_text("\n".join(to_yaml(config.values())), encoding="utf-8")
        shown = Config.load(again)
        assert [(v.key, v.value) for v in shown.values()] == [
            (v.key, v.value) for v in config.values()
        ]
        with tailrace.open(Path(folder, "data"), config=config, upkeep=False) as store:
            assert {queue.name for queue in store.queues()} == set(names)
