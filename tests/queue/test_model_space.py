"""The model test once more, with time and space: delays, lifetimes, clocks that are set, queues and
disks that get full, deletion; and a process, or the power, that ends in the middle of any of it.

Each message is, for each group, in exactly one place: scheduled, cancelled, ready, leased, waiting,
settled, dead, expired, dropped, or deleted when all groups were through with it. After each step
both processes have to agree with the model on every one.

A run that fails prints its steps and a line with which it can be repeated.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule, run_state_machine_as_test

from tailrace import ConfigError, Full, NotWritten, Queue, Store, Stream
from tailrace.queue.disk import Level
from tailrace.testing import FaultyFileSystem
from tests.queue.delaying import few_in_memory
from tests.queue.model import BACKOFF_MS, LEASE_MS, Entry, GroupModel, Sent
from tests.queue.model_space import Delivery, Room, Schedule, StreamModel, segments
from tests.queue.test_model import GROUPS, QueueMachine, delays, keys, routing_keys, stores

pytestmark = pytest.mark.no_cover

MUCH = random.Random(0).randbytes(2 << 20)

ttls = st.sampled_from([None, None, 0, 8, 64])
waits_s = st.sampled_from([0, 4, 16, 64])
whens = st.sampled_from(["delay", "deliver_at"])


def dropped(queue: Queue, group_id: str) -> int:
    """How many messages a group has dropped, whoever did so."""
    group = queue.group(group_id)
    group.progress()  # it knows then what others have done
    return group.state.dropped


class SpaceMachine(QueueMachine):
    def __init__(self) -> None:
        super().__init__()
        self.patches = ExitStack()
        self.files: list[FaultyFileSystem] = []
        self.schedule = Schedule()
        self.start = self.least_end = 0  # of the queue
        self.streamed = StreamModel()
        self.ids: list[str] = []

    @initialize(
        flush=st.sampled_from(["sync", "sync", "async"]),
        key_order=st.booleans(),
        max_retries=st.integers(0, 2),
        compact_after=st.sampled_from([1, 5, 10_000]),
        segment_bytes=st.sampled_from([200, 200, "64MiB"]),
        ttl_s=st.sampled_from([0, 0, 32]),
        expired_die=st.booleans(),
        room=st.sampled_from([(0, "raise"), (0, "raise"), (5, "raise"), (5, "drop_oldest")]),
        keeps=st.sampled_from([(0, 0, 0), (4, 0, 0), (0, 600, 0), (0, 0, 20_000)]),
    )
    def create(
        self,
        flush: str,
        key_order: bool,
        max_retries: int,
        compact_after: int,
        segment_bytes: Any,
        ttl_s: int,
        expired_die: bool,
        room: tuple[int, str],
        keeps: tuple[int, int, int],
    ) -> None:
        self.flush, self.key_order, self.ttl_s = flush, key_order, ttl_s
        self.room = Room(*room)
        self.streamed = StreamModel(*keeps)
        if not self.room.max_depth:  # else it matters how many are delivered at once
            self.patches.enter_context(few_in_memory())
        self.options = {
            "flush": flush,
            "compact_after": compact_after,
            "segment_bytes": segment_bytes,
            "visibility_timeout": f"{LEASE_MS}ms",
            "retry": {"max_retries": max_retries, "initial_backoff": f"{BACKOFF_MS}ms"},
        }
        self.limits = {
            "limits": {"max_depth": room[0], "on_full": room[1], "message_ttl": ttl_s},
            "dlq": {"expired": expired_die},
            "retention": self.streamed.options,
        }
        for group in GROUPS:
            model = GroupModel(
                group, key_order=key_order, max_retries=max_retries, expired_die=expired_die
            )
            model.log = self.log
            self.groups[group] = model
        self.open_stores()
        for group in GROUPS:  # from the first message on, so that none is deleted before
            self.queue(0).consumer(group, key_order=key_order).close()
        assert not len(self.stream(0))  # its log is there

    def open_stores(self) -> None:
        self.files.clear()
        super().open_stores()

    def open_store(self) -> Store:
        fs = FaultyFileSystem(self.machine.disk)
        self.files.append(fs)
        return Store("data", fs=fs, clock=self.machine.clock, upkeep=False, **self.options)

    def queue(self, store: int) -> Queue:
        return self.stores[store].queue("q", **self.limits)

    def stream(self, store: int) -> Stream:
        return self.stores[store].stream("s", retention=self.streamed.options)

    @property
    def end(self) -> int:
        return max(max(self.log, default=-1) + 1, self.start, self.least_end)

    @property
    def models(self) -> list[GroupModel]:
        return list(self.groups.values())

    # --- publish ------------------------------------------------------------------------------

    def expiry(self, ttl_s: int | None = None, due_ms: int = 0) -> int | None:
        """That of the queue counts from when a message may be had, its own from now on."""
        from_ms = max(self.wall, due_ms) if ttl_s is None else self.wall
        ttl_s = self.ttl_s if ttl_s is None else ttl_s
        return from_ms + ttl_s * 1000 if ttl_s else None

    def admit(self, count: int, *, drops: bool = True) -> bool:
        with self.new_letters():
            times = self.now, self.wall
            return self.room.admit(self.models, self.end, count, *times, drops=drops)

    def has_room(self) -> bool:
        return self.admit(1, drops=False)

    @contextlib.contextmanager
    def new_letters(self) -> Iterator[None]:
        """What expires meanwhile may become a dead letter."""
        known = {model.id: len(model.dead) for model in self.models}
        yield
        for model in self.models:
            self.letters += [(model.id, offset) for offset in model.dead[known[model.id] :]]

    @rule(
        store=stores,
        wanted=st.lists(st.tuples(keys, ttls), min_size=1, max_size=4),
        routing_key=routing_keys,
    )
    def publish(
        self, store: int, wanted: list[tuple[str | None, int | None]], routing_key: str
    ) -> None:
        for key, ttl_s in wanted:
            self.publish_one(store, key, ttl_s, routing_key)

    def publish_one(
        self, store: int, key: str | None, ttl_s: int | None, routing_key: str = ""
    ) -> None:
        value, expires_ms = self.new_value(), self.expiry(ttl_s)
        options: dict[str, Any] = {"key": key, "routing_key": routing_key, "ttl": ttl_s}
        if not self.admit(1):
            with pytest.raises(Full, match="max_depth"):
                self.queue(store).publish(value, **options)
            return
        receipt = self.queue(store).publish(value, **options)
        self.sent(Sent(receipt.offset, value, key, routing_key, expires_ms))

    @rule(store=stores, wanted=st.lists(keys, min_size=1, max_size=7), routing_key=routing_keys)
    def publish_many(self, store: int, wanted: list[str | None], routing_key: str) -> None:
        sent = [Sent(0, self.new_value(), key, routing_key, self.expiry()) for key in wanted]
        pairs = [(each.key, each.value) for each in sent]
        if not self.admit(len(wanted)):
            with pytest.raises(Full, match="max_depth"):
                self.queue(store).publish_many(pairs, routing_key=routing_key)
            return
        receipt = self.queue(store).publish_many(pairs, routing_key=routing_key)
        for number, each in enumerate(sent):
            each.offset = receipt.offset + number
            self.sent(each)

    # --- later --------------------------------------------------------------------------------

    @rule(
        store=stores,
        wanted=st.lists(st.tuples(waits_s, keys, ttls), min_size=1, max_size=4),
        routing_key=routing_keys,
        when=whens,
    )
    def publish_later(
        self,
        store: int,
        wanted: list[tuple[int, str | None, int | None]],
        routing_key: str,
        when: str,
    ) -> None:
        for wait_s, key, ttl_s in wanted:
            self.publish_one_later(store, wait_s, key, ttl_s, routing_key, when)

    def publish_one_later(
        self,
        store: int,
        wait_s: int,
        key: str | None,
        ttl_s: int | None,
        routing_key: str = "",
        when: str = "delay",
    ) -> None:
        due_ms = self.wall + wait_s * 1000
        time: dict[str, Any] = {"delay": wait_s} if when == "delay" else {"deliver_at": due_ms}
        sent = Sent(0, self.new_value(), key, routing_key, self.expiry(ttl_s, due_ms))
        options: dict[str, Any] = {"key": key, "routing_key": routing_key, "ttl": ttl_s, **time}
        if sent.expires_ms is not None and sent.expires_ms <= due_ms:
            with pytest.raises(ConfigError, match="over before it is due"):
                self.queue(store).publish(sent.value, **options)
            return
        queue = self.queue(store)
        delayed = queue.publish(sent.value, **options)
        assert delayed.deliver_at == due_ms
        queue._looked_for = queue._due  # here `deliver` delivers, and not who receives next
        self.schedule.add(delayed.delay_id, due_ms, sent)
        self.ids.append(delayed.delay_id)

    @precondition(lambda self: self.ids)
    @rule(store=stores, data=st.data())
    def cancel(self, store: int, data: st.DataObject) -> None:
        delay_id = data.draw(st.sampled_from(self.ids[-12:]))
        was_cancelled = set(self.schedule.cancelled_ids)
        told, expected = self.queue(store).cancel(delay_id), self.schedule.cancel(delay_id)
        assert told == expected or delay_id in was_cancelled  # that one may be forgotten, or not

    @rule(store=stores)
    def deliver(self, store: int) -> None:
        due = self.schedule.due(self.wall)
        expected = []
        delivery = Delivery(self.room, self.models, self.now, self.wall)
        with self.new_letters():
            for offset, each in delivery.run(due, self.end):
                self.schedule.deliver(each)
                self.sent(each.sent(offset))
                expected.append((offset, each.value))
        assert self.stores[store].deliver_due() == len(expected)
        first = expected[0][0] if expected else self.end
        assert [(m.offset, m.value) for m in self.queue(store).read(first)] == expected

    # --- time ---------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([-3600, -64, -8, 8, 64, 3600]))
    def set_the_clock(self, seconds: int) -> None:
        self.machine.clock.set_wall(self.wall + seconds * 1000)

    # --- space --------------------------------------------------------------------------------

    @rule(store=stores)
    def vacuum(self, store: int) -> None:
        queue = self.queue(store)
        queue.vacuum()
        self.check_start(queue)
        floor = min(max(model.committed, model.start) for model in self.models)
        if self.start < floor and not any(self.streamed.options.values()):
            held = [base for base, _ in segments(queue.log)]
            assert len(held) < 2 or held[1] > floor, "a segment is left that all have settled"

    @rule(store=stores)
    def drop_by_force(self, store: int) -> None:
        """The oldest segment goes, with what nobody has had; or it stays, with all that is in it,
        because somebody has a message of it."""
        queue = self.queue(store)
        end = queue.log.end_of_first_segment()
        before = {model.id: dropped(queue, model.id) for model in self.models}
        has_gone = queue.drop_segment()
        expected = dict.fromkeys(before, 0)
        if end is not None:
            with self.new_letters():
                for model in self.models:
                    model.pass_by(end, self.now, self.wall)
            assert has_gone == all(model.is_droppable(end, self.now) for model in self.models)
            if has_gone:
                expected = {model.id: model.drop_below(end, self.now) for model in self.models}
        assert has_gone == (queue.log.start_offset == end)
        for group_id, count in expected.items():
            assert dropped(queue, group_id) - before[group_id] == count
        self.check_start(queue)

    def check_start(self, queue: Queue) -> None:
        """Nothing was deleted that a group needs."""
        start = queue.log.start_offset
        assert start >= self.start
        for model in self.models:
            for offset in self.log:
                is_gone = self.start <= offset < start
                assert not is_gone or model.state_of(offset) not in ("ready", "free", "leased")
                assert not is_gone or offset in model.settled, f"{model.id}:{offset} is deleted"
            model.start = start
        self.start = start

    @rule(store=stores, sizes=st.lists(st.sampled_from([1, 80, 300]), min_size=1, max_size=4))
    def publish_to_the_stream(self, store: int, sizes: list[int]) -> None:
        for size in sizes:
            value = self.new_value().ljust(size, b".")
            receipt = self.stream(store).publish(value)
            self.streamed.values[receipt.offset] = (value, self.wall)

    @precondition(lambda self: self.streamed.values)
    @rule(store=stores)
    def vacuum_the_stream(self, store: int) -> None:
        stream = self.stream(store)
        stream.vacuum()
        log = stream.log
        self.streamed.check_vacuum(log.start_offset, segments(log), self.wall)
        self.check_stream(stream)

    def check_stream(self, stream: Stream) -> None:
        there = {m.offset: m.value for m in stream.read()}
        kept = {o: v for o, (v, _) in self.streamed.values.items() if o >= self.streamed.start}
        assert there == kept

    @rule(store=stores, data=st.data(), is_noticed=st.booleans(), end=st.sampled_from("-kc"))
    def run_out_of_space(self, store: int, data: st.DataObject, is_noticed: bool, end: str) -> None:
        """Nothing more is published; what was received is settled all the same; what may go, goes.
        Then perhaps the process is killed, or the power fails, and somebody makes room."""
        self.publish_one_later(store, 64, None, None)  # the files are there
        for each in self.stores:
            each.reserve.fill()
        space = self.machine.disk.space("")
        self.machine.disk.capacity = space.total - space.free
        for each in self.stores:
            assert each.disk.look() is Level.REFUSING
            if not is_noticed:  # for the next second
                each.disk._level = Level.FINE
        self.publish_what_has_no_room(store, is_noticed)
        if self.held:
            model, chosen, held = self.choose(data)
            self.do("ack", chosen, held)
            for one in held:
                model.settle(one.message.offset)
        if self.held:
            self.nack(data, data.draw(delays)) if self.spent_are_few() else self.release(data)
        self.vacuum(store)
        if end == "k":
            self.machine.kill()
            self.make_room()
            self.come_back_after_kill()
        elif end == "c" and self.flush == "sync":
            self.machine.power_cut(data.draw(st.integers(0, 2**32 - 1)))
            self.make_room()
            self.come_back()
        else:
            self.make_room()
            for each in self.stores:
                assert each.disk.look() is Level.FINE

    def spent_are_few(self) -> bool:
        """No message may become a dead letter: there is no room for it."""
        return all(model.max_retries > 1 for model in self.models) and all(
            held.message.delivery_count < 2 for held in self.held
        )

    def make_room(self) -> None:
        self.machine.disk.capacity = None

    def publish_what_has_no_room(self, store: int, is_noticed: bool) -> None:
        """There may be room for a little, where a log has kept some for itself."""
        queue, stream = self.queue(store), self.stream(store)
        if is_noticed:
            for publish in (queue.publish, stream.publish):
                with pytest.raises(Full, match="refuse_ratio"):
                    publish(b"no")
            with pytest.raises(Full, match="refuse_ratio"):
                queue.publish(b"no", delay=1)
            return
        with contextlib.suppress(NotWritten):
            receipt = stream.publish(value := self.new_value())
            self.streamed.values[receipt.offset] = (value, self.wall)
        # What has expired makes room, but not if there is none for its dead letter.
        may_need_letters = self.room.max_depth and any(each.expired_die for each in self.models)
        if may_need_letters:
            pass
        elif not self.admit(1):
            with pytest.raises(Full, match="max_depth"):
                queue.publish(b"no")
        else:
            with contextlib.suppress(NotWritten):
                receipt = queue.publish(value := self.new_value())
                self.sent(Sent(receipt.offset, value, expires_ms=self.expiry()))
        with pytest.raises(NotWritten):
            stream.publish(MUCH)

    # --- ends ---------------------------------------------------------------------------------

    @precondition(lambda self: self.flush == "sync")
    @rule(seed=st.integers(0, 2**32 - 1), seconds_off=st.sampled_from([0, 16]))
    def power_cut(self, seed: int, seconds_off: int) -> None:
        self.machine.power_cut(seed, seconds_off)
        self.come_back()

    @rule()
    def kill(self) -> None:
        self.machine.kill()
        self.come_back_after_kill()

    def come_back_after_kill(self) -> None:
        for model in self.models:
            model.kill()
        self.open_stores()

    def come_back(self, unsure: frozenset[int] = frozenset()) -> None:
        """After a power cut, with everything that was promised."""
        self.open_stores()
        queue = self.queue(0)
        there = {m.offset: m.value for m in queue.read()}
        assert there == {o: sent.value for o, sent in self.log.items() if o >= self.start}
        self.accept(queue, unsure)
        if self.streamed.values:
            self.check_stream(self.stream(0))

    # --- always -------------------------------------------------------------------------------

    @rule(store=stores)
    def look(self, store: int) -> None:
        """Everything that is scheduled, in order; and the figures."""
        queue = self.queue(store)
        listed = [(each.delay_id, each.deliver_at, each.value) for each in queue.delayed(None)]
        waiting = sorted(
            self.schedule.waiting.items(), key=lambda each: (each[1].due_ms, each[1].number)
        )
        assert listed == [(delay_id, each.due_ms, each.value) for delay_id, each in waiting]
        figures = self.stores[store].stats(exact=True)["q"]
        assert (figures.delayed, figures.dead) == (len(waiting), len(self.letters))
        for found in figures.groups:
            model = self.groups[found.id]
            states = [self.figure_of(model, entry) for entry in model.entries.values()]
            states += ["ready" for sent in model._new() if model.wants(sent, self.wall)]
            counted = tuple(states.count(word) for word in ("ready", "leased", "waiting"))
            assert (found.ready, found.leased, found.waiting) == counted
            assert found.dying == 0

    def figure_of(self, model: GroupModel, entry: Entry) -> str:
        """Who only looks sees at once that somebody has died."""
        is_leased = entry.state in ("leased", "claimed")
        if model.is_ready(entry, self.now) or (is_leased and entry.holder in model.killed):
            return "ready"
        return "leased" if is_leased else "waiting"

    @invariant()
    def each_is_in_one_place(self) -> None:
        self.schedule.check()
        for store in range(len(self.stores)):
            queue = self.queue(store)
            assert queue.delayed_count() == len(self.schedule.waiting)
            assert (queue.log.start_offset, queue.log.end_offset) == (self.start, self.end)

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            self.patches.close()


def test_time_and_space_as_the_model_has_them() -> None:
    run_state_machine_as_test(
        SpaceMachine, settings=settings(max_examples=16, stateful_step_count=40)
    )


@pytest.mark.long
def test_time_and_space_as_the_model_has_them_for_long() -> None:
    run_state_machine_as_test(
        SpaceMachine, settings=settings(max_examples=2_000, stateful_step_count=80)
    )
