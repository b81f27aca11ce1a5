"""The pytest plugin, in real runs of pytest: what an application's tests see of it."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

from tests.project import ROOT
from tests.test_docs import blocks

# As other people run it: warnings are errors, and no other plugin helps.
INI = """
[pytest]
addopts = --strict-markers --strict-config -p no:cacheprovider
filterwarnings = error
"""

# What pytest-asyncio and its like do.
RUNS_COROUTINES = """
import asyncio, inspect, pytest

@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    if inspect.iscoroutinefunction(pyfuncitem.obj):
        names = pyfuncitem._fixtureinfo.argnames
        asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
        return True
"""

BY_HAND = ("-p", "no:tailrace", "-p", "tailrace.testing.plugin")


def run_pytest(
    folder: Path, text: str, *arguments: str, conftest: str = "", **environment: str
) -> tuple[str, int]:
    """The output and the exit code of a run over one file, in a folder of its own."""
    (folder / "pytest.ini").write_text(INI)
    (folder / "conftest.py").write_text(conftest)
    (folder / "test_app.py").write_text(textwrap.dedent(text))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", f"--basetemp={folder / 'temporary'}", *arguments],
        cwd=folder,
        env={
            **os.environ,
            "PYTEST_ADDOPTS": "",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    return done.stdout + done.stderr, done.returncode


def passes(folder: Path, text: str, *, conftest: str = "") -> None:
    """All of its tests, and there are some."""
    output, code = run_pytest(folder, text, *BY_HAND, conftest=conftest)
    assert code == 0, output
    assert "skipped" not in output


def test_what_the_documentation_shows(tmp_path: Path) -> None:
    page = ROOT / "docs" / "testing-your-app.md"
    text = "\n\n".join(block.text for block in blocks(page, "python"))
    passes(tmp_path, text, conftest=RUNS_COROUTINES)


APPLICATION = """
import os
import threading

import pytest
import tailrace


def test_each_test_has_its_own(tailrace_store):
    assert tailrace_store.queues() == []
    tailrace_store.queue("jobs").publish(b"1")
    tailrace_store.queue("jobs").publish(b"2", delay=60)


def test_none_of_another_test_is_there(tailrace_store):
    test_each_test_has_its_own(tailrace_store)


def test_what_is_closed_is_closed(tailrace_store):
    tailrace_store.close()


def test_what_fails_is_tried_again(tailrace_store, tailrace_clock):
    jobs = tailrace_store.queue("jobs", retry={"initial_backoff": "10s"})
    jobs.publish(b"1")
    consumer = jobs.consumer("workers")
    for _ in range(2):
        [message] = consumer.receive()
        with pytest.raises(ZeroDivisionError), message:
            1 / 0
        assert consumer.receive() == []
        tailrace_clock.advance("21s")
    [message] = consumer.receive()
    assert message.delivery_count == 3
    message.ack()
    assert jobs.pending("workers") == []


def test_leases_end(tailrace_store, tailrace_clock):
    jobs = tailrace_store.queue("jobs", visibility_timeout="10s")
    jobs.publish(b"1")
    consumer = jobs.consumer("workers")
    [lost] = consumer.receive()
    tailrace_clock.advance(9)
    assert consumer.receive() == []
    tailrace_clock.advance(1.1)
    [message] = consumer.receive()
    message.ack()
    with pytest.raises(tailrace.LeaseLost):
        lost.ack()


def test_what_is_late_has_expired_and_what_is_due_has_come(tailrace_store, tailrace_clock):
    jobs = tailrace_store.queue("jobs")
    jobs.publish(b"short-lived", ttl="1m")
    jobs.publish(b"later", delay="1m")
    jobs.publish(b"much later", deliver_at=tailrace_clock.wall_ms() + 3_600_000)
    assert jobs.delayed_count() == 2
    consumer = jobs.consumer("workers")
    tailrace_clock.advance("61s")
    assert [message.value for message in consumer.receive(10)] == [b"later"]
    tailrace_clock.set_wall(tailrace_clock.wall_ms() + 3_600_000)
    assert [message.value for message in consumer.receive(10)] == [b"much later"]


