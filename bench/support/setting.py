"""Where and how large: the scratch folder of a run, its sizes, and the payload."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import time_ns

from bench.peers import Peer, Servers, known_peers
from tailrace.kernel import encode, encode_one

__all__ = [
    "FULL",
    "QUICK",
    "TINY",
    "Payload",
    "PipelineSizes",
    "QueueSizes",
    "Setting",
    "Sizes",
]

VALUE_SIZE = 256
BATCH = 1000
_POOL = 16  # batches that differ, so that the source is not always in the nearest cache


@dataclass(frozen=True)
class QueueSizes:
    """How much work the rows about queues do. Peers never have more than `peer_depth` messages."""

    messages: int  # claimed in batches
    singles: int
    sync_singles: int
    pending: int  # while others are claimed
    streamed: int
    published: int
    held: int  # for the memory that they take
    fanned: int  # messages of which ten queues get a copy
    sync_fanned: int
    queues: int  # with a message each
    delayed: int
    punctual: int  # of those that are waited for until they are due
    expiring: int  # published with a TTL, and as many without
    passed: int  # published, consumed, deleted, by and by
    starts: int  # of an interpreter
    worker_seconds: float  # at most
    peer_depth: int
    peer_seconds: float


@dataclass(frozen=True)
class SparkSizes:
    """How many rows a table has, of values of 100 bytes and of a kilobyte."""

    small: int
    large: int


@dataclass(frozen=True)
class PipelineSizes:
    """How much the rows about whole stores have to do."""

    stored: int  # bytes of values in a store
    spread: int  # in one that is large enough for Spark


@dataclass(frozen=True)
class Sizes:
    """How much work each row does. Peers stop after `peer_seconds` at the latest."""

    rounds: int
    batches: int
    singles: int
    timed_singles: int
    sync_singles: int
    sync_batches: int
    peer_seconds: float
    concurrent_seconds: float
    writers: int
    read_records: int
    seek_records: int
    seeks: int
    large_log: int
    small_log: int
    last_segment_records: int
    twin_records: int
    twin_passes: int
    # with several processes: a round has so many slices of so many seconds
    slices: int
    slice_seconds: float
    wake_records: int  # in a slice
    followers: int
    follower_records: int
    idle_seconds: float
    queue: QueueSizes
    spark: SparkSizes
    pipeline: PipelineSizes


FULL = Sizes(
    rounds=5,
    batches=8_000,  # two gigabytes in 32 segments: more than a log may be ahead of its disk
    singles=500_000,  # three segments
    timed_singles=100_000,
    sync_singles=2_000,
    sync_batches=150,
    peer_seconds=0.7,
    concurrent_seconds=1.5,
    writers=64,
    read_records=1_000_000,
    seek_records=10_000_000,
    seeks=2_000,
    large_log=10_000_000_000,
    small_log=100_000_000,
    last_segment_records=180_000,
    twin_records=10_000,
    twin_passes=15,
    slices=4,
    slice_seconds=0.25,
    wake_records=250,
    followers=100,
    follower_records=25,
    idle_seconds=2.0,
    queue=QueueSizes(
        messages=100_000,
        singles=20_000,
        sync_singles=1_000,
        pending=100_000,
        streamed=200_000,
        published=50_000,
        held=100_000,
        fanned=2_000,
        sync_fanned=120,
        queues=1_000,
        delayed=100_000,
        punctual=20_000,
        expiring=40_000,
        passed=10_000_000,
        starts=15,
        worker_seconds=5.0,
        peer_depth=1_000,
        peer_seconds=0.5,
    ),
    spark=SparkSizes(small=5_000_000, large=1_000_000),
    pipeline=PipelineSizes(stored=300_000_000, spread=4_300_000_000),
)
QUICK = Sizes(
    rounds=3,
    batches=300,
    singles=20_000,
    timed_singles=10_000,
    sync_singles=300,
    sync_batches=20,
    peer_seconds=0.1,
    concurrent_seconds=0.4,
    writers=64,
    read_records=100_000,
    seek_records=200_000,
    seeks=300,
    large_log=1_000_000_000,
    small_log=100_000_000,
    last_segment_records=20_000,
    twin_records=2_000,
    twin_passes=5,
    slices=2,
    slice_seconds=0.1,
    wake_records=100,
    followers=100,
    follower_records=15,
    idle_seconds=0.5,
    queue=QueueSizes(
        messages=20_000,
        singles=2_000,
        sync_singles=200,
        pending=20_000,
        streamed=50_000,
        published=10_000,
        held=20_000,
        fanned=300,
        sync_fanned=20,
        queues=200,
        delayed=10_000,
        punctual=2_000,
        expiring=4_000,
        passed=200_000,
        starts=5,
        worker_seconds=2.0,
        peer_depth=500,
        peer_seconds=0.1,
    ),
    spark=SparkSizes(small=400_000, large=80_000),
    pipeline=PipelineSizes(stored=60_000_000, spread=60_000_000),
)
TINY = Sizes(  # for the test of the benchmark itself
    rounds=1,
    batches=3,
    singles=50,
    timed_singles=50,
    sync_singles=5,
    sync_batches=2,
    peer_seconds=0.02,
    concurrent_seconds=0.05,
    writers=4,
    read_records=3_000,
    seek_records=20_000,
    seeks=20,
    large_log=70_000_000,
    small_log=2_000_000,
    last_segment_records=100,
    twin_records=50,
    twin_passes=2,
    slices=1,
    slice_seconds=0.02,
    wake_records=5,
    followers=4,
    follower_records=4,
    idle_seconds=0.1,
    queue=QueueSizes(
        messages=500,
        singles=20,
        sync_singles=10,
        pending=300,
        streamed=1_500,
        published=50,
        held=300,
        fanned=8,
        sync_fanned=4,
        queues=12,
        delayed=200,
        punctual=50,
        expiring=40,
        passed=2_000,
        starts=1,
        worker_seconds=1.0,
        peer_depth=20,
        peer_seconds=0.01,
    ),
    spark=SparkSizes(small=800, large=400),
    pipeline=PipelineSizes(stored=2_000_000, spread=2_000_000),
)


class Payload:
    """The values to append, and the same as the bytes that a log writes for them."""

    def __init__(self) -> None:
        now_ms = time_ns() // 1_000_000
        self.batches = [[os.urandom(VALUE_SIZE) for _ in range(BATCH)] for _ in range(_POOL)]
        self.values = [value for batch in self.batches for value in batch]
        self.encoded_batches = [bytes(encode(batch, now_ms).place(0)) for batch in self.batches]
        self.encoded_values = [
            bytes(encode_one(value, now_ms=now_ms).place(0)) for value in self.values
        ]


@dataclass
class Setting:
    """One run of a benchmark."""

    folder: Path
    sizes: Sizes
    with_peers: bool = True
    payload: Payload = field(default_factory=Payload)
    find_peers: Callable[[Servers], list[Peer]] = known_peers

    def __post_init__(self) -> None:
        self.servers = Servers(self.folder / "servers")
        self.peers = self.find_peers(self.servers) if self.with_peers else []

    @contextlib.contextmanager
    def scratch(self, name: str) -> Iterator[Path]:
        """A new folder, gone afterwards: what was not written to the disk yet never will be, and
        so does not slow down whoever comes next."""
        path = self.folder / name
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def peers_that(self, *, durable: bool, can: str) -> list[Peer]:
        return [peer for peer in self.peers if peer.durable == durable and can in peer.can]

    def close(self) -> None:
        self.servers.stop()
