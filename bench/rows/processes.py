"""Rows 1 to 4: processes that append to one log, alone and together.

Everything is written by processes of a crew, also where there is only one writer, and opened anew
for each slice: so nobody's background work falls into the time of the next.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from bench.support.crew import Crew
from bench.support.race import Check, Contestant, Line, Role, Row, Unit, race
from bench.support.setting import BATCH, Setting
from bench.support.writing import Tool
from tailrace.cli.measure import Sample

__all__ = [
    "append_batches_together",
    "append_durably_together",
    "append_shared",
    "append_together",
]

_RATE = Unit.RECORDS_PER_SECOND
_SHARED = Tool("log", mode="shared")
_SHARED_BATCHES = Tool("log", batch=True, mode="shared")
_SHARED_SYNC = Tool("log", durable=True, mode="shared")

_AHEAD_OF = ("SQLite WAL NORMAL", "SQLite WAL OFF", "LMDB nosync", "diskcache Deque")


class _Stage:
    """A crew in a setting, and contestants made of them."""

    def __init__(self, setting: Setting, crew: Crew) -> None:
        self._setting = setting
        self._crew = crew

    def _run(self, writers: int, tool: Tool) -> Sample:
        with self._setting.scratch("writers") as folder:
            return self._crew.write(writers, folder, tool, self._setting.sizes.slice_seconds)

    def enter(self, name: str, role: Role, writers: int, tool: Tool) -> Contestant:
        return Contestant(name, role, partial(self._run, writers, tool))

    def peers(
        self, writers: int, *, durable: bool = False, batch: bool = False
    ) -> list[Contestant]:
        can = "put_batch" if batch else "put"
        return [
            self.enter(peer.name, Role.PEER, writers, Tool(peer.name, batch, durable))
            for peer in self._setting.peers_that(durable=durable, can=can)
        ]

    def line(self, title: str, contestants: Iterable[Contestant]) -> Line:
        sizes = self._setting.sizes
        return Line(title, _RATE, race(list(contestants), sizes.rounds, sizes.slices))


def append_shared(setting: Setting) -> Row:
    with Crew(1) as crew:
        stage = _Stage(setting, crew)
        line = stage.line(
            "append one by one, async, shared",
            [
                stage.enter("tailrace, shared", Role.OURS, 1, _SHARED),
                stage.enter("os.write per record", Role.LIMIT, 1, Tool("file")),
                stage.enter("flock, write, unlock", Role.LIMIT, 1, Tool("locked")),
                stage.enter("tailrace, owner", Role.VARIANT, 1, Tool("log")),
                *stage.peers(1),
            ],
        )
    line.target = "25 % of os.write per record"
    line.checks = [Check("of os.write", line.speed_against(line.limit()), 0.25)]
    line.note_cpu()
    return _row(1, "shared-single", [line], batch=1, flush="async", writers=[1])


def append_together(setting: Setting) -> Row:
    with Crew(4) as crew:
        stage = _Stage(setting, crew)
        lines = [_together_line(stage, writers) for writers in (2, 4)]
    return _row(2, "shared-contended", lines, batch=1, flush="async", writers=[2, 4])


def _together_line(stage: _Stage, writers: int) -> Line:
    single = "tailrace, one writer"
    line = stage.line(
        f"append one by one, async, {writers} writers",
        [
            stage.enter(f"tailrace, {writers} writers", Role.OURS, writers, _SHARED),
            stage.enter(single, Role.BASE, 1, _SHARED),
            stage.enter("os.write, all to one file", Role.LIMIT, writers, Tool("file")),
            stage.enter("flock, write, unlock", Role.LIMIT, writers, Tool("locked")),
            stage.enter("tailrace, owner mode", Role.VARIANT, writers, Tool("log")),
            *stage.peers(writers),
        ],
    )
    line.target = "60 % of one writer; ahead of SQLite, LMDB, diskcache"
    line.checks = [
        Check("of one writer", line.speed_against(line.find(single)), 0.60),
        *(Check(f"of {name}", line.speed_against(line.find(name)), 1.0) for name in _AHEAD_OF),
    ]
    line.note_shares()
    return line


def append_batches_together(setting: Setting) -> Row:
    single = "tailrace, one writer"
    with Crew(4) as crew:
        stage = _Stage(setting, crew)
        line = stage.line(
            "async, batches of 1,000, 4 writers",
            [
                stage.enter("tailrace, 4 writers", Role.OURS, 4, _SHARED_BATCHES),
                stage.enter(single, Role.BASE, 1, _SHARED_BATCHES),
                stage.enter("os.write, all to one file", Role.LIMIT, 4, Tool("file", batch=True)),
                *stage.peers(4, batch=True),
            ],
        )
    line.target = "80 % of one writer"
    line.checks = [Check("of one writer", line.speed_against(line.find(single)), 0.80)]
    line.note_shares()
    return _row(3, "shared-batch", [line], batch=BATCH, flush="async", writers=[4])


def append_durably_together(setting: Setting) -> Row:
    single = "tailrace, one writer"
    with Crew(4) as crew:
        stage = _Stage(setting, crew)
        bare = Tool("file", durable=True)
        line = stage.line(
            "append one by one, sync, 4 writers",
            [
                stage.enter("tailrace, 4 writers", Role.OURS, 4, _SHARED_SYNC),
                stage.enter(single, Role.BASE, 1, _SHARED_SYNC),
                stage.enter("write + fdatasync, all to one file", Role.LIMIT, 4, bare),
                stage.enter("write + fdatasync, one writer", Role.LIMIT, 1, bare),
                *stage.peers(4, durable=True),
            ],
        )
    line.target = "1.5x one writer"
    line.checks = [Check("x one writer", line.speed_against(line.find(single)), 1.5)]
    line.note_shares()
    return _row(4, "shared-sync", [line], batch=1, flush="sync", writers=[4])


def _row(
    number: int, key: str, lines: list[Line], *, batch: int, flush: str, writers: list[int]
) -> Row:
    conditions = {
        "value_bytes": 256,
        "batch": batch,
        "codec": "none",
        "flush": flush,
        "mode": "shared",
        "writers": writers,
    }
    return Row(number, key, lines[0].title, lines, conditions)
