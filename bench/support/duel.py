"""A duel: two, or a few, that take turns in slices much shorter than a round."""

from __future__ import annotations

from collections.abc import Callable

from tailrace.cli.measure import Sample

__all__ = ["Duel", "Turns"]


class Duel:
    """Two that take turns in short slices, so that both see the same disk. As contestants they
    follow each other: the first does the work of both."""

    def __init__(self, both: Callable[[], tuple[Sample, Sample]]) -> None:
        self._both = both
        self._second = Sample(0, 0.0)

    def first(self) -> Sample:
        sample, self._second = self._both()
        return sample

    def second(self) -> Sample:
        return self._second


class Turns:
    """The same for any number of them. The first does the work of all."""

    def __init__(self, all_of_them: Callable[[], list[Sample]]) -> None:
        self._all = all_of_them
        self._samples: list[Sample] = []

    def of(self, place: int) -> Callable[[], Sample]:
        def run() -> Sample:
            if place == 0:
                self._samples = self._all()
            return self._samples[place]

        return run
