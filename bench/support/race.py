"""Races: contestants that do the same work, in turns, and what comes out of them.

Machines are shared and noisy, so the runs are interleaved: in each round everybody runs once, one
right after the other, and a ratio is the median of the ratios within the rounds. Two figures that
were taken minutes apart are never divided by each other.
"""

from __future__ import annotations

import statistics
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from bench.peers.base import NotInstalled
from tailrace.cli.measure import Sample, human_rate, human_time, percentile, spread

__all__ = ["Check", "Contestant", "Line", "Result", "Role", "Row", "Unit", "race"]


class Role(StrEnum):
    """Who somebody is in a race."""

    OURS = "tailrace"
    VARIANT = "variant"  # ours as well, used differently; reported, not judged
    BASE = "base"  # what the target is relative to, if that is no limit and no peer
    LIMIT = "limit"
    PEER = "peer"


class Unit(StrEnum):
    """What is compared. For times, less is better."""

    RECORDS_PER_SECOND = "records/s"
    BYTES_PER_SECOND = "B/s"  # a sample counts bytes
    MICROSECONDS = "µs"  # the median of single operations
    MILLISECONDS = "ms"
    MEGABYTES = "MB"  # resident
    NANOSECONDS_PER_RECORD = "ns/record"
    BYTES_PER_MESSAGE = "B/message"  # of the heap
    HANDLES = "handles"  # of open files, the most at a time
    PROCESSOR = "ms CPU/s"  # of one second, how much a process that waits keeps a processor busy

    @property
    def more_is_better(self) -> bool:
        return self in (Unit.RECORDS_PER_SECOND, Unit.BYTES_PER_SECOND)

    def of(self, sample: Sample) -> float:
        match self:
            case Unit.RECORDS_PER_SECOND | Unit.BYTES_PER_SECOND:
                return sample.rate
            case Unit.MICROSECONDS:
                return statistics.median(sample.latencies) / 1e3
            case Unit.MILLISECONDS:
                return sample.seconds * 1e3
            case Unit.MEGABYTES:
                return sample.extra["resident_bytes"] / 1e6
            case Unit.NANOSECONDS_PER_RECORD:
                return sample.seconds / sample.count * 1e9
            case Unit.BYTES_PER_MESSAGE:
                return sample.extra["heap_bytes"] / sample.count
            case Unit.HANDLES:
                return sample.extra["handles"]
            case Unit.PROCESSOR:
                return max(sample.extra["cpu_seconds"] / sample.seconds, 1e-9) * 1e3

    def show(self, value: float) -> str:
        match self:
            case Unit.RECORDS_PER_SECOND:
                return human_rate(value)
            case Unit.BYTES_PER_SECOND:
                return f"{value / 1e9:.1f} GB/s" if value >= 1e9 else f"{value / 1e6:.0f} MB/s"
            case Unit.MICROSECONDS:
                return human_time(value * 1e3)
            case Unit.MILLISECONDS:
                return human_time(value * 1e6)
            case Unit.MEGABYTES:
                return f"{value:.1f} MB"
            case Unit.NANOSECONDS_PER_RECORD:
                return f"{value:.0f} ns"
            case Unit.BYTES_PER_MESSAGE:
                return f"{value:.0f} B"
            case Unit.HANDLES:
                return f"{value:.0f}"
            case Unit.PROCESSOR:
                return f"{value:.2f} ms"


@dataclass
class Contestant:
    """`run` does the work once, with its preparations and its tidying up outside of the time."""

    name: str
    role: Role
    run: Callable[[], Sample]


@dataclass
class Result:
    """What a contestant did over the rounds."""

    name: str
    role: Role
    samples: list[Sample] = field(default_factory=list)
    failure: str | None = None

    def values(self, unit: Unit) -> list[float]:
        return [unit.of(sample) for sample in self.samples]

    def cpu_per_record(self) -> list[float]:
        """Processor time of all our threads, in nanoseconds, by round; empty if not taken."""
        seen = [(sample.extra.get("cpu_seconds"), sample.count) for sample in self.samples]
        return [cpu / count * 1e9 for cpu, count in seen if cpu is not None and count]

    def shares(self) -> list[list[float]]:
        """What part of the work each process did, by round; empty if one did it all."""
        return [[n / sum(sample.parts) for n in sample.parts] for sample in self._shared()]

    def _shared(self) -> list[Sample]:
        return [sample for sample in self.samples if len(sample.parts) > 1 and any(sample.parts)]

    def latencies(self) -> array[int]:
        """Of all rounds together, in order of size."""
        return array("q", sorted(n for sample in self.samples for n in sample.latencies))


@dataclass
class Check:
    """One part of a target. `value` is `None` when what it needs was not measured."""

    what: str
    value: float | None
    bound: float
    at_least: bool = True

    @property
    def ok(self) -> bool | None:
        if self.value is None:
            return None
        return self.value >= self.bound if self.at_least else self.value <= self.bound


