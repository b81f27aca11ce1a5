"""Addresses: which queue a topic means, and what is to be done there."""

from __future__ import annotations

import pytest

from tailrace import InvalidName, Store
from tailrace.queue.addresses import address_of, default_binding, is_selected, parse_address
from tailrace.queue.topics import matches


@pytest.mark.parametrize(
    ("topic", "queue", "routing_key", "verb"),
    [
        ("$queue/orders", "orders", "", None),
        ("$queue/orders/", "orders", "", None),
        ("$queue/orders/eu/images", "orders", "eu/images", None),
        ("$queue/orders//x", "orders", "/x", None),
        ("$queue/orders/$ack", "orders", "", "ack"),
        ("$queue/orders/eu/images/$nack", "orders", "eu/images", "nack"),
        ("$queue/orders/$reject", "orders", "", "reject"),
        ("$queue/events/$commit", "events", "", "commit"),
        ("$queue/orders/$acks", "orders", "$acks", None),
        ("$queue/orders/ack", "orders", "ack", None),
        ("$queue/$acks/x", "$acks", "x", None),
    ],
)
def test_addresses(topic: str, queue: str, routing_key: str, verb: str | None) -> None:
    assert parse_address(topic) == (queue, routing_key, verb)


@pytest.mark.parametrize(
    "topic", ["orders", "$queue", "$queues/orders", "/$queue/orders", "$SYS/x"]
)
def test_ordinary_topics(topic: str) -> None:
    assert parse_address(topic) is None


@pytest.mark.parametrize(
    "topic",
    ["$queue/", "$queue//x", "$queue/$ack", "$queue/orders/$ack/x", "$queue/$nack/orders"],
)
def test_what_looks_like_an_address(topic: str) -> None:
    with pytest.raises(InvalidName, match=r"the topic '\$queue/"):
        parse_address(topic)


@pytest.mark.parametrize("routing_key", ["", "eu", "eu/images/", "/"])
def test_there_and_back(routing_key: str) -> None:
    topic = address_of("orders", routing_key)
    assert parse_address(topic) == ("orders", routing_key, None)
    assert matches(default_binding("orders"), topic)
    assert not matches(default_binding("order"), topic)


TOPICS = [f"$queue/orders{behind}" for behind in ("", "/", "//", "/a", "/a/", "//a", "/$a", "/a/b")]
FILTERS = ["#", "+", "+/+", "/", "/+", "+/", "+/#", "/#", "a", "a/#", "a/+", "$a", "$a/#", "//"]


@pytest.mark.parametrize("pattern", FILTERS)
def test_filters_go_by_the_levels_behind_the_address(store: Store, pattern: str) -> None:
    """Also where a level is empty, which the routing key does not show."""
    queue = store.queue("orders")
    for topic in TOPICS:
        store.publish(topic, topic)
    expected = [topic for topic in TOPICS if matches(f"$queue/orders/{pattern}", topic)]
    for found in (queue.peek("g", 99, filter=pattern), queue.consumer("g", filter=pattern)):
        messages = found if isinstance(found, list) else found.receive(99)
        assert [message.topic for message in messages] == expected


@pytest.mark.parametrize("topic", ["", "orders", "$queue", "$queue/order/a", "$queue/orders2/a"])
def test_what_is_no_address_of_the_queue_has_no_levels_there(topic: str) -> None:
    assert [pattern for pattern in FILTERS if is_selected(pattern, "orders", topic)] == ["#"]
