"""What queues promise holds for tasks, too: these are the tests of the blocking side, and each of
their verbs is that of `tailrace.aio`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from types import FunctionType, ModuleType

import pytest

import tailrace
from tailrace.testing import machine as machines
from tests.aio import facade
from tests.queue import conftest
from tests.queue.conftest import clock, machine, open_store, store
from tests.queue.test_delays import awake, queue
from tests.queue.test_looking import path

__all__ = ["awake", "clock", "machine", "open_store", "path", "queue", "store"]

pytestmark = [pytest.mark.no_cover, pytest.mark.sample(3)]  # the blocking side has run them all

SUITE = [
    import_module(f"tests.queue.test_{name}")
    for name in (
        *("changed_options", "checklist", "checklist_dead", "checklist_streams", "delays"),
        *("deletion", "depth", "disagreements", "ephemeral", "errors", "expiry", "fan_out"),
        *("fluxmq_defects", "groups", "looking", "once", "outgoing", "publishing"),
        *("redrive", "waiting"),
    )
]

NOT_FOR_TASKS = {
    "test_delayed_messages_are_scheduled_where_that_works": "asks a store from within its thread",
    "test_a_token_does_not_outlive_a_boot": "gives messages of before to the group of now",
    "test_closing_while_another_thread_fetches_ahead_leaves_nothing_behind": "is about threads",
    "test_letters_are_claimed_by_their_offsets": "no consumer of a task does that",
    "test_queues_that_wait_cost_nothing": "counts the files of a process",
    "test_what_is_settled_while_it_is_kept_is_not_lost": "is about a thread; see test_consuming",
    "test_who_has_waited_publishes_as_of_then": "asks a store from within its thread",
    "test_who_is_killed_after_calling_is_found": "asks a store from within its thread",
}


def suite_of(module: ModuleType) -> Iterator[tuple[str, FunctionType]]:
    for name, each in vars(module).items():
        is_test = isinstance(each, FunctionType) and name.startswith("test_")
        if is_test and name not in NOT_FOR_TASKS:
            yield f"{name}__{module.__name__.rpartition('.test_')[2]}", each


for _module in SUITE:
    vars(sys.modules[__name__]).update(suite_of(_module))


@pytest.fixture(autouse=True)
def tasks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever opens a store opens one of `tailrace.aio`."""
    loop = facade.Loop()
    monkeypatch.setattr(facade.Store, "loop", loop, raising=False)
    monkeypatch.setattr(tailrace, "open", facade.Store)
    for module in (machines, conftest, *SUITE):
        if hasattr(module, "Store"):
            monkeypatch.setattr(module, "Store", facade.Store)
    yield
    monkeypatch.undo()  # as long as there is what a test has patched
    loop.close()
