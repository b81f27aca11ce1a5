"""What is done once for a message: recognised in any order, and forgotten when it is settled for
good, so that a group may go on like that for ever."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tailrace import Queue, Store
from tailrace.log.producers import Once
from tailrace.queue.message import new_record
from tests.queue.clocks import Machine
from tests.queue.conftest import OpenStore
from tests.queue.support import drain, numbers, one, values


def remembered(store: Store, name: str) -> dict[str, Any]:
    """What the queue's log says of producers, in its file."""
    path = Path(store.layout.segments(name)) / ".tailrace" / "producers"
    found: dict[str, Any] = json.loads(path.read_bytes())["producers"]
    return found


def do(queue: Queue, number: int, settled: int = 0) -> int:
    record = new_record(b"%d" % number, "$queue/q")
    return queue.append_accepted([record], Once("s", number, settled)).wait().offset


# --- which ones are recognised --------------------------------------------------------------------


def test_they_come_in_any_order_and_each_once(open_store: OpenStore) -> None:
    order = list(range(200))
    random.Random(7).shuffle(order)
    with open_store() as store:
        queue = store.queue("q")
        for number in order:
            do(queue, number)
            assert queue.has_done(Once("s", number, 0))
        for number in order:
            do(queue, number)
        assert values(queue.read()) == [b"%d" % number for number in order]
    with open_store() as store:
        queue = store.queue("q")
        assert all(queue.has_done(Once("s", number, 0)) for number in order)
        assert not queue.has_done(Once("s", 200, 0))
        assert not queue.has_done(Once("other", 0, 0))


def test_who_has_no_snapshot_reads_them_from_the_log(store: Store, open_store: OpenStore) -> None:
    queue = store.queue("q")
    for number, settled in ((5, 0), (3, 0), (9, 4)):
        do(queue, number, settled)
    other = open_store().queue("q")
    assert [n for n in range(12) if other.has_done(Once("s", n, 0))] == [5, 9]
    do(other, 7)
    assert queue.has_done(Once("s", 7, 0))


# --- how many are remembered ----------------------------------------------------------------------


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_group_that_answers_for_ever(open_store: OpenStore, flush: str) -> None:
    """Every third message has no answer, so that what is remembered has many holes."""
    with open_store() as store:
        queue = store.queue("q", flush=flush)
        answers = store.queue("answers", flush=flush)
        queue.publish_many(numbers(900))
        for number, message in enumerate(queue.consumer("w", prefetch=50)):
            message.ack(publish=[(answers, b"")] if number % 3 else [])
            if number % 100 == 0:
                queue.group("w").flush()
            if number == 899:
                break
        assert len(answers) == 600
    with open_store() as store:
        [steps] = remembered(store, "answers").values()
        assert len(steps["done"]) < 200
        assert steps["settled"] > 700


def test_a_log_that_nobody_flushes(store: Store) -> None:
    """What may not be durable is not remembered for ever, either."""
    queue = store.queue("q", flush="none")
    log, most = queue.log, 0
    for number in range(5000):
        do(queue, number, settled=number - 10)
        steps: Any = log._writing().producers._producers
        most = max(most, len(steps._producers["s"]._recent))
    assert 10 < most < 1200
    assert [n for n in range(5001) if queue.has_done(Once("s", n, 0))] == [*range(4989, 5000)]


def test_one_message_that_takes_long(open_store: OpenStore) -> None:
    """What is above it stays known, in few bytes."""
    with open_store() as store:
        queue, answers = store.queue("q"), store.queue("answers")
        queue.publish_many(numbers(300))
        consumer = queue.consumer("w")
        _stuck, *others = consumer.receive(300)
        for message in others:
            message.ack(publish=[(answers, b"")])
    with open_store() as store:
        [steps] = remembered(store, "answers").values()
        assert (steps["settled"], steps["done"]) == (0, [1, 299])


def test_letters_and_what_comes_back_of_them(open_store: OpenStore) -> None:
    with open_store() as store:
        queue = store.queue("q")
        consumer = queue.consumer("w")
        for turn in range(20):
            queue.publish_many(numbers(10))
            consumer.reject(consumer.receive(10), "bad")
            assert store.redrive("q") == 10
            consumer.ack(consumer.receive(10))
            assert len(store.dead("q")) == 0, turn
    with open_store() as store:
        [buried] = remembered(store, "$dlq/q").values()
        [back] = remembered(store, "q").values()
        assert len(buried["done"]) <= 4
        assert len(back["done"]) <= 4


