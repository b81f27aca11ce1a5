"""The checker of queues finds each anomaly in the smallest history that has it, and none beside it;
histories of a correct queue have none."""

from __future__ import annotations

import random

import pytest

from tailrace.testing.queue_history import (
    NAMES,
    Death,
    Delivery,
    Letter,
    Processed,
    Progress,
    Publish,
    QueueHistory,
    Settlement,
    check,
)

LEASE_S = 10.0


class Story:
    """A history, told in the order in which it happened. Each step takes a second."""

    def __init__(self, *values: str, flush: str = "sync", keyed: bool = False) -> None:
        keys = ("w",) if keyed else ()
        self.history = QueueHistory(groups=("w",), keyed=keys, flush=flush)
        self.time = 0.0
        for value in values:
            self.publish(value)

    def _next(self) -> tuple[float, float]:
        self.time += 1
        return self.time, self.time + 0.5

    def publish(self, value: str, outcome: str = "acked", offset: int | None = None) -> Story:
        """Of the values "a1", "a2" and "b1" the first two have the same key."""
        invoked, answered = self._next()
        if offset is None and outcome in ("acked", "written"):
            offset = len(self.history.publishes)
        self.history.publishes.append(
            Publish("p", value, invoked, outcome, offset, answered, value[0])
        )
        return self

    def deliver(
        self, value: str, attempt: int = 1, *, by: str = "c", offset: int | None = None
    ) -> Story:
        invoked, returned = self._next()
        place = self.offset(value) if offset is None else offset
        self.history.deliveries.append(
            Delivery("w", by, place, value, attempt, invoked, returned, LEASE_S)
        )
        return self

    def offset(self, value: str) -> int:
        return [each.value for each in self.history.publishes].index(value)

    def settle(
        self,
        kind: str,
        value: str,
        attempt: int = 1,
        *,
        outcome: str = "done",
        by: str = "c",
        offset: int | None = None,
        lease: float = 0.0,
    ) -> Story:
        invoked, answered = self._next()
        place = self.offset(value) if offset is None else offset
        told = None if outcome == "unknown" else answered
        self.history.settlements.append(
            Settlement("w", by, place, attempt, kind, invoked, outcome, told, lease)
        )
        return self

    def ack(self, value: str, attempt: int = 1, *, outcome: str = "done", by: str = "c") -> Story:
        return self.settle("ack", value, attempt, outcome=outcome, by=by)

    def wait(self, seconds: float = LEASE_S) -> Story:
        self.time += seconds
        return self

    def kill(self, consumer: str = "c") -> Story:
        self.history.deaths.append(Death(consumer, self._next()[0]))
        return self

    def cut(self) -> Story:
        self.history.cuts.append(self._next()[0])
        return self

    def bury(self, value: str, offset: int | None = None) -> Story:
        place = self.offset(value) if offset is None else offset
        self.history.dead.append(Letter("w", place, value))
        return self

    def leave(self, *values: str) -> Story:
        self.history.left += [Letter("w", self.offset(value), value) for value in values]
        return self

    def redrive(self) -> Story:
        self.history.redriven = True
        return self

    def process(self, offset: int, value: str) -> Story:
        self.history.processed.append(Processed("w", "c", offset, value, self._next()[0]))
        return self

    def ask(self, committed: int) -> Story:
        self.history.progress.append(Progress("w", committed, *self._next()))
        return self

    def names(self) -> list[str]:
        return sorted(check(self.history).names)


def stream(*values: str) -> Story:
    story = Story(*values)
    story.history.groups, story.history.streams = (), ("w",)
    return story


# What goes with it.
BESIDE = {
    "back after an ack, anew": ["overlap"],
    "committed, and never given to anybody": ["lost"],
}


