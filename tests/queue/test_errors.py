"""What cannot be done is refused with an error that says why, and leaves everything as it was."""

from __future__ import annotations

import functools
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tailrace
from tailrace import (
    Closed,
    ConfigError,
    InvalidName,
    LeaseLost,
    Outgoing,
    Queue,
    Store,
    TailraceError,
)
from tests.log.helpers import WAIT
from tests.queue.conftest import OpenStore
from tests.queue.support import drain, numbers, offsets, one, send_letters, states, values

Refusal = tuple[type[Exception], str]


def refuses(kind: type[Exception], match: str, use: Callable[[], object]) -> None:
    with pytest.raises(kind, match=match) as caught:
        use()
    assert type(caught.value) is kind
    assert len(str(caught.value)) > 10  # it says something


# --- names ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "a\0b", "a\nb", "x" * 300, "\ud800"])
def test_names_that_no_queue_can_have(store: Store, name: str) -> None:
    refuses(InvalidName, "name", lambda: store.queue(name))
    refuses(InvalidName, "name", lambda: store.stream(name))
    assert store.queues() == []


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 300])
def test_names_that_no_group_can_have(store: Store, name: str) -> None:
    queue, stream = store.queue("q"), store.stream("s")
    refuses(InvalidName, "name", lambda: queue.consumer(name))
    refuses(InvalidName, "name", lambda: stream.consumer(name))
    assert (queue.group_ids(), stream.group_ids()) == ([], [])


@pytest.mark.parametrize(
    "name", ["a b", "../../etc", ".", "..", "a/b", "%2F", "ü", "$dlq/x", "@", "#a"]
)
def test_names_that_are_odd_and_good(open_store: OpenStore, tmp_path: Path, name: str) -> None:
    options: dict[str, Any] = {"topics": []} if "#" in name else {}
    with open_store() as store:
        queue = store.queue(name, **options)
        queue.publish(b"x")
        one(queue.consumer(f"g{name}")).nack(delay=0)
        assert [each.name for each in store.queues()] == [name]
    with open_store() as store:
        found = store.get(name)
        assert isinstance(found, Queue)
        assert drain(found.consumer(f"g{name}")) == [b"x"]
    assert {path.name for path in tmp_path.iterdir()} == {"data"}


@pytest.mark.parametrize("pattern", ["a+b", "#/x", "a#", "a\0", "+a/#"])
def test_filters_that_are_none(store: Store, pattern: str) -> None:
    queue, stream = store.queue("q"), store.stream("s")
    refuses(InvalidName, "filter", lambda: queue.consumer("w", filter=pattern))
    refuses(InvalidName, "filter", lambda: stream.consumer("w", filter=pattern))
    refuses(InvalidName, "filter", lambda: queue.peek("w", filter=pattern))
    refuses(InvalidName, ".", lambda: queue.consumer(f"w@{pattern}"))
    assert (queue.group_ids(), stream.group_ids()) == ([], [])


# --- `@`, which begins a filter -----------------------------------------------------------------


def sides(store: Store) -> tuple[Queue, Any]:
    """A queue and a stream with the same messages."""
    queue, stream = store.queue("q"), store.stream("s")
    for each in (queue, stream):
        for key in ("b", "c", "example.com"):
            each.publish(key, routing_key=key)
    return queue, stream


def test_what_is_behind_an_at_sign_is_the_filter(store: Store) -> None:
    for each in sides(store):
        assert values(each.consumer("user@example.com").receive(9)) == [b"example.com"]
        assert values(each.consumer("a", filter="b").receive(9)) == [b"b"]
        assert values(each.consumer("a@c").receive(9)) == [b"c"]
        assert values(each.consumer("a@").receive(9)) == [b"b", b"c", b"example.com"]
        assert each.group_ids() == ["a@", "a@b", "a@c", "user@example.com"]


def test_there_is_one_filter(store: Store) -> None:
    queue, stream = sides(store)
    for use in (
        lambda: queue.consumer("a@b", filter="c"),
        lambda: queue.consumer("a@", filter="c"),
        lambda: stream.consumer("a@b", filter="c"),
        lambda: queue.peek("a@b", filter="c"),
        lambda: queue.pending("a@b", filter="c"),
    ):
        refuses(InvalidName, "'a@b?', names a filter after its '@', and 'c' is another", use)
    assert (queue.group_ids(), stream.group_ids()) == ([], [])


