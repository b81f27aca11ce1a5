"""An archive of the classes of Spark, which the JVM maps instead of loading them (AppCDS).

Half of what Spark takes to start goes into loading some fifteen thousand classes. The first session
on a machine has the JVM write them to an archive when it ends, and later ones map that. What
streams needs some thousand others, so that has an archive of its own: one that a query has made
would leave them out.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tailrace.spark.java import JAVA_OPTIONS, java_version

__all__ = ["ClassArchive"]

_MAGIC: Final = bytes.fromhex("a8ab0bf0")  # of an archive on top of the JVM's own
_PATIENCE_S: Final = 600
_DAY_S: Final = 86_400
_UNUSED_S: Final = 60 * _DAY_S  # after which an archive is taken for that of an older version
_REFUSED: Final = re.compile(r"\[cds\b.*\] (UseSharedSpaces: |Unable to use)")


class ClassArchive:
    """A file of classes of one Java and one Spark, or the wish for one.

    The JVM checks whose it is and what is in it, and goes on without one that is not as it should
    be; only one that was cut short would kill it, so its length is in its name. Each process that
    makes one has a name of its own for it, `….PID.new`. It is written when that process has ended,
    so a later one renames it. The header is written last: a file that has one is whole.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self._used: Path | None = None

    @classmethod
    def of(cls, java: str, settings: Mapping[str, Any], purpose: str) -> ClassArchive | None:
        """`None` where there can be none, or somebody has chosen another."""
        if "SharedArchiveFile" in settings.get(JAVA_OPTIONS, ""):
            return None
        folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "tailrace"
        folder = folder.absolute()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            name = _name_of(java, settings, purpose)
        except (OSError, RuntimeError):  # nobody's home
            return None
        if not os.access(folder, os.W_OK) or re.search(r"[\s\"'\\,:%]", str(folder)):
            return None  # the JVM would read such a path as something else
        return cls(folder, name)

    @property
    def is_used(self) -> bool:
        return self._used is not None

    def options(self, *, is_heard: bool) -> str:
        """What the JVM is told. `is_heard`: it may say much."""
        with contextlib.suppress(OSError):  # another process may be at it, too
            self._take_new()
            self._clear()
        self._used = self._newest()
        if self._used is None:
            return self._make()
        found = f"-XX:SharedArchiveFile={self._used} -XX:+VerifySharedSpaces"
        return f"{found} -Xlog:cds=info" if is_heard else found

    def drop_if_refused(self, said: str) -> None:
        """By what the JVM said when it was to use it."""
        if _REFUSED.search(said):
            self.drop()

    def drop(self) -> None:
        """It is of no use: the next session makes a new one."""
        if self._used is not None:
            with contextlib.suppress(OSError):
                self._used.unlink()

    def _make(self) -> str:
        """Unless another process is about to: it takes time."""
        now = time.time()
        try:
            for path in self._folder.glob(f"{self._name}.*.new"):
                if now - path.stat().st_mtime < _PATIENCE_S:
                    return ""
            mine = self._folder / f"{self._name}.{os.getpid()}.new"
            mine.touch()
        except OSError:
            return ""
        return f"-XX:ArchiveClassesAtExit={mine}"

    def _newest(self) -> Path | None:
        found = None
        for path in self._folder.glob(f"{self._name}-*.jsa"):
            with contextlib.suppress(OSError):
                stat = path.stat()
                if path.name == f"{self._name}-{stat.st_size}.jsa":
                    found = max(found or (0, path), (stat.st_mtime, path))
        if found is None:
            return None
        with contextlib.suppress(OSError):
            os.utime(found[1])  # it is in use
        return found[1]

    def _take_new(self) -> None:
        for path in self._folder.glob(f"{self._name}.*.new"):
            with path.open("rb") as file:
                if file.read(len(_MAGIC)) == _MAGIC:
                    os.fsync(file.fileno())
                    size = os.fstat(file.fileno()).st_size
                    path.replace(self._folder / f"{self._name}-{size}.jsa")

    def _clear(self) -> None:
        """What was never finished, and what is of versions that are not used any more."""
        now = time.time()
        for path in [*self._folder.glob("spark-*.jsa"), *self._folder.glob("spark-*.new")]:
            most = _DAY_S if path.suffix == ".new" else _UNUSED_S
            if now - path.stat().st_mtime > most:
                path.unlink()


def _name_of(java: str, settings: Mapping[str, Any], purpose: str) -> str:
    """By all that the JVM compares, and what it is for."""
    import pyspark
    from pyspark.find_spark_home import _find_spark_home

    digest = hashlib.sha256(java.encode())
    library = Path(java).parents[1] / "lib" / "server" / "libjvm.so"
    jars = sorted(Path(_find_spark_home(), "jars").glob("*.jar"))
    for path in [library, *jars]:
        with contextlib.suppress(FileNotFoundError):
            stat = path.stat()
            digest.update(f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
    for name in ("spark.jars", "spark.jars.packages", "spark.driver.extraClassPath"):
        digest.update(f"{settings.get(name)}\0".encode())
    versions = f"{pyspark.__version__}-java-{java_version(java) or 'unknown'}"
    return f"spark-{versions}-{purpose}-{digest.hexdigest()[:12]}"