GOOD: dict[str, Story] = {
    "nothing": Story(),
    "acked": Story("a").deliver("a").ack("a"),
    "left": Story("a", "b").deliver("a").leave("a", "b"),
    "unknown and there": Story().publish("a", "unknown").deliver("a", offset=0).settle(
        "ack", "a", offset=0
    ),
    "unknown and not there": Story().publish("a", "unknown"),
    "not written": Story().publish("a", "failed"),
    "again when the lease was over": Story("a").deliver("a").wait().deliver("a", 2).ack("a", 2),
    "too late": Story("a").deliver("a").wait().deliver("a", 2, by="d").ack("a", outcome="lost").ack(
        "a", 2, by="d"
    ),
    "late, and nobody had it": Story("a").deliver("a").wait().ack("a"),
    "again after a nack": Story("a").deliver("a").settle("nack", "a").deliver("a", 2).ack("a", 2),
    "again after a release": Story("a").deliver("a").settle("release", "a").deliver("a", 2).ack(
        "a", 2
    ),
    "a release in doubt": Story("a").deliver("a").settle("release", "a", outcome="unknown").deliver(
        "a", 2
    ).ack("a", 2),
    "an ack in doubt that was none": Story("a").deliver("a").ack("a", outcome="unknown").kill()
    .deliver("a", 2, by="d").ack("a", 2, by="d"),
    "an ack in doubt that was one": Story("a").deliver("a").ack("a", outcome="unknown").kill(),
    "again after a death": Story("a").deliver("a").kill().deliver("a", 2, by="d").ack(
        "a", 2, by="d"
    ),
    "a delivery nobody wrote down": Story("a").deliver("a").wait().deliver("a", 3).ack("a", 3),
    "extended": Story("a").deliver("a").settle("extend", "a", lease=30).wait(30).deliver("a", 2)
    .ack("a", 2),
    "a second ack is refused": Story("a").deliver("a").ack("a").ack("a", outcome="lost"),
    "rejected": Story("a").deliver("a").settle("reject", "a").bury("a"),
    "rejected in doubt": Story("a").deliver("a").settle("reject", "a", outcome="unknown").leave(
        "a"
    ),
    "nacked too often": Story("a").deliver("a").settle("nack", "a").bury("a"),
    "redriven": Story("a").deliver("a").settle("reject", "a").redrive().deliver(
        "a", offset=1
    ).settle("ack", "a", offset=1),
    "keys in order": Story("a1", "b1", "a2", keyed=True).deliver("a1").deliver("b1").ack("a1")
    .deliver("a2").ack("b1").ack("a2"),
    "a key whose first one died": Story("a1", "a2", keyed=True).deliver("a1").wait().deliver("a2")
    .ack("a2").bury("a1"),
    "a key whose first one is in doubt": Story("a1", "a2", keyed=True).deliver("a1").ack(
        "a1", outcome="unknown"
    ).kill().deliver("a2", by="d").ack("a2", by="d"),
    "a cut ends leases": Story("a").deliver("a").cut().deliver("a", 2, by="d").ack("a", 2, by="d"),
    "a cut takes what is not flushed": Story("a", "b", flush="async").deliver("a").ack("a").cut()
    .deliver("a", 2).ack("a", 2),
    "processed": stream("a", "b").process(0, "a").ask(1).process(1, "b").process(1, "b").ask(2),
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_a_correct_queue_has_no_anomaly(name: str) -> None:
    report = check(GOOD[name].history)
    assert report.ok, report


def test_a_receiver_that_was_asleep_is_told_from_a_message_that_came_back() -> None:
    story = Story("a").deliver("a", 1, by="d").wait().deliver("a", 2).ack("a", 2)
    slow = story.history.deliveries[0]
    story.history.deliveries[0] = slow._replace(returned=story.time + 5)
    assert not story.names()


BAD: dict[str, tuple[Story, str]] = {
    "never seen": (Story("a"), "lost"),
    "nacked, and gone": (Story("a").deliver("a").settle("nack", "a"), "lost"),
    "rejected in doubt, and gone": (
        Story("a").deliver("a").settle("reject", "a", outcome="unknown"),
        "lost",
    ),
    "written, and gone": (Story().publish("a", "written"), "lost"),
    "gone after a cut": (Story("a").cut(), "lost"),
    "nobody published it": (Story().deliver("x", offset=0).settle("ack", "x", offset=0), "phantom"),
    "nobody published what is left": (Story("a").leave("a").bury("x", 7), "phantom"),
    "not written, and there": (Story().publish("a", "failed").deliver("a", offset=0), "aborted"),
    "another value": (
        Story("a", "b").deliver("a", offset=1).leave("a", "b"),
        "inconsistent offset",
    ),
    "two succeed": (
        Story("a").deliver("a").ack("a").settle("ack", "a"),
        "acked twice",
    ),
    "back after an ack": (Story("a").deliver("a").ack("a").deliver("a", 2), "undone"),
    "back after an ack, anew": (Story("a").deliver("a").ack("a").wait().deliver("a", 1), "undone"),
    "back after a cut": (Story("a").deliver("a").ack("a").cut().deliver("a", 2), "undone"),
    "back from the dead": (
        Story("a").deliver("a").settle("reject", "a").bury("a").deliver("a", 2),
        "undone",
    ),
    "two have it": (Story("a").deliver("a").deliver("a", 2, by="d").leave("a"), "overlap"),
    "two have one lease": (
        Story("a").deliver("a").wait().deliver("a", by="d").leave("a"),
        "overlap",
    ),
    "two have it after an extension": (
        Story("a").deliver("a").settle("extend", "a", lease=30).wait().deliver("a", 2, by="d")
        .leave("a"),
        "overlap",
    ),
    "one had lost it": (
        Story("a").deliver("a").wait().deliver("a", 2, by="d").settle("nack", "a").leave("a"),
        "stale",
    ),
    "one still had it": (Story("a").deliver("a").ack("a", outcome="lost").leave("a"), "refused"),
    "acked and left": (Story("a").deliver("a").ack("a").leave("a"), "two places"),
    "acked and dead": (Story("a").deliver("a").ack("a").bury("a"), "two places"),
    "left twice": (Story("a").leave("a", "a"), "two places"),
    "acked at two offsets": (
        Story("a").deliver("a").ack("a").redrive().deliver("a", offset=5).settle(
            "ack", "a", offset=5
        ),
        "two places",
    ),
    "two dead letters": (
        Story("a").deliver("a").settle("reject", "a").bury("a").bury("a"),
        "dead twice",
    ),
    "rejected, and left": (
        Story("a").deliver("a").settle("reject", "a").leave("a"),
        "not buried",
    ),
    "the second of a key first": (
        Story("a1", "a2", keyed=True).deliver("a2").deliver("a1").ack("a1").ack("a2"),
        "reordered",
    ),
    "the second of a key too early": (
        Story("a1", "a2", keyed=True).deliver("a1").deliver("a2").ack("a1").ack("a2"),
        "reordered",
    ),
    "the first of a key again": (
        Story("a1", "a2", keyed=True).deliver("a1").ack("a1", outcome="unknown").deliver("a2")
        .deliver("a1", 2).ack("a1", 2).ack("a2"),
        "reordered",
    ),
    "committed too early": (stream("a").ask(1).process(0, "a"), "ahead"),
    "committed, and never given to anybody": (stream("a", "b").process(0, "a").ask(2), "ahead"),
    "committed less than before": (
        stream("a", "b").process(0, "a").process(1, "b").ask(2).ask(1),
        "went back",
    ),
    "never given to anybody": (stream("a", "b").process(0, "a"), "lost"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_went_wrong_is_called_by_its_name(name: str) -> None:
    story, expected = BAD[name]
    found = story.names()
    assert found == sorted([expected, *BESIDE.get(name, [])]), check(story.history)


def test_every_name_is_found_in_some_history() -> None:
    assert {expected for _story, expected in BAD.values()} == set(NAMES)


def test_what_is_wrong_is_shown_with_some_examples() -> None:
    report = check(Story(*map(str, range(20))).history)
    text = str(report)
    assert text.startswith("20 anomalies\n  20 published\nlost: 20\n  0 '0' is nowhere in w\n")
    assert text.endswith("\n  and 15 more")
    assert str(report.anomalies[0]) == "lost: 0 '0' is nowhere in w"


def test_what_is_no_history_is_refused() -> None:
    with pytest.raises(ValueError, match="published twice"):
        check(Story("a", "a").history)
    with pytest.raises(ValueError, match="makes no sense"):
        check(Story().publish("a", "unknown", offset=3).history)
    with pytest.raises(ValueError, match="makes no sense"):
        check(Story("a").deliver("a").settle("eat", "a").history)


def random_life(rng: random.Random) -> Story:
    """What a correct queue may do to some messages, with two consumers that die now and then."""
    story = Story(*(f"{rng.choice('abc')}{number}" for number in range(12)))
    for value in [each.value for each in story.history.publishes]:
        attempt, number = 0, 0
        while True:
            attempt += 1
            number += 1
            me = f"c{value}{number}"
            story.deliver(value, attempt, by=me)
            what = rng.random()
            if what < 0.5:
                story.ack(value, attempt, by=me, outcome=rng.choice(("done", "done", "unknown")))
                break
            if what < 0.6:
                story.settle("reject", value, attempt, by=me).bury(value)
                break
            if what < 0.7:
                story.settle(rng.choice(("nack", "release")), value, attempt, by=me)
            elif what < 0.8:
                story.kill(me)
            elif what < 0.9:
                story.settle("extend", value, attempt, by=me, lease=3.0).wait(3.0)
            else:
                story.wait()
        if rng.random() < 0.3:
            story.settle("ack", value, attempt, by=me, outcome="lost")
    return story


@pytest.mark.parametrize("seed", range(50))
def test_a_random_life_has_no_anomaly_until_something_is_done_to_it(seed: int) -> None:
    rng = random.Random(seed)
    history = random_life(rng).history
    report = check(history)
    assert report.ok, f"seed {seed}: {report}"
    rng.shuffle(history.deliveries)
    rng.shuffle(history.settlements)
    assert check(history).ok
    done = [s for s in history.settlements if (s.kind, s.outcome) == ("ack", "done")]
    chosen = rng.choice(done)
    history.settlements.remove(chosen)
    assert "lost" in check(history).names
    history.settlements += [chosen, chosen._replace(attempt=chosen.attempt + 1)]
    assert "acked twice" in check(history).names