@dataclass
class Line:
    """A comparison in one unit: the first result is ours."""

    title: str
    unit: Unit
    results: list[Result]
    target: str = ""
    checks: list[Check] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ours(self) -> Result:
        return self.results[0]

    def find(self, name: str) -> Result | None:
        return next((r for r in self.results if r.name == name and r.samples), None)

    def value(self, result: Result) -> float:
        return statistics.median(result.values(self.unit))

    def speed_against(self, other: Result | None) -> float | None:
        """How fast we are relative to another: 2 is twice as fast, whatever the unit."""
        if other is None or not other.samples or not self.ours.samples:
            return None
        pairs = zip(self.ours.values(self.unit), other.values(self.unit), strict=False)
        # On a machine that is busy, somebody may not have come to do anything in a round.
        ratios = [a / b if self.unit.more_is_better else b / a for a, b in pairs if min(a, b) > 0]
        return statistics.median(ratios) if ratios else None

    def best_peer(self) -> Result | None:
        peers = [r for r in self.results if r.role is Role.PEER and r.samples]
        best = max if self.unit.more_is_better else min
        return best(peers, key=self.value, default=None)

    def limit(self) -> Result | None:
        """The limit that counts: the first one."""
        return next((r for r in self.results if r.role is Role.LIMIT and r.samples), None)

    def note_cpu(self) -> None:
        """On a machine that others use too, the ratio of processor times is the steadier one."""
        limit = self.limit()
        ours, theirs = self.ours.cpu_per_record(), limit.cpu_per_record() if limit else []
        if limit and ours and theirs:
            ratio = statistics.median(b / a for a, b in zip(ours, theirs, strict=False))
            self.notes.append(f"by processor time, {ratio:.0%} of {limit.name}")

    def note_shares(self) -> None:
        """Was it fair? With one process that does all, a total says little."""
        said = []
        for result in self.results:
            shares = [share for in_a_round in result.shares() for share in in_a_round]
            if shares:
                said.append(f"{result.name} {min(shares):.0%} to {max(shares):.0%}")
        if said:
            self.notes.append(f"share of one process in one round: {', '.join(said)}")

    def percentile(self, percent: float, result: Result | None = None) -> float:
        """Of latencies, ours unless told, in nanoseconds."""
        return percentile((result or self.ours).latencies(), percent)

    @property
    def met(self) -> bool | None:
        """Is the target reached? `None` if a part of it was not measured and the rest is fine."""
        states = [check.ok for check in self.checks]
        if False in states:
            return False
        return None if None in states or not states else True

    def as_json(self) -> dict[str, Any]:
        best = self.best_peer()
        return {
            "title": self.title,
            "unit": self.unit.value,
            "target": self.target,
            "met": self.met,
            "checks": [
                {
                    "what": check.what,
                    "value": check.value,
                    "at_least" if check.at_least else "at_most": check.bound,
                    "ok": check.ok,
                }
                for check in self.checks
            ],
            "ratio_to_limit": self.speed_against(self.limit()),
            "ratio_to_best_peer": self.speed_against(best),
            "best_peer": best.name if best else None,
            "results": [self._result_as_json(result) for result in self.results],
            "notes": self.notes,
        }

    def _result_as_json(self, result: Result) -> dict[str, Any]:
        if not result.samples:
            return {"name": result.name, "role": result.role.value, "failure": result.failure}
        values = result.values(self.unit)
        document: dict[str, Any] = {
            "name": result.name,
            "role": result.role.value,
            "value": statistics.median(values),
            "rounds": values,
            "spread": spread(values),
            "speed_of_tailrace_relative_to_it": self.speed_against(result),
            "records": [sample.count for sample in result.samples],
            "failure": result.failure,
        }
        if cpu := result.cpu_per_record():
            document["cpu_ns_per_record"] = statistics.median(cpu)
        if shares := result.shares():
            document["shares"] = shares
        latencies = result.latencies()
        if latencies:
            document |= {
                "p50_us": percentile(latencies, 50) / 1e3,
                "p99_us": percentile(latencies, 99) / 1e3,
                "max_us": latencies[-1] / 1e3,
            }
        return document


@dataclass
class Row:
    """A row of the table of targets, which may need several comparisons."""

    number: int
    key: str
    title: str
    lines: list[Line]
    conditions: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    load_average: float = 0.0  # when it began

    def as_json(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "row": self.key,
            "title": self.title,
            "conditions": self.conditions,
            "seconds": self.seconds,
            "load_average": self.load_average,
            "lines": [line.as_json() for line in self.lines],
        }


def race(contestants: Sequence[Contestant], rounds: int, slices: int = 1) -> list[Result]:
    """Everybody once in each round; or in so many short slices, by turns, which then are one
    sample. A peer that fails is out, and the table says why."""
    results = [Result(contestant.name, contestant.role) for contestant in contestants]
    for _ in range(rounds):
        wholes: list[Sample | None] = [None] * len(contestants)
        for _ in range(slices):
            for place, contestant in enumerate(contestants):
                if results[place].failure is not None:
                    continue
                try:
                    part = contestant.run()
                except Exception as error:
                    if contestant.role is not Role.PEER:
                        raise
                    results[place].failure = _reason(error)
                    wholes[place] = None
                    continue
                whole = wholes[place]
                if whole is None:
                    wholes[place] = part
                else:
                    whole.add(part)
        for result, whole in zip(results, wholes, strict=True):
            if whole is not None:
                result.samples.append(whole)
    return results


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, NotInstalled) else f"{type(error).__name__}: {error}"
