"""GUARANTEES.md and FORMAT.md name the tests that keep them true, and those tests exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.project import ROOT

PROMISES = [
    line.split("|")[1:4]
    for line in (ROOT / "GUARANTEES.md").read_text().splitlines()
    if re.match(r"\| \d+ \|", line)
]


def names_in(path: Path) -> set[str]:
    return {
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_there_are_promises_and_their_numbers_run() -> None:
    assert [int(number) for number, _, _ in PROMISES] == list(range(1, len(PROMISES) + 1))
    assert len(PROMISES) > 20


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise[0].strip())
def test_each_promise_names_tests_that_exist(promise: list[str]) -> None:
    proofs = re.findall(r"`([^`]+)::([^`]+)`", promise[2])
    assert proofs, "a promise without a proof"
    for path, name in proofs:
        assert name in names_in(ROOT / path), f"{path} has no {name}"


def test_the_tests_that_the_format_names_exist() -> None:
    proofs = re.findall(r"`(tests/[^`]+)::([^`]+)`", (ROOT / "FORMAT.md").read_text())
    assert len(proofs) >= 3
    for path, name in proofs:
        assert name in names_in(ROOT / path), f"{path} has no {name}"
