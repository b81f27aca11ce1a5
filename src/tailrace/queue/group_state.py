"""What a group knows, as far as groups of both kinds are the same."""

from __future__ import annotations

from typing import Any, Protocol

from tailrace.queue.journal import Op

__all__ = ["State"]


class State(Protocol):
    """A group's state: changed by operations only, the same wherever they are applied."""

    boot: str
    members: dict[str, Any]
    options: dict[str, Any]
    cursor: int
    used_ms: int

    @property
    def committed(self) -> int: ...

    @property
    def weight(self) -> int:
        """How much there is to write in a snapshot."""

    def apply(self, op: Op) -> None: ...

    def dump(self) -> tuple[dict[str, Any], dict[int, Op]]: ...
