"""Where the tests of the queues take place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tailrace import Store
from tests.queue.clocks import Machine, ManualClock

OpenStore = Callable[..., Store]


@pytest.fixture
def machine() -> Iterator[Machine]:
    """A simulated one, whose power can be cut."""
    with Machine() as machine:
        yield machine


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def open_store(tmp_path: Path, clock: ManualClock) -> Iterator[OpenStore]:
    """Opens the test's store on a real disk, and closes whatever the test did not."""
    stores: list[Store] = []

    def open_it(**options: Any) -> Store:
        store = Store(tmp_path / "data", **{"clock": clock, "upkeep": False, **options})
        stores.append(store)
        return store

    yield open_it
    for store in reversed(stores):
        store.close()


@pytest.fixture
def store(open_store: OpenStore) -> Store:
    return open_store()
