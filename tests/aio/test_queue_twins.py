"""What queues have, they have for tasks: the same names, parameters and errors."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

import tailrace
from tailrace import Closed, aio
from tests.aio.support import run
from tests.log.helpers import run_python

PAIRS: dict[str, tuple[type, type]] = {
    name: (getattr(tailrace, name), getattr(aio, name))
    for name in ("Store", "Queue", "Stream", "Consumer", "StreamConsumer", "Message")
}

SPACE = {"abandon_log", "admit", "drop_segment", "files", "idle_ms", "is_open", "note_opened"}
SPACE |= {"check_open", "drop_segments", "expire_by_rule", "note_due", "tidy"}
SPACE |= {
    "append_accepted",
    "has_done",
    "check_batch",
    "drop_archived",
    "find_group",
    "open_log",
    "rest",
}
# What the parts of the blocking side ask of each other; what gives a thing that blocks; and what
# tells the same in the way of a task.
NOT_FOR_TASKS: dict[str, set[str]] = {
    "Store": {"attend", "bury", "check_open", "declare", "open_log", "tidy", "tidy_soon"}
    | {"employ", "prepare_letters", "publish_once"},
    "Queue": {
        "abandon",
        "append",
        "append_draft",
        "bury",
        "draft",
        "disown",
        "group",
        "hold_letters",
        "log",
        "open_group",
        "publish_once",
    }
    | SPACE,
    "Stream": {"abandon", "append", "append_draft", "disown", "draft", "group", "log", "open_group"}
    | SPACE,
    "Consumer": {"check_open", "claim_at", "look_now", "tail"},
    "StreamConsumer": {"check_open", "commit_but", "look_now", "tail"},
    "Message": {"lease_ms", "settler"},
}
# The same on this side.
ONLY_HERE: dict[str, set[str]] = {
    "Store": {"open"},
    "Queue": {
        "attend",
        "desk",
        "end_reading",
        "group_of",
        "is_twin_of",
        "length",
        "let_go",
        "stop",
    },
    # What is not known before it has joined is an attribute there.
    "Consumer": {"id", "open", "stop"},
    "StreamConsumer": {"auto_commit", "id", "open", "stop"},
}
ONLY_HERE["Stream"] = ONLY_HERE["Queue"]

# They need no thread.
PLAIN = {"auto_extend", "consume", "consumer", "read"}


def public(of: type) -> dict[str, Any]:
    """Its names, and those of what it is made of."""
    found: dict[str, Any] = {}
    for each in reversed(of.__mro__):
        if each.__module__.startswith("tailrace"):
            found |= {name: value for name, value in vars(each).items() if name[0] != "_"}
    return found


VERBS = [
    (pair, name)
    for pair, (theirs, _ours) in PAIRS.items()
    for name in public(theirs)
    if name not in NOT_FOR_TASKS[pair]
]


@pytest.mark.parametrize(("pair", "name"), VERBS)
def test_every_verb_has_its_twin(pair: str, name: str) -> None:
    theirs, ours = (public(each)[name] for each in PAIRS[pair])
    assert getattr(ours, "__doc__", None), f"{pair}.{name} says nothing"
    if isinstance(ours, property):
        assert not callable(theirs)
        return
    if isinstance(theirs, property):
        assert inspect.iscoroutinefunction(ours)
        assert [*inspect.signature(ours).parameters] == ["self"]
        return
    assert inspect.signature(ours).parameters == inspect.signature(theirs).parameters
    returns = [str(inspect.signature(each).return_annotation) for each in (theirs, ours)]
    if name in PLAIN and pair != "Store":
        assert not inspect.iscoroutinefunction(ours)
        returns[0] = {
            "Iterator[Message]": "Reading[Message]",
            "AbstractContextManager[object]": "AutoExtend",
        }.get(returns[0], returns[0])
    else:
        assert inspect.iscoroutinefunction(ours)
    assert returns[0] == returns[1]


@pytest.mark.parametrize("pair", PAIRS)
def test_there_is_nothing_else(pair: str) -> None:
    theirs, ours = (set(public(each)) for each in PAIRS[pair])
    assert ours - theirs == ONLY_HERE.get(pair, set())


@pytest.mark.parametrize("pair", ["Store"])
def test_it_is_made_with_the_same_parameters(pair: str) -> None:
    theirs, ours = PAIRS[pair]
    assert inspect.signature(ours) == inspect.signature(theirs)


def test_opening_takes_the_same() -> None:
    assert inspect.signature(aio.open) == inspect.signature(tailrace.open)


def test_what_a_queue_tells_of_itself(path: Path) -> None:
    async def work() -> None:
        async with aio.open(path, flush="async") as store:
            queue, stream = await store.queue("q"), await store.stream("s")
            assert repr(store) == f"aio.Store({str(path)!r})"
            assert (repr(queue), repr(stream)) == ("aio.Queue('q')", "aio.Stream('s')")
            assert await store.queue("q") is queue
            assert [each.name for each in await store.queues()] == ["q", "s"]
            await queue.publish(b"x")
            async with queue.consumer("g", id="me") as consumer:
                [message] = await consumer.receive()
                assert repr(consumer) == "aio.Consumer('q', 'g', open)"
                assert (consumer.id, consumer.group, consumer.closed) == ("me", "g", False)
                assert repr(message) == "aio.Message('q:0', delivery_count=1)"

    run(work())


def test_a_store_that_was_not_opened(path: Path) -> None:
    async def work() -> None:
        store = aio.open(path)
        assert repr(store) == f"aio.Store({str(path)!r}, not open)"
        for verb in (store.queue, store.get, store.delete, store.dead, store.redrive):
            with pytest.raises(Closed, match="is not open: use `async with`, or await it"):
                await verb("q")
        with pytest.raises(Closed, match="is not open"):
            await store.publish("x", b"y")
        await store.close()
        with pytest.raises(Closed, match="is closed"):
            await store.open()
        assert repr(store) == f"aio.Store({str(path)!r}, closed)"

    run(work())
    assert not path.exists()


def test_both_ways_to_open_it(path: Path) -> None:
    async def work() -> None:
        store = await aio.open(path)
        assert await store is store
        async with store as same:
            assert same is store
        with pytest.raises(Closed):
            await store.queues()

    run(work())


def test_queues_are_imported_when_they_are_needed() -> None:
    code = """
import json, sys, tailrace
def there():
    return [name in sys.modules for name in ("asyncio", "tailrace.queue", "tailrace.aio.store")]
before = there()
tailrace.aio.Log
between = there()
tailrace.aio.open
print(json.dumps([before, between, there()]))
"""
    assert run_python(code) == [[False] * 3, [True, False, False], [True] * 3]


def test_all_is_all() -> None:
    for name in aio.__all__:
        assert getattr(aio, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'Colour'"):
        _ = aio.Colour


def test_queues_that_are_gone_are_forgotten(path: Path) -> None:
    async def work() -> None:
        async with aio.open(path, flush="none") as store, aio.open(path) as other:
            for number in range(50):
                await store.queue(f"q{number}")
                await other.delete(f"q{number}")
            assert len(store._queues) < 25

    run(work())