# --- what counts as settled -----------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_what_a_power_cut_brings_back_is_answered_once(seed: int) -> None:
    """Acknowledgements of an `async` queue may be lost, and their answers are not: whoever gets
    the message again must not answer twice. And whose acknowledgement had no answer may have one
    now."""
    chance = random.Random(seed)
    with Machine(seed) as machine:
        store = machine.open()
        queue, answers = store.queue("q", flush="async"), store.queue("answers", flush="sync")
        queue.publish_many(numbers(60))
        queue.log.flush()
        found, answered = queue.consumer("w").receive(60), list[bytes | None]()
        for message in chance.sample(found, chance.randrange(60)):
            if chance.random() < 0.7:
                message.ack(publish=[(answers, message.value)])
                answered.append(message.value)
            else:
                message.ack()
            if chance.random() < 0.1:
                queue.group("w").flush()
        machine.power_cut(seed)
        with machine.open() as store:
            queue, answers = store.queue("q"), store.queue("answers")
            consumer, again = queue.consumer("w"), list[bytes | None]()
            while messages := consumer.receive(60):
                for message in messages:
                    message.ack(publish=[(answers, message.value)])
                    again.append(message.value)
            assert Counter(values(answers.read())) == dict.fromkeys([*answered, *again], 1)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("what", ["answer", "redrive"])
def test_what_came_of_a_message_is_on_the_disk_before_it_is_settled(seed: int, what: str) -> None:
    """Also in `async`: else a message that was there for long might be nowhere."""
    with Machine(seed) as machine:
        store = machine.open(flush="async")
        queue, answers = store.queue("q"), store.queue("answers")
        queue.publish(b"x")
        answers.publish(b"first")
        if what == "redrive":
            one(queue.consumer("w")).reject("bad")
            queue.group("w").flush()
        queue.log.flush()
        answers.log.flush()
        if what == "redrive":
            assert store.redrive("q") == 1
            store.get("$dlq/q").group("$dead").flush()
        else:
            one(queue.consumer("w")).ack(publish=[(answers, b"x")])
            queue.group("w").flush()
        machine.power_cut(seed)
        with machine.open() as store:
            queue, answers = store.queue("q"), store.queue("answers")
            left = [*drain(queue.consumer("w")), *values(answers.read())[1:]]
            assert [*left, *values(store.dead("q"))] == [b"x"]


# --- who else has the log -------------------------------------------------------------------------


def test_one_who_knows_less_leaves_and_another_deletes(open_store: OpenStore) -> None:
    """Who leaves stores what it knows in place of what others have stored."""
    first, second = open_store(), open_store()
    queue = first.queue("q", segment_bytes=2000)
    other: Any = second.get("q")
    do(other, 0)
    for number in range(1, 60):
        do(queue, number)
    second.close()
    queue.log.truncate_before(30)
    queue.log.vacuum()
    with open_store() as third:
        late: Any = third.get("q")
        assert late.log.start_offset == 30
        assert [n for n in range(61) if late.has_done(Once("s", n, 0))] == [*range(60)]


def test_producers_of_one_who_knows_less(open_store: OpenStore) -> None:
    first, second = open_store(), open_store()
    queue = first.queue("q", segment_bytes=2000)
    second.get("q").publish(b"x", producer="a", sequence=1)
    queue.publish(b"x", producer="b", sequence=1)
    for _ in range(60):
        queue.publish(bytes(100))
    second.close()
    queue.log.truncate_before(30)
    queue.log.vacuum()
    with open_store() as third:
        again = third.get("q")
        end = again.log.end_offset
        for producer in "ab":
            again.publish(b"x", producer=producer, sequence=1)
        assert again.log.end_offset == end


# --- once more ------------------------------------------------------------------------------------


def test_letters_come_back_again_after_their_group_was_reset(store: Store) -> None:
    queue = store.queue("q")
    queue.publish_many(numbers(6))
    consumer = queue.consumer("w")
    consumer.reject(consumer.receive(6), "bad")
    for _ in range(2):
        assert store.redrive("q") == 6
        assert values(consumer.receive(9)) == numbers(6)
        assert store.redrive("q") == 0
        letters: Any = store.get("$dlq/q")
        letters.group("$dead").reset(0)


def test_a_reset_that_returned_outlives_a_power_cut() -> None:
    for seed in range(10):
        with Machine(seed) as machine:
            store = machine.open()
            queue = store.queue("q")
            queue.publish_many(numbers(3))
            consumer = queue.consumer("w")
            consumer.ack(consumer.receive(3))
            queue.group("w").reset(1)
            machine.power_cut(seed)
            with machine.open() as store:
                assert values(store.queue("q").consumer("w").receive(9)) == numbers(3)[1:]
