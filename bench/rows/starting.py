"""Row 14 of queues: how long a program waits until it has the library, and a person for help.

A new interpreter each time, from its start to its end. Nothing is taken off: the limit is one that
does nothing. Modules are compiled to bytecode before, as they are where the library is installed;
that goes to the scratch folder, so it does not matter what the checkout has.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import tailrace
from bench.peers.base import installed
from bench.support.race import Check, Contestant, Line, Role, Row, Unit, race
from bench.support.setting import Setting
from tailrace.cli.measure import Sample

__all__ = ["start"]

_PYTHON = sys.executable
_USE = "import tailrace; tailrace."
_IMPORT_MS = 100.0
_HELP_MS = 150.0
_PEERS = ("persistqueue", "litequeue", "diskcache")


def start(setting: Setting) -> Row:
    with setting.scratch("store") as folder, setting.scratch("bytecode") as bytecode:
        with tailrace.open(folder) as store:
            store.queue("work")
        runs = partial(_contestant, bytecode)
        lines = [_importing(setting, runs), _helping(setting, runs, folder)]
    return Row(14, "start", lines[0].title, lines, {"starts": setting.sizes.queue.starts})


def _importing(setting: Setting, runs: Callable[..., Contestant]) -> Line:
    contestants = [
        runs("tailrace, import tailrace", Role.OURS, _PYTHON, "-c", "import tailrace"),
        runs("python -c pass", Role.LIMIT, _PYTHON, "-c", "pass"),
        *(
            runs(f"tailrace, with tailrace.{name}", Role.VARIANT, _PYTHON, "-c", _USE + name)
            for name in ("Log", "open")
        ),
    ]
    if setting.with_peers:
        contestants += [
            runs(f"import {name}", Role.PEER, _PYTHON, "-c", f"import {name}")
            for name in _PEERS
            if installed(name) is not None
        ]
    line = Line("import tailrace", Unit.MILLISECONDS, race(contestants, setting.sizes.queue.starts))
    line.target = "under 100 ms, with Python itself"
    line.checks = [Check("ms", line.value(line.ours), _IMPORT_MS, at_least=False)]
    return line


def _helping(setting: Setting, runs: Callable[..., Contestant], folder: Path) -> Line:
    script = Path(_PYTHON).with_name("tailrace")
    command = [str(script)] if script.exists() else [_PYTHON, "-m", "tailrace"]
    contestants = [
        runs("tailrace --help", Role.OURS, *command, "--help"),
        runs("python -c pass", Role.LIMIT, _PYTHON, "-c", "pass"),
        runs("tailrace --version", Role.VARIANT, *command, "--version"),
        runs("tailrace queues", Role.VARIANT, *command, "queues", "--store", str(folder)),
    ]
    line = Line("tailrace --help", Unit.MILLISECONDS, race(contestants, setting.sizes.queue.starts))
    line.target = "under 150 ms, with Python itself"
    line.checks = [Check("ms", line.value(line.ours), _HELP_MS, at_least=False)]
    return line


def _contestant(bytecode: Path, name: str, role: Role, *command: str) -> Contestant:
    """It has run once before it is timed."""
    environment = os.environ | {"PYTHONPYCACHEPREFIX": str(bytecode)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    run = partial(_run, command, environment)
    run()
    return Contestant(name, role, run)


def _run(command: tuple[str, ...], environment: dict[str, str]) -> Sample:
    began = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, env=environment, check=True)
    return Sample(1, time.perf_counter() - began)
