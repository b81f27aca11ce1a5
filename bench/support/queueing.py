"""Queues, ours and those of peers, as the rows use them: filled, then claimed from and settled.

`Claims` is one consumer, whoever made it. `drain` is the work that is measured.
"""

from __future__ import annotations

import contextlib
import os
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from time import perf_counter_ns, process_time
from typing import Any

import tailrace
from bench.peers import Peer
from bench.peers.queues import embedded_queue_peers
from bench.support.setting import BATCH
from tailrace.cli.measure import Sample, cycle_of

__all__ = [
    "GROUP",
    "OURS",
    "Claims",
    "OurQueue",
    "drain",
    "drain_all",
    "drain_peer",
    "join_queue",
    "open_queue",
    "tree_size",
]

OURS = "queue"  # where a name of a peer might be
GROUP = "workers"
_QUEUE = "work"
_WAIT_S = 1.0
_WAIT_TOGETHER_S = 0.1  # when others have the rest, it is over
_FOREVER = "10m"  # longer than any row: a lease that ends would be claimed again


@dataclass(frozen=True)
class Claims:
    """A consumer: `claim` gives the next messages, none if there are none; `settle` ends them."""

    claim: Callable[[], Sequence[Any]]
    settle: Callable[[Any], object]


class OurQueue:
    """A classic queue. It has a consumer where one is asked for: who only publishes has none."""

    def __init__(self, queue: Any) -> None:
        self.publish: Callable[[bytes], object] = queue.publish
        self._queue = queue

    @cached_property
    def consumer(self) -> Any:
        return self._queue.consumer(group=GROUP)

    def fill(self, values: Sequence[bytes], count: int, batch: int = BATCH) -> None:
        """Publish so many messages, in batches, to a group that is there before the first."""
        assert self.consumer is not None
        left = count
        while left:
            size = min(left, batch)
            self._queue.publish_many(list(cycle_of(values, size)))
            left -= size

    def claims(self, size: int, wait_s: float = _WAIT_S) -> Claims:
        """In batches of a size, or one by one."""
        receive = self.consumer.receive

        def claim() -> Sequence[Any]:
            messages: Sequence[Any] = receive(size, wait=wait_s)
            for message in messages:
                _ = message.value
            return messages

        def settle_one(messages: Sequence[Any]) -> None:
            messages[0].ack()

        return Claims(claim, settle_one if size == 1 else self.consumer.ack)

    def hold(self, count: int, size: int) -> None:
        """Claim so many, and keep none of them: they stay pending."""
        receive = self.consumer.receive
        held = 0
        while held < count:
            got = len(receive(min(size, count - held), wait=_WAIT_S))
            if not got:
                raise RuntimeError(f"only {held} of {count} messages could be claimed")
            held += got

    def settle_every_second(self, count: int) -> int:
        """Claim so many, settle the first, the third and so on, and give back the others: how many
        those are."""
        receive, claimed = self.consumer.receive, list[Any]()
        while len(claimed) < count and (got := receive(count - len(claimed), wait=_WAIT_S)):
            claimed += got
        self.consumer.ack(claimed[::2])
        self.consumer.release(claimed[1::2])
        return len(claimed[1::2])


@contextlib.contextmanager
def open_queue(folder: Path, flush: str = "async") -> Iterator[OurQueue]:
    store = tailrace.open(folder, flush=flush)
    try:
        yield OurQueue(store.queue(_QUEUE, visibility_timeout=_FOREVER))
    finally:
        store.close()


@contextlib.contextmanager
def join_queue(kind: str, folder: Path, size: int) -> Iterator[Claims]:
    """As one of several processes: ours, or the peer of that name."""
    if kind == OURS:
        with open_queue(folder) as queue:
            yield queue.claims(size, _WAIT_TOGETHER_S)
        return
    session = next(peer for peer in embedded_queue_peers() if peer.name == kind).open(folder)
    assert session.claim is not None
    assert session.settle is not None
    claim = session.claim
    try:
        yield Claims(lambda: claim(size), session.settle)
    finally:
        session.close()


def drain(claims: Claims, count: int, seconds: float = float("inf")) -> Sample:
    """Claim and settle until so many are done, nothing comes any more, or the time is over. The
    latencies are of a claim and its settlement together. Waiting in vain is not in the time."""
    claim, settle = claims.claim, claims.settle
    latencies = array("q")
    note, clock = latencies.append, perf_counter_ns
    done = 0
    used = process_time()
    began = before = clock()
    until = began + seconds * 1e9
    while done < count:
        claimed = claim()
        if not claimed:
            break
        settle(claimed)
        now = clock()
        note(now - before)
        before = now
        done += len(claimed)
        if now > until:
            break
    extra = {"cpu_seconds": process_time() - used}
    return Sample(done, (before - began) / 1e9, latencies, extra)


def drain_all(claims: Claims, count: int) -> Sample:
    """All of so many messages that are there."""
    sample = drain(claims, count)
    if sample.count != count:
        raise RuntimeError(f"{sample.count} of {count} messages came")
    return sample


def drain_peer(
    peer: Peer, folder: Path, values: Sequence[bytes], size: int, depth: int, seconds: float
) -> Sample:
    """A peer for so many seconds. It never has more than `depth` messages, which suits those that
    get slower with them; filling is not in the time."""
    session = peer.open(folder)
    assert session.claim is not None
    assert session.settle is not None
    claim = session.claim
    claims = Claims(lambda: claim(size), session.settle)
    whole = Sample(0, 0.0)
    try:
        while whole.seconds < seconds:
            if session.put_batch is not None:
                session.put_batch(list(cycle_of(values, depth)))
            else:
                for value in cycle_of(values, depth):
                    session.put(value)
            part = drain(claims, depth, seconds - whole.seconds)
            if not part.count:
                raise RuntimeError("nothing could be claimed")
            whole.add(part)
    finally:
        session.close()
    return whole


def tree_size(folder: Path) -> int:
    """The bytes of all files in it, of which some may go meanwhile."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.stat(os.path.join(path, name)).st_size
    return total
