"""Counters and histograms in memory."""

from __future__ import annotations

import os
import threading
import weakref
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING

from tailrace.metrics.catalogue import COUNTERS, HISTOGRAMS
from tailrace.metrics.prometheus import Family, families_of, render

if TYPE_CHECKING:
    from tailrace.queue.stats import QueueStats

__all__ = ["Histogram", "Registry"]

_Key = tuple[str, str, str]  # name, queue, group


@dataclass(frozen=True, slots=True)
class Histogram:
    """Measurements, sorted: `counts` has how many were at most each of the `bounds`, and above the
    one before it; the last one, how many were above all of them."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float

    @property
    def count(self) -> int:
        """How many measurements there were."""
        return sum(self.counts)


class _Cells:
    """A histogram that grows."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, values: Sequence[float]) -> None:
        bounds, counts = self.bounds, self.counts
        for value in values:
            counts[bisect_left(bounds, value)] += 1
        self.sum += sum(values)


class Registry:
    """Collects what it is told: `tailrace.metrics.subscribe(registry)`. Thread-safe. A forked child
    goes on from what its parent had counted; `clear` begins anew.

    `bounds` sorts the measurements of some names otherwise than `HISTOGRAMS` does.
    """

    def __init__(self, *, bounds: Mapping[str, Sequence[float]] | None = None) -> None:
        self._bounds = {name: measured.bounds for name, measured in HISTOGRAMS.items()}
        for name, own in (bounds or {}).items():
            self._bounds[name] = _checked(name, own)
        self._lock = threading.Lock()
        self._counts: dict[_Key, int] = {}
        self._cells: dict[_Key, _Cells] = {}
        _registries.add(self)

    # --- what is told -----------------------------------------------------------------------

    def count(self, name: str, number: int, queue: str, group: str) -> None:
        """So many more of something."""
        key = (name, queue, group)
        with self._lock:
            before = self._counts.get(key, 0)
            if not before and name not in COUNTERS:
                raise _unknown(name, "counted", "COUNTERS")
            self._counts[key] = before + number

    def observe(self, name: str, values: Sequence[float], queue: str, group: str) -> None:
        """One or more measurements."""
        key = (name, queue, group)
        with self._lock:
            cells = self._cells.get(key)
            if cells is None:
                if name not in HISTOGRAMS:
                    raise _unknown(name, "measured", "HISTOGRAMS")
                cells = self._cells[key] = _Cells(self._bounds[name])
            cells.add(values)

    # --- what is known ----------------------------------------------------------------------

    def total(self, name: str, *, queue: str | None = None, group: str | None = None) -> int:
        """How many of something there were: of all queues and groups, or of some."""
        if name not in COUNTERS:
            raise _unknown(name, "counted", "COUNTERS")
        with self._lock:
            return sum(
                number for key, number in self._counts.items() if _is_of(key, name, queue, group)
            )

    def histogram(
        self, name: str, *, queue: str | None = None, group: str | None = None
    ) -> Histogram:
        """What was measured: of all queues and groups, or of some."""
        if name not in HISTOGRAMS:
            raise _unknown(name, "measured", "HISTOGRAMS")
        bounds = self._bounds[name]
        with self._lock:
            found = [
                (list(cells.counts), cells.sum)
                for key, cells in self._cells.items()
                if _is_of(key, name, queue, group)
            ]
        zeros = [0] * (len(bounds) + 1)
        counts = [sum(column) for column in zip(zeros, *(each for each, _ in found), strict=True)]
        return Histogram(bounds, tuple(counts), sum(total for _, total in found))

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._counts.clear()
            self._cells.clear()

    # --- for Prometheus ---------------------------------------------------------------------

    def prometheus(self, stats: Mapping[str, QueueStats] | None = None) -> str:
        """Everything in the text format of Prometheus; with the figures of a store
        (`store.stats()`), those too."""
        families = self._families()
        if stats is not None:
            families += families_of(stats)
        return render(families)

    def _families(self) -> list[Family]:
        with self._lock:
            counts = sorted(self._counts.items())
            cells = [
                (key, Histogram(each.bounds, tuple(each.counts), each.sum))
                for key, each in sorted(self._cells.items(), key=itemgetter(0))
            ]
        families = {
            name: Family(f"tailrace_{name}_total", "counter", text)
            for name, text in COUNTERS.items()
        }
        families |= {
            name: Family(f"tailrace_{name}", "histogram", measured.help)
            for name, measured in HISTOGRAMS.items()
        }
        for (name, queue, group), number in counts:
            families[name].add(number, queue=queue, group=group)
        for (name, queue, group), found in cells:
            families[name].add_histogram(found, queue=queue, group=group)
        return list(families.values())


def _is_of(key: _Key, name: str, queue: str | None, group: str | None) -> bool:
    return key[0] == name and queue in (None, key[1]) and group in (None, key[2])


def _unknown(name: str, verb: str, table: str) -> ValueError:
    return ValueError(f"nothing is {verb} by the name {name!r}: see tailrace.metrics.{table}")


def _checked(name: str, bounds: Sequence[float]) -> tuple[float, ...]:
    if name not in HISTOGRAMS:
        raise _unknown(name, "measured", "HISTOGRAMS")
    found = tuple(float(bound) for bound in bounds)
    if not found or list(found) != sorted(set(found)) or found[-1] == float("inf"):
        raise ValueError(f"bounds of {name}: give numbers that rise, not {list(bounds)!r}")
    return found


_registries: weakref.WeakSet[Registry] = weakref.WeakSet()


def _start_afresh() -> None:
    """In a forked child: another thread of the parent may have had the lock."""
    for registry in list(_registries):
        registry._lock = threading.Lock()


os.register_at_fork(after_in_child=_start_afresh)
