"""What is built can be installed and runs: from the source distribution, with and without a
compiled kernel, and nothing is in it that does not belong there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from tailrace import __version__
from tests.project import ROOT, project_files

COMPILED = "tailrace/kernel/compiled/"
FOUND_BY_SPARK = "pyspark_tailrace/__init__.py"


def environment(**changes: str) -> dict[str, str]:
    """This process's environment, without what steers tailrace, and with changes."""
    steering = ("TAILRACE_", "PYTHON", "COV_", "COVERAGE_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(steering)}
    return {**kept, **changes}


def run(*command: str | Path, cwd: Path, **changes: str) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=environment(**changes),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
        check=False,  # a failure shows the output
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def copy_project(target: Path) -> Path:
    """A clean copy, so that a build neither finds nor leaves anything in the checkout."""
    for path in project_files():
        copied = target / path.relative_to(ROOT)
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, copied)
    return target


def install(wheel: Path, target: Path) -> Path:
    """The wheel in a fresh environment that borrows this one's dependencies."""
    venv.create(target, with_pip=False, symlinks=True)
    python = target / "bin" / "python"
    where = run(
        python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=target
    ).strip()
    (Path(where) / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip: list[str | Path] = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "--disable-pip-version-check",
    ]
    run(*pip, "install", "--no-index", "--no-deps", wheel, cwd=target)
    return target / "bin"


def check_installed(bin_dir: Path, kernel: str) -> None:
    version = run(bin_dir / "tailrace", "--version", cwd=bin_dir)
    assert version.startswith(f"tailrace {__version__} (kernel: {kernel}, crc32c: ")
    program = (
        "import tailrace, sys\n"
        "assert tailrace.__file__.startswith(sys.prefix), tailrace.__file__\n"
        "with tailrace.Log('log') as log:\n"
        "    log.append([b'a', ('k', b'b')]).wait()\n"
        "with tailrace.Log('log', read_only=True) as log:\n"
        "    print([(r.offset, r.key, r.value) for r in log.read()])\n"
    )
    output = run(bin_dir / "python", "-c", program, cwd=bin_dir)
    assert output.strip() == "[(0, None, b'a'), (1, b'k', b'b')]"


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
@pytest.mark.skipif(
    os.environ.get("TAILRACE_KERNEL") == "pure", reason="has run with the compiled kernel's tests"
)
def test_wheel_from_source_distribution(tmp_path: Path) -> None:
    source = copy_project(tmp_path / "source")
    compiler = tmp_path / "quick-cc"  # what it makes need not be fast
    compiler.write_text('#!/bin/sh\nexec cc "$@" -O0\n')
    compiler.chmod(0o755)
    build = [sys.executable, "-m", "build", "--no-isolation"]
    run(*build, cwd=source, CC=str(compiler))  # the wheel from the sdist

    [sdist] = (source / "dist").glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "setup.py", "src/tailrace/py.typed"} <= names
    assert f"src/{COMPILED}codec.py" in names
    assert f"src/{FOUND_BY_SPARK}" in names
    assert not [name for name in names if name.endswith((".so", ".c", ".pyc"))]

    [wheel] = (source / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        members = opened.namelist()
    assert {"tailrace/py.typed", FOUND_BY_SPARK} <= set(members)
    extensions = {Path(name).name.partition(".")[0] for name in members if name.endswith(".so")}
    assert extensions == {
        "crc",
        "s2",
        "records",
        "codec",
        "outline",
        "tally",
        "filling",
        "columns",
        "flock",
        "notes",
        "lines",
        "naming",
    }
    compiled_sources = [name for name in members if name.startswith(COMPILED) and ".py" in name]
    assert f"{COMPILED}codec.py" not in compiled_sources
    assert not [name for name in members if name.endswith((".c", ".h", ".pxd"))]
    assert not [name for name in members if name.startswith(("tests", "examples", "bench"))]

    check_installed(install(wheel, tmp_path / "env"), "compiled")


def test_wheel_without_extensions(tmp_path: Path) -> None:
    source = copy_project(tmp_path / "source")
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel"]
    run(*command, cwd=source, TAILRACE_NO_EXTENSIONS="1")
    [wheel] = (source / "dist").glob("*.whl")
    assert wheel.name == f"tailrace-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as opened:
        assert FOUND_BY_SPARK in opened.namelist()
    check_installed(install(wheel, tmp_path / "env"), "pure")


def test_a_broken_compiler_still_gives_a_package(tmp_path: Path) -> None:
    source = copy_project(tmp_path / "source")
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\nexit 1\n")
    compiler.chmod(0o755)
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel"]
    run(*command, cwd=source, CC=str(compiler))
    [wheel] = (source / "dist").glob("*.whl")
    check_installed(install(wheel, tmp_path / "env"), "pure")
