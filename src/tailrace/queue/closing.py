"""Closing many things, of which some may fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable

__all__ = ["close_all"]


def close_all(closes: Iterable[Callable[[], object]]) -> None:
    """Call all of them, in their order, whichever fail; then raise the first error."""
    first: BaseException | None = None
    for close in closes:
        try:
            close()
        except BaseException as error:  # noqa: BLE001  it is raised in the end
            first = first or error
    if first is not None:
        raise first
