"""A streaming query's progress as that of a group, so that `tailrace groups` shows its lag."""

from __future__ import annotations

from tailrace.queue.store import Store
from tailrace.spark.planning import Positions, is_same

__all__ = ["commit_progress"]


def commit_progress(path: str, group: str, end: Positions) -> None:
    """Note in each stream that everything below was read. A deleted or recreated queue is skipped;
    the next batch raises the error."""
    with Store(path, upkeep=False) as store:
        for name, (offset, incarnation) in end.items():
            settings = store.registry.current().get(name)
            if settings is not None and is_same(settings, incarnation):
                store.stream(name).group(group).seek(offset)
