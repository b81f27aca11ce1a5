"""A short run of the fuzzer with a fixed seed, and every input that once failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.kernel.layout import Malformed
from tests.fuzz import decoder
from tests.fuzz.make_corpus import seeds
from tests.kernel.twins import Twin

SEED = 20260101
CASES = 1500


@pytest.fixture(scope="module")
def kernels() -> list[Twin]:
    return decoder.twins()


@pytest.mark.parametrize("path", sorted(decoder.CORPUS.glob("*.hex")), ids=lambda path: path.stem)
def test_corpus(kernels: list[Twin], path: Path) -> None:
    decoder.try_input(kernels, bytes.fromhex(path.read_text()))


def test_corpus_is_what_we_write() -> None:
    """Seeds of ours have not changed; files of other names are inputs that once failed."""
    for name, data in seeds().items():
        assert bytes.fromhex((decoder.CORPUS / f"{name}.hex").read_text()) == data, name


@pytest.mark.parametrize("part", range(10))
def test_mutations(kernels: list[Twin], part: int) -> None:
    inputs = decoder.corpus()
    for case in range(part * CASES // 10, (part + 1) * CASES // 10):
        try:
            decoder.try_input(kernels, decoder.make_case(inputs, SEED, case))
        except Exception as error:
            error.add_note(f"again: scripts/fuzz --seed {SEED} --case {case}")
            raise


def test_cases_reach_the_parser(kernels: list[Twin]) -> None:
    """Most inputs pass the checksum, and many of those are damaged behind it."""
    inputs = decoder.corpus()
    passed = malformed = 0
    for case in range(300):
        data = decoder.make_case(inputs, SEED, case)
        if kernels[-1].check(data, 0, len(data))[0]:
            passed += 1
            malformed += decoder.observe(kernels[-1], data)["checked"] is Malformed
    assert passed > 100
    assert malformed > 10


def test_cases_are_replayable() -> None:
    inputs = decoder.corpus()
    assert decoder.make_case(inputs, 1, 2) == decoder.make_case(inputs, 1, 2)
    assert decoder.make_case(inputs, 1, 2) != decoder.make_case(inputs, 1, 3)


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert decoder.main(["--seed", "5", "--case", "7"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("seed 5, case 7: ")
    assert printed.endswith("fine\n")


def test_a_failure_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "FOUND", tmp_path)
    path = decoder.keep(5, 7)
    assert bytes.fromhex(path.read_text()) == decoder.make_case(decoder.corpus(), 5, 7)
