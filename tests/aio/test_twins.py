"""What `tailrace.Log` has, `tailrace.aio.Log` has: the same names, parameters and errors."""

from __future__ import annotations

import inspect
import os
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import tailrace
from tailrace import Closed, ConfigError, Log, NotWritten, aio
from tailrace.log.producers import PRODUCER_HEADER
from tests.aio.support import collect, run
from tests.log.helpers import T0, at, fill, run_python

# `tail` is for those who wait in their own way, and gives what blocks; drafts are for queues.
NOT_FOR_TASKS = {"abandon", "append_draft", "tail"}

# Each verb with arguments that a log takes.
CALLS: dict[str, tuple[Any, ...]] = {
    "append": ([b"v"],),
    "append_one": (b"v",),
    "append_many": ([b"v", b"w"],),
    "append_arrow": (),  # the tests give it a table
    "read": (),
    "read_batches": (),
    "read_arrow": (),
    "offset_at": (T0,),
    "flush": (),
    "truncate_before": (0,),
    "vacuum": (),
    "start_offset": (),
    "end_offset": (),
    "durable_offset": (),
    "flush_mode": (),
    "close": (),
}
WRITING = [
    "append",
    "append_one",
    "append_many",
    "append_arrow",
    "flush",
    "truncate_before",
    "vacuum",
]
STATE = ["start_offset", "end_offset", "durable_offset", "flush_mode"]

# What no log takes.
MISUSE: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("append", ([],), {}),
    ("append", (b"bytes",), {}),
    ("append", ("text",), {}),
    ("append", (None,), {}),
    ("append", ([1],), {}),
    ("append", ((b"key", b"value"),), {}),
    ("append", ([b"x" * 2_000],), {}),
    ("append", ([(b"k", b"v", {PRODUCER_HEADER: b"p"})],), {}),
    ("append", ([b"x"],), {"producer": "p"}),
    ("append", ([b"x"],), {"sequence": 1}),
    ("append", ([b"x"],), {"producer": "", "sequence": 1}),
    ("append", ([b"x"],), {"producer": "p", "sequence": -1}),
    ("append_one", (1,), {}),
    ("append_one", (b"v", 1), {}),
    ("append_one", (b"x" * 2_000,), {}),
    ("append_one", (b"v", None, {1: 2}), {}),
    ("append_one", (b"v",), {"timestamp": "now"}),
    ("append_one", (b"v",), {"producer": "p", "sequence": True}),
    ("append_many", ([],), {}),
    ("append_many", (b"bytes",), {}),
    ("append_many", (None,), {}),
    ("append_many", ([b"1", 2],), {}),
    ("append_arrow", (None,), {}),
    ("read", ("middle",), {}),
    ("read", (True,), {}),
    ("read", (-1,), {}),
    ("read", (4,), {}),
    ("read", (0, "end"), {}),
    ("read", (0, None), {"timestamp": T0}),
    ("read", (), {"timestamp": "now"}),
    ("read", (), {"timeout": 1}),
    ("read", ("middle",), {"follow": True}),
    ("read", (4,), {"follow": True}),
    ("read", (0, 1.5), {"follow": True, "timeout": 0}),
    ("read_batches", (4,), {}),
    ("read_batches", (None,), {}),
    ("read_arrow", (), {"columns": ["colour"]}),
    ("read_arrow", (4,), {}),
    ("offset_at", ("now",), {}),
    ("offset_at", (True,), {}),
    ("truncate_before", (4,), {}),
    ("truncate_before", (-1,), {}),
    ("truncate_before", ("first",), {}),
]


def public(of: type) -> dict[str, Any]:
    return {name: value for name, value in vars(of).items() if not name.startswith("_")}


VERBS = [name for name in public(Log) if name not in NOT_FOR_TASKS]


def arguments_of(name: str) -> tuple[Any, ...]:
    if name == "append_arrow":
        return (pytest.importorskip("pyarrow").table({"value": [b"v"]}),)
    return CALLS[name]


