"""Every test of the kernel that asks for `kernel` runs on both implementations."""

from __future__ import annotations

from types import ModuleType

import pytest

import tailrace.kernel
from tests.kernel.twins import TWINS, Twin, available, load


@pytest.fixture(scope="session", params=TWINS)
def kernel(request: pytest.FixtureRequest) -> Twin:
    """One twin. A missing build fails the tests, unless TAILRACE_KERNEL=pure says it is meant."""
    if not available(request.param):
        pytest.skip("TAILRACE_KERNEL=pure, and the extensions are not built")
    return load(request.param)


@pytest.fixture(scope="session")
def twins() -> tuple[Twin, Twin]:
    """Both, to compare: (compiled, pure)."""
    if not available("compiled"):
        pytest.skip("TAILRACE_KERNEL=pure, and the extensions are not built")
    return load("compiled"), load("pure")


@pytest.fixture
def arrow(kernel: Twin, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """`tailrace.kernel.arrow` on top of the twin."""
    pytest.importorskip("pyarrow")
    from tailrace.kernel import arrow

    monkeypatch.setattr(tailrace.kernel, "columns", kernel.modules[-1])
    monkeypatch.setattr(tailrace.kernel, "inflate", kernel.inflate)
    return arrow
