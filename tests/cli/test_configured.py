"""Commands on a store that has a configuration."""

from __future__ import annotations

import pytest

import tailrace
from tests.cli.conftest import Shell

FILE = """\
storage: {path: elsewhere}
queues:
  - {name: orders, limits: {max_depth: 7}}
  - {name: events, type: stream}
"""


@pytest.fixture
def configured(shell: Shell) -> Shell:
    """Beside the store that is meant where none is named."""
    (shell.folder / "tailrace.yaml").write_text(FILE.replace("elsewhere", "data"))
    return shell


def test_a_queue_of_the_file_is_made_when_it_is_needed(configured: Shell) -> None:
    configured.ok("publish", "orders", "a cup")
    [table] = configured.items("queues")
    assert [item["name"] for item in table["queues"]] == ["events", "orders"]
    with tailrace.open(configured.store) as store:
        assert store.queue("orders").settings.limits.max_depth == 7
        assert [message.value for message in store.queue("orders").read()] == [b"a cup"]


def test_a_file_names_the_store(shell: Shell) -> None:
    (shell.folder / "conf").mkdir()
    (shell.folder / "conf" / "app.yaml").write_text(FILE)
    shell.ok("publish", "events", "it rains", "--config", "conf/app.yaml")
    assert "it rains" in shell.ok("read", "events", "--config", "conf/app.yaml")
    assert "it rains" in shell.ok("read", "events", "--store", "conf/elsewhere")
    assert not shell.store.exists()


@pytest.mark.parametrize("name", ["tailrace.yaml", "tailrace.yml", "tailrace.toml"])
def test_a_file_in_the_working_folder_names_the_store(name: str, shell: Shell) -> None:
    place = "there/store"
    text = FILE.replace("elsewhere", place)
    if name.endswith("toml"):
        text = f'storage.path = "{place}"\n[[queues]]\nname = "orders"\nlimits.max_depth = 7\n'
    (shell.folder / name).write_text(text)
    (shell.folder / "there").mkdir()
    (shell.folder / "there" / name).write_text("")  # beside the store: the other comes first
    shell.ok("publish", "orders", "a cup")
    assert not shell.store.exists()
    assert "a cup" in shell.ok("read", "orders")
    assert "a cup" in shell.ok("read", "orders", "--store", place)
    with tailrace.open(shell.folder / place) as store:
        assert store.queue("orders").settings.limits.max_depth == 7
    assert "change it there" in shell.refused("delete", "orders", "--yes")
    # Who names another store means it.
    assert "there is no store in data" in shell.refused("queues", "--store", "data")
    said = shell("queues", TAILRACE_STORE="data").stderr
    assert "there is no store in data" in said


def test_the_file_in_the_store_comes_first(shell: Shell) -> None:
    (shell.folder / "tailrace.yaml").write_text(FILE)
    (shell.folder / "elsewhere").mkdir()
    (shell.folder / "elsewhere" / "tailrace.yaml").write_text("queues: [{name: jobs}]\n")
    shell.ok("publish", "jobs", "a cup")
    [table] = shell.items("queues", "--store", "elsewhere")
    assert [item["name"] for item in table["queues"]] == ["jobs"]


def test_the_store_that_is_named_counts(shell: Shell) -> None:
    (shell.folder / "app.yaml").write_text(FILE)
    shell.ok("publish", "orders", "a cup", "--config", "app.yaml", "--store", "here")
    assert sorted(path.name for path in shell.folder.iterdir()) == ["app.yaml", "here"]


def test_settings_change_with_the_file(configured: Shell) -> None:
    configured.ok("publish", "orders", "a cup")
    file = configured.folder / "tailrace.yaml"
    file.write_text(file.read_text().replace("7", "8"))
    configured.ok("publish", "orders", "a plate")
    with tailrace.open(configured.store) as store:
        assert store.queue("orders").settings.limits.max_depth == 8


@pytest.mark.parametrize(
    "arguments",
    [
        ("create", "orders", "--update", "--max-depth", "9"),
        ("create", "orders", "--max-depth", "9"),
        ("delete", "orders", "--yes"),
    ],
    ids=" ".join,
)
def test_what_the_file_says_is_changed_there(arguments: tuple[str, ...], configured: Shell) -> None:
    configured.ok("create", "orders")
    before = configured.files()
    said = configured.refused(*arguments)
    assert "the queue 'orders' is in" in said
    assert "tailrace.yaml; change it there" in said
    assert configured.files() == before


def test_a_file_that_is_wrong(configured: Shell) -> None:
    (configured.folder / "tailrace.yaml").write_text("queues:\n  - {nam: orders}\n")
    assert "tailrace.yaml:2: queues[0]" in configured.refused("publish", "orders", "a cup")
    assert not configured.store.exists()


def test_a_file_that_is_not_there(shell: Shell) -> None:
    said = shell.refused("publish", "orders", "a cup", "--config", "no.yaml")
    assert said == "no.yaml: No such file or directory; name a file that can be read"


def test_a_queue_that_is_in_neither(configured: Shell) -> None:
    configured.ok("create", "orders")
    assert "there is no queue 'jobs'" in configured.refused("publish", "jobs", "x")


def test_a_queue_that_is_to_be_of_another_type(configured: Shell) -> None:
    """What the errors say can be done."""
    file = configured.folder / "tailrace.yaml"
    text = file.read_text()
    configured.ok("publish", "orders", "x")
    file.write_text(text.replace("name: orders", "name: orders, type: stream"))
    assert "delete it first" in configured.refused("publish", "orders", "x")
    said = configured.refused("delete", "orders", "--yes")
    assert said.endswith("(to make it anew, take it out of the file, delete it, and put it back)")
    (configured.folder / "aside").write_text(file.read_text())
    file.write_text("")
    configured.ok("delete", "orders", "--yes")
    file.write_text((configured.folder / "aside").read_text())
    configured.ok("publish", "orders", "x")
    assert "stream" in configured.ok("queues")
