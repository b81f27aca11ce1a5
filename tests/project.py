"""The project's own files, as the tests of its manners see them."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LIGHT_JVM = "-XX:TieredStopAtLevel=1"  # what a test does is over before more has paid
BESIDE = {".git", ".venv", "build", "dist", "__pycache__"}


@cache
def project_files() -> tuple[Path, ...]:
    """Every file that is tracked, or would be: what git ignores is not looked at.

    In an unpacked source distribution there is no git; there, every file counts.
    """
    if (ROOT / ".git").exists():
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout
        paths = {ROOT / name for name in listed.decode().split("\0") if name}
    else:
        paths = {p for p in ROOT.rglob("*") if not BESIDE & set(p.relative_to(ROOT).parts)}
    return tuple(sorted(path for path in paths if path.is_file()))


def has_java() -> bool:
    """Can Spark run here?"""
    return shutil.which("java") is not None or "JAVA_HOME" in os.environ


NEEDS_JAVA = pytest.mark.java  # what starts a Spark; scripts/test runs it apart from the rest


def relative(path: Path) -> str:
    """The path as a person names it: from the project's root, with slashes."""
    return path.relative_to(ROOT).as_posix()
