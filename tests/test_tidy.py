"""House rules that a machine can check, over every file of the project.

A rule that needs an exception gets it here, by name, where it is seen.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

import tailrace
from tests.project import ROOT, project_files, relative

COLUMNS = 100
MODULE_LINES = 600
FILE_BYTES = 100_000
LEFT_BEHIND = {".seg", ".idx", ".tix", ".cut", ".orig", ".rej", ".json", ".log"}
TEXT = {".py", ".pyi", ".pxd", ".h", ".md", ".toml", ".sh", ".in", ".yaml", ".yml", ".cfg", ""}
NOT_OURS = {"LICENSE"}

# Put together from parts, so that this file passes its own rules.
UNFINISHED = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X"]) + r")\b")
MACHINE_PATH = re.compile(r"(?<![\w.~$}\-/])/(?:work|root|home|tmp|opt|mnt|Users)(?:/|\b(?![\w-]))")

Finding = str


def text_files() -> Iterator[Path]:
    for path in project_files():
        if path.suffix in TEXT and path.name not in NOT_OURS and "\0" not in read(path):
            yield path


def python_files(under: str = "") -> Iterator[Path]:
    for path in project_files():
        if path.suffix == ".py" and relative(path).startswith(under):
            yield path


def markdown_files() -> Iterator[Path]:
    return (path for path in project_files() if path.suffix == ".md")


@cache
def read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="surrogateescape")


def numbered(paths: Iterable[Path]) -> Iterator[tuple[str, Path, str]]:
    """Each line with its place: `file:line`, the file, the text."""
    for path in paths:
        name = relative(path)
        for number, line in enumerate(read(path).splitlines(), 1):
            yield f"{name}:{number}", path, line


def parsed(paths: Iterable[Path]) -> Iterator[tuple[str, ast.Module]]:
    for path in paths:
        yield relative(path), tree_of(path)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(read(path), str(path))


def long_lines() -> Iterator[Finding]:
    """Lines are at most 100 columns; a markdown table's row or a bare link cannot be folded."""
    for place, path, line in numbered(text_files()):
        unfoldable = path.suffix == ".md" and (line.lstrip().startswith("|") or " " not in line)
        if len(line) > COLUMNS and not unfoldable:
            yield f"{place} has {len(line)} columns"


def trailing_space() -> Iterator[Finding]:
    """No line ends in white space; every file ends in exactly one newline."""
    for place, _, line in numbered(text_files()):
        if line != line.rstrip():
            yield f"{place} ends in white space"
    for path in text_files():
        text = read(path)
        if text and (not text.endswith("\n") or text.endswith("\n\n")):
            yield f"{relative(path)} does not end in one newline"


def machine_paths() -> Iterator[Finding]:
    """Nothing depends on where one machine keeps its files."""
    for place, _, line in numbered(text_files()):
        if MACHINE_PATH.search(line):
            yield f"{place} names a path of one machine: {line.strip()}"


def unfinished_work() -> Iterator[Finding]:
    """Work is finished or not there; there are no notes in the code that promise it."""
    for place, _, line in numbered(text_files()):
        if UNFINISHED.search(line):
            yield f"{place}: {line.strip()}"


def swallowed_errors() -> Iterator[Finding]:
    """An error that is caught is dealt with: no handler is empty."""
    for name, tree in parsed(python_files()):
        for node in ast.walk(tree):
            if isinstance(node, ast.ExceptHandler) and all(map(is_nothing, node.body)):
                yield f"{name}:{node.lineno} swallows an error"


def is_nothing(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Pass):
        return True
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and statement.value.value is ...
    )


def long_modules() -> Iterator[Finding]:
    """A module of the package fits in a head: at most 600 lines."""
    for path in python_files("src/"):
        lines = len(read(path).splitlines())
        if lines > MODULE_LINES:
            yield f"{relative(path)} has {lines} lines"


def missing_docstrings() -> Iterator[Finding]:
    """Every module of the package says what it is for."""
    for name, tree in parsed(python_files("src/")):
        if not ast.get_docstring(tree):
            yield f"{name} has no docstring"


def folders_that_are_no_package() -> Iterator[Finding]:
    """Every folder of modules is a package; others would be missing from wheels."""
    for folder in sorted({path.parent for path in python_files("src/tailrace/")}):
        if not (folder / "__init__.py").exists():
            yield f"{relative(folder)} has no __init__.py"


def data_files() -> Iterator[Finding]:
    """Nothing that a run left behind: data, backups, anything large."""
    for path in project_files():
        if path.suffix in LEFT_BEHIND or path.stat().st_size > FILE_BYTES:
            yield f"{relative(path)} does not belong here"


def headings() -> Iterator[Finding]:
    """A markdown file has one title, and begins with it."""
    for path in markdown_files():
        outside = re.sub(r"(?ms)^(```|~~~).*?^\1", "", read(path))
        titles = re.findall(r"(?m)^# .+", outside)
        if len(titles) != 1 or not outside.startswith("# "):
            yield f"{relative(path)} has {len(titles)} titles, or does not begin with one"


def scripts() -> Iterator[Finding]:
    """A script is executable bash that stops at the first error; only common.sh is sourced."""
    for path in project_files():
        if path.parent not in (ROOT / "scripts", ROOT / ".ci") or path.suffix:
            continue
        text = read(path)
        if not path.stat().st_mode & 0o111:
            yield f"{relative(path)} is not executable"
        if not text.startswith("#!/usr/bin/env bash\n") or "\nset -euo pipefail\n" not in text:
            yield f"{relative(path)} does not begin as scripts do here"


RULES: list[Callable[[], Iterator[Finding]]] = [
    long_lines,
    trailing_space,
    machine_paths,
    unfinished_work,
    swallowed_errors,
    long_modules,
    missing_docstrings,
    folders_that_are_no_package,
    data_files,
    headings,
    scripts,
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_house_rule(rule: Callable[[], Iterator[Finding]]) -> None:
    findings = list(rule())
    assert not findings, f"{rule.__doc__}\n" + "\n".join(findings)


def test_the_rules_see_files() -> None:
    assert len(list(text_files())) > 30
    assert any(relative(path) == "tests/test_tidy.py" for path in python_files())


def test_public_names_exist() -> None:
    assert len(tailrace.__all__) == len(set(tailrace.__all__))
    for name in tailrace.__all__:
        assert getattr(tailrace, name) is not None, name


def test_public_names_are_re_exported() -> None:
    """Every error, and every type that the log's methods take or return."""
    errors = importlib.import_module("tailrace.errors")
    expected = {*errors.__all__, "Headers", "Log", "Receipt", "Record", "__version__"}
    assert expected <= set(tailrace.__all__)


def test_everything_public_has_a_docstring() -> None:
    bare = [
        name
        for name in tailrace.__all__
        if isinstance(getattr(tailrace, name), type) and not getattr(tailrace, name).__doc__
    ]
    assert not bare
