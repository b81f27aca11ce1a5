"""`import tailrace` is light: what only some users need is imported when they do."""

from __future__ import annotations

import json
import os
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
    "tailrace.spark",
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


def test_next_to_nothing_comes_before_the_command_minds_its_signals() -> None:
    """Ctrl-C is Python's until then, which shows where it was interrupted."""
    code = "import sys; before = set(sys.modules); import tailrace.__main__\n"
    code += "print(*sorted(set(sys.modules) - before))"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.path.dirname(tailrace.__path__[0])},
    )
    found = set(done.stdout.split())
    assert not found & {"click", "contextlib", "re", "typing"}
    assert {name for name in found if name.startswith("tailrace")} == {
        "tailrace",
        "tailrace.__main__",
        "tailrace._version",
        "tailrace.errors",
    }


def test_all_is_all() -> None:
    public = {name for name in vars(tailrace) if name.isidentifier() and not name.startswith("_")}
    modules = {module.name for module in pkgutil.iter_modules(tailrace.__path__)}
    assert public - modules - {"annotations"} <= set(tailrace.__all__)
    assert tailrace.__version__


WITHOUT = """
import sys
sys.modules[{missing!r}] = None  # as if it were not installed
import tailrace
try:
    tailrace.spark.{call}
except tailrace.TailraceError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("call", "missing"),
    [
        ("local_session()", "pyspark"),
        ("register(None)", "pyspark"),
        ("table(None, 'data', 'q')", "pyarrow"),
        ("views(None, 'data')", "pyarrow"),
    ],
)
def test_tables_are_a_name_of_the_package(call: str, missing: str) -> None:
    """Which needs nothing but the package, and then says what else is missing."""
    program = WITHOUT.format(call=call, missing=missing)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == f"{missing} is missing: pip install 'tailrace[spark]'\n"


def test_lazy_names_are_found() -> None:
    program = "import tailrace; tailrace.spark.register; tailrace.aio.open; tailrace.spark.table"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
