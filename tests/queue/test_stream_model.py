"""Anything that groups of a stream can do, in any order, against a model that knows what may come.

Two stores on one simulated disk stand for two processes. What a group has committed never comes
again unless it is sent back; what nobody has processed is never skipped; and no two consumers that
live have the same message. A kill takes nothing that was committed; a power cut only what nobody
waited for.

A run that fails prints its steps and a line with which it can be repeated.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tailrace import Closed, Message, Store, Stream, StreamConsumer
from tests.queue.clocks import Machine

pytestmark = pytest.mark.no_cover

GROUPS = ("g", "g@eu/#")
STORES = (0, 1)
# Of the consumers that each store may have in each group: what they commit by themselves, and when.
KINDS: tuple[dict[str, Any], ...] = (
    {"auto_commit": False},
    {"auto_commit": True, "auto_commit_interval": 0},
    {"auto_commit": True, "auto_commit_interval": "1h"},
)

stores = st.sampled_from(STORES)
groups = st.sampled_from(["g", "g", *GROUPS])
kinds = st.sampled_from(range(len(KINDS)))
routing_keys = st.sampled_from(["", "eu/x", "us"])

Place = tuple[int, str, int]  # of a consumer: its store, its group, and its kind


class GroupModel:
    """What a group has come to, by offset."""

    def __init__(self) -> None:
        self.base = 0  # where it began, or was sent
        self.epoch = 0  # how often it was sent elsewhere
        self.processed: set[int] = set()  # by their consumers, whether that is committed or not
        self.committed: set[int] = set()
        self.durable: set[int] = set()  # of these: somebody has waited for it
        self.reached = 0  # the highest committed offset that anybody has seen since it was sent

    def commit(self, offsets: set[int], *, durably: bool) -> None:
        self.processed |= offsets
        self.committed |= offsets
        if durably and offsets:  # and with them everything before
            self.durable |= self.committed

    def send(self, base: int) -> None:
        self.base = base
        self.epoch += 1
        for offsets in (self.processed, self.committed, self.durable):
            offsets.clear()
        self.reached = 0

    def lose_power(self) -> None:
        self.committed = set(self.durable)
        self.reached = 0


class Reader:
    """A consumer, and what it has: what its caller was given last, and has moved past before."""

    def __init__(self, consumer: StreamConsumer, model: GroupModel) -> None:
        self.consumer = consumer
        self.model = model
        self._epoch = model.epoch
        self._got: set[int] = set()
        self._past: set[int] = set()

    @property
    def got(self) -> set[int]:
        self._look_where_the_group_is()
        return self._got

    @property
    def past(self) -> set[int]:
        self._look_where_the_group_is()
        return self._past

    @property
    def has(self) -> set[int]:
        return self.got | self.past

    def _look_where_the_group_is(self) -> None:
        if self._epoch != self.model.epoch:
            self._epoch = self.model.epoch
            self._got, self._past = set(), set()

    def drop(self, offsets: set[int]) -> None:
        self._got -= offsets
        self._past -= offsets


class Given(NamedTuple):
    """A message that somebody was given, and how often the group had been sent elsewhere."""

    place: Place
    reader: Reader
    message: Message
    epoch: int


class StreamMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.machine = Machine()
        self.machine.__enter__()
        self.stores: list[Store] = []
        self.readers: dict[Place, Reader] = {}
        self.given: list[Given] = []
        self.log: dict[int, tuple[bytes, str]] = {}
        self.groups = {group: GroupModel() for group in GROUPS}

    @initialize(
        flush=st.sampled_from(["sync", "sync", "async"]),
        compact_after=st.sampled_from([1, 5, 10_000]),
        segment_bytes=st.sampled_from([200, "64MiB"]),
    )
    def create(self, flush: str, compact_after: int, segment_bytes: Any) -> None:
        self.flush = flush
        self.options: dict[str, Any] = {
            "flush": flush,
            "compact_after": compact_after,
            "segment_bytes": segment_bytes,
        }
        self.open_stores()
        self.publish(0, 8, "eu/x")

    def open_stores(self) -> None:
        self.readers.clear()
        self.given.clear()
        self.stores = [self.open_store() for _ in STORES]

    def open_store(self) -> Store:
        return self.machine.open(**self.options)

    def stream(self, store: int) -> Stream:
        return self.stores[store].stream("s")

    def due(self, group: str) -> set[int]:
        """What the group has to process, from where it was sent on."""
        pattern = group.partition("@")[2]
        return {
            offset
            for offset, (_value, routing_key) in self.log.items()
            if offset >= self.groups[group].base and (not pattern or routing_key.startswith("eu/"))
        }

    def of_group(self, group: str) -> Iterator[Reader]:
        return (reader for place, reader in self.readers.items() if place[1] == group)

    # --- publish and receive --------------------------------------------------------------------

    @rule(store=stores, count=st.integers(1, 8), routing_key=routing_keys)
    def publish(self, store: int, count: int, routing_key: str) -> None:
        for _ in range(count):
            value = b"%d" % len(self.log)
            offset = self.stream(store).publish(value, routing_key=routing_key).offset
            assert offset == len(self.log)
            self.log[offset] = value, routing_key

    @rule(place=st.tuples(stores, groups, kinds), limit=st.integers(1, 4))
    def join(self, place: Place, limit: int) -> None:
        if place not in self.readers:
            store, group, kind = place
            name, _, pattern = group.partition("@")
            consumer = self.stream(store).consumer(name, filter=pattern, **KINDS[kind])
            self.readers[place] = Reader(consumer, self.groups[group])
        self.receive_at(place, limit)

    has_readers = precondition(lambda self: self.readers)
    has_given = precondition(lambda self: self.given)

    @has_readers
    @rule(data=st.data(), limit=st.integers(1, 4))
    def receive(self, data: st.DataObject, limit: int) -> None:
        self.receive_at(data.draw(st.sampled_from(sorted(self.readers))), limit)

    @has_readers
    @rule()
    def all_receive(self) -> None:
        for place in self.readers:
            self.receive_at(place, 2)

    def receive_at(self, place: Place, limit: int) -> list[Message]:
        _store, group, kind = place
        reader, model = self.readers[place], self.groups[group]
        found = reader.consumer.receive(limit)
        reader.past.update(reader.got)
        reader.got.clear()
        if KINDS[kind]["auto_commit"]:
            model.processed |= reader.past
            if KINDS[kind]["auto_commit_interval"] == 0:
                model.commit(reader.past, durably=False)
                reader.past.clear()
        taken = set().union(*(each.has for each in self.of_group(group)))
        due = self.due(group)
        offsets = [message.offset for message in found]
        assert len(found) <= limit
        assert offsets == sorted(set(offsets))
        for message in found:
            assert message.value == self.log[message.offset][0]
            assert message.offset in due, "it is none of the group's"
            assert message.offset not in model.committed, "it was committed"
            assert message.offset not in taken, "somebody has it"
            self.given.append(Given(place, reader, message, model.epoch))
        if not found:
            assert due <= taken | model.processed, "something is left, and was not given"
        reader.got.update(offsets)
        return found

    # --- commit ---------------------------------------------------------------------------------

    def committed(self, reader: Reader, offsets: set[int]) -> None:
        reader.model.commit(offsets, durably=True)
        reader.drop(offsets)

    @has_readers
    @rule(data=st.data())
    def commit_all(self, data: st.DataObject) -> None:
        reader = self.readers[data.draw(st.sampled_from(sorted(self.readers)))]
        reader.consumer.commit()
        self.committed(reader, reader.has)

    @has_given
    @rule(
        data=st.data(),
        word=st.sampled_from(["commit", "commit offset", "ack", "nack", "reject", "release"]),
    )
    def settle(self, data: st.DataObject, word: str) -> None:
        """It may be from before the group was sent elsewhere, or its consumer may have left: then
        it says nothing."""
        place, reader, message, epoch = data.draw(st.sampled_from(self.given))
        is_there = self.readers.get(place) is reader
        says = word.startswith("commit") or word == "reject"
        says |= word == "ack" and KINDS[place[2]]["auto_commit"]
        with contextlib.nullcontext() if is_there else contextlib.suppress(Closed):
            if word == "commit":
                reader.consumer.commit(message)
            elif word == "commit offset":
                if epoch != reader.model.epoch:
                    return  # an offset does not tell from when it is
                reader.consumer.commit(message.offset + 1)
            else:
                getattr(message, word)()
        if says and is_there and epoch == reader.model.epoch:
            self.committed(reader, {each for each in reader.has if each <= message.offset})

    @has_readers
    @rule(data=st.data(), back=st.integers(0, 12))
    def seek(self, data: st.DataObject, back: int) -> None:
        place = data.draw(st.sampled_from(sorted(self.readers)))
        offset = max(len(self.log) - back, 0)
        self.readers[place].consumer.seek(offset)
        self.groups[place[1]].send(offset)

    # --- ends -----------------------------------------------------------------------------------

    @has_readers
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self.close(data.draw(st.sampled_from(sorted(self.readers))))

    def close(self, place: Place) -> None:
        reader = self.readers.pop(place)
        reader.consumer.close()
        if KINDS[place[2]]["auto_commit"]:
            self.committed(reader, reader.past)

    # An end takes all consumers along: only where something has happened since the last one.

    @has_given
    @rule(how=st.sampled_from(["restart", "kill", "power cut"]), data=st.data())
    def end(self, how: str, data: st.DataObject) -> None:
        if how == "restart":
            self.restart(data.draw(st.sampled_from([*STORES, None])))
        elif how == "kill" or self.flush != "sync":
            self.machine.kill()
            self.open_stores()
        else:
            self.power_cut(data.draw(st.integers(0, 2**32 - 1)))

    def restart(self, which: int | None) -> None:
        """One of the processes, or both, end as they should, and come back."""
        ending = STORES if which is None else (which,)
        for place in [place for place in self.readers if place[0] in ending]:
            self.close(place)
        self.given = [each for each in self.given if each.place[0] not in ending]
        for store in ending:
            self.stores[store].close()
        for store in ending:
            self.stores[store] = self.open_store()

    def power_cut(self, seed: int) -> None:
        self.machine.power_cut(seed)
        for model in self.groups.values():
            model.lose_power()
        self.open_stores()
        there = {message.offset: message.value for message in self.stream(0).read()}
        assert there == {offset: value for offset, (value, _) in self.log.items()}

    @has_given
    @rule(store=stores, group=groups)
    def finish(self, store: int, group: str) -> None:
        """All leave, and one comes who reads to the end: it gets what is left, and nothing else."""
        for place in [place for place in self.readers if place[1] == group]:
            self.close(place)
        model, due, last = self.groups[group], self.due(group), (store, group, 0)
        self.join(last, 3)
        while self.receive_at(last, 3):
            assert self.readers[last].has <= due
        assert due - model.processed <= self.readers[last].has <= due - model.committed

    # --- always ---------------------------------------------------------------------------------

    @invariant()
    def nothing_unprocessed_is_committed(self) -> None:
        for store in range(len(self.stores)):
            stream = self.stream(store)
            known = stream.group_ids()
            for group in [group for group in GROUPS if group in known]:
                model = self.groups[group]
                cursor, committed = stream.group(*group.split("@")).progress()
                assert committed <= cursor <= len(self.log)
                assert committed >= model.reached
                model.reached = committed
                below = {offset for offset in self.due(group) if offset < committed}
                assert below <= model.processed

    def teardown(self) -> None:
        try:
            for store in self.stores:
                store.close()
            # A segment that is followed is closed by whoever lets go of it last.
            left = [path for path in self.machine.disk.open_files() if not path.endswith(".seg")]
            assert left == []
        finally:
            self.machine.__exit__(None, None, None)


def test_a_stream_behaves_like_its_model() -> None:
    run_state_machine_as_test(
        StreamMachine, settings=settings(max_examples=150, stateful_step_count=40)
    )


@pytest.mark.long
def test_a_stream_behaves_like_its_model_for_long() -> None:
    run_state_machine_as_test(
        StreamMachine, settings=settings(max_examples=3_000, stateful_step_count=80)
    )
