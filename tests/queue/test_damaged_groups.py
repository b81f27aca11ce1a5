"""A group of which any one part is damaged: its messages come again, perhaps, and none never."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tailrace import LeaseLost, Queue, Store
from tailrace.queue.journal import encode_line, parse_line
from tailrace.queue.snapshots import pel_name
from tailrace.testing.disk import SimulatedDisk
from tests.queue.clocks import Machine
from tests.queue.support import drain, numbers, offsets, one, states, values

COUNT = 24
SNAPSHOTS = {"never": 10_000, "now and then": 9}  # operations between two


class Damaged(NamedTuple):
    disk: SimulatedDisk
    what: str


def flipped(data: bytes, position: int, bit: int) -> bytes:
    changed = bytearray(data)
    changed[position] ^= 1 << bit
    return bytes(changed)


class World:
    """A group that was in use when everybody was killed; `left` are the offsets that have to come,
    as nobody has settled them."""

    left: frozenset[int]
    folder: str

    def __init__(self, machine: Machine, compact_after: int) -> None:
        self.machine = machine
        self.use([machine.open() for _ in range(2)], compact_after)
        machine.kill()

    def use(self, stores: list[Store], compact_after: int) -> None:
        raise NotImplementedError

    def received(self, store: Store) -> set[int]:
        """The offsets that come, to one who has time."""
        raise NotImplementedError

    def parts(self) -> list[str]:
        """The files of the group, but that without which it cannot be opened."""
        names = ["ops.log", *map(pel_name, range(8))]
        paths = [f"{self.folder}/{name}" for name in names]
        return [path for path in paths if path in self.machine.disk.files()]

    def with_file(self, path: str, data: bytes | None, what: str) -> Damaged:
        disk = self.machine.disk.clone()
        if data is None:
            disk.unlink(path)
        else:
            disk.put(path, data)
        return Damaged(disk, f"{path}: {what}")

    def lines(self) -> tuple[str, list[bytes]]:
        path = f"{self.folder}/ops.log"
        return path, self.machine.disk.read(path).rstrip(b"\0").splitlines(keepends=True)

    def with_lines(self) -> Iterator[Damaged]:
        """Each line is damaged, or missing; or a claim is there twice."""
        path, lines = self.lines()
        for number, line in enumerate(lines):
            before, behind = b"".join(lines[:number]), b"".join(lines[number + 1 :])
            torn = before + flipped(line, len(line) // 2, 0) + behind
            yield self.with_file(path, torn, f"damaged is {line!r}")
            if number:
                yield self.with_file(path, before + behind, f"missing is {line!r}")
            if b'"f":' in line:
                twice = before + line + behind + line
                yield self.with_file(path, twice, f"there twice is {line!r}")

    def with_shards(self) -> Iterator[Damaged]:
        for path in self.parts()[1:]:
            yield self.with_file(path, None, "missing")
            yield self.with_file(path, self.machine.disk.read(path)[:20], "cut off")

    def with_bits(self, seed: int, count: int) -> Iterator[Damaged]:
        chance = random.Random(seed)
        for _ in range(count):
            path = chance.choice(self.parts())
            data = self.machine.disk.read(path).rstrip(b"\0")
            at, bit = chance.randrange(len(data)), chance.randrange(8)
            yield self.with_file(path, flipped(data, at, bit), f"bit {bit} at {at}")

    def check(self, damaged: Damaged) -> None:
        with Store("data", fs=damaged.disk, clock=self.machine.clock, upkeep=False) as store:
            missing = self.left - self.received(store)
        assert not missing, damaged.what


class KeyedWorld(World):
    folder = "data/queue/queues/q/consumers/w"

    def use(self, stores: list[Store], compact_after: int) -> None:
        queue = stores[0].queue(
            "q",
            compact_after=compact_after,
            visibility_timeout="1s",
            retry={"max_retries": None, "initial_backoff": 0},
        )
        other = stores[1].queue("q")
        queue.publish_many([(f"k{number % 5}", b"%d" % number) for number in range(COUNT)])
        consumers = [queue.consumer("w", key_order=True), other.consumer("w")]
        acked: set[int] = set()
        for number in range(10):
            if number == 5 and compact_after < COUNT:  # or it would wait until there is more
                queue.group("w")._snapshot()
            for message in consumers[number % 2].receive(3):
                if message.offset % 4 == 0 and message.delivery_count == 1:
                    message.nack(delay=0, error="no")
                elif message.offset % 7:  # the others stay leased, and hold up their key
                    message.ack()
                    acked.add(message.offset)
        consumers[1].close()
        self.left = frozenset(set(range(COUNT)) - acked)

    def received(self, store: Store) -> set[int]:
        found: set[int] = set()
        queue = store.queue("q")
        with queue.consumer("w", key_order=True) as consumer:
            idle = 0
            while idle < 3:
                messages = consumer.receive(5)
                idle = 0 if messages else idle + 1
                found |= set(offsets(messages))
                consumer.ack(messages)
                self.machine.clock.advance(1.1)
        assert queue.pending("w") == []
        return found


class StreamWorld(World):
    folder = "data/queue/queues/s/consumers/g"

    def use(self, stores: list[Store], compact_after: int) -> None:
        streams = [store.stream("s") for store in stores]
        streams[0].configure(compact_after=compact_after)
        streams[0].publish_many(numbers(COUNT))
        consumers = [stream.consumer("g", auto_commit=False) for stream in streams]
        gone = streams[1].consumer("g", auto_commit=False)
        got: list[list[int]] = [[], []]
        done: set[int] = set()
        for number in range(3):
            for consumer, mine in zip(consumers, got, strict=True):
                messages = consumer.receive(2)
                mine += offsets(messages)
                if number < 2:
                    consumer.commit(messages[0])
                    done.update(mine[:-1])
            gone.receive(1)
        gone.close()
        consumers[0].receive(3)
        self.left = frozenset(set(range(COUNT)) - done)

    def received(self, store: Store) -> set[int]:
        found: set[int] = set()
        stream = store.stream("s")
        with stream.consumer("g") as consumer:
            while messages := consumer.receive(7):
                found |= set(offsets(messages))
            consumer.commit()
            assert consumer.committed == COUNT
        return found


each_world = pytest.mark.parametrize("world", [KeyedWorld, StreamWorld])
each_way = pytest.mark.parametrize("snapshots", SNAPSHOTS)


@each_world
@each_way
def test_whichever_line_is_lost(machine: Machine, world: type[World], snapshots: str) -> None:
    made = world(machine, SNAPSHOTS[snapshots])
    for damaged in made.with_lines():
        made.check(damaged)


@each_world
@each_way
def test_whichever_shard_is_lost(machine: Machine, world: type[World], snapshots: str) -> None:
    made = world(machine, SNAPSHOTS[snapshots])
    for damaged in made.with_shards():
        made.check(damaged)


@each_world
@each_way
def test_whichever_bit_is_another(machine: Machine, world: type[World], snapshots: str) -> None:
    made = world(machine, SNAPSHOTS[snapshots])
    for damaged in made.with_bits(1, 10):
        made.check(damaged)


@pytest.mark.long
@each_world
@each_way
def test_whichever_bit_is_another_for_long(
    machine: Machine, world: type[World], snapshots: str
) -> None:
    made = world(machine, SNAPSHOTS[snapshots])
    for damaged in made.with_bits(random.randrange(2**32), 1_000):
        made.check(damaged)


# --- one by one -------------------------------------------------------------------------------


def keyed(store: Store, count: int = 6) -> Queue:
    queue = store.queue("q", visibility_timeout="1s", retry={"max_retries": None})
    queue.publish_many([("k", value) for value in numbers(count)])
    return queue


def journal_of(machine: Machine, store: Store, queue: str, group: str) -> tuple[str, list[bytes]]:
    path = f"{store.layout.group(queue, group)}/ops.log"
    return path, machine.disk.read(path).rstrip(b"\0").splitlines(keepends=True)


def test_a_shard_that_is_lost_is_lost_for_all_who_have_the_group_open(machine: Machine) -> None:
    """Or those who know what was in it would be at something else than who came later."""
    first = machine.open()
    queue = keyed(first)
    consumer = queue.consumer("w", key_order=True)
    held = one(consumer)
    queue.group("w")._snapshot()
    path = f"{first.layout.group('q', 'w')}/{pel_name(0)}"
    machine.disk.put(path, machine.disk.read(path)[:20])
    with machine.open() as second:
        other = second.queue("q").consumer("w")
        assert values(other.receive(9)) == [b"0", b"1"]  # whose line has lost its head
        groups = [store.queue("q").group("w") for store in (first, second)]
        assert queue.pending("w") == second.queue("q").pending("w")
        assert groups[0].state.dump() == groups[1].state.dump()
        with pytest.raises(LeaseLost):
            held.ack()


def test_a_claim_that_is_lost_leaves_nobody_parked(machine: Machine) -> None:
    first = machine.open()
    queue = keyed(first, 1)
    with queue.consumer("w", key_order=True) as consumer:
        one(consumer)
        queue.publish_many([("k", b"%d" % number) for number in range(1, 4)])
        assert consumer.receive(9) == []
        path, lines = journal_of(machine, first, "q", "w")
        [number] = [n for n, line in enumerate(lines) if b'"r":[0,1]' in line]
        position = sum(map(len, lines[:number])) + 30
        machine.disk.corrupt(path, position, b"?")
        with machine.open() as second:
            other = second.queue("q").consumer("w")
            assert values(other.receive(9)) == [b"0", b"1"]
            assert states(queue) == states(second.queue("q"))
            assert [state for state, _ in states(queue).values()] == [
                *("leased", "leased", "parked", "parked")
            ]
            other.close()
    first.close()
    machine.clock.advance(2)
    with machine.open() as store:
        assert drain(store.queue("q").consumer("w")) == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("word", ["options", "join"])
def test_the_order_of_keys_is_not_lost_with_a_line(machine: Machine, word: str) -> None:
    queue = keyed(store := machine.open())
    queue.consumer("w", key_order=True)
    path, lines = journal_of(machine, store, "q", "w")
    machine.kill()
    [line] = [line for line in lines if b'"t":"%b"' % word.encode() in line]
    machine.disk.put(path, b"".join(lines).replace(line, flipped(line, 30, 0)))
    with machine.open() as store:
        consumer = store.queue("q").consumer("w")
        assert values(consumer.receive(9)) == [b"0"]
        store.queue("q").consumer("w", key_order=True)  # as it was made


def test_who_is_no_member_any_more_comes_in_again(machine: Machine) -> None:
    """Its line was damaged, which it had read before."""
    first = machine.open()
    stream = first.stream("s")
    stream.publish_many(numbers(9))
    consumer = stream.consumer("g", id="me", auto_commit=False)
    assert offsets(consumer.receive(2)) == [0, 1]
    path, lines = journal_of(machine, first, "s", "g")
    [number] = [n for n, line in enumerate(lines) if b'"t":"join"' in line]
    machine.disk.corrupt(path, sum(map(len, lines[:number])) + 30, b"?")
    with machine.open() as second:
        other = second.stream("s").consumer("g", id="other", auto_commit=False)
        assert offsets(other.receive(1)) == [0]
        assert offsets(consumer.receive(1)) == [1]
        names = {member.id for member in second.stream("s").groups()[0].members}
        assert names == {"me", "other"}
        assert offsets(other.receive(2)) == [2, 3]  # and what it has now stays with it
        consumer.commit()
        other.commit()
        assert consumer.committed == 4


def test_what_somebody_has_who_never_came_is_given_to_others(machine: Machine) -> None:
    """As a version left it that could not tell."""
    stream = machine.open().stream("s")
    stream.publish_many(numbers(6))
    group = stream.group("g")
    with group._turn:
        group.commit({"t": "take", "c": "ghost", "f": 0, "x": 4, "n": 4})
    assert offsets(stream.consumer("g").receive(9)) == [0, 1, 2, 3]


def test_a_group_whose_first_line_is_damaged_is_the_same_group(machine: Machine) -> None:
    first = machine.open()
    queue = keyed(first)
    consumer = queue.consumer("w", key_order=True)
    queue.group("w")._snapshot()
    path, lines = journal_of(machine, first, "q", "w")
    machine.disk.corrupt(path, 30, b"?")
    with machine.open() as second:
        assert values(second.queue("q").consumer("w").receive(9)) == [b"0"]
        begin = parse_line(journal_of(machine, second, "q", "w")[1][0][:-1])
        old = parse_line(lines[0][:-1])
        assert begin is not None
        assert old is not None
        assert begin["id"] == old["id"]
        assert consumer.receive(9) == []  # nobody has deleted it


def test_what_is_shown_is_what_would_come(machine: Machine) -> None:
    """To those who look from outside, too: a group as its next consumer would find it."""
    queue = keyed(store := machine.open())
    consumer = queue.consumer("w", key_order=True)
    assert values(consumer.receive(9)) == [b"0"]
    path, lines = journal_of(machine, store, "q", "w")
    machine.kill()
    machine.clock.advance(2)
    claim = next(op for op in map(parse_line, (line[:-1] for line in lines)) if op and "r" in op)
    parked = {**claim, "f": 1, "parked": [1, 5], "keys": claim["keys"][2:]}
    del parked["r"]
    kept = [line for line in lines if b'"r"' not in line]
    machine.disk.put(path, b"".join([*kept, b"damaged\n", encode_line(parked)]))
    with machine.open() as store, store.look.log("q") as log:
        assert log is not None
        shown = store.look.peek(store.look.group("q", "w"), "q", log, 9)
        assert values(shown) == [b"0", b"1"]
        assert values(store.queue("q").peek("w", 9)) == [b"0", b"1"]
