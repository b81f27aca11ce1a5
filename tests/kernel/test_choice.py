"""Which twin runs, and who says so."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys

import pytest

import tailrace.kernel
from tailrace.kernel import _choose
from tailrace.kernel import compiled as compiled_package
from tailrace.kernel.compiled import is_built
from tailrace.kernel.layout import BatchInfo, Malformed, Status, TooLarge


@pytest.mark.parametrize(
    ("wanted", "built", "chosen"),
    [
        ("", True, "compiled"),
        ("", False, "pure"),
        ("pure", True, "pure"),
        ("pure", False, "pure"),
        ("compiled", True, "compiled"),
    ],
)
def test_choice(wanted: str, built: bool, chosen: str) -> None:
    assert _choose(wanted, built) == chosen


def test_a_missing_build_is_an_error_if_it_was_asked_for() -> None:
    with pytest.raises(ImportError, match="not built"):
        _choose("compiled", False)


def test_nonsense_is_an_error() -> None:
    with pytest.raises(ImportError, match="'fast'; it may be 'pure', 'compiled' or unset"):
        _choose("fast", True)


def test_this_process() -> None:
    wanted = os.environ.get("TAILRACE_KERNEL", "")
    assert _choose(wanted, is_built()) == tailrace.kernel.IMPLEMENTATION
    module = tailrace.kernel.decode.__module__
    assert f".{tailrace.kernel.IMPLEMENTATION}." in module


def test_sources_without_a_build_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    class Spec:
        origin: str | None = "somewhere/codec.py"

    monkeypatch.setattr(compiled_package, "find_spec", lambda name: Spec())
    assert not is_built()
    Spec.origin = None
    assert not is_built()
    monkeypatch.setattr(compiled_package, "find_spec", lambda name: None)
    assert not is_built()


@pytest.mark.parametrize("wanted", ["pure", "fast"])
def test_in_a_new_process(wanted: str) -> None:
    code = "import tailrace.kernel as k; print(k.IMPLEMENTATION, k.CRC_BACKEND)"
    environment = {**os.environ, "TAILRACE_KERNEL": wanted, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    if wanted == "pure":
        assert done.stdout.split() == ["pure", "fastcrc"]
    else:
        assert "TAILRACE_KERNEL is 'fast'" in done.stderr


def test_errors_survive_a_trip() -> None:
    """To another process, as those of workers do."""
    bad = pickle.loads(pickle.dumps(Malformed("why", 7)))
    assert (str(bad), bad.position) == ("why", 7)
    assert Malformed("why").position is None
    large = pickle.loads(pickle.dumps(TooLarge("why", 7, 5)))
    assert (str(large), large.size, large.limit) == ("why", 7, 5)
    assert isinstance(large, ValueError)
    assert isinstance(bad, ValueError)


def test_infos_and_statuses() -> None:
    info = BatchInfo(0, 95, 7, 3, 14, 0, 1, 2, 3)
    assert info.next_offset == 10
    assert [status.name for status in Status] == ["COMPLETE", "PARTIAL", "BAD"]