def test_a_name_comes_before_the_filter(store: Store) -> None:
    queue, stream = sides(store)
    for each in (queue, stream):
        for name in ("@", "@x"):
            refuses(InvalidName, "begins with '@'", functools.partial(each.consumer, name))
        refuses(InvalidName, "'@x'", functools.partial(each.consumer, "@x", filter="c"))
        assert each.group_ids() == []


def test_a_group_of_another_system_that_has_no_name_stops_nobody(store: Store) -> None:
    queue, _stream = sides(store)
    queue.open_group("@b")  # as it may be in a store of FluxMQ
    assert [info.id for info in queue.groups()] == ["@b"]
    queue.delete_group("@b")


# --- options ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"visibilty_timeout": 1}, "did you mean visibility_timeout"),
        ({"visibility_timeout": 0}, "visibility_timeout"),
        ({"retry": {"max_retries": -1}}, r"retry\.max_retries"),
        ({"retry": {"retries": 1}}, r"retry\.retries"),
        ({"limits": {"max_message_size": "ten"}}, r"limits\.max_message_size"),
        ({"flush": "sometimes"}, "flush"),
        ({"dlq": {"topic": 5}}, r"dlq\.topic"),
        ({"compact_after": 0}, "compact_after"),
        ({"replication": {"enabled": True}}, "replication"),
    ],
)
def test_options_that_are_wrong(store: Store, options: dict[str, Any], match: str) -> None:
    refuses(ConfigError, match, lambda: store.queue("q", **options))
    assert store.queues() == []
    queue = store.queue("q")
    before = queue.settings
    refuses(ConfigError, match, lambda: queue.configure(**options))
    refuses(ConfigError, match, lambda: store.queue("q", **options))
    assert queue.settings == before


def test_a_store_refuses_defaults_that_are_wrong(tmp_path: Path) -> None:
    refuses(ConfigError, "flush", lambda: Store(tmp_path / "a", flush="sometimes"))
    refuses(ConfigError, "path", lambda: Store(""))
    assert list(tmp_path.iterdir()) == []


def test_a_store_tells_of_all_options_that_it_takes(tmp_path: Path) -> None:
    for wrong, meant in [("bogus", ""), ("diks", " (did you mean disk?)"), ("colour", "")]:
        options: dict[str, Any] = {wrong: 1}
        with pytest.raises(ConfigError) as caught:
            tailrace.open(tmp_path / "a", **options)
        said = str(caught.value)
        assert said.startswith(f"{wrong}: unknown option{meant}")
        for each in ("config", "clock", "disk", "mode", "upkeep", "flush", "limits", "segment_age"):
            assert each in said.partition("; a store takes ")[2]
    tailrace.open(tmp_path / "a", dlq={"topic": "x"}).close()  # whatever queues there will be


@pytest.mark.parametrize(
    ("options", "kind", "match"),
    [
        ({"prefetch": 0}, ConfigError, "prefetch"),
        ({"prefetch": -1}, ConfigError, "prefetch"),
        ({"prefetch": "5"}, ConfigError, "prefetch: expected a number of messages"),
        ({"prefetch": 1.5}, ConfigError, "prefetch: expected a number of messages"),
        ({"prefetch": True}, ConfigError, "prefetch: expected a number of messages"),
        ({"key_order": "yes"}, ConfigError, "key_order: expected True or False, got 'yes'"),
        ({"filter": 5}, InvalidName, "a filter is text, not 5"),
        ({"filter": b"eu"}, InvalidName, "a filter is text, not b'eu'"),
        ({"visibility_timeout": -1}, ConfigError, "visibility_timeout"),
        ({"visibility_timeout": "soon"}, ConfigError, "visibility_timeout"),
        ({"visibility_timeout": 0}, ConfigError, "visibility_timeout"),
    ],
    ids=str,
)
def test_consumers_refuse_options_that_are_wrong(
    store: Store, options: dict[str, Any], kind: type[Exception], match: str
) -> None:
    queue = store.queue("q")
    refuses(kind, match, lambda: queue.consumer("w", **options))
    assert queue.group_ids() == []