def test_a_worker_in_a_thread_is_woken(tailrace_store, tailrace_clock):
    jobs = tailrace_store.queue("jobs", visibility_timeout="1h")
    seen, has_seen = [], threading.Semaphore(0)

    def work():
        for message in jobs.consume("workers"):
            seen.append((message.value, message.delivery_count))
            has_seen.release()

    thread = threading.Thread(target=work)
    thread.start()
    jobs.publish(b"1")
    assert has_seen.acquire(timeout=30)
    tailrace_clock.advance("61m")
    assert has_seen.acquire(timeout=30)
    assert seen == [(b"1", 1), (b"1", 2)]
    tailrace_store.close()
    thread.join(30)
    assert not thread.is_alive()


def test_a_restart(tailrace_store, tailrace_open, tailrace_clock):
    tailrace_store.queue("jobs").publish(b"1", delay="1h")
    tailrace_store.close()
    tailrace_clock.advance("1h")
    with tailrace_open() as store:
        assert len(store.queue("jobs")) == 1


async def test_tasks(tailrace_async_store, tailrace_clock):
    store = await tailrace_async_store  # and nobody closes it
    jobs = await store.queue("jobs", visibility_timeout="1h")
    consumer = await jobs.consumer("workers")
    waiting = asyncio.create_task(consumer.receive(1, wait=30))
    await asyncio.sleep(0.01)
    await jobs.publish(b"1")
    assert [message.delivery_count for message in await waiting] == [1]
    waiting = asyncio.create_task(consumer.receive(1, wait=30))
    await asyncio.sleep(0.01)
    tailrace_clock.advance("61m")
    assert [message.delivery_count for message in await waiting] == [2]
    stream = await store.stream("events")
    async with stream.read(follow=True) as events:
        following = asyncio.create_task(anext(events))
        await asyncio.sleep(0.01)
        await stream.publish(b"2")
        assert (await following).value == b"2"


async def test_tasks_and_threads_share_a_store(tailrace_async_store, tailrace_store):
    tailrace_store.queue("jobs").publish(b"1")
    async with tailrace_async_store as store:
        jobs = await store.queue("jobs")
        await jobs.publish(b"2")
        consumer = await jobs.consumer("workers")
        assert len(await consumer.receive(10)) == 2


async def test_a_store_that_nobody_opens(tailrace_async_store):
    assert tailrace_async_store.path
"""

FAULTS = """
import os

import pytest
import tailrace
from tailrace.testing import OPERATIONS


def test_it_is_in_memory_and_nobody_opens_another_by_its_path(tailrace_store, tailrace_faults):
    tailrace_store.queue("jobs").publish(b"1")
    assert not os.path.exists(tailrace_store.path)
    with pytest.raises((OSError, tailrace.TailraceError)):
        tailrace.open(tailrace_store.path)


def test_a_full_disk(tailrace_store, tailrace_faults):
    jobs = tailrace_store.queue("jobs")
    jobs.publish_many([b"1", b"2"])
    consumer = jobs.consumer("workers")
    for _ in range(2):
        tailrace_faults.fill_disk()
        with pytest.raises(tailrace.Full):
            jobs.publish(b"x")
        with pytest.raises(tailrace.Full):
            jobs.publish(b"x", delay=5)
        [message] = consumer.receive()
        message.ack()
    tailrace_faults.free_disk()
    jobs.publish(b"3")
    assert [message.value for message in consumer.receive(10)] == [b"3"]


@pytest.mark.parametrize("seed", range(8))
def test_a_power_cut_takes_nothing_that_was_promised(tailrace_store, tailrace_faults, seed):
    jobs = tailrace_store.queue("jobs")
    for number in range(10):
        jobs.publish(b"%d" % number)
    jobs.publish(b"later", delay="1m")
    consumer = jobs.consumer("workers")
    for message in consumer.receive(3):
        message.ack()
    consumer.receive(1)
    jobs.publish(b"not waited for", wait=False)
    tailrace_faults.power_cut(seed, seconds_off=90)
    consumer = tailrace_faults.open().queue("jobs").consumer("workers")
    values = [message.value for message in consumer.receive(100)]
    assert [value for value in values if value != b"not waited for"] == [
        *(b"%d" % number for number in range(3, 10)), b"later"
    ]
    with pytest.raises((OSError, tailrace.TailraceError)):
        jobs.publish(b"from the dead")


