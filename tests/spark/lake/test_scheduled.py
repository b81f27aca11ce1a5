"""Archives that a configuration asks for every so often."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailrace import Store
from tailrace.config.model import ArchiveConfig
from tailrace.errors import Closed, Locked
from tailrace.spark.lake import scheduled
from tailrace.testing import ManualClock
from tests.spark.lake.support import SMALL, T0, fill, open_store

EVERY_S = 3600.0


def chore_of(store: Store, folder: Path, every_s: float = EVERY_S) -> Any:
    [chore] = scheduled.chores(
        store, [ArchiveConfig("events", str(folder), "parquet", "", every_s, False)]
    )
    return chore


def test_it_is_due_an_interval_after_it_ran(tmp_path: Path) -> None:
    """Not after the store was opened: a service that is restarted often archives all the same."""
    clock, lake = ManualClock(T0), tmp_path / "lake"
    with open_store(tmp_path / "data", clock=clock) as store:
        fill(store.stream("events", **SMALL), 30)
        chore = chore_of(store, lake)
        assert (chore.interval_s, chore.first_s) == (EVERY_S, 1.0)  # it never ran
        chore.do()
        assert list(lake.glob("*.parquet"))
        clock.advance(600)
    with open_store(tmp_path / "data", clock=clock) as store:
        assert chore_of(store, lake).first_s == EVERY_S - 600
        clock.advance(7200)
        assert chore_of(store, lake).first_s == 1.0
        assert chore_of(store, lake, 0.5).first_s == 0.5
    clock = ManualClock(T0 - 86_400_000)  # it was put back
    with open_store(tmp_path / "data", clock=clock) as store:
        assert chore_of(store, lake).first_s == EVERY_S
        (lake / "_tailrace" / "ran").write_text("soon")
        assert chore_of(store, lake).first_s == 1.0


@pytest.mark.parametrize("error", [Closed("it is closed"), Locked("somebody is at it")])
def test_it_has_not_run(tmp_path: Path, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was cut short is due as before."""

    def archive(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(scheduled, "archive", archive)
    with open_store(tmp_path / "data") as store:
        store.stream("events", **SMALL)
        chore = chore_of(store, tmp_path / "lake")
        with pytest.raises(type(error)):  # which upkeep knows what to do about
            chore.do()
        assert chore_of(store, tmp_path / "lake").first_s == 1.0
