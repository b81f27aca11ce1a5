"""The pytest plugin: a temporary store, a clock to turn, and faults to ask for.

    def test_it_comes_back(tailrace_store, tailrace_clock):
        jobs = tailrace_store.queue("jobs", visibility_timeout="30s")
        jobs.publish(b"1")
        worker = jobs.consumer("workers")
        worker.receive()                       # and forgets it
        tailrace_clock.advance(31)
        assert worker.receive()[0].delivery_count == 2

pytest loads this in every run where tailrace is installed, so it has nothing but fixtures, and
what they need is imported when a test asks for one. `-p no:tailrace` keeps it out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tailrace import Store, aio
    from tailrace.testing.clock import ManualClock
    from tailrace.testing.stores import FaultyStorePlace, StorePlace

__all__ = [
    "tailrace_async_store",
    "tailrace_clock",
    "tailrace_faults",
    "tailrace_open",
    "tailrace_options",
    "tailrace_store",
]


@pytest.fixture
def tailrace_clock() -> Iterator[ManualClock]:
    """The clock of the test's stores. It begins with the time of day, and stands still until the
    test moves it: `advance`, `set_wall`."""
    from tailrace.testing.clock import ManualClock
    from tailrace.testing.timekeeping import keeping_time

    clock = ManualClock(time.time_ns() // 1_000_000)
    with keeping_time(clock):
        yield clock


@pytest.fixture
def tailrace_options() -> dict[str, Any]:
    """What `tailrace.open` is given for the test's stores. Override it to have it otherwise."""
    return {}


@pytest.fixture
def _tailrace_place(
    request: pytest.FixtureRequest,
    tailrace_clock: ManualClock,
    tailrace_options: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[StorePlace]:
    """Where the test's stores are: in a folder or, if it asks for faults, on a simulated disk."""
    from tailrace.testing.stores import FaultyStorePlace, StorePlace

    folder = tmp_path_factory.mktemp("tailrace")
    place = StorePlace(folder / "data", tailrace_clock, **tailrace_options)
    if "tailrace_faults" in request.fixturenames:
        # Whoever opens it by its path would get another store, and is to get an error.
        simulated = folder / "simulated"
        simulated.write_text("This disk is in memory: tailrace_open opens the store on it.\n")
        place = FaultyStorePlace(simulated / "data", tailrace_clock, **tailrace_options)
    with place:
        yield place


@pytest.fixture
def tailrace_open(_tailrace_place: StorePlace) -> Callable[..., Store]:
    """Opens the test's store: `tailrace_open(**options)`, once more or with other options. It is
    closed at the end, if the test has not done so."""
    return _tailrace_place.open


@pytest.fixture
def tailrace_store(_tailrace_place: StorePlace) -> Store:
    """A store for this test alone, which goes by `tailrace_clock`."""
    return _tailrace_place.open()


@pytest.fixture
def tailrace_async_store(_tailrace_place: StorePlace) -> aio.Store:
    """The same for asyncio. It is opened by `async with tailrace_async_store as store`, or by
    awaiting it, and closed at the end, if the test has not done so."""
    return _tailrace_place.open_async()


@pytest.fixture
def tailrace_faults(_tailrace_place: StorePlace) -> FaultyStorePlace:
    """What goes wrong under the test's stores, which are on a simulated disk then: `fail_next`,
    `fail_every`, `fill_disk`, `kill`, `power_cut`; and `open`, to go on after those."""
    from tailrace.testing.stores import FaultyStorePlace

    if not isinstance(_tailrace_place, FaultyStorePlace):
        raise pytest.UsageError(
            "tailrace_faults came after the store was made: name it among the arguments of the "
            "test, or of a fixture that it uses"
        )
    return _tailrace_place
