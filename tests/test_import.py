"""`import tailrace` is light: what only some users need is imported when they do."""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys

import pytest

import tailrace

HEAVY = [
    "click",
    "ctypes",
    "http",
    "hypothesis",
    "multiprocessing",
    "numpy",
    "pandas",
    "pyarrow",
    "pydoc",
    "pyspark",
    "pytest",
    "rich",
    "sqlite3",
    "tailrace.cli",
    "tailrace.kernel.arrow",
    "tailrace.testing",
    "unittest",
    "urllib",
]

IMPORT = """
import json, sys
before = set(sys.modules)
import tailrace
print(json.dumps(sorted(set(sys.modules) - before)))
"""


@pytest.fixture(scope="module")
def imported() -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True, timeout=60
    )
    found: list[str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("module", HEAVY)
def test_not_imported(imported: list[str], module: str) -> None:
    assert module not in imported


def test_asyncio_comes_with_the_first_await(imported: list[str]) -> None:
    assert "asyncio" not in imported
    assert "ssl" not in imported


def test_what_is_imported_is_not_much(imported: list[str]) -> None:
    assert len(imported) < 150


def test_all_is_all() -> None:
    public = {name for name in vars(tailrace) if name.isidentifier() and not name.startswith("_")}
    modules = {module.name for module in pkgutil.iter_modules(tailrace.__path__)}
    assert public - modules - {"annotations"} <= set(tailrace.__all__)
    assert tailrace.__version__
