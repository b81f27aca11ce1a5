"""Addresses: which queue a topic means, and what is to be done there."""

from __future__ import annotations

import pytest

from tailrace import InvalidName
from tailrace.queue.addresses import address_of, default_binding, parse_address
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
