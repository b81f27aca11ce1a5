"""A streaming query's progress as that of a group, so that `tailrace groups` shows its lag."""

from __future__ import annotations

from typing import Any

from tailrace.errors import ConfigError
from tailrace.queue.queue import Stream
from tailrace.queue.store import Store

__all__ = ["commit_progress"]


def commit_progress(path: str, group: str, end: dict[str, list[Any]]) -> None:
    """Note in each stream that everything below was read."""
    with Store(path, upkeep=False) as store:
        for name, (offset, _incarnation) in end.items():
            queue = store.get(name)
            if not isinstance(queue, Stream):
                raise ConfigError(
                    f"group: {name!r} is a work queue, whose groups claim messages; the progress "
                    "of a query can be that of a stream's group only"
                )
            queue.group(group).seek(offset)
