"""The one shape that every peer is given, whatever it calls its methods."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailrace.cli.measure import Sample

__all__ = ["MISSING", "NotInstalled", "Peer", "Session", "installed", "missing", "version_of"]

MISSING = "not installed"


def _nothing() -> None:
    return None


@dataclass
class Session:
    """An open, empty store. What a peer cannot do is `None`."""

    put: Callable[[bytes], object]
    put_batch: Callable[[list[bytes]], object] | None = None
    scan: Callable[[], int] | None = None  # touches every value; the number of them
    get: Callable[[int], object] | None = None  # the n-th value that was put
    poll: Callable[[], list[bytes]] | None = None  # the values that came since the last time
    put_by_threads: Callable[[bytes], object] | None = None  # may be called from many threads
    tasks: Callable[[list[bytes], float], Sample] | None = None  # many asyncio tasks at once
    # of a queue: at most so many messages for this consumer alone, and what is done with them
    claim: Callable[[int], list[Any]] | None = None
    settle: Callable[[list[Any]], object] | None = None
    close: Callable[[], None] = _nothing


@dataclass(frozen=True)
class Peer:
    """A store under one setting. `durable`: when `put` returns the value survives a power cut.
    `can` names the members of a session that it has beyond `put`."""

    name: str
    version: str
    durable: bool
    can: frozenset[str]
    open: Callable[[Path], Session]
    embedded: bool = True  # no server
    only_mode: bool = False  # it cannot be told to promise less or more
    promises: str = ""  # how its claims and acknowledgements differ from ours, in a few words


class NotInstalled(Exception):
    """A peer that is not here. The table says so, rather than to be silent about it."""


def missing(
    name: str, *, durable: bool, can: frozenset[str], embedded: bool = True, only_mode: bool = False
) -> Peer:
    """In the place of a peer that is not installed."""

    def fail(_folder: Path) -> Session:
        raise NotInstalled(MISSING)

    return Peer(name, MISSING, durable, can, fail, embedded=embedded, only_mode=only_mode)


def installed(module: str) -> Any | None:
    """The module, if it is there: no peer is needed for the benchmark to run."""
    try:
        return importlib.import_module(module)
    except ImportError:
        return None


def version_of(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
