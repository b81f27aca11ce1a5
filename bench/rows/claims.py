"""Rows 1 to 4 and 15 of queues: claiming and acknowledging, in batches and one by one, with much
pending, by several processes, and once more."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial

from bench.peers import Peer
from bench.support.crew import Crew
from bench.support.duel import Duel
from bench.support.queueing import (
    OURS,
    OurQueue,
    drain_all,
    drain_peer,
    open_queue,
    tree_size,
)
from bench.support.race import Check, Contestant, Line, Result, Role, Row, Unit, race
from bench.support.setting import Setting
from tailrace.cli.measure import RawFile, Sample, cycle_of, pinned, time_each

__all__ = [
    "claim_batches",
    "claim_by_workers",
    "claim_singles",
    "claim_with_pending",
    "peers_for",
    "redeliver_scattered",
]

CLAIM_BATCH = 100
_FEW = 10
_WORKERS = 4
_SLICES = 10  # those of a duel change places so often within a round
_TRIALS = 50
_USUAL_LINE = 64
_LARGE_BATCH = 20_000  # messages, as who publishes many at once makes them
_RATE = Unit.RECORDS_PER_SECOND


@contextlib.contextmanager
def _new_queue(setting: Setting, flush: str, name: str = "store") -> Iterator[OurQueue]:
    with setting.scratch(name) as folder, open_queue(folder, flush) as queue:
        yield queue


def peers_for(setting: Setting, *, durable: bool, can: str) -> list[Peer]:
    """Those that promise as much; and those that promise more since they cannot promise less."""
    return [
        peer
        for peer in setting.peers
        if can in peer.can and (peer.durable == durable or (peer.only_mode and not durable))
    ]


def _claiming_peers(setting: Setting, *, durable: bool, size: int) -> list[Contestant]:
    """Whoever has no batches does as many one by one, and is called so."""
    sizes = setting.sizes.queue

    def run(peer: Peer) -> Sample:
        with setting.scratch("peer") as folder:
            values, depth = setting.payload.values, sizes.peer_depth
            return drain_peer(peer, folder, values, size, depth, sizes.peer_seconds)

    contestants = []
    for peer in peers_for(setting, durable=durable, can="claim"):
        apart = size > 1 and "claim_batch" not in peer.can
        name = f"{peer.name}, one by one" if apart else peer.name
        contestants.append(Contestant(name, Role.PEER, partial(run, peer)))
    return contestants


def _best_embedded(setting: Setting, line: Line, *, libraries: bool = False) -> Result | None:
    """The fastest peer without a server; of `libraries`, those that are queues themselves."""
    known = {peer.name for peer in setting.peers if peer.embedded}
    if libraries:
        known = {name for name in known if not name.startswith("SQLite")}
    found = [
        result
        for result in line.results
        if result.role is Role.PEER and result.samples and result.name.split(", one")[0] in known
    ]
    return max(found, key=line.value, default=None)


# --- one process ----------------------------------------------------------------------------


def claim_batches(setting: Setting) -> Row:
    count = setting.sizes.queue.messages

    def ours() -> Sample:
        with _new_queue(setting, "async") as queue:
            queue.fill(setting.payload.values, count)
            return drain_all(queue.claims(CLAIM_BATCH), count)

    contestants = [
        Contestant("tailrace", Role.OURS, ours),
        *_claiming_peers(setting, durable=False, size=CLAIM_BATCH),
    ]
    with pinned() as core:
        results = race(contestants, setting.sizes.rounds)
    line = Line("claim + ack, async, batches of 100", _RATE, results)
    best = _best_embedded(setting, line)
    line.target = "150,000/s; 20x the best embedded peer"
    line.checks = [
        Check("messages/s", line.value(line.ours), 150_000.0),
        Check("x best embedded", line.speed_against(best), 20.0),
    ]
    library = _best_embedded(setting, line, libraries=True)
    if best is not None and library is not None:
        line.notes.append(
            f"the best embedded peer is {best.name}; of the queue libraries it is {library.name}, "
            f"to which the ratio is {line.speed_against(library):.1f}"
        )
    return _row(1, "claim-batch", [line], batch=CLAIM_BATCH, flush="async", core=core)


def claim_singles(setting: Setting) -> Row:
    with pinned() as core:
        lines = [_singles_async(setting), _singles_sync(setting)]
    return _row(2, "claim-single", lines, batch=1, flush=["async", "sync"], core=core)


def _singles_async(setting: Setting) -> Line:
    count = setting.sizes.queue.singles

    def ours() -> Sample:
        with _new_queue(setting, "async") as queue:
            queue.fill(setting.payload.values, count)
            return drain_all(queue.claims(1), count)

    contestants = [
        Contestant("tailrace", Role.OURS, ours),
        *_claiming_peers(setting, durable=False, size=1),
    ]
    line = Line("claim + ack one by one, async", _RATE, race(contestants, setting.sizes.rounds))
    line.target = "25,000/s"
    line.checks = [Check("messages/s", line.value(line.ours), 25_000.0)]
    return line


def _singles_sync(setting: Setting) -> Line:
    count = max(setting.sizes.queue.sync_singles // _SLICES, 1)
    size, said = _line_size(setting)

    def both() -> tuple[Sample, Sample]:
        mine, theirs = Sample(0, 0.0), Sample(0, 0.0)
        with (
            _new_queue(setting, "sync") as queue,
            setting.scratch("raw") as folder,
            RawFile(folder / "raw") as raw,
        ):
            queue.fill(setting.payload.values, count * _SLICES)
            claims, write = queue.claims(1), raw.syncing_writer()
            for _ in range(_SLICES):
                mine.add(drain_all(claims, count))
                theirs.add(time_each(write, cycle_of([bytes(size)], count)))
        return mine, theirs

    duel = Duel(both)
    contestants = [
        Contestant("tailrace", Role.OURS, duel.first),
        Contestant("write + fdatasync of a line", Role.LIMIT, duel.second),
        *_claiming_peers(setting, durable=True, size=1),
    ]
    line = Line("claim + ack one by one, sync", _RATE, race(contestants, setting.sizes.rounds))
    line.target = "80 % of write + fdatasync of a line"
    line.checks = [Check("of write + fdatasync", line.speed_against(line.limit()), 0.80)]
    line.notes.append(said)
    return line


def _line_size(setting: Setting) -> tuple[int, str]:
    """What one claim and its acknowledgement add to the files, and how that is known."""
    with setting.scratch("store") as folder, open_queue(folder, "sync") as queue:
        queue.fill(setting.payload.values, 2 * _TRIALS)
        claims = queue.claims(1)
        drain_all(claims, _TRIALS)
        before = tree_size(folder)
        drain_all(claims, _TRIALS)
        size = round((tree_size(folder) - before) / _TRIALS)
    if size > 0:
        return size, f"lines of {size} bytes, what a claim and its ack add to the files here"
    return _USUAL_LINE, f"lines of {_USUAL_LINE} bytes: the files did not grow"


# --- much that is pending -------------------------------------------------------------------


def claim_with_pending(setting: Setting) -> Row:
    """Both queues stay as they are over all rounds; what is claimed is new each time."""
    many, values = setting.sizes.queue.pending, setting.payload.values
    count = max(setting.sizes.queue.singles // _SLICES, 1)
    with (
        _new_queue(setting, "async", "many") as crowded,
        _new_queue(setting, "async", "few") as empty,
    ):
        for queue, pending in ((crowded, many), (empty, _FEW)):
            queue.fill(values, pending)
            queue.hold(pending, CLAIM_BATCH)

        def both() -> tuple[Sample, Sample]:
            queues = (crowded, empty)
            samples = Sample(0, 0.0), Sample(0, 0.0)
            for queue in queues:
                queue.fill(values, count * _SLICES)
            claims = [queue.claims(1) for queue in queues]
            for _ in range(_SLICES):
                for sample, of_one in zip(samples, claims, strict=True):
                    sample.add(drain_all(of_one, count))
            return samples

        duel = Duel(both)
        contestants = [
            Contestant(f"tailrace, {many:,} pending", Role.OURS, duel.first),
            Contestant(f"tailrace, {_FEW} pending", Role.BASE, duel.second),
        ]
        with pinned() as core:
            results = race(contestants, setting.sizes.rounds)
    line = Line(f"claim + ack one by one, {many:,} pending", _RATE, results)
    line.target = f"80 % of the rate with {_FEW} pending"
    line.checks = [Check(f"of {_FEW} pending", line.speed_against(line.results[1]), 0.80)]
    row = _row(3, "claim-pending", [line], batch=1, flush="async", core=core)
    row.conditions["pending"] = [many, _FEW]
    return row


# --- once more ------------------------------------------------------------------------------


def redeliver_scattered(setting: Setting) -> Row:
    """What comes again lies scattered in batches of which the rest is settled."""
    values, count = setting.payload.values, setting.sizes.queue.messages

    def both() -> tuple[Sample, Sample]:
        with (
            _new_queue(setting, "async", "again") as queue,
            _new_queue(setting, "async", "new") as other,
        ):
            queue.fill(values, count, _LARGE_BATCH)
            again = queue.settle_every_second(count)
            other.fill(values, again, _LARGE_BATCH)
            mine = drain_all(queue.claims(CLAIM_BATCH), again)
            return mine, drain_all(other.claims(CLAIM_BATCH), again)

    duel = Duel(both)
    contestants = [
        Contestant("tailrace, every second once more", Role.OURS, duel.first),
        Contestant("tailrace, as many new ones", Role.BASE, duel.second),
    ]
    with pinned() as core:
        results = race(contestants, setting.sizes.rounds)
    line = Line("redeliver, scattered, batches of 100", _RATE, results)
    line.target = "20 % of the rate of new ones"
    line.checks = [Check("of new ones", line.speed_against(line.results[1]), 0.20)]
    row = _row(15, "redeliver", [line], batch=CLAIM_BATCH, flush="async", core=core)
    row.conditions["published_batch"] = _LARGE_BATCH
    return row


# --- several processes ----------------------------------------------------------------------


def claim_by_workers(setting: Setting) -> Row:
    single = "tailrace, one worker"
    sizes, values = setting.sizes.queue, setting.payload.values

    with Crew(_WORKERS) as crew:

        def ours(workers: int) -> Sample:
            with setting.scratch("store") as folder:
                with open_queue(folder) as queue:
                    queue.fill(values, sizes.messages)
                return crew.drain(workers, folder, OURS, CLAIM_BATCH, sizes.worker_seconds)

        def theirs(peer: Peer) -> Sample:
            with setting.scratch("peer") as folder:
                session = peer.open(folder)
                assert session.put_batch is not None
                try:
                    session.put_batch(list(cycle_of(values, sizes.messages)))
                finally:
                    session.close()
                return crew.drain(_WORKERS, folder, peer.name, CLAIM_BATCH, sizes.worker_seconds)

        peers = peers_for(setting, durable=False, can="claim_batch")
        contestants = [
            Contestant(f"tailrace, {_WORKERS} workers", Role.OURS, partial(ours, _WORKERS)),
            Contestant(single, Role.BASE, partial(ours, 1)),
            *(
                Contestant(peer.name, Role.PEER, partial(theirs, peer))
                for peer in peers
                if peer.embedded
            ),
        ]
        results = race(contestants, setting.sizes.rounds)
    line = Line(f"claim + ack, batches of 100, {_WORKERS} workers", _RATE, results)
    line.target = "60 % of one worker"
    line.checks = [Check("of one worker", line.speed_against(line.find(single)), 0.60)]
    line.note_shares()
    row = _row(4, "claim-workers", [line], batch=CLAIM_BATCH, flush="async", core=None)
    row.conditions["workers"] = [_WORKERS, 1]
    return row


def _row(
    number: int,
    key: str,
    lines: list[Line],
    *,
    batch: int,
    flush: str | list[str],
    core: int | None,
) -> Row:
    conditions = {"value_bytes": 256, "batch": batch, "flush": flush, "core": core}
    return Row(number, key, lines[0].title, lines, conditions)
