"""An interrupt that comes where Python only reports it is raised again."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tailrace.cli.signals import Insisting, Terminated

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Who was interrupted leaves signals ignored, since it ends."""
    handlers = {signum: signal.getsignal(signum) for signum in SIGNALS}
    yield
    for signum, handler in handlers.items():
        signal.signal(signum, handler)


class Finalized:
    """Does something when it goes."""

    def __init__(self, do: Callable[[], object]) -> None:
        self._do = do

    def __del__(self) -> None:
        self._do()


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def fail() -> None:
    raise ValueError("in a finalizer")


def wait() -> None:
    """For an interrupt."""
    time.sleep(10)
    pytest.fail("nobody was interrupted")


def test_an_interrupt_in_a_finalizer(capfd: pytest.CaptureFixture[str]) -> None:
    def work() -> None:
        with Insisting():
            Finalized(interrupt)
            wait()

    with pytest.raises(KeyboardInterrupt):
        work()
    assert capfd.readouterr().err == ""
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_sigterm_is_told_apart(capfd: pytest.CaptureFixture[str]) -> None:
    """Also when it has to be raised again."""

    def work() -> None:
        with Insisting():
            Finalized(lambda: os.kill(os.getpid(), signal.SIGTERM))
            wait()

    with pytest.raises(Terminated) as raised:
        work()
    assert raised.value.code == 143
    assert capfd.readouterr().err == ""
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN


def test_who_handles_it_is_left_alone() -> None:
    """Also when it takes longer than until the next time, or another error has come of it."""
    steps = []

    def clean_up() -> None:
        time.sleep(0.5)
        interrupt()
        steps.append("cleaned up")
        raise ValueError("not all of it")

    def work() -> None:
        try:
            interrupt()
            wait()
        except KeyboardInterrupt:
            try:
                clean_up()
            except ValueError:
                time.sleep(0.5)
                steps.append("noted")
            raise

    with pytest.raises(KeyboardInterrupt), Insisting():
        work()
    assert steps == ["cleaned up", "noted"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_without_an_interrupt_all_is_as_before() -> None:
    before = [signal.getsignal(signum) for signum in SIGNALS]
    told: list[object] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.unraisablehook", told.append)
        with Insisting():
            Finalized(fail)
    assert len(told) == 1
    assert [signal.getsignal(signum) for signum in SIGNALS] == before


def test_in_another_thread_signals_go_on_as_before() -> None:
    handler = signal.getsignal(signal.SIGINT)
    seen = []

    def look() -> None:
        with Insisting():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [handler]
