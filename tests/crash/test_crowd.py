"""Many processes on one log, killed at random: nothing is lost, doubled, reordered or made up.

The seed decides what each of them does and when it is killed. A run that failed says its seed;
the scheduler has its own will, so a replay may have to be tried a few times:

    TAILRACE_SEED=7 TAILRACE_CROWD_S=60 pytest tests/crash/test_crowd.py -m "" -k "replay and sync"

`TAILRACE_CROWD_S` is how long a long run takes.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tailrace import Log
from tailrace.log.fs import FileSystem, OsFileSystem
from tailrace.log.offline.verify import verify
from tailrace.testing.history import History, Poll, PowerCut, Report, Send, check
from tests.crash import crowd
from tests.crash.crowd import Plan, errors_of, read_book, shorten

USUAL_S = 3.5
LONG_S = float(os.environ.get("TAILRACE_CROWD_S", "120"))
SEED = os.environ.get("TAILRACE_SEED")

# Of each mode by itself, and of both at once. What some add: one who deletes, one who wants the log
# alone, segments that are extended ahead of what is in them, and processes that use asyncio.
ASYNCIO: dict[str, Any] = {"writers": 2, "followers": 1, "aio_writers": 1, "aio_followers": 1}
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "sync-owner": {"flush": "sync", "modes": ("owner",)},
    "sync-shared": {
        "flush": "sync",
        "modes": ("shared",),
        "segment_bytes": ("4KiB", "2MiB"),
        "kept": 1500,
        **ASYNCIO,
    },
    "async-owner": {"flush": "async", "modes": ("owner",), "kept": 3000, **ASYNCIO},
    "async-shared": {"flush": "async", "modes": ("shared",)},
    "sync-mixture": {
        "flush": "sync",
        "modes": ("owner", "shared"),
        "exclusive": True,
        **ASYNCIO,
    },
    "async-mixture": {
        "flush": "async",
        "modes": ("owner", "shared"),
        "segment_bytes": ("1KiB", "64KiB"),
        "kept": 3000,
        "exclusive": True,
        **ASYNCIO,
    },
}


@dataclass
class Books:
    """All the histories together."""

    history: History
    incarnations: int = 0
    refused: int = 0
    flushed: int = 0  # everything below was
    solitudes: list[tuple[str, float, float]] = field(default_factory=list)
    truncations: list[tuple[int, bool]] = field(default_factory=list)  # and whether it was done

    def add(self, path: Path) -> None:
        self.incarnations += 1
        role, slot, incarnation = path.name.split("-")
        name, events = f"{role}{slot}", read_book(path)
        sends: dict[int, Send] = {}
        polls: list[Poll] = []
        alone: float | None = None
        last = 0.0
        for event in events:
            match event:
                case ["send", number, names, now, producer, sequence]:
                    values = tuple(n.encode() for n in names)
                    once = {"producer": producer, "sequence": sequence} if producer else {}
                    sends[number] = Send(name, values, now, "unknown", **once)
                case ["written" | "acked" as outcome, number, offset, now]:
                    last = now
                    sends[number] = sends[number]._replace(
                        outcome=outcome, offset=offset, answered=now
                    )
                case ["seek", offset]:
                    polls.append(Poll(name, int(incarnation), (), sought=offset))
                case ["read", offset, value]:
                    polls.append(Poll(name, int(incarnation), ((offset, value.encode()),)))
                case ["end"]:
                    polls.append(Poll(name, int(incarnation), (), at_end=True))
                case ["refused"]:
                    self.refused += 1
                case ["flushed", offset]:
                    self.flushed = max(self.flushed, offset)
                case ["alone", now]:
                    alone = now
                case ["together", now]:
                    assert alone is not None
                    self.solitudes.append((name, alone, now))
                    alone = None
                case ["truncate" | "truncated" as what, offset]:
                    self.truncations.append((offset, what == "truncated"))
                case _:
                    raise ValueError(f"{path}: {event}")
        if alone is not None and last > alone:
            self.solitudes.append((name, alone, last))
        self.history.sends += sends.values()
        self.history.polls += polls

    def intruders(self) -> list[str]:
        """Who appended while somebody had the log alone."""
        return [
            f"{send.process} appended {send.values[0]!r} while {name} was alone"
            for name, since, until in self.solitudes
            for send in self.history.sends
            if send.process != name
            and send.answered is not None
            and since < send.invoked
            and send.answered < until
        ]


def read_books(plan: Plan) -> Books:
    books = Books(History(flush=plan.flush))
    for path in sorted(plan.books.iterdir()):
        books.add(path)
    return books


def judge(
    plan: Plan, fs: FileSystem | None = None, cuts: Sequence[PowerCut] = ()
) -> tuple[Books, Report]:
    """Look at what is left, as the next one would, and compare it with what everybody says. A kill
    leaves no gap, and a log that starts where it was told to."""
    errors = errors_of(plan)
    assert not errors, "\n".join(errors)
    books = read_books(plan)
    if not cuts and os.path.exists(plan.log):
        _check_files(plan, fs)
    history = books.history
    with Log(plan.log, flush=plan.flush, fs=fs, upkeep=False) as log:
        history.log = [(r.offset or 0, shorten(r.value)) for r in log.read()]
        history.start, history.gaps = log.start_offset, log._observer.gaps.all()
        end = log.end_offset
    history.cuts = [cut if cut.resumed else cut._replace(resumed=end) for cut in cuts]
    _check_files(plan, fs, cuts)
    assert not books.intruders()
    done = [offset for offset, is_done in books.truncations if is_done]
    asked = [offset for offset, _is_done in books.truncations]
    if not cuts:
        assert not history.gaps
        assert history.start <= max(asked, default=0)
        assert end == (history.log[-1][0] + 1 if history.log else history.start)
    assert max(done, default=0) <= history.start
    return books, check(history)


def _check_files(plan: Plan, fs: FileSystem | None, cuts: Sequence[PowerCut] = ()) -> None:
    """A power cut may take of an index what it likes: whoever needs it makes it anew."""
    report = verify(fs or OsFileSystem(), plan.log)
    indexes = (".idx", ".tix") if cuts else ()
    problems = [found for found in report.problems if not found.path.endswith(indexes)]
    assert not problems, problems


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Goes with a run that went well: there may be much in it."""
    yield tmp_path
    shutil.rmtree(tmp_path / "crowd", ignore_errors=True)


