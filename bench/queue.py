"""The benchmark of queues: `scripts/bench queue`.

A row for each target: claiming and acknowledging, streams, publishing, waking a consumer in another
process, memory; copies for several queues, many queues, messages for later and messages that
expire, a long run, starting, and messages that come again. As in `bench.log`, tailrace, the limit
of the machine and the peers do the same work in turns; what a peer promises is said below the
table.
"""

from __future__ import annotations

from collections.abc import Callable

from bench.peers.queues import queue_peers
from bench.rows.claims import (
    claim_batches,
    claim_by_workers,
    claim_singles,
    claim_with_pending,
    redeliver_scattered,
)
from bench.rows.endurance import pass_many
from bench.rows.fan_out import fan_out
from bench.rows.later import publish_and_deliver_later, publish_expiring
from bench.rows.many_queues import open_many
from bench.rows.passing import hold_pending, publish_singles, receive_stream, wake_consumer
from bench.rows.starting import start
from bench.support.command import Benchmark
from bench.support.race import Row
from bench.support.setting import Setting

__all__ = ["ROWS", "choose", "main", "run"]

ROWS: dict[str, Callable[[Setting], Row]] = {
    "claim-batch": claim_batches,
    "claim-single": claim_singles,
    "claim-pending": claim_with_pending,
    "claim-workers": claim_by_workers,
    "stream-receive": receive_stream,
    "publish-single": publish_singles,
    "queue-wake": wake_consumer,
    "pending-memory": hold_pending,
    "fan-out": fan_out,
    "many-queues": open_many,
    "delayed": publish_and_deliver_later,
    "ttl": publish_expiring,
    "endurance": pass_many,
    "start": start,
    "redeliver": redeliver_scattered,
}

_QUEUE = Benchmark(
    "queue",
    ROWS,
    "Measure queues beside their peers and the limit of the machine.",
    "Values of 256 bytes; one core but in rows 4, 7, 10, 13, 14 and in servers. Times of a claim "
    "and its ack together, of a batch where it is one. In rows 1 and 2 peers have few messages "
    "waiting. "
    "Ratio: the speed of tailrace relative to that line, the median over the rounds. *: best peer.",
    queue_peers,
    codec="the store's own",
)
run, choose, main = _QUEUE.run, _QUEUE.choose, _QUEUE.command()

if __name__ == "__main__":
    main()
