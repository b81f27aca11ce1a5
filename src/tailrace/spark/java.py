"""The Java that Spark will run on, and whether it is one that Spark can."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from pathlib import Path
from typing import Final

from tailrace.errors import TailraceError

__all__ = ["JAVA_OPTIONS", "find_java", "java_version"]

JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"

_OLDEST_JAVA: Final = 17
_INSTALL_JAVA: Final = (
    f"install Java {_OLDEST_JAVA} or newer (Debian: apt-get install openjdk-17-jre-headless), or "
    "set JAVA_HOME"
)


def find_java() -> str:
    """The one that Spark's scripts take; they say little if it is missing or too old."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if java is None:
        raise TailraceError(f"Java is missing, which Spark needs: {_INSTALL_JAVA}")
    if not os.access(java, os.X_OK):
        raise TailraceError(f"JAVA_HOME is {home}, and there is no {java}: {_INSTALL_JAVA}")
    java = os.path.realpath(java)
    version = java_version(java)
    if version and int(version.removeprefix("1.").split(".")[0]) < _OLDEST_JAVA:
        raise TailraceError(f"{java} is Java {version}, too old for Spark: {_INSTALL_JAVA}")
    return java


def java_version(java: str) -> str:
    """From the file that each Java has; asking it would take a tenth of a second."""
    with contextlib.suppress(OSError):
        release = Path(java).parents[1].joinpath("release").read_text(errors="replace")
        found = re.search(r'JAVA_VERSION="(\d[\w.]*)', release)
        if found is not None:
            return found[1]
    return ""
