"""Delayed messages against a model, with restarts, kills, power cuts and clocks that are set.

A run is made of a seed, which a failure prints; two stores, as two processes have them, do what
comes at random.
"""

from __future__ import annotations

import random

import pytest

from tailrace import Queue, Store
from tests.queue.clocks import Machine
from tests.queue.delaying import Model, few_in_memory, values_of

pytestmark = pytest.mark.no_cover

STEPS = 60


class World:
    """A machine with two processes, and what they were told."""

    def __init__(self, machine: Machine, seed: int, flush: str) -> None:
        self.machine = machine
        self.rng = random.Random(seed)
        self.flush = flush
        self.model = Model()
        self.stores: list[Store] = []
        self.latest_ms = machine.clock.wall_ms()  # that anybody has delivered at
        self.start()

    def start(self) -> None:
        self.stores = [self.machine.open(flush=self.flush) for _ in range(2)]

    def queue(self) -> Queue:
        return self.rng.choice(self.stores).queue("q")

    def publish(self) -> None:
        now_ms = self.machine.clock.wall_ms()
        queue = self.queue()
        for _ in range(self.rng.choice((1, 1, 2, 9))):
            self.model.schedule(queue, now_ms + self.rng.choice((-5, 0, 1, 1_000, 5_000, 60_000)))

    def cancel(self) -> None:
        if self.model.ids:
            value = self.rng.choice(sorted(self.model.ids))
            queue = self.queue()
            is_there = value in values_of(queue)
            is_cancelled = self.model.cancel(queue, value)
            assert not (is_there and is_cancelled), "cancelled after it was delivered"

    def deliver(self) -> None:
        now_ms = self.machine.clock.wall_ms()
        self.latest_ms = max(self.latest_ms, now_ms)
        store = self.rng.choice(self.stores)
        store.deliver_due()
        found = values_of(store.queue("q"))
        self.model.check(found, self.latest_ms, may_lose=True)  # the clock may have gone back
        assert self.model.expected(now_ms) <= set(found)

    def advance(self) -> None:
        self.machine.clock.advance(self.rng.choice((0.001, 0.5, 2, 10)))

    def set_clock(self) -> None:
        clock = self.machine.clock
        clock.set_wall(clock.wall_ms() + self.rng.choice((-30_000, -1_000, 3_000, 90_000)))

    def tidy(self) -> None:
        """One of them delivers by itself, and has time for this; the others may, too."""
        delays = self.queue().delays
        if delays.exists:
            delays.next_due()
            delays.tidy()
            delays = self.stores[0].queue("q").delays
            for _ in range(self.rng.randrange(6)):
                delays.merge()

    def rest(self) -> None:
        self.queue().delays.rest()

    def count(self) -> None:
        queue = self.queue()
        count, listed = queue.delayed_count(), queue.delayed(None)
        assert count == len(listed)
        keys = [(each.deliver_at, int(each.delay_id.split("-")[1], 16)) for each in listed]
        assert keys == sorted(keys)
        found = {each.value for each in listed}
        assert not found & (self.model.cancelled | set(values_of(queue)))
        assert self.model.due.keys() - self.model.cancelled - self.model.doubtful <= (
            found | set(values_of(queue))
        )

    def restart(self) -> None:
        for store in self.stores:
            store.close()
        self.start()

    def leave(self) -> None:
        """One of them closes the store and comes back; if it has nothing open, the other may be the
        last one, and leave no files."""
        number = self.rng.randrange(2)
        self.stores[1 - number].queue("q").delays.rest()
        self.stores[number].close()
        self.stores[number] = self.machine.open(flush=self.flush)

    def kill(self) -> None:
        self.machine.kill()
        self.start()

    def cut_power(self) -> None:
        if self.flush != "sync":
            for store in self.stores:
                queue = store.queue("q")
                queue.log.flush()
                if queue.delays.exists:
                    queue.delays.incoming.flush()
        self.machine.power_cut(self.rng.randrange(10**6), self.rng.choice((0, 5)))
        self.start()

    def finish(self) -> None:
        for store in self.stores:
            store.close()
        self.machine.clock.set_wall(max(self.latest_ms, self.machine.clock.wall_ms()) + 10**7)
        with self.machine.open() as store:
            store.deliver_due()
            self.model.check_end(store)


WEIGHTS = {
    World.publish: 30,
    World.cancel: 15,
    World.deliver: 20,
    World.advance: 15,
    World.set_clock: 4,
    World.tidy: 10,
    World.rest: 3,
    World.count: 6,
    World.restart: 3,
    World.leave: 4,
    World.kill: 5,
    World.cut_power: 5,
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("flush", ["sync", "async", "none"])
@pytest.mark.parametrize("seed", range(12))
def test_each_message_is_delivered_once_or_cancelled(flush: str, seed: int) -> None:
    weights = dict(WEIGHTS)
    if flush == "none":
        del weights[World.cut_power]
    with Machine(seed) as machine, few_in_memory():
        world = World(machine, seed, flush)
        done: list[str] = []
        try:
            for _ in range(STEPS):
                [act] = world.rng.choices(list(weights), list(weights.values()))
                done.append(act.__name__)
                act(world)
            world.finish()
        except BaseException as error:
            error.add_note(f"seed {seed}, {flush}: {' '.join(done)}")
            raise
