"""The model of a queue, which the blocking side is held to, against `tailrace.aio`."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tailrace.testing import machine as machines
from tests.aio import facade
from tests.queue.test_model import QueueMachine

pytestmark = pytest.mark.no_cover


def test_a_queue_behaves_like_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = facade.Loop()
    monkeypatch.setattr(facade.Store, "loop", loop, raising=False)
    monkeypatch.setattr(machines, "Store", facade.Store)
    try:
        run_state_machine_as_test(
            QueueMachine, settings=settings(max_examples=10, stateful_step_count=40)
        )
    finally:
        loop.close()