def test_failing_writes_are_told(tailrace_store, tailrace_faults):
    jobs = tailrace_store.queue("jobs")
    jobs.publish(b"1")
    tailrace_faults.fail_every(2, "write", "ENOSPC", path="*.seg")
    published = 0
    for number in range(10):
        try:
            jobs.publish(b"x")
        except tailrace.NotWritten:
            continue
        published += 1
    assert 0 < published < 10
    assert len(jobs) == 1 + published
    assert {call.op for call in tailrace_faults.hits} == {"pwrite"}


async def test_tasks(tailrace_async_store, tailrace_faults):
    store = await tailrace_async_store
    jobs = await store.queue("jobs")
    await jobs.publish(b"1")
    tailrace_faults.fill_disk()
    with pytest.raises(tailrace.Full):
        await jobs.publish(b"2")
    tailrace_faults.free_disk()
    tailrace_faults.power_cut()
    async with tailrace_faults.open_async() as store:
        consumer = await (await store.queue("jobs")).consumer("workers")
        assert [message.value for message in await consumer.receive(10)] == [b"1"]
"""


@pytest.mark.parametrize("where", ["folder", "disk"])
def test_an_application(where: str, tmp_path: Path) -> None:
    text = "import asyncio\n" + APPLICATION
    if where == "disk":
        text += "\n\npytestmark = pytest.mark.usefixtures('tailrace_faults')\n"
    passes(tmp_path, text, conftest=RUNS_COROUTINES)


def test_faults(tmp_path: Path) -> None:
    passes(tmp_path, FAULTS, conftest=RUNS_COROUTINES)


def test_faults_that_come_too_late(tmp_path: Path) -> None:
    text = """
    def test_it(request, tailrace_store):
        request.getfixturevalue("tailrace_faults")
    """
    output, code = run_pytest(tmp_path, text, *BY_HAND)
    assert code == pytest.ExitCode.TESTS_FAILED
    assert "tailrace_faults came after the store was made: name it among" in output


def test_other_options_and_a_store_of_their_own(tmp_path: Path) -> None:
    text = """
    import pytest
    import tailrace

    @pytest.fixture
    def tailrace_options(tmp_path):
        path = tmp_path / "tailrace.yaml"
        path.write_text("queues: [{name: jobs, visibility_timeout: 5s}]")
        return {"config": path, "flush": "async"}

    def test_options(tailrace_store, tailrace_open):
        assert tailrace_store.get("jobs").settings.visibility_timeout_ms == 5_000
        assert tailrace_open(flush="none").queue("more").settings.flush == "none"

    def test_it_goes_by_the_clock(tailrace_clock, tmp_path):
        with tailrace.open(tmp_path / "data", clock=tailrace_clock) as store:
            jobs = store.queue("jobs")
            jobs.publish(b"1", delay="1d")
            tailrace_clock.advance("1d")
            assert len(jobs.consumer("workers").receive()) == 1
    """
    passes(tmp_path, text)


def test_pytest_finds_it_and_it_takes_next_to_nothing(tmp_path: Path) -> None:
    """As what is installed tells of it, which in a checkout may be older than the project."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [(name, module)] = project["entry-points"]["pytest11"].items()
    installed = tmp_path / "installed" / "tailrace_plugin-1.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: tailrace-plugin\nVersion: 1\n"
    )
    (installed / "entry_points.txt").write_text(f"[pytest11]\n{name} = {module}\n")
    text = """
    import sys

    def test_there_is_nothing_that_nobody_asked_for():
        assert "tailrace.testing.plugin" in sys.modules
        for name in ("queue.store", "aio", "config", "testing.clock", "testing.stores"):
            assert f"tailrace.{name}" not in sys.modules, name

    def test_it_is_there_when_somebody_does(tailrace_store):
        tailrace_store.queue("jobs")
    """
    where = str(installed.parent)
    path = os.pathsep.join(filter(None, [where, os.environ.get("PYTHONPATH")]))
    output, code = run_pytest(tmp_path, text, "-p", name, PYTHONPATH=path)
    assert code == 0, output
    output, code = run_pytest(tmp_path, text, "-p", f"no:{name}", PYTHONPATH=path)
    assert "fixture 'tailrace_store' not found" in output


def test_what_is_installed_is_what_the_project_says() -> None:
    found = importlib.metadata.entry_points(group="pytest11", name="tailrace")
    if not found:
        pytest.skip("tailrace was installed before it had the plugin; install it again")
    assert {entry.value for entry in found} == {"tailrace.testing.plugin"}
