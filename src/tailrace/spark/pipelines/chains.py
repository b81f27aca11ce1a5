"""Pipelines that read what others write: the queues between them, and who begins when.

Those that run on begin all at once, in any order: what lies between them is there before. One that
is to end (`--once`, `trigger: once`) begins when those that feed it have ended, so that what comes
in at the first of a chain is behind its last one in a single run. That streams do not go round in a
circle is seen to by the configuration (`config/pipelines.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tailrace.queue.store import Store
from tailrace.spark.pipelines.definition import Definition

__all__ = ["make_between", "ready", "written_by"]


def written_by(pipelines: Iterable[Definition]) -> set[str]:
    """The queues that they have, or will have made."""
    return {name for each in pipelines for name in _targets(each)}


def make_between(
    store: Store, chosen: Iterable[Definition], pipelines: Sequence[Definition]
) -> None:
    """Have the queues that the chosen ones read and some pipeline writes, whichever runs first."""
    read = {given.queue for each in chosen for given in each.inputs.values()}

    def is_missing(name: object) -> bool:
        return name in read and name not in store.registry.current()

    for each in pipelines:  # those for dead letters first: they cannot be streams
        if each.source.dead_letters is not None and is_missing(each.source.dead_letters):
            store.prepare_letters(each.source.dead_letters)
    for each in pipelines:
        if isinstance(each.to, str) and is_missing(each.to):
            store.stream(each.to)


def ready(
    waiting: Sequence[Definition], working: Sequence[Definition], *, once: bool
) -> list[Definition]:
    """Of those that wait, those that may begin beside those at work: nobody feeds them who is to
    end. There is always one, sooner or later: a circle over dead letters or over tables that are
    not gone on with is cut there."""
    ending = [each for each in (*waiting, *working) if once or each.is_once]

    def is_fed(each: Definition, *, by_streams: bool) -> bool:
        others = (other for other in ending if other is not each)
        return each in ending and any(_feeds(other, each, by_streams) for other in others)

    found = [each for each in waiting if not is_fed(each, by_streams=False)]
    if found or any(each in ending for each in working):
        return found
    return [each for each in waiting if not is_fed(each, by_streams=True)]


def _feeds(one: Definition, other: Definition, by_streams: bool) -> bool:
    if by_streams:
        return one.to in [given.queue for given in other.inputs.values() if given.is_stream]
    return any(given.queue in _targets(one) for given in other.inputs.values())


def _targets(definition: Definition) -> set[str]:
    names = (definition.to, definition.source.dead_letters)
    return {name for name in names if isinstance(name, str)}
