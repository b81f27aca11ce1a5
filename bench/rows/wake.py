"""Rows 5 to 7: how long a record takes to those who wait for it, and what waiting takes.

One process writes records with the time in them, pausing before each; another follows, and takes
the time when it has one. So what is measured is all of it: the append, the wake-up, the reading.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from bench.support.crew import Crew
from bench.support.race import Check, Contestant, Line, Result, Role, Row, Unit, race
from bench.support.setting import Setting
from bench.support.writing import Tool
from tailrace.cli.measure import Sample

__all__ = [
    "BARE",
    "PAUSE_S",
    "Stage",
    "Way",
    "follow_idle",
    "note_longest",
    "race_ways",
    "wake_many",
    "wake_one",
]

PAUSE_S = 0.001
_PAUSE_MANY_S = 0.020  # so that all have seen one before the next comes
_NO_CPU_MS = 1.0  # in a second: a thousandth is what other programs do to the figure

_WRITER, _FOLLOWER = 0, 1


@dataclass(frozen=True)
class Way:
    """Who writes, with what, and who follows, how."""

    name: str
    role: Role
    tool: Tool
    how: str


_THREAD = Way("tailrace", Role.OURS, Tool("log"), "threads")
_TASK = Way("tailrace, asyncio", Role.VARIANT, Tool("log"), "tasks")
BARE = Way("write, inotify", Role.LIMIT, Tool("file"), "bare threads")


def _polled_peers(setting: Setting, *, durable: bool = False) -> list[Way]:
    return [
        Way(f"{peer.name}, 1 ms poll", Role.PEER, Tool(peer.name, durable=durable), peer.name)
        for peer in setting.peers_that(durable=durable, can="poll")
    ]


class Stage:
    """A process that writes and one that follows."""

    def __init__(self, setting: Setting, crew: Crew) -> None:
        self._setting = setting
        self._crew = crew
        self.instances: list[int] = []  # of inotify, in the process that follows a log

    def wake(self, way: Way, followers: int, count: int, pause_s: float) -> Sample:
        """How old records were when they were seen, by each follower."""
        crew, seen = self._crew, array("q")
        with (
            self._setting.scratch("wake") as folder,
            crew.opened([_WRITER], folder, way.tool),
        ):
            try:
                where = {"how": way.how, "folder": str(folder), "followers": followers}
                crew.ask(_FOLLOWER, "follow", **where)
                crew.ask(_WRITER, "stamp", count=count, pause_s=pause_s)
                answer = crew.ask(_FOLLOWER, "seen")
            finally:
                crew.ask(_FOLLOWER, "close")
        for of_one in answer["seen"]:
            seen.extend(of_one)
        if way.tool.kind == "log":
            self.instances.append(answer["inotify"])
        return Sample(len(seen), sum(seen) / 1e9, seen)

    def idle(self, way: Way, seconds: float) -> Sample:
        """What a process takes that follows a log in which nothing happens."""
        crew = self._crew
        with (
            self._setting.scratch("idle") as folder,
            crew.opened([_WRITER], folder, way.tool),
        ):
            try:
                crew.ask(_FOLLOWER, "follow", how=way.how, folder=str(folder), followers=1)
                crew.ask(_FOLLOWER, "rest", seconds=0.05)  # until everything sleeps
                answer = crew.ask(_FOLLOWER, "rest", seconds=seconds)
            finally:
                crew.ask(_FOLLOWER, "close")
        if way.tool.kind == "log":
            self.instances.append(answer["inotify"])
        used = {"cpu_seconds": answer["cpu_seconds"], "sleeps": float(answer["sleeps"])}
        return Sample(1, seconds, extra=used)

    def flushes(self, count: int) -> Sample:
        """How long a write and a flush take, in the rhythm of the records."""
        tool = Tool("file", durable=True)
        with (
            self._setting.scratch("wake") as folder,
            self._crew.opened([_WRITER], folder, tool),
        ):
            answer = self._crew.ask(_WRITER, "stamp", count=count, pause_s=PAUSE_S)
        took = array("q", answer["latencies"])
        return Sample(len(took), sum(took) / 1e9, took)


def race_ways(
    setting: Setting, ways: list[Way], run: Callable[[Way], Sample], *more: Contestant
) -> list[Result]:
    contestants = [Contestant(way.name, way.role, partial(run, way)) for way in ways]
    return race([*contestants, *more], setting.sizes.rounds, setting.sizes.slices)


# --- one follower ---------------------------------------------------------------------------


def wake_one(setting: Setting) -> Row:
    with Crew(2) as crew:
        stage = Stage(setting, crew)
        lines = [_async_line(setting, stage), _sync_line(setting, stage)]
    conditions = {"value_bytes": 256, "codec": "none", "pause_ms": PAUSE_S * 1e3}
    return Row(5, "wake", lines[0].title, lines, conditions)


def _async_line(setting: Setting, stage: Stage) -> Line:
    count = setting.sizes.wake_records
    shared = Tool("log", mode="shared")
    ways = [
        _THREAD,
        BARE,
        _TASK,
        Way("tailrace, writer in shared mode", Role.VARIANT, shared, "threads"),
        *_polled_peers(setting),
    ]
    results = race_ways(setting, ways, lambda way: stage.wake(way, 1, count, PAUSE_S))
    line = Line("append → seen elsewhere, async", Unit.MICROSECONDS, results)
    line.target = "p50 under 100 µs, p99 under 1 ms"
    line.checks = [
        Check("p50, µs", line.percentile(50) / 1e3, 100.0, at_least=False),
        Check("p99, ms", line.percentile(99) / 1e6, 1.0, at_least=False),
    ]
    note_longest(line)
    return line


def _sync_line(setting: Setting, stage: Stage) -> Line:
    count = setting.sizes.wake_records
    durable = Tool("log", durable=True)
    ways = [
        Way("tailrace", Role.OURS, durable, "threads"),
        Way(
            "write, fdatasync, mark, inotify",
            Role.LIMIT,
            Tool("marked", durable=True),
            "marked",
        ),
        Way("tailrace, asyncio", Role.VARIANT, durable, "tasks"),
        *_polled_peers(setting, durable=True),
    ]
    flushing = Contestant("write + fdatasync", Role.BASE, lambda: stage.flushes(count))
    results = race_ways(setting, ways, lambda way: stage.wake(way, 1, count, PAUSE_S), flushing)
    line = Line("append → seen elsewhere, sync", Unit.MICROSECONDS, results)
    base = line.find(flushing.name)
    over = [line.percentile(p) - line.percentile(p, base) for p in (50, 99)]
    line.target = "a fdatasync, plus p50 under 100 µs, p99 under 1 ms"
    line.checks = [
        Check("p50 over one fdatasync, µs", over[0] / 1e3, 100.0, at_least=False),
        Check("p99 over one fdatasync, ms", over[1] / 1e6, 1.0, at_least=False),
    ]
    note_longest(line)
    return line


def note_longest(line: Line) -> None:
    longest = [f"{r.name} {r.latencies()[-1] / 1e6:.2f} ms" for r in line.results if r.samples]
    line.notes.append(f"the longest of all: {', '.join(longest)}")


# --- many followers -------------------------------------------------------------------------


def wake_many(setting: Setting) -> Row:
    with Crew(2) as crew:
        lines = [
            _many_line(setting, crew, "threads", _THREAD, "bare threads"),
            _many_line(setting, crew, "asyncio tasks", _TASK, "bare tasks"),
        ]
    conditions = {
        "value_bytes": 256,
        "codec": "none",
        "flush": "async",
        "followers": setting.sizes.followers,
        "pause_ms": _PAUSE_MANY_S * 1e3,
    }
    return Row(6, "followers", lines[0].title, lines, conditions)


def _many_line(setting: Setting, crew: Crew, what: str, ours: Way, bare: str) -> Line:
    sizes, stage = setting.sizes, Stage(setting, crew)
    ways = [
        Way(f"tailrace, {what}", Role.OURS, ours.tool, ours.how),
        Way(f"write, one inotify, {what}", Role.LIMIT, Tool("file"), bare),
    ]

    def run(way: Way) -> Sample:
        return stage.wake(way, sizes.followers, sizes.follower_records, _PAUSE_MANY_S)

    results = race_ways(setting, ways, run)
    line = Line(f"append → seen by {sizes.followers} {what}", Unit.MICROSECONDS, results)
    line.target = "p50 under 1 ms, one inotify instance"
    line.checks = [
        Check("p50, ms", line.percentile(50) / 1e6, 1.0, at_least=False),
        Check("inotify instances", max(stage.instances), 1.0, at_least=False),
    ]
    note_longest(line)
    return line


# --- nothing happens ------------------------------------------------------------------------


def follow_idle(setting: Setting) -> Row:
    with Crew(2) as crew:
        stage = Stage(setting, crew)
        ways = [_THREAD, BARE, _TASK, *_polled_peers(setting)]
        seconds = setting.sizes.idle_seconds
        results = race_ways(
            setting, ways, lambda way: stage.idle(way, seconds / setting.sizes.slices)
        )
    line = Line("CPU of an idle follower, in a second", Unit.PROCESSOR, results)
    line.target = "no CPU (a thousandth), never woken"
    task = line.find(_TASK.name)
    assert task is not None
    line.checks = [
        Check("ms, thread", line.value(line.ours), _NO_CPU_MS, at_least=False),
        Check("ms, asyncio", line.value(task), _NO_CPU_MS, at_least=False),
        Check("times woken in a second", _woken(line.ours, task), 1.0, at_least=False),
    ]
    conditions = {"seconds": seconds, "inotify_instances": max(stage.instances)}
    return Row(7, "idle", line.title, [line], conditions)


def _woken(*results: Result) -> float:
    """The most that any was woken, in a second of its rounds."""
    return max(s.extra["sleeps"] / s.seconds for result in results for s in result.samples)
