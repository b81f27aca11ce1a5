"""The one thing that pyproject.toml cannot say: how the kernel is compiled.

`src/tailrace/kernel/compiled` holds Cython modules in pure-Python syntax. Each becomes an optional
extension: where there is no C compiler (or the environment says `TAILRACE_NO_EXTENSIONS=1`) the
package is built without them, and the plain Python twins in `src/tailrace/kernel/pure` do the work.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
COMPILED = Path("src/tailrace/kernel/compiled")


def extensions() -> list[Extension]:
    """The kernel's extensions: none when told so, or when Cython is not there."""
    if os.environ.get("TAILRACE_NO_EXTENSIONS", "") not in ("", "0"):
        return []
    sources = [COMPILED / path.name for path in sorted((ROOT / COMPILED).glob("[a-z]*.py"))]
    try:
        from Cython.Build import cythonize
    except ImportError:
        print("tailrace: no Cython, so the kernel is plain Python", file=sys.stderr)
        return []
    # The kernel reads and writes integers through cast pointers, hence no strict aliasing.
    flags = ["/O2"] if sys.platform == "win32" else ["-O3", "-fno-strict-aliasing"]
    beside = [*(ROOT / COMPILED).glob("*.pxd"), *(ROOT / COMPILED).glob("*.h")]
    modules: list[Extension] = cythonize(
        [
            Extension(
                f"tailrace.kernel.compiled.{source.stem}",
                [source.as_posix()],
                include_dirs=[COMPILED.as_posix()],
                depends=[path.relative_to(ROOT).as_posix() for path in beside],
                extra_compile_args=flags,
            )
            for source in sources
        ],
        language_level=3,
        build_dir="build/cython",
    )
    for module in modules:
        module.optional = True  # set here because cythonize() does not keep it
    return modules


class BuildExt(build_ext):
    """Leaves no extension behind that an earlier build made from other sources."""

    def build_extension(self, ext: Extension) -> None:
        try:
            super().build_extension(ext)
        except Exception:
            Path(self.get_ext_fullpath(ext.name)).unlink(missing_ok=True)
            raise  # the command reports it, and goes on because the extension is optional


class BuildPy(build_py):
    """Leaves the sources of extensions out of wheels: uncompiled, they cannot be imported."""

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        found: list[tuple[str, str, str]] = build_py.find_package_modules(
            self, package, package_dir
        )
        if package != "tailrace.kernel.compiled":
            return found
        return [entry for entry in found if entry[1] == "__init__"]


if __name__ == "__main__":
    os.chdir(ROOT)  # the paths above are relative to the project
    setup(ext_modules=extensions(), cmdclass={"build_ext": BuildExt, "build_py": BuildPy})
