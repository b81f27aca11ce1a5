"""The Python that Spark starts on this machine, by way of a script that mends its path.

Spark puts its own pyspark, a zip of sources, first on the path of every Python process that it
starts, and the largest of its jars behind it. What comes from a zip is compiled anew by each
process, which takes three times as long as to load what an installation has compiled; and a query
has seven kinds of such processes, one started after the other. Nothing that they import is in the
zip only: it is a copy of the installed pyspark, which this process has, too.

Only for a local master: a cluster's workers have paths of their own.
"""

from __future__ import annotations

import os
import re
import shlex
import site
import sys
import sysconfig
from pathlib import Path
from typing import Final

__all__ = ["script_in"]

_SCRIPT: Final = """\
#!/bin/sh
# Python for Spark, without the copies of its own modules that Spark puts on the path.
set -f
IFS=:
kept=
for entry in $PYTHONPATH; do
    case $entry in
    {home}/python/lib/*.zip | {home}/jars/*.jar) ;;
    *) kept=$kept${{kept:+:}}$entry ;;
    esac
done
export PYTHONPATH="$kept"
exec {python} "$@"
"""


def script_in(folder: str) -> str | None:
    """Write it there; its path, or `None` where Spark has to do without: its modules are not those
    of this Python, nothing in the folder can be executed, or Spark would take its path for several
    words, since it asks a shell for it."""
    home = _home()
    path = os.path.join(folder, "python")
    if home is None or re.search(r"[^\w/.,:@%+-]", path):
        return None
    text = _SCRIPT.format(home=shlex.quote(home), python=shlex.quote(sys.executable))
    try:
        Path(path).write_text(text)
        os.chmod(path, 0o700)
    except OSError:
        return None
    return path if os.access(path, os.X_OK) else None


def _home() -> str | None:
    """Spark's home, if a new Python finds pyspark there by itself, and py4j as well."""
    import py4j
    import pyspark
    from pyspark.find_spark_home import _find_spark_home

    found = [Path(str(module.__file__)).parents[1] for module in (pyspark, py4j)]
    home = _find_spark_home()
    if not os.path.isfile("/bin/sh") or any(str(each) not in _searched() for each in found):
        return None
    return home if Path(home) == found[0] / "pyspark" else None


def _searched() -> set[str]:
    """Where each Python of this installation looks for modules."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    own = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    user = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    return {
        os.path.abspath(each) for each in [*given, *own, *site.getsitepackages(), *user] if each
    }