@pytest.mark.parametrize(
    "start",
    ["first!", "", "offset=", "offset=-1", -1, -(2**70), "timestamp=x", 1.5, True, b"first", [0]],
)
def test_starts_that_are_none(store: Store, start: Any) -> None:
    stream = store.stream("s")
    stream.publish_many(numbers(3))
    consumer = stream.consumer("g", auto_commit=False)
    consumer.receive(2)
    for use in (
        lambda: stream.consumer("g", start=start),
        lambda: consumer.seek(start),
        lambda: stream.read(start),
    ):
        refuses(ValueError, "start", use)
    assert offsets(consumer.receive(2)) == [2]


def test_starts_that_are_outside_are_moved_inside(store: Store) -> None:
    stream = store.stream("s")
    stream.publish_many(numbers(5))
    stream.log.truncate_before(2)
    starts = {"first": 2, "last": 5, "next": 5, 3: 3, "offset=3": 3, "timestamp=0": 2}
    starts |= {0: 2, "offset=1": 2, 99: 5, "offset=99": 5}
    for start, offset in starts.items():
        assert stream.resolve(start) == offset
    refuses(ValueError, "both", lambda: stream.resolve(1, timestamp=5))


def test_a_receive_of_no_messages(store: Store) -> None:
    for consumer in (store.queue("q").consumer("w"), store.stream("s").consumer("g")):
        for count in (0, -1):
            refuses(ValueError, "max", functools.partial(consumer.receive, count))


def test_receiving_with_arguments_that_are_wrong(store: Store) -> None:
    for consumer in (store.queue("q").consumer("w"), store.stream("s").consumer("g")):
        receive: Any = consumer.receive
        for count in ("a", 1.5, True, None, [1]):
            refuses(TypeError, "max is a number", functools.partial(receive, count))
        for wait, match in (("soon", "wait: 'soon' is not a duration"), ([1], "wait: expected")):
            refuses(ConfigError, match, functools.partial(receive, 1, wait))


def test_waiting_for_a_duration(store: Store) -> None:
    queue = store.queue("q")
    consumer = queue.consumer("w")
    begun = time.monotonic()
    assert consumer.receive(1, wait="150ms") == []
    assert 0.14 < time.monotonic() - begun < WAIT
    assert consumer.receive(1, float("nan")) == []
    assert consumer.receive(1, -(10**400)) == []
    for wait in ("1m", 10**30, 10**400):  # the last is more than a float can be
        queue.publish(b"x")
        assert values(consumer.receive(1, wait)) == [b"x"]


@pytest.mark.parametrize("name", [None, 5, b"w", ["w"]], ids=repr)
def test_names_that_are_no_text(store: Store, name: Any) -> None:
    queue, stream = store.queue("q"), store.stream("s")
    for use in (
        lambda: queue.consumer(name),
        lambda: stream.consumer(name),
        lambda: queue.peek(name),
        lambda: queue.pending(name),
    ):
        refuses(InvalidName, "the name of a group is text, not", use)


def test_looking_at_less_than_nothing(store: Store) -> None:
    queue = store.queue("q")
    queue.publish(b"x")
    queue.consumer("w")
    peek: Any = queue.peek
    for group in ("w", "nobody"):
        assert peek(group, 0) == []
        assert values(peek(group, 10**30)) == [b"x"]
        refuses(ValueError, "limit is a number of messages", functools.partial(peek, group, -1))
        for wrong in ("1", 1.5, None):
            refuses(TypeError, "limit is a number", functools.partial(peek, group, wrong))


@pytest.mark.parametrize("kind", ["classic", "stream", "stack"])
def test_the_type_of_a_queue_is_no_option(store: Store, kind: str) -> None:
    for open_it in (store.queue, store.stream):
        refuses(ConfigError, "store.stream", functools.partial(open_it, "q", type=kind))
    assert store.queues() == []


