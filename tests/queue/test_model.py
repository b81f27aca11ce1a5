"""Anything that can be done to a queue, in any order, against a model that does the same.

Two stores on one simulated disk stand for two processes. After each step both have to agree with
the model on every message: it is in exactly one place, and was delivered as often as it was. A kill
changes nothing but that nobody holds a lease any more; a power cut may take what nobody waited for,
and nothing else.

A run that fails prints its steps and a line with which it can be repeated.
"""

from __future__ import annotations

import contextlib
import functools
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

from tailrace import Closed, Consumer, Full, LeaseLost, Message, Queue, Store
from tailrace.queue.classic import ClassicGroup
from tailrace.queue.lease import STATES
from tests.queue.clocks import Machine
from tests.queue.model import BACKOFF_MS, LEASE_MS, Entry, GroupModel, Sent

pytestmark = pytest.mark.no_cover

GROUPS = ("w", "w@eu/#")
PREFETCH = (1, 3)  # of the consumers that each store has in each group
STORES = (0, 1)

stores = st.sampled_from(STORES)
groups = st.sampled_from(GROUPS)
numbers = st.sampled_from(range(len(PREFETCH)))
keys = st.sampled_from([None, None, "a", "b"])
routing_keys = st.sampled_from(["", "eu/x", "us"])
delays = st.sampled_from([None, 0, 8_000])


Place = tuple[int, str, int]  # of a consumer: its store, its group, and which one it is there


class Held(NamedTuple):
    """A message that a consumer was given, with what the model knows of the lease."""

    group: str
    message: Message
    token: object


def is_closed(held: Held) -> bool:
    """Was the store closed by which it was received?"""
    group = held.message.settler
    assert isinstance(group, ClassicGroup)
    return group.closed


class QueueMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.machine = Machine()
        self.machine.__enter__()
        self.stores: list[Store] = []
        self.consumers: dict[Place, Consumer] = {}
        self.ahead: dict[Place, list[tuple[int, object]]] = {}
        self.held: list[Held] = []
        self.log: dict[int, Sent] = {}
        self.groups: dict[str, GroupModel] = {}
        self.letters: list[tuple[str, int]] = []  # dead letters that nobody has redriven
        self.published = 0

    @initialize(
        flush=st.sampled_from(["sync", "sync", "async"]),
        key_order=st.booleans(),
        max_retries=st.integers(0, 2),
        compact_after=st.sampled_from([1, 5, 10_000]),
        segment_bytes=st.sampled_from([200, "64MiB"]),
    )
    def create(
        self, flush: str, key_order: bool, max_retries: int, compact_after: int, segment_bytes: Any
    ) -> None:
        self.flush = flush
        self.key_order = key_order
        self.options: dict[str, Any] = {
            "flush": flush,
            "compact_after": compact_after,
            "segment_bytes": segment_bytes,
            "visibility_timeout": f"{LEASE_MS}ms",
            "retry": {"max_retries": max_retries, "initial_backoff": f"{BACKOFF_MS}ms"},
        }
        for group in GROUPS:
            model = GroupModel(group, key_order=key_order, max_retries=max_retries)
            model.log = self.log
            self.groups[group] = model
        self.open_stores()

    def open_stores(self) -> None:
        self.stores = [self.open_store() for _ in STORES]
        self.consumers.clear()
        self.ahead.clear()
        self.held.clear()

    def open_store(self) -> Store:
        return self.machine.open(**self.options)

    @property
    def now(self) -> int:
        return self.machine.clock.boot_ms()

    @property
    def wall(self) -> int:
        return self.machine.clock.wall_ms()

    def queue(self, store: int) -> Queue:
        return self.stores[store].queue("q")

    # --- publish ------------------------------------------------------------------------------

    @rule(
        store=stores,
        wanted=st.lists(st.tuples(keys, st.sampled_from([None, None, 8])), min_size=1, max_size=4),
        routing_key=routing_keys,
    )
    def publish(
        self, store: int, wanted: list[tuple[str | None, int | None]], routing_key: str
    ) -> None:
        queue = self.queue(store)
        for key, ttl in wanted:
            value = self.new_value()
            receipt = queue.publish(value, key=key, routing_key=routing_key, ttl=ttl)
            expires_ms = None if ttl is None else self.wall + ttl * 1000
            self.sent(Sent(receipt.offset, value, key, routing_key, expires_ms))

    @rule(store=stores, wanted=st.lists(keys, min_size=1, max_size=6), routing_key=routing_keys)
    def publish_many(self, store: int, wanted: list[str | None], routing_key: str) -> None:
        values = [self.new_value() for _ in wanted]
        pairs = zip(wanted, values, strict=True)
        receipt = self.queue(store).publish_many(pairs, routing_key=routing_key)
        for number, (key, value) in enumerate(zip(wanted, values, strict=True)):
            self.sent(Sent(receipt.offset + number, value, key, routing_key))

    def expiry(self) -> int | None:
        """Until when a message lives that has no lifetime of its own, and is published now."""
        return None

    def new_value(self) -> bytes:
        self.published += 1
        return b"%d" % self.published

    def sent(self, sent: Sent) -> None:
        assert sent.offset not in self.log, "an offset came again"
        assert sent.offset > max(self.log, default=-1)
        self.log[sent.offset] = sent

    # --- consume ------------------------------------------------------------------------------

    def consumer(self, place: Place) -> Consumer:
        if place not in self.consumers:
            store, group, number = place
            name, _, pattern = group.partition("@")
            self.consumers[place] = self.queue(store).consumer(
                name,
                filter=pattern,
                prefetch=PREFETCH[number],
                key_order=self.key_order,
            )
            self.ahead[place] = []
            self.groups[group].join(self.consumers[place].id)
        return self.consumers[place]

    @rule(store=stores, group=groups, number=numbers, limit=st.integers(1, 4))
    def receive(self, store: int, group: str, number: int, limit: int) -> None:
        place = store, group, number
        got = self.consumer(place).receive(limit)
        expected = self.expect(place, limit)
        assert [message.offset for message in got] == expected
        model = self.groups[group]
        for message in got:
            sent, entry = self.log[message.offset], model.entries[message.offset]
            assert (message.value, message.key) == (sent.value, sent.key and sent.key.encode())
            assert message.delivery_count == entry.count
            self.held.append(Held(group, message, entry.token))

    def expect(self, place: Place, limit: int) -> list[int]:
        """What the model says that this consumer receives."""
        _store, group, number = place
        model, ahead = self.groups[group], self.ahead[place]
        while True:
            has_died = False
            if not ahead and limit < PREFETCH[number]:
                chosen, has_died = self.claim(model, place, PREFETCH[number], handed=False)
                ahead += [(offset, model.entries[offset].token) for offset in chosen]
            elif not ahead:
                chosen, has_died = self.claim(model, place, limit, handed=True)
                if chosen or not has_died:
                    return chosen
                continue
            if not ahead:
                if has_died:
                    continue
                return []
            mine, ahead[:] = ahead[:limit], ahead[limit:]
            held = [offset for offset, token in mine if model.has_lease(offset, token)]
            known = len(model.dead)
            handed = model.hand(held, self.now, self.wall)
            self.letters += [(model.id, offset) for offset in model.dead[known:]]
            if handed:
                return handed

    def claim(
        self, model: GroupModel, place: Place, limit: int, *, handed: bool
    ) -> tuple[list[int], bool]:
        known = len(model.dead)
        holder = self.consumers[place].id
        chosen, has_died = model.claim(holder, place[0], limit, self.now, self.wall, handed=handed)
        self.letters += [(model.id, offset) for offset in model.dead[known:]]
        return chosen, has_died

    @precondition(lambda self: self.consumers)
    @rule(data=st.data())
    def close_consumer(self, data: st.DataObject) -> None:
        place = data.draw(st.sampled_from(sorted(self.consumers)))
        self.close(place)

    def close(self, place: Place) -> None:
        model, consumer = self.groups[place[1]], self.consumers.pop(place)
        consumer.close()
        model.members.discard(consumer.id)
        for offset, token in self.ahead.pop(place):
            if model.has_lease(offset, token):
                model.release(offset)

    # --- settle -------------------------------------------------------------------------------

    def choose(self, data: st.DataObject) -> tuple[GroupModel, list[Held], list[Held]]:
        """Some messages of one group that were received, whatever became of them since; and those
        whose lease is held."""
        first = data.draw(st.sampled_from(self.held))
        same = [held for held in self.held if held.group == first.group and held is not first]
        more = data.draw(st.lists(st.sampled_from(same), max_size=2, unique_by=id)) if same else []
        chosen = {held.message.offset: held for held in [first, *more]}  # one of each offset
        model = self.groups[first.group]
        held = [h for h in chosen.values() if model.has_lease(h.message.offset, h.token)]
        return model, list(chosen.values()), held

    def do(self, word: str, chosen: list[Held], held: list[Held], *arguments: Any) -> None:
        """Settle them, in one step or, if it is one, by itself; what was lost has to be named."""
        messages = [each.message for each in chosen]
        lost = sorted(each.message.message_id for each in chosen if each not in held)
        settler = getattr(messages[0], word)
        if len(messages) > 1:
            group = messages[0].settler
            settler = functools.partial(getattr(group, word), messages)
        if not lost:
            settler(*arguments)
            return
        with pytest.raises(LeaseLost) as caught:
            settler(*arguments)
        assert set(caught.value.lost) <= set(lost)
        assert caught.value.lost

    has_held = precondition(lambda self: self.held)

    @has_held
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        model, chosen, held = self.choose(data)
        self.do("ack", chosen, held)
        for each in held:
            model.settle(each.message.offset)

    @has_held
    @rule(data=st.data(), delay_ms=delays)
    def nack(self, data: st.DataObject, delay_ms: int | None) -> None:
        model, chosen, held = self.choose(data)
        self.do("nack", chosen, held, None if delay_ms is None else delay_ms / 1000)
        known = len(model.dead)
        for each in held:
            model.nack(each.message.offset, self.now, delay_ms)
        self.letters += [(model.id, offset) for offset in model.dead[known:]]

    @has_held
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        model, chosen, held = self.choose(data)
        self.do("release", chosen, held)
        for each in held:
            model.release(each.message.offset)

    @has_held
    @rule(data=st.data())
    def reject(self, data: st.DataObject) -> None:
        model, chosen, held = self.choose(data)
        self.do("reject", chosen, held, "bad")
        for each in held:
            model.bury(each.message.offset)
            self.letters.append((model.id, each.message.offset))

    @has_held
    @rule(data=st.data(), seconds=st.sampled_from([0, 8, 32]))
    def extend(self, data: st.DataObject, seconds: int) -> None:
        model, chosen, held = self.choose(data)
        self.do("extend", chosen, held, seconds)
        for each in held:
            model.extend(each.message.offset, self.now + seconds * 1000)

    # --- dead letters ---------------------------------------------------------------------------

    @precondition(lambda self: self.letters)
    @rule(store=stores, group=st.sampled_from([None, *GROUPS]), limit=st.sampled_from([None, 1]))
    def redrive(self, store: int, group: str | None, limit: int | None) -> None:
        chosen = [letter for letter in self.letters if group in (None, letter[0])][:limit]
        before, count = max(self.log), None
        with contextlib.suppress(Full):
            count = self.stores[store].redrive("q", group=group, limit=limit)
        new = [m for m in self.queue(store).read() if m.offset > before]
        assert count in (None, len(chosen))
        for message, (had, offset) in zip(new, chosen[: len(new)], strict=True):
            assert self.has_room()
            old = self.log[offset]
            assert message.value == old.value
            again = Sent(message.offset, old.value, old.key, old.routing_key, self.expiry())
            again.for_group = had
            self.sent(again)
            self.letters.remove((had, offset))
        assert len(new) == len(chosen) if count is not None else not self.has_room()

    def has_room(self) -> bool:
        """For a message more, without that others are dropped for it."""
        return True

    # --- time, and ends -------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([4, 8, 16, 64]))
    def let_time_pass(self, seconds: int) -> None:
        self.machine.clock.advance(seconds)

    @rule(which=st.sampled_from([*STORES, None]))
    def restart(self, which: int | None) -> None:
        """One of the processes, or both, end as they should, and come back."""
        for store in STORES if which is None else (which,):
            for place in [place for place in self.consumers if place[0] == store]:
                self.close(place)
            self.stores[store].close()
        if which is None:
            for model in self.groups.values():
                model.notice_the_dead()  # whoever leaves last looks round
        for held in self.held:
            if is_closed(held):
                with pytest.raises(Closed):
                    held.message.ack()
                model = self.groups[held.group]
                if model.has_lease(held.message.offset, held.token):
                    model.free(held.message.offset)
        self.held = [held for held in self.held if not is_closed(held)]
        for store in STORES if which is None else (which,):
            self.stores[store] = self.open_store()

    @rule()
    def kill(self) -> None:
        """Leases stay until somebody notices; nobody can settle them any more."""
        self.machine.kill()
        for model in self.groups.values():
            model.kill()
        self.open_stores()

    @precondition(lambda self: self.flush == "sync")
    @rule(seed=st.integers(0, 2**32 - 1))
    def power_cut(self, seed: int) -> None:
        self.machine.power_cut(seed)
        self.open_stores()
        queue = self.queue(0)
        there = {m.offset: m.value for m in queue.read()}
        assert there == {offset: sent.value for offset, sent in self.log.items()}
        self.accept(queue)

    def accept(self, queue: Queue, unsure: frozenset[int] = frozenset()) -> None:
        """What the groups are, after a power cut."""
        for group, model in self.groups.items():
            ledger = queue.group(*group.split("@")).state
            found = {
                offset: Entry(STATES[lease.state], lease.until, lease.count, lease.strikes > 0)
                for offset, lease in ledger.pending.items()
            }
            model.accept(ledger.cursor, found, unsure)
            model.kill()

    # --- always ---------------------------------------------------------------------------------

    @invariant()
    def all_agree(self) -> None:
        for store in range(len(self.stores)):
            queue = self.queue(store)
            for group, model in self.groups.items():
                self.check(queue, group, model)
        if self.stores:
            found = [
                (
                    message.headers["_dlq_group"].decode(),
                    int(message.headers["_dlq_original_offset"]),
                )
                for message in self.stores[0].dead("q")
            ]
            assert sorted(found) == sorted(self.letters)

    def check(self, queue: Queue, group: str, model: GroupModel) -> None:
        name, _, pattern = group.partition("@")
        found = {p.offset: p for p in queue.pending(name, filter=pattern)}
        assert list(found) == sorted(found)
        assert sorted(found) == sorted(model.entries)
        for offset, entry in model.entries.items():
            state = entry.state
            if state in ("leased", "claimed") and entry.until <= self.now:
                state = "expired"
            assert (found[offset].state, found[offset].delivery_count) == (state, entry.count)
        cursor, committed = queue.group(name, pattern).progress()
        there = [offset for offset in self.log if offset >= model.start]
        assert not [offset for offset in there if (offset < cursor) != (offset < model.cursor)]
        assert committed == min(found, default=cursor)
        for offset in there:
            places = [offset in model.entries, offset in model.settled, offset >= model.cursor]
            assert places.count(True) == 1

    def teardown(self) -> None:
        try:
            for store in self.stores:
                store.close()
            # A segment that is followed is closed by whoever lets go of it last.
            left = [path for path in self.machine.disk.open_files() if not path.endswith(".seg")]
            assert left == []
        finally:
            self.machine.__exit__(None, None, None)


def test_a_queue_behaves_like_its_model() -> None:
    run_state_machine_as_test(
        QueueMachine, settings=settings(max_examples=30, stateful_step_count=40)
    )


@pytest.mark.long
def test_a_queue_behaves_like_its_model_for_long() -> None:
    run_state_machine_as_test(
        QueueMachine, settings=settings(max_examples=3_000, stateful_step_count=80)
    )
