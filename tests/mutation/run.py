"""Mutation tests: `scripts/mutate` says what they are for.

Everything happens in a copy of the project, so whoever works on it meanwhile is not disturbed. The
tests of a module run once as it is, which has to succeed; then once for each mistake, until one
fails. What takes three times as long as without is taken for noticed: it hangs.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.mutation.mutants import Mutant, Place, mutant, places
from tests.mutation.targets import LEAST, TARGETS
from tests.project import ROOT

__all__ = ["main"]


class Score(NamedTuple):
    noticed: int
    missed: list[tuple[str, Mutant]]

    @property
    def percent(self) -> float:
        total = self.noticed + len(self.missed)
        return 100.0 if not total else 100 * self.noticed / total


def changed_lines(since: str) -> dict[str, set[int]]:
    """The lines of each file that differ from a commit."""
    line = ["git", "diff", "--unified=0", since, "--", "src"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=True)
    found: dict[str, set[int]] = {}
    path = ""
    for text in done.stdout.splitlines():
        if text.startswith("+++ "):
            path = text.removeprefix("+++ b/src/tailrace/")
        elif match := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", text):
            first, count = int(match[1]), int(match[2] or 1)
            found.setdefault(path, set()).update(range(first, first + count))
    return found


class Bench:
    """A copy of the project, in which a module may be changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("src", "tests"):
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)
        shutil.copy(ROOT / "pyproject.toml", folder)

    def passes(self, tests: tuple[str, ...], timeout_s: float) -> bool:
        line = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider"]
        line += ["-p", "no:randomly", "-p", "no:xdist", "-p", "no:cov", "--timeout", "60"]
        line += [f"tests/{name}" for name in tests]
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.folder / "src"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TAILRACE_KERNEL": "pure",
        }
        with subprocess.Popen(
            line,
            cwd=self.folder,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process:
            try:
                return process.wait(timeout_s) == 0
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                return False

    def try_out(
        self, name: str, chosen: list[Place], until: float
    ) -> Iterator[tuple[Mutant, bool]]:
        """Each mutant, and whether a test noticed; as many as there is time for."""
        path, tests = TARGETS[name]
        target = self.folder / "src" / "tailrace" / path
        original = target.read_text()
        start = time.monotonic()
        if not self.passes(tests, 600):
            raise SystemExit(f"{name}: its tests fail without a mistake: {' '.join(tests)}")
        patience_s = 3 * (time.monotonic() - start) + 5
        try:
            for place in chosen:
                if time.monotonic() > until:
                    return
                changed = mutant(original, place)
                target.write_text(changed.source)
                yield changed, not self.passes(tests, patience_s)
        finally:
            target.write_text(original)


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/mutate", description="Mutation tests.")
    parser.add_argument("names", nargs="*", metavar="MODULE", help=", ".join(TARGETS))
    parser.add_argument("--all", action="store_true", help="whole modules, not what has changed")
    parser.add_argument("--since", default="HEAD", help="a commit")
    parser.add_argument("--seconds", type=float, default=300.0, help="for all of it")
    parser.add_argument("--least", type=float, default=LEAST, help="percent that is enough")
    parser.add_argument("--seed", type=int, default=0, help="for the order in which they are tried")
    given = parser.parse_args()
    unknown = set(given.names) - set(TARGETS)
    if unknown:
        parser.error(f"no such module: {', '.join(sorted(unknown))}")
    wanted = given.names or list(TARGETS)
    lines = None if given.all else changed_lines(given.since)
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        score = _run(Bench(Path(folder)), wanted, lines, given.seconds, given.seed)
    total = score.noticed + len(score.missed)
    for name, changed in score.missed:
        print(f"{TARGETS[name][0]}:{changed.line}: not noticed: {changed.what}")
    print(f"{score.noticed} of {total} mistakes were noticed: {score.percent:.0f} %")
    if score.percent < given.least:
        raise SystemExit(f"that is less than {given.least:.0f} %")


def _run(
    bench: Bench, names: list[str], lines: dict[str, set[int]] | None, seconds: float, seed: int
) -> Score:
    noticed, missed = 0, []
    chosen: dict[str, list[Place]] = {}
    for name in names:
        path = TARGETS[name][0]
        if lines is None or path in lines:
            source = (ROOT / "src" / "tailrace" / path).read_text()
            found = places(source, None if lines is None else lines[path])
            random.Random(seed).shuffle(found)
            if found:
                chosen[name] = found
    for name, found in chosen.items():
        until = time.monotonic() + seconds / len(chosen)
        tried, before = 0, noticed
        for changed, is_noticed in bench.try_out(name, found, until):
            tried += 1
            noticed += is_noticed
            if not is_noticed:
                missed.append((name, changed))
        print(f"{name}: {noticed - before} of {tried} noticed, of {len(found)} there are")
        sys.stdout.flush()
    return Score(noticed, missed)


if __name__ == "__main__":
    main()