@pytest.mark.parametrize("path", ["file", "file/below"])
def test_a_store_in_a_file(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").write_bytes(b"x")
    refuses(ConfigError, "path: .*file is a file, not a folder", lambda: Store(tmp_path / path))


@pytest.mark.parametrize("upto", ["5", 3.5, True, b"5", [5]], ids=repr)
def test_positions_that_are_none(open_store: OpenStore, upto: Any) -> None:
    with open_store() as store:
        stream = store.stream("s")
        stream.publish_many(numbers(9))
        consumer = stream.consumer("g", auto_commit=False)
        consumer.receive(6)
        refuses(TypeError, "an offset", lambda: consumer.commit(upto))
        assert consumer.committed == 0
        consumer.commit(4)
        assert offsets(consumer.receive(1)) == [6]
    with open_store() as store:
        assert offsets(store.stream("s").consumer("g").receive(1)) == [4]


def test_positions_of_others(store: Store) -> None:
    """The offset of a message says nothing where the message is not."""
    stream, other, queue = store.stream("s"), store.stream("t"), store.queue("q")
    for each in (stream, other, queue):
        each.publish_many(numbers(9))
    consumer, sibling = (stream.consumer("g", auto_commit=False) for _ in range(2))
    ours = consumer.receive(3)
    for message in (
        *other.consumer("g").receive(2),
        *stream.consumer("h").receive(2),
        *queue.consumer("g").receive(2),
        next(iter(stream.read())),
    ):
        refuses(ValueError, "is not of the group 'g'", functools.partial(consumer.commit, message))
    refuses(ValueError, "an offset, from 0 on, not -1", lambda: consumer.commit(-1))
    assert consumer.committed == 0
    theirs = sibling.receive(2)
    consumer.commit(theirs[0])  # what this consumer has got below it
    assert consumer.committed == 3
    sibling.commit(ours[-1])
    assert consumer.committed == 3


# --- publish ----------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["$ack", "$nack", "$reject", "$commit"])
def test_nothing_is_published_to_a_verb(store: Store, verb: str) -> None:
    queue = store.queue("q")
    for topic in (f"$queue/q/{verb}", f"$queue/q/a/{verb}", f"$queue/q/{verb}/a"):
        refuses(InvalidName, "verb", functools.partial(store.publish, topic, b"x"))
    refuses(InvalidName, ".", lambda: store.publish(f"$queue/{verb}", b"x"))
    assert len(queue) == 0
    assert [each.name for each in store.queues()] == ["q"]


@pytest.mark.parametrize("routing_key", ["$ack", "a/$nack", "$reject/a", "a/+", "#", "a\0b"])
def test_routing_keys_that_are_none(store: Store, routing_key: str) -> None:
    queue = store.queue("q")
    refuses(InvalidName, ".", lambda: queue.publish(b"x", routing_key=routing_key))
    refuses(InvalidName, ".", lambda: queue.publish_many([b"x"], routing_key=routing_key))
    assert len(queue) == 0


@pytest.mark.parametrize("topic", ["", "a/+", "#", "a\0b", "$queue/", "$queue//x"])
def test_topics_that_are_none(store: Store, topic: str) -> None:
    refuses(InvalidName, ".", lambda: store.publish(topic, b"x"))
    assert store.queues() == []


@pytest.mark.parametrize("name", ["_topic", "_id", "_state", "_mine", "_"])
def test_headers_that_are_reserved(store: Store, name: str) -> None:
    queue = store.queue("q")
    for use in (
        lambda: queue.publish(b"x", headers={name: b"v"}),
        lambda: queue.publish(b"x", headers=[("a", b"v"), (name, b"v")]),
        lambda: queue.publish_many([b"x", (None, b"y", {name: b"v"})]),
        lambda: store.publish("$queue/q", b"x", headers={name: b"v"}),
    ):
        refuses(ValueError, "reserved", use)
    assert len(queue) == 0


def test_values_that_are_none(store: Store) -> None:
    queue = store.queue("q")
    publish: Any = queue.publish
    for use in (
        lambda: publish(5),
        lambda: publish(b"x", key=5),
        lambda: queue.publish(b"x", headers=5),
        lambda: queue.publish(b"x", headers={"a": 5}),
        lambda: publish(b"x", message_id=5),
    ):
        with pytest.raises(TypeError):
            use()
    for wrong in (5, None, b"eu"):
        refuses(
            TypeError, "routing_key is text", functools.partial(publish, b"x", routing_key=wrong)
        )
    anywhere: Any = store.publish
    for wrong in (5, None, b"eu"):
        refuses(InvalidName, "a topic is text, not", functools.partial(anywhere, wrong, b"x"))
    refuses(ValueError, "publish_many was given no messages", lambda: queue.publish_many([]))
    refuses(ValueError, "publish_many was given no", lambda: queue.publish_many(iter(())))
    refuses(ConfigError, "ttl", lambda: queue.publish(b"x", ttl=-1))
    refuses(ConfigError, "ttl", lambda: queue.publish(b"x", ttl="soon"))
    too_long = "^ttl: .* is too long; 292 years are the most$"
    refuses(ConfigError, too_long, lambda: queue.publish(b"x", ttl="106752d"))
    refuses(ConfigError, too_long, lambda: queue.publish(b"x", ttl=1e10, headers={"a": "b"}))
    refuses(ConfigError, too_long, lambda: queue.publish_many([b"x"], ttl="106752d"))
    refuses(ConfigError, too_long, lambda: store.publish("$queue/q", b"x", ttl="106752d"))
    assert len(queue) == 0


@pytest.mark.parametrize("wrong", ["x", "5s", None, 0, 1, 1.5], ids=repr)
@pytest.mark.parametrize("name", ["wait", "block"])
def test_publishers_wait_or_they_do_not(store: Store, wrong: Any, name: str) -> None:
    queue, option = store.queue("q"), {name: wrong}
    match = f"^{name}: expected True or False, got "
    refuses(ConfigError, match, lambda: queue.publish(b"x", **option))
    refuses(ConfigError, match, lambda: queue.publish(b"x", headers={"a": "b"}, **option))
    refuses(ConfigError, match, lambda: queue.publish(b"x", delay=60, **option))
    refuses(ConfigError, match, lambda: queue.publish_many([b"x"], **option))
    refuses(ConfigError, match, lambda: store.publish("$queue/q", b"x", **option))
    assert (len(queue), queue.delayed_count()) == (0, 0)


@pytest.mark.parametrize("wrong", ["no", None, 0], ids=repr)
def test_a_stream_commits_by_itself_or_it_does_not(store: Store, wrong: Any) -> None:
    stream = store.stream("s")
    match = "^auto_commit: expected True or False, got "
    refuses(ConfigError, match, lambda: stream.consumer("g", auto_commit=wrong))
    refuses(ConfigError, match, lambda: store.consumer("s", "g", auto_commit=wrong))
    assert stream.group_ids() == []


@pytest.mark.parametrize("values", [b"x", "x", bytearray(b"x"), {"a": b"1"}, {}, None, 5], ids=repr)
@pytest.mark.parametrize("options", [{}, {"limits": {"max_depth": 9}}], ids=str)
def test_what_is_no_list_of_messages(store: Store, values: Any, options: dict[str, Any]) -> None:
    queue = store.queue("q", **options)
    refuses(TypeError, "^values is a list of messages, not ", lambda: queue.publish_many(values))
    refuses(TypeError, "^values ", lambda: queue.publish_many(values, producer="p", sequence=1))
    assert len(queue) == 0
    queue.publish_many({"a": b"1"}.items())
    assert [(each.key, each.value) for each in queue.read()] == [(b"a", b"1")]


@pytest.mark.parametrize(
    "headers",
    [5, "ab", b"ab", [5], [("a",)], iter([("a", b"b")])],
    ids=["number", "text", "bytes", "no pairs", "short pairs", "iterator"],
)
def test_what_are_no_headers(store: Store, headers: Any) -> None:
    """An iterator would be at its end when the message is made."""
    queue = store.queue("q")
    queue.publish(b"x", headers={"a": b"b"}.items())
    for use in (
        lambda: queue.publish(b"x", headers=headers),
        lambda: queue.publish(b"x", headers=headers, delay=9),
        lambda: queue.publish_many([(None, b"x", headers)]),
        lambda: store.publish("$queue/q", b"x", headers=headers),
    ):
        refuses(TypeError, "header", use)
    assert [each.headers["a"] for each in queue.read()] == [b"b"]
    assert queue.delayed_count() == 0


def test_an_id_that_is_no_text(store: Store) -> None:
    queue, wrong = store.queue("q"), {"message_id": 5}
    for use in (
        lambda: queue.publish(b"x", **wrong),  # type: ignore[call-overload]
        lambda: store.publish("$queue/q", b"x", **wrong),  # type: ignore[arg-type]
    ):
        refuses(TypeError, "^message_id is text, not 5$", use)
    assert len(queue) == 0


@pytest.mark.parametrize("kind", ["queue", "stream"])
def test_an_ack_that_publishes_what_is_no_list(store: Store, kind: str) -> None:
    queue: Any = getattr(store, kind)("q")
    queue.publish(b"x")
    [message] = queue.consumer("w").receive()
    refuses(TypeError, "^publish is a list of pairs", lambda: message.ack(publish=5))
    assert message.settled is None

    def failing() -> Any:
        yield from 5  # type: ignore[misc]

    refuses(TypeError, "'int' object is not iterable", lambda: message.ack(publish=failing()))


def test_an_ack_that_publishes_what_cannot_be_published_settles_nothing(store: Store) -> None:
    queue = store.queue("q")
    store.queue("small", limits={"max_message_size": 1})
    queue.publish(b"x")
    message = one(queue.consumer("w"))
    wrong: list[Any] = [
        [5],
        ["out"],
        [("$queue/out/$ack", b"x")],
        [("out/#", b"x")],
        [Outgoing("out", b"x", headers={"_id": b"x"})],
        [("$queue/out", b"ok"), ("$queue/small", b"too large")],
    ]
    for publish in wrong:
        with pytest.raises((TypeError, ValueError, TailraceError)):
            message.ack(publish=publish)
        assert states(queue) == {0: ("leased", 1)}
    message.ack(publish=[("$queue/out", b"done")])
    assert values(store.get("out").read()) == [b"done"]


def test_what_an_ack_publishes_goes_to_the_queue_that_was_named(store: Store) -> None:
    queue, outer, inner = store.queue("q"), store.queue("a"), store.queue("a/b")
    queue.publish(b"x")
    one(queue.consumer("w")).ack(publish=[(inner, b"done")])
    assert (len(inner), len(outer)) == (1, 0)


# --- settling -----------------------------------------------------------------------------------


def test_settling_with_arguments_that_are_wrong_settles_nothing(store: Store) -> None:
    queue = store.queue("q")
    queue.publish(b"x")
    message = one(queue.consumer("w"))
    for use in (
        lambda: message.nack(delay=-1),
        lambda: message.nack(delay="soon"),
        lambda: message.extend(-5),
        lambda: message.extend("soon"),
    ):
        refuses(ConfigError, "delay|seconds", use)
        assert states(queue) == {0: ("leased", 1)}
    message.ack()


@pytest.mark.parametrize("text", [404, b"why", None, ValueError("x")], ids=repr)
def test_errors_and_reasons_are_text(store: Store, text: Any) -> None:
    queue, stream = store.queue("q"), store.stream("s")
    queue.publish(b"x")
    stream.publish(b"x")
    consumer, reader = queue.consumer("w"), stream.consumer("g")
    message, [read] = one(consumer), reader.receive()
    for use in (
        lambda: message.nack(error=text),
        lambda: message.reject(text),
        lambda: consumer.nack([message], error=text),
        lambda: consumer.reject([message], text),
        lambda: read.nack(error=text),
        lambda: read.reject(text),
    ):
        refuses(TypeError, "(error|reason) is text, not", use)
        assert states(queue) == {0: ("leased", 1)}
    assert (store.dead("q"), reader.committed) == ([], 0)
    message.ack()


def test_errors_and_reasons_that_no_file_can_carry_are_spelled_out(store: Store) -> None:
    """Names of files may hold halves of characters, and the errors that tell of them do, too."""
    queue = store.queue("q", retry={"initial_backoff": 0})
    queue.publish(b"x")
    consumer = queue.consumer("w", id="\udcff")
    assert consumer.id == "\\udcff"
    with pytest.raises(OSError, match="bad"), one(consumer):
        raise OSError("bad \udcff file")
    assert states(queue) == {0: ("waiting", 1)}
    message = one(consumer)
    assert message.last_error == "OSError: bad \\udcff file"
    message.nack(error="\udcff")
    message = one(consumer)
    assert message.last_error == "\\udcff"
    consumer.reject([message], "no \udcff")
    [letter] = store.dead("q")
    assert letter.headers["_dlq_reason"] == b"no \\udcff"


def test_the_id_of_a_consumer_is_text(store: Store) -> None:
    queue, stream = store.queue("q"), store.stream("s")
    wrong: Any = 5
    refuses(TypeError, "id is text, not 5", lambda: queue.consumer("w", id=wrong))
    refuses(TypeError, "id is text, not 5", lambda: stream.consumer("w", id=wrong))
    assert (queue.group_ids(), stream.group_ids()) == ([], [])


def test_messages_that_were_only_looked_at_cannot_be_settled(store: Store) -> None:
    queue = store.queue("q")
    queue.publish_many(numbers(2))
    [peeked] = queue.peek("w")
    read = next(queue.read())
    for message in (peeked, read):
        for word in ("ack", "nack", "reject", "release", "extend", "auto_extend"):
            refuses(LeaseLost, "only looked at", getattr(message, word))
        assert (message.value, message.offset, message.properties["queue"]) == (b"0", 0, "q")
    assert queue.group("w").progress() == (0, 0)


def test_to_look_at_a_group_does_not_make_it(store: Store) -> None:
    queue = store.queue("q")
    for number in range(4):
        queue.publish(str(number).encode(), routing_key="eu" if number % 2 else "us")
    assert queue.pending("w") == []
    assert values(queue.peek("w", 3)) == [b"0", b"1", b"2"]
    assert values(queue.peek("w", 9, filter="eu")) == [b"1", b"3"]
    assert values(queue.peek("w@eu", 1)) == [b"1"]
    assert queue.groups() == []


def test_a_consumer_settles_messages_of_its_own_group_only(store: Store) -> None:
    queue = store.queue("q")
    queue.publish(b"x")
    first, second = queue.consumer("one"), queue.consumer("two")
    message = one(first)
    one(second)
    for word in ("ack", "nack", "reject", "release", "extend"):
        with pytest.raises((ValueError, LeaseLost)):
            getattr(second, word)([message])
    assert states(queue, "two") == {0: ("leased", 1)}
    message.ack()


def test_what_is_settled_together_is_a_list_of_messages(store: Store) -> None:
    queue = store.queue("q")
    queue.publish(b"x")
    consumer: Any = queue.consumer("w")
    message = one(consumer)
    for word in ("ack", "nack", "reject", "release", "extend"):
        for wrong in (message, [1], 5, None, "abc"):
            use = functools.partial(getattr(consumer, word), wrong)
            refuses(TypeError, "a list of messages, as receive", use)
    assert states(queue) == {0: ("leased", 1)}
    consumer.ack(each for each in [message])


# --- what is closed -----------------------------------------------------------------------------


def test_a_closed_consumer(store: Store) -> None:
    for consumer in (store.queue("q").consumer("w"), store.stream("s").consumer("g")):
        consumer.close()
        consumer.close()
        refuses(Closed, "consumer", consumer.receive)
        assert list(consumer) == []


def test_a_closed_store(open_store: OpenStore) -> None:
    store = open_store()
    queue = store.queue("q")
    queue.publish_many(numbers(2))
    consumer = queue.consumer("w")
    message = one(consumer)
    store.close()
    store.close()
    for use in (
        lambda: store.queue("q"),
        lambda: store.stream("s"),
        lambda: store.get("q"),
        store.queues,
        lambda: store.publish("x", b"x"),
        lambda: store.delete("q"),
        lambda: store.dead("q"),
        lambda: queue.publish(b"x"),
        lambda: queue.consumer("w"),
        queue.read,
        consumer.receive,
        message.ack,
        message.nack,
        store.__enter__,
    ):
        refuses(Closed, "closed", use)
    for verb in (lambda: queue.publish(b"x"), queue.read, queue.groups, lambda: len(queue)):
        refuses(Closed, "^the store in .* is closed$", verb)
    consumer.close()
    with open_store() as again:
        assert offsets(again.queue("q").consumer("w").receive(9)) == [0, 1]


def test_closing_a_store_gives_back_what_nobody_can_settle_any_more(
    open_store: OpenStore,
) -> None:
    store = open_store()
    store.queue("q").publish_many(numbers(5))
    with store.queue("q").consumer("other") as other:
        other.receive(5)  # its messages may be settled until the store is closed
    consumer = store.queue("q").consumer("w", prefetch=5)
    one(consumer)
    store.close()
    with open_store() as again:
        found = again.queue("q").consumer("w").receive(9)
        assert [(m.offset, m.delivery_count) for m in found] == [
            (0, 2),
            *((offset, 1) for offset in range(1, 5)),
        ]
        assert offsets(again.queue("q").consumer("other").receive(9)) == list(range(5))
    consumer.close()


def test_neither_a_store_nor_a_message_travels_to_another_process(store: Store) -> None:
    with pytest.raises(TypeError, match="pass its path"):
        pickle.dumps(store)


# --- what does not go together --------------------------------------------------------------------


def test_a_queue_is_no_stream(store: Store) -> None:
    store.queue("q").publish(b"x")
    store.stream("s").publish(b"x")
    refuses(ConfigError, "q is a classic queue", lambda: store.stream("q"))
    refuses(ConfigError, "s is a stream", lambda: store.queue("s"))
    assert (len(store.get("q")), len(store.get("s"))) == (1, 1)


def test_a_consumer_by_name_with_options_of_the_other_kind(store: Store) -> None:
    store.stream("s")
    store.queue("q")
    consumer: Any = store.consumer
    for name, options, match in (
        (
            "missing",
            {"start": "first"},
            "start= is for a consumer of a stream, and 'missing' is no",
        ),
        ("q", {"auto_commit": False, "id": "x"}, "auto_commit= .* of a stream, and 'q' is a class"),
        ("s", {"key_order": True}, "key_order= is for a consumer of a classic queue, and 's' is a"),
    ):
        refuses(TypeError, match, functools.partial(consumer, name, "g", **options))
    assert {queue.name for queue in store.queues()} == {"q", "s"}
    assert consumer("s", "g", start="first").receive() == []
    assert consumer("q", "g", prefetch=2).receive() == []


def test_dead_letters_need_a_queue(store: Store) -> None:
    """Where a stream is in its place all the same: an older version took that."""
    store.stream("graves")
    refuses(ConfigError, "graves is a stream", lambda: store.queue("q", dlq={"topic": "graves"}))
    queue = store.queue("q")
    send_letters(store, "q", "graves")
    queue.publish(b"x")
    consumer = queue.consumer("w")
    message = one(consumer)
    refuses(ConfigError, "graves is a stream", lambda: message.reject("bad"))
    again = one(consumer)  # it is still there
    queue.configure(dlq={"topic": "elsewhere"})
    again.reject("bad")
    assert values(store.dead("q")) == [b"x"]


@pytest.mark.parametrize("is_kept", [True, False])
def test_the_order_of_keys_is_fixed_when_a_group_is_made(store: Store, is_kept: bool) -> None:
    queue = store.queue("q")
    queue.publish(b"x", key="a")
    one(queue.consumer("w", key_order=is_kept))
    refuses(ConfigError, "key_order", lambda: queue.consumer("w", key_order=not is_kept))
    queue.consumer("w")  # who does not care may join
    queue.consumer("another", key_order=not is_kept)


def test_what_is_fixed_when_a_queue_is_made(store: Store) -> None:
    queue = store.queue("q", flush="sync")
    refuses(ConfigError, "flush", lambda: queue.configure(flush="none"))
    refuses(ConfigError, "ephemeral", lambda: queue.configure(ephemeral=True))
    refuses(InvalidName, "no queue", lambda: store.configure("nobody", compact_after=1))


def test_where_there_is_nothing(store: Store) -> None:
    refuses(InvalidName, "no queue", lambda: store.get("nobody"))
    refuses(InvalidName, "no queue", lambda: store.dead("nobody"))
    refuses(InvalidName, "no queue", lambda: store.redrive("nobody"))
    queue = store.queue("q")
    assert (store.dead("q"), store.redrive("q")) == ([], 0)
    assert (queue.groups(), list(queue.read())) == ([], [])