async def call(log: aio.Log, name: str, *arguments: Any, **options: Any) -> Any:
    """What comes of a verb or a property, to its end."""
    found = getattr(log, name)
    if callable(found):
        found = found(*arguments, **options)
    if isinstance(found, AsyncIterator):
        return await collect(found)
    return await found if inspect.isawaitable(found) else found


def call_blocking(log: Log, name: str, *arguments: Any, **options: Any) -> Any:
    found = getattr(log, name)
    if callable(found):
        found = found(*arguments, **options)
    return list(found) if hasattr(found, "__next__") else found


# --- names and parameters -----------------------------------------------------------------


def test_every_verb_is_known_here() -> None:
    assert set(VERBS) == set(CALLS)


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_has_its_twin(name: str) -> None:
    ours, theirs = public(aio.Log)[name], public(Log)[name]
    if isinstance(theirs, property):
        if isinstance(ours, property):
            return
        assert inspect.iscoroutinefunction(ours)
        assert [*inspect.signature(ours).parameters] == ["self"]
        return
    assert inspect.signature(ours).parameters == inspect.signature(theirs).parameters
    returns = str(inspect.signature(theirs).return_annotation)
    if returns.startswith("Iterator["):
        item = re.findall(r"\[(.+?)\]", returns)[0]
        assert inspect.signature(ours).return_annotation == f"Reading[{item}]"
    else:
        assert inspect.iscoroutinefunction(ours)
        assert inspect.signature(ours).return_annotation == returns


def test_it_is_opened_with_the_same_parameters() -> None:
    assert inspect.signature(aio.Log) == inspect.signature(Log)


def test_there_is_nothing_else_but_opening() -> None:
    assert set(public(aio.Log)) == {*VERBS, "open"}
    for name, found in public(aio.Log).items():
        assert found.__doc__, name


def test_what_a_log_tells_of_itself(path: Path) -> None:
    async def work(log: aio.Log) -> dict[str, Any]:
        async with log:
            return {name: value for name, value in vars(log).items() if not name.startswith("_")}

    with Log(path, read_only=False, segment_bytes="1MiB") as log:
        theirs = {name: value for name, value in vars(log).items() if not name.startswith("_")}
    assert run(work(aio.Log(path, read_only=False, segment_bytes="1MiB"))) == theirs
    assert set(theirs) == {"path", "read_only", "options"}


def test_it_is_an_attribute_of_the_package() -> None:
    assert tailrace.aio is aio
    code = """
import json, sys, tailrace
before = "asyncio" in sys.modules, "tailrace.aio" in sys.modules
tailrace.aio.Log
print(json.dumps([*before, "asyncio" in sys.modules]))
"""
    assert run_python(code) == [False, False, True]


# --- meaning ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", VERBS)
@pytest.mark.parametrize("is_read_only", [False, True], ids=["writer", "reader"])
def test_the_same_comes_of_it(tmp_path: Path, name: str, is_read_only: bool) -> None:
    arguments = arguments_of(name)
    with Log(tmp_path / "blocking") as log:
        log.append([at(T0 + n, b"%d" % n) for n in range(3)]).wait()
    shutil.copytree(tmp_path / "blocking", tmp_path / "asyncio")
    error: BaseException | None = None
    with Log(tmp_path / "blocking", read_only=is_read_only) as log:
        try:
            theirs = call_blocking(log, name, *arguments)
        except NotWritten as caught:
            error = caught

    async def work() -> Any:
        async with aio.Log(tmp_path / "asyncio", read_only=is_read_only) as log:
            return await call(log, name, *arguments)

    if error is not None:
        assert is_read_only
        assert name in WRITING
        with pytest.raises(NotWritten, match="open read-only"):
            run(work())
    elif name.startswith("append"):
        ours = run(work())
        assert (ours.offset, ours.count) == (theirs.offset, theirs.count)
    else:
        assert run(work()) == theirs
        assert not (is_read_only and name in WRITING)


