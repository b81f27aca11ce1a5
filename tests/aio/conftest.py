"""Every test of `tailrace.aio` leaves no task, thread or open file behind, and no complaint."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator

import pytest

from tests.log.conftest import leaked, open_files, path
from tests.log.helpers import eventually
from tests.log.watching import fresh_hub
from tests.threads import our_threads

__all__ = ["fresh_hub", "path"]


class _Complaints(logging.Handler):
    """What asyncio logs when a task or the error of a future is dropped."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    before = open_files()
    complaints = _Complaints()
    logging.getLogger("asyncio").addHandler(complaints)
    gc.freeze()  # so that only what the test makes has to be looked at
    yield
    gc.collect()  # what asyncio has to say of a task or future, it says when that goes
    gc.unfreeze()
    logging.getLogger("asyncio").removeHandler(complaints)
    assert not complaints.messages
    eventually(lambda: not our_threads())  # one that has told its last result is about to end
    assert not leaked(before)
