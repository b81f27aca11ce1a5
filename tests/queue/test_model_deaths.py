"""The model test of time and space, with a process that dies in the middle of what it does.

At any call to the file system, before it or after it; then perhaps the power fails as well. What it
was doing is done then, or was never begun: of several messages in one step all or none, and what
was scheduled is in the queue or is still scheduled. Nothing else may have changed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test

from tailrace import Queue
from tailrace.testing import Crash, FaultyFileSystem, SimulatedCrash, at
from tests.queue.model import GroupModel, Sent
from tests.queue.model_space import Waiting
from tests.queue.test_model import stores
from tests.queue.test_model_space import SpaceMachine

pytestmark = pytest.mark.no_cover

ACTS = ["publish", "publish_many", "publish_later", "cancel", "deliver", "vacuum", "ack"]


@dataclass
class Doing:
    """What is being done, and what it may change."""

    do: Callable[[], object]
    published: list[Sent] = field(default_factory=list)  # all of them, or none
    due: list[Waiting] = field(default_factory=list)  # the first of them
    scheduled: tuple[int, Sent] | None = None  # when it is due
    cancelled: str = ""
    acked: list[int] = field(default_factory=list)
    model: GroupModel | None = None
    may_delete: bool = False
    is_done: bool = False


class MortalMachine(SpaceMachine):
    @precondition(lambda self: not self.room.max_depth)  # after a gap, depths are estimates
    @rule(
        store=stores,
        act=st.sampled_from(ACTS),
        call=st.integers(0, 30),
        after=st.booleans(),
        is_cut=st.booleans(),
        seed=st.integers(0, 2**32 - 1),
        data=st.data(),
    )
    def die_in_the_middle(
        self,
        store: int,
        act: str,
        call: int,
        after: bool,
        is_cut: bool,
        seed: int,
        data: st.DataObject,
    ) -> None:
        doing = self.doing(act, store, data)
        if doing is None:
            return
        fs = self.stores[store].fs
        assert isinstance(fs, FaultyFileSystem)
        fs.plan = at(len(fs.calls) + call, Crash(after=after))
        with contextlib.suppress(SimulatedCrash):
            doing.do()
            doing.is_done = True
        fs.plan = None
        is_cut = is_cut and self.flush == "sync"
        if is_cut:
            self.machine.power_cut(seed)
        else:
            self.machine.kill()
        self.open_stores()
        queue = self.queue(0)
        self.find_out(doing, queue)
        if is_cut:
            self.accept(queue, frozenset(doing.acked))
        self.settle(doing, queue)
        for model in self.models:
            model.kill()
        if self.streamed.values:
            self.check_stream(self.stream(0))

    # --- before -------------------------------------------------------------------------------

    def doing(self, act: str, store: int, data: st.DataObject) -> Doing | None:
        queue = self.queue(store)
        match act:
            case "publish":
                value = self.new_value()
                sent = Sent(0, value, expires_ms=self.expiry(None))
                return Doing(lambda: queue.publish(value), [sent])
            case "publish_many":
                values = [self.new_value() for _ in range(3)]
                several = [Sent(0, value, expires_ms=self.expiry(None)) for value in values]
                return Doing(lambda: queue.publish_many(values), several)
            case "publish_later":
                value, due_ms = self.new_value(), self.wall + 16_000
                sent = Sent(0, value, expires_ms=self.expiry(None))
                do = lambda: queue.publish(value, deliver_at=due_ms)  # noqa: E731
                return Doing(do, scheduled=(due_ms, sent))
            case "cancel" if self.schedule.waiting:
                delay_id = data.draw(st.sampled_from(sorted(self.schedule.waiting)))
                return Doing(lambda: queue.cancel(delay_id), cancelled=delay_id)
            case "deliver":
                due = self.schedule.due(self.wall)
                return Doing(self.stores[store].deliver_due, due=due)
            case "vacuum":
                return Doing(queue.vacuum, may_delete=True)
            case "ack":
                return self.acking(store)
        return None

    def acking(self, store: int) -> Doing | None:
        """Everything of a group that was received by this process, in one step."""
        for group, model in self.groups.items():
            held = [
                each
                for each in self.held
                if each.group == group
                and each.message.settler is self.queue(store).group(*group.split("@"))
                and model.has_lease(each.message.offset, each.token)
            ]
            if held:
                messages = [each.message for each in held]
                settler = self.queue(store).group(*group.split("@"))
                offsets = [message.offset for message in messages]
                return Doing(partial(settler.ack, messages), acked=offsets, model=model)
        return None

    # --- afterwards ---------------------------------------------------------------------------

    def find_out(self, doing: Doing, queue: Queue) -> None:
        """What is in the queue, and what is scheduled: as before, or as it was to be."""
        listed = queue.delayed(None)  # first, as this ends what was begun
        if doing.may_delete:
            self.check_start(queue)
        assert queue.log.start_offset == self.start
        there = {m.offset: m.value for m in queue.read()}
        known = {o: sent.value for o, sent in self.log.items() if o >= self.start}
        assert {o: value for o, value in there.items() if o in self.log} == known
        new = {o: value for o, value in there.items() if o not in self.log}
        if doing.published:
            self.find_published(doing, new)
        else:
            self.find_delivered(doing, new)
        self.least_end = queue.log.end_offset
        self.find_scheduled(doing, {each.delay_id: each.value for each in listed})

    def find_published(self, doing: Doing, new: dict[int, bytes | None]) -> None:
        values = [sent.value for sent in doing.published]
        assert list(new.values()) in ([values] if doing.is_done else [[], values])
        for offset, sent in zip(new, doing.published, strict=False):
            sent.offset = offset
            self.sent(sent)

    def find_delivered(self, doing: Doing, new: dict[int, bytes | None]) -> None:
        count = len(doing.due) if doing.is_done else len(new)
        assert list(new.values()) == [each.value for each in doing.due[:count]]
        for offset, each in zip(new, doing.due, strict=False):
            self.schedule.deliver(each)
            self.sent(each.sent(offset))

    def find_scheduled(self, doing: Doing, listed: dict[str, bytes | None]) -> None:
        waiting = self.schedule.waiting
        gone = [delay_id for delay_id in waiting if delay_id not in listed]
        come = [delay_id for delay_id in listed if delay_id not in waiting]
        if doing.cancelled:
            assert gone in ([[doing.cancelled]] if doing.is_done else [[], [doing.cancelled]])
            for delay_id in gone:
                self.schedule.cancel(delay_id)
            gone = []
        if doing.scheduled is not None:
            due_ms, sent = doing.scheduled
            assert [listed[delay_id] for delay_id in come] == [sent.value][: len(come)]
            assert come or not doing.is_done
            for delay_id in come:
                self.schedule.add(delay_id, due_ms, sent)
                self.ids.append(delay_id)
            come = []
        assert (gone, come) == ([], []), "scheduled messages have gone, or come"

    def settle(self, doing: Doing, queue: Queue) -> None:
        """What was being acknowledged is, or is not; each of them, as they are of one step."""
        if doing.model is None:
            return
        name, _, pattern = doing.model.id.partition("@")
        found = {p.offset for p in queue.pending(name, filter=pattern)}
        cursor, _ = queue.group(name, pattern).progress()
        left = [offset for offset in doing.acked if offset in found or offset >= cursor]
        assert left in ([[]] if doing.is_done else [[], doing.acked])
        for offset in doing.acked:
            if offset in doing.model.entries and offset not in left:
                doing.model.settle(offset)


def test_whoever_dies_in_the_middle_leaves_what_the_model_has() -> None:
    run_state_machine_as_test(
        MortalMachine, settings=settings(max_examples=10, stateful_step_count=40)
    )


@pytest.mark.long
def test_whoever_dies_in_the_middle_leaves_what_the_model_has_for_long() -> None:
    run_state_machine_as_test(
        MortalMachine, settings=settings(max_examples=3_000, stateful_step_count=80)
    )