@pytest.mark.no_cover
@pytest.mark.parametrize(
    ("name", "arguments", "options"), MISUSE, ids=lambda part: repr(part)[:40].replace(" ", "")
)
def test_the_same_errors(
    path: Path, name: str, arguments: tuple[Any, ...], options: dict[str, Any]
) -> None:
    if name.endswith("arrow"):
        pytest.importorskip("pyarrow")
    with Log(path, max_batch_bytes=1_000) as log:
        fill(log, 3)
        with pytest.raises(Exception) as theirs:  # noqa: PT011 (ours is to be the same)
            call_blocking(log, name, *arguments, **options)

    async def work() -> None:
        async with aio.Log(path, max_batch_bytes=1_000) as log:
            with pytest.raises(type(theirs.value)) as ours:
                await call(log, name, *arguments, **options)
            assert type(ours.value) is type(theirs.value)
            assert str(ours.value) == str(theirs.value)
            assert (await log.append_one(b"the next")).offset == 3
            assert await log.end_offset() == 4

    run(work())


@pytest.mark.parametrize("name", VERBS)
def test_a_closed_log(path: Path, name: str) -> None:
    arguments = arguments_of(name)
    with Log(path) as log:
        fill(log, 3)

    async def work() -> None:
        async with aio.Log(path) as other:
            pass
        if name in [*STATE, "close"]:  # it can still be asked what it was last
            assert await call(other, name, *arguments) == call_blocking(log, name, *arguments)
            return
        with pytest.raises(Closed) as theirs:
            call_blocking(log, name, *arguments)
        with pytest.raises(Closed) as ours:
            await call(other, name, *arguments)
        assert str(ours.value) == str(theirs.value)

    run(work())


@pytest.mark.parametrize("name", [name for name in VERBS if name != "close"])
def test_a_log_that_was_not_opened(path: Path, name: str) -> None:
    async def work() -> None:
        log = aio.Log(path)
        assert repr(log) == f"aio.Log({str(path)!r}, not open)"
        with pytest.raises(Closed, match="is not open: use `async with`"):
            await call(log, name, *arguments_of(name))
        await log.close()
        with pytest.raises(Closed, match="is closed"):
            await log.open()
        assert repr(log) == f"aio.Log({str(path)!r}, closed)"

    run(work())
    assert not path.exists()


@pytest.mark.parametrize(
    "options",
    [
        {"flush": "sometimes"},
        {"colour": "red"},
        {"segment_bytes": 0},
        {"retention": {"max_age": "x"}},
        {"mode": "both"},
        {"exclusive": True, "read_only": True},
    ],
    ids=repr,
)
def test_options_that_no_log_takes(path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as theirs:
        Log(path, **options)

    async def work() -> None:
        async with aio.Log(path, **options):
            pass

    with pytest.raises(ConfigError) as ours:
        run(work())
    assert str(ours.value) == str(theirs.value)
    assert not path.exists()


def test_a_reader_of_nothing(path: Path) -> None:
    async def work() -> None:
        log = aio.Log(path, read_only=True)
        for _ in range(2):
            with pytest.raises(FileNotFoundError):
                await log.open()
        path.mkdir()
        async with log:
            assert await log.end_offset() == 0

    run(work())


def test_a_path_of_any_sort(path: Path) -> None:
    async def work() -> None:
        for given in (path, str(path), _PathLike(str(path))):
            async with aio.Log(given) as log:
                assert log.path == str(path)
                assert repr(log) == f"aio.Log({str(path)!r}, sync, 0..0)"
        async with aio.Log(path, read_only=True) as log:
            assert repr(log) == f"aio.Log({str(path)!r}, sync, read-only)"
        assert repr(log) == f"aio.Log({str(path)!r}, sync, closed)"

    run(work())


class _PathLike(os.PathLike[str]):
    def __init__(self, path: str) -> None:
        self._path = path

    def __fspath__(self) -> str:
        return self._path
