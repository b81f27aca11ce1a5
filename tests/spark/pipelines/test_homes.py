"""What a pipeline keeps, without Spark: whose checkpoint it is, and what is moved aside."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tailrace.errors import TailraceError
from tailrace.spark.pipelines.definition import Files
from tailrace.spark.pipelines.files import FileWriter
from tailrace.spark.pipelines.homes import Home
from tests.spark.pipelines.support import Place


def home_of(place: Place, **given: Any) -> Home:
    with place.open():
        pass
    home = Home(str(place.store), place.define(**{"sql": "SELECT value FROM events", **given}))
    os.makedirs(home.folder, exist_ok=True)
    return home


def test_an_id_is_that_of_one_checkpoint(place: Place) -> None:
    home = home_of(place)
    first = home.make({"events": 3})
    assert home.made() == first
    assert home.make({"events": 7}) == first
    shutil.rmtree(home.checkpoint)
    assert home.made() is None
    assert home.changed() == []
    second = home.make({"events": 7})
    assert second.id != first.id
    assert second.starts == {"events": 7}


def test_another_checkpoint(place: Place) -> None:
    first = home_of(place, checkpoint="one").make({})
    other = home_of(place, checkpoint="two", sql="SELECT 1 AS value FROM events")
    other.check()
    assert other.make({}).id != first.id
    again = home_of(place, checkpoint="one")
    with pytest.raises(TailraceError, match="made for another from, output_mode, sql, tables, to"):
        again.check()
    assert again.make({}).id == first.id  # as with --keep-checkpoint


def test_another_checkpoint_elsewhere(place: Place) -> None:
    home = home_of(place, checkpoint="s3a://bucket/one")
    first = home.make({})
    assert home.make({}) == first
    other = home_of(place, checkpoint="s3a://bucket/two", sql="SELECT 1 AS value FROM events")
    other.check()
    assert other.make({}).id != first.id
    with pytest.raises(TailraceError, match="not on this machine"):
        other.begin_anew()
    assert other.made() is not None


def test_a_checkpoint_that_was_moved(place: Place) -> None:
    first = home_of(place, checkpoint="one").make({})
    os.rename(place.folder / "one", place.folder / "two")
    home = home_of(place, checkpoint="two")
    home.check()
    assert home.make({}) == first


@pytest.mark.parametrize("damage", [b"", b"{}", b"[]", b'{"id": 5}', b'{"id": "x"}', b"\xff"])
def test_a_checkpoint_that_cannot_be_read(place: Place, damage: bytes) -> None:
    home = home_of(place)
    home.make({})
    Path(home.checkpoint, "metadata").write_bytes(damage)
    with pytest.raises(TailraceError, match="--restart-from-scratch"):
        home.check()


def test_killed_while_it_moves_aside(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever that is: the old checkpoint is not gone on with, nor its id with a new one."""
    home = home_of(place)
    first = home.make({})
    rename = os.rename

    def once(source: str, target: str) -> None:
        rename(source, target)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "rename", once)
    with pytest.raises(KeyboardInterrupt):
        home.begin_anew()
    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(TailraceError, match="--restart-from-scratch"):
        home.check()
    assert len(home.begin_anew()) == 1
    assert home.make({}).id != first.id


class Frame:
    """What a writer of files uses of Spark's, for one file of one row."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.write = self

    def format(self, kind: str) -> Frame:
        return self

    def partitionBy(self, *names: str) -> Frame:  # noqa: N802  Spark's name
        return self

    def mode(self, kind: str) -> Frame:
        return self

    def save(self, path: str) -> None:
        folder = Path(path.removeprefix("file://"))
        folder.mkdir(parents=True)
        (folder / "part-0.json").write_text(self._text)


@pytest.mark.parametrize("is_moved", [True, False])
def test_files_of_the_run_before(place: Place, *, is_moved: bool) -> None:
    """They stay, whatever has become of the checkpoint; those of a first attempt do not."""
    to = Files(str(place.folder / "target"), "json")
    home = home_of(place, to={"path": to.path, "format": "json"})

    def write(text: str) -> None:
        writer: Any = FileWriter(to, home.files, f"p-{home.make({}).id[:8]}")
        writer(Frame(text), 0)

    write("november")
    if is_moved:
        assert len(home.begin_anew()) == 3
        assert not os.path.exists(home.files)
    else:
        shutil.rmtree(home.checkpoint)
    write("december")
    write("december again")
    found = sorted(path.read_text() for path in Path(to.path).iterdir())
    assert found == ["december again", "november"]
