"""What every test shares: which kernel runs, how hypothesis behaves, and where tools are found."""

from __future__ import annotations

import os
import shutil
import signal
from collections import defaultdict
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import HealthCheck, settings

from tests.project import LIGHT_JVM, has_java
from tests.threads import no_thread_left

__all__ = ["no_thread_left"]

# A shell that starts tests in the background has them ignore Ctrl-C, and all that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parent.parent

os.environ.setdefault("SPARK_SUBMIT_OPTS", LIGHT_JVM)  # for every Spark that a test starts

# Machines that run tests are shared and slow at times: a deadline would only test them. A change
# is judged by the same examples each time; the long run looks for new ones.
settings.register_profile(
    "default",
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "long", settings.get_profile("default"), derandomize=False, max_examples=2_000
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a Java that is missing, or what the Spark at hand does not have yet:
    `@pytest.mark.spark("4.2")`."""
    if item.get_closest_marker("java") and not has_java():
        pytest.skip("java is missing, which Spark runs on (Debian: openjdk-17-jre-headless)")
    for marker in item.iter_markers("spark"):
        [least] = marker.args
        found = pytest.importorskip("pyspark", reason="pyspark is missing: tailrace[spark]")
        if _parts(found.__version__) < _parts(least):
            pytest.skip(f"it is about Spark {least}, and this is {found.__version__}")


def _parts(version: str) -> list[int]:
    return [int(part) for part in version.split(".")[:2]]


def pytest_itemcollected(item: pytest.Item) -> None:
    """Of what has a `sample`, those cases stay whose places in their lists add up to a multiple:
    so what stays has most values of each list, and not one with all values of the others. Of a
    module that has one, tests without cases stay by chance, which is that of their names."""
    marker = item.get_closest_marker("sample")
    if marker is not None:
        assert isinstance(item, pytest.Function), "a sample is of cases"
        cases = item.callspec.params.items() if hasattr(item, "callspec") else ()
        number = sum(_place(item, *each) for each in cases) if cases else crc32(item.name.encode())
        if number % marker.args[0]:
            item.add_marker(pytest.mark.long)


_lists: defaultdict[tuple[object, str], list[object]] = defaultdict(list)


def _place(item: pytest.Function, name: str, value: object) -> int:
    """Which of the values so far it is."""
    values = _lists[item.parent, item.originalname + name]
    for place, each in enumerate(values):
        if each is value:
            return place
    values.append(value)
    return len(values) - 1


def pytest_report_header() -> str:
    from tailrace import kernel

    return f"tailrace kernel: {kernel.IMPLEMENTATION}, crc32c: {kernel.CRC_BACKEND}"


@pytest.fixture(scope="session")
def root() -> Path:
    """The project's root."""
    return ROOT


@pytest.fixture(scope="session")
def strace() -> str:
    """The path of strace, which makes chosen system calls fail."""
    found = shutil.which("strace")
    if found is None:
        pytest.skip("strace is not installed (Debian: apt-get install strace)")
    return found
