"""Where dead letters are to go: what could not work is refused when it is set."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tailrace
from tailrace import ConfigError, InvalidName, Queue, Store
from tests.queue.fluxmq_store import write_queue
from tests.queue.support import FAST, numbers, send_letters, values

CIRCLE = r"^dlq\.topic: dead letters would go round in a circle, from "
FLEETING = r"^dlq\.topic: g is ephemeral, and would not keep the dead letters of \w, which is not; "
TAKEN = r"^ephemeral: the dead letters of a, which is durable, go to .* give a another dlq\.topic"
STREAM = r"^dlq\.topic: s is a stream; dead letters need a classic queue"


def to(topic: str, **more: Any) -> dict[str, Any]:
    return {"dlq": {"topic": topic, **more}}


# --- streams --------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", ["s", "$queue/s", "$queue/s/of/a"])
def test_a_stream_takes_no_dead_letters(store: Store, topic: str) -> None:
    store.stream("s")
    with pytest.raises(ConfigError, match=STREAM):
        store.queue("a", **to(topic))
    assert [each.name for each in store.queues()] == ["s"]  # nothing was made
    queue = store.queue("a", **to(topic, enabled=False))
    with pytest.raises(ConfigError, match=STREAM):
        queue.configure(dlq={"enabled": True})
    with pytest.raises(ConfigError, match=STREAM):
        store.queue("a", dlq={"enabled": True})
    assert not queue.settings.dlq.enabled
    queue.configure(dlq={"enabled": True, "topic": "letters"})


@pytest.mark.parametrize(("name", "options"), [("s", to("$queue/s")), ("$dlq/a", {})])
def test_no_stream_where_dead_letters_go(store: Store, name: str, options: dict[str, Any]) -> None:
    queue = store.queue("a", **options)
    with pytest.raises(ConfigError, match=r"^type: the dead letters of a go to .*; give a another"):
        store.stream(name)
    queue.configure(dlq={"enabled": False})
    store.stream(name)


def test_a_stream_has_no_dead_letters_itself(store: Store) -> None:
    store.stream("s", **to("t"))
    store.stream("t", **to("s"))


def test_all_or_nothing(store: Store) -> None:
    with pytest.raises(ConfigError, match=STREAM):
        store.declare([("b", "classic", {}), ("a", "classic", to("s")), ("s", "stream", {})])
    assert store.queues() == []


def test_a_queue_that_comes_by_itself(tmp_path: Path) -> None:
    with tailrace.open(tmp_path, upkeep=False, **to("s")) as store:
        store.stream("s", dlq={"enabled": False})
        with pytest.raises(ConfigError, match=STREAM):
            store.consumer("a", "w")


# --- ephemeral queues -----------------------------------------------------------------------


@pytest.mark.parametrize("topic", ["g", "$queue/g", "$queue/g/of/a"])
def test_an_ephemeral_queue_takes_no_dead_letters_of_a_durable_one(
    store: Store, topic: str
) -> None:
    store.queue("g", ephemeral=True)
    with pytest.raises(ConfigError, match=FLEETING):
        store.queue("a", **to(topic))
    assert [each.name for each in store.queues()] == ["g"]  # nothing was made
    queue = store.queue("a", **to(topic, enabled=False))
    with pytest.raises(ConfigError, match=FLEETING):
        queue.configure(dlq={"enabled": True})
    with pytest.raises(ConfigError, match=FLEETING):
        store.queue("a", dlq={"enabled": True})
    assert not queue.settings.dlq.enabled
    queue.configure(dlq={"enabled": True, "topic": "letters"})
    with pytest.raises(ConfigError, match=FLEETING):
        queue.configure(**to(topic))


@pytest.mark.parametrize(("name", "options"), [("g", to("$queue/g")), ("$dlq/a", {})])
def test_no_ephemeral_queue_where_dead_letters_go(
    store: Store, name: str, options: dict[str, Any]
) -> None:
    queue = store.queue("a", **options)
    with pytest.raises(ConfigError, match=TAKEN):
        store.queue(name, ephemeral=True)
    store.consumer(name, "early").close()  # ephemeral, but made because somebody used its name
    with pytest.raises(ConfigError, match=TAKEN):
        store.queue(name, ephemeral=True)
    assert store.get(name).settings.implied
    queue.configure(dlq={"enabled": False})
    assert store.queue(name, ephemeral=True).settings.ephemeral
    with pytest.raises(ConfigError, match=r"^dlq\.topic: .* is ephemeral"):
        queue.configure(dlq={"enabled": True})


def test_a_queue_that_becomes_durable_needs_a_durable_one_for_its_dead_letters(
    tmp_path: Path,
) -> None:
    with tailrace.open(tmp_path, upkeep=False, **to("g")) as store:
        store.queue("g", ephemeral=True, dlq={"enabled": False})
        store.consumer("a", "early").close()
        with pytest.raises(ConfigError, match=FLEETING):
            store.queue("a")
        assert store.get("a").settings.ephemeral
        assert not store.queue("a", **to("letters")).settings.ephemeral


def test_a_durable_queue_does_not_become_ephemeral(store: Store) -> None:
    store.queue("a", **to("g"))
    store.queue("g")
    with pytest.raises(ConfigError, match=r"^ephemeral: "):
        store.queue("g", ephemeral=True)
    with pytest.raises(ConfigError, match=r"^ephemeral: "):
        store.configure("g", ephemeral=True)


def test_an_ephemeral_queue_has_ephemeral_dead_letters_if_it_wants(store: Store) -> None:
    store.queue("g", ephemeral=True)
    store.queue("a", ephemeral=True, **to("g"))
    store.queue("b", ephemeral=True, **to("h"))
    store.queue("h", ephemeral=True)
    store.stream("s", **to("g"))  # has none


def test_all_or_nothing_with_an_ephemeral_queue(store: Store) -> None:
    for order in (1, -1):
        wanted = [("a", "classic", to("g")), ("g", "classic", {"ephemeral": True})][::order]
        with pytest.raises(ConfigError, match=FLEETING):
            store.declare(wanted)
    assert store.queues() == []


def test_dead_letters_of_a_durable_queue_outlive_a_restart(tmp_path: Path) -> None:
    """Also in a store that makes its queues ephemeral, and where somebody waited for letters."""
    with tailrace.open(tmp_path, upkeep=False, ephemeral=True) as store:
        queue = store.queue("a", ephemeral=False)
        store.consumer("$dlq/a", "early").close()
        queue.publish(b"x")
        [message] = queue.consumer("w").receive()
        message.reject()
    with tailrace.open(tmp_path, upkeep=False) as store:
        assert values(store.dead("a")) == [b"x"]


def test_a_store_with_ephemeral_dead_letters_opens_and_can_be_mended(store: Store) -> None:
    store.queue("g", ephemeral=True)
    a = store.queue("a", **FAST)
    send_letters(store, "a", "g")
    a.configure(visibility_timeout="7s")
    store.queue("g", visibility_timeout="7s")
    with pytest.raises(ConfigError, match=FLEETING):
        store.queue("b", **to("g"))
    a.configure(**to("letters"))
    with pytest.raises(ConfigError, match=FLEETING):
        a.configure(**to("g"))


# --- circles --------------------------------------------------------------------------------


def test_two_queues_for_each_other(store: Store) -> None:
    a = store.queue("a", **to("b"))
    with pytest.raises(ConfigError, match=CIRCLE + "b to a to b, and never come to an end"):
        store.queue("b", **to("a"))
    b = store.queue("b")
    with pytest.raises(ConfigError, match=CIRCLE + "b to a to b"):
        b.configure(**to("$queue/a/again"))
    with pytest.raises(ConfigError, match=CIRCLE + "b to a to b"):
        store.configure("b", **to("a"))
    a.configure(dlq={"enabled": False})
    b.configure(**to("a"))
    with pytest.raises(ConfigError, match=CIRCLE + "a to b to a"):
        a.configure(dlq={"enabled": True})


def test_a_longer_way_round(store: Store) -> None:
    store.queue("a", **to("b"))
    store.queue("b", **to("c"))
    store.queue("c")
    with pytest.raises(ConfigError, match=CIRCLE + "c to a to b to c"):
        store.queue("c", **to("a"))
    with pytest.raises(ConfigError, match=CIRCLE + r"\$dlq/c to c to \$dlq/c"):
        store.queue("$dlq/c", **to("c"))
    store.queue("d", **to("a"))  # a way that ends


def test_what_is_there_already_can_be_used_and_mended(store: Store) -> None:
    a, b, s = store.queue("a", **FAST), store.queue("b", **FAST), store.stream("s")
    send_letters(store, "a", "b")
    send_letters(store, "b", "a")
    c = store.queue("c")
    send_letters(store, "c", "s")
    for queue in (a, b, c):
        queue.configure(visibility_timeout="7s")
    s.configure(retention={"max_age": "1d"})
    store.queue("d", **to("a"))  # the circle is not its own
    store.queue("e", **to("f"))
    with pytest.raises(ConfigError, match=CIRCLE):
        store.queue("f", **to("e"))
    a.configure(dlq={"topic": ""})
    c.configure(dlq={"topic": "letters"})
    with pytest.raises(ConfigError, match=CIRCLE):
        a.configure(**to("b"))


# --- names ----------------------------------------------------------------------------------


def ways_to_make(store: Store) -> list[Callable[[Any], object]]:
    return [store.queue, store.stream, lambda name: store.consumer(name, "w")]


def test_the_queue_of_the_broker_is_made_by_nobody_else(store: Store) -> None:
    said = r"the name of a queue, 'mqtt', is reserved for the broker, .*; use another name"
    for make in ways_to_make(store):
        with pytest.raises(InvalidName, match=said):
            make("mqtt")
    with pytest.raises(InvalidName, match=said):
        store.publish("$queue/mqtt/x", b"x")
    with pytest.raises(ConfigError, match=r"^dlq\.topic: mqtt is reserved for the broker"):
        store.queue("a", **to("mqtt"))
    assert store.queues() == []
    store.queue("mqtt2").publish(b"x")


def test_the_queue_of_the_broker_is_used_where_it_is(tmp_path: Path) -> None:
    """FluxMQ makes it for itself."""
    write_queue(tmp_path, "mqtt", numbers(3), Topics=["#"], Reserved=True)
    with tailrace.open(tmp_path, upkeep=False) as store:
        queue = store.queue("mqtt")
        assert queue.settings.reserved
        assert values(queue.read()) == numbers(3)
        assert store.queue("mqtt", limits={"max_depth": 9}) is queue
        queue.configure(visibility_timeout="7s")
        with queue.consumer("w") as consumer:
            consumer.ack(consumer.receive(3))
        store.queue("a", **to("mqtt"))
        store.delete("mqtt")
        with pytest.raises(InvalidName, match="reserved for the broker"):
            store.queue("mqtt")
        found = store.queue("mqtt", reserved=True)  # as a broker makes it
        assert isinstance(found, Queue)


@pytest.mark.parametrize("name", [None, 5, b"q"])
def test_what_is_no_name_is_the_same_error_everywhere(store: Store, name: Any) -> None:
    said = "the name of a queue is text, not "
    for make in ways_to_make(store):
        with pytest.raises(InvalidName, match=said):
            make(name)
    with pytest.raises(InvalidName, match="the name of a group is text"):
        store.queue("q").consumer(name)