def gather(name: str, folder: Path, seed: int, seconds: float) -> tuple[Books, Report]:
    print(f"{name}: seed {seed}")
    plan = Plan(str(folder / "crowd"), seed, seconds, **CONFIGURATIONS[name])
    try:
        crowd.run(plan)
        books, report = judge(plan)
        print(report)
        assert report.ok, report
    except BaseException as error:
        plan = replace(plan, folder=shutil.move(plan.folder, str(folder / "failed")))
        error.add_note(f"what is left is in {plan.folder}")
        error.add_note(
            f"replay: TAILRACE_SEED={seed} TAILRACE_CROWD_S={seconds} .venv/bin/python -m pytest "
            f"tests/crash/test_crowd.py -k 'replay and {name}'"
        )
        raise
    return books, report


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_crowd_keeps_its_log(name: str, folder: Path) -> None:
    books, report = gather(name, folder, seed=1, seconds=USUAL_S)
    assert report.acked
    assert report.read
    assert books.incarnations > 2 * 5, "hardly anybody was killed"
    if CONFIGURATIONS[name].get("exclusive"):
        assert books.refused
    if CONFIGURATIONS[name].get("aio_writers"):
        history = books.history
        assert {"writer0", "aiowriter0"} <= {
            s.process for s in history.sends if s.outcome == "acked"
        }
        assert {"follower0", "aiofollower0"} <= {p.follower for p in history.polls if p.records}


@pytest.mark.long
@pytest.mark.timeout(LONG_S + 600)
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_crowd_keeps_its_log_for_long(name: str, folder: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 30)
    gather(name, folder, seed, LONG_S)


@pytest.mark.skipif(SEED is None, reason="set TAILRACE_SEED to replay a seed")
@pytest.mark.timeout(LONG_S + 600)
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_replay(name: str, folder: Path) -> None:
    assert SEED is not None
    gather(name, folder, int(SEED), LONG_S)
