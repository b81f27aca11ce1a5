"""Puts the pages of the site into a folder: those of docs/, and what is made of other files.

Files of the root, the examples and the reference get pages when the site is built, and nothing of
that is kept. A link of a page to a file of the project becomes a link to the page of that file; if
it has none the build fails. What comes out is plain Markdown and a `mkdocs.yml`, so that another
builder can take it.

    python docs/site/stage.py FOLDER
"""

from __future__ import annotations

import importlib
import inspect
import json
import posixpath
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

SITE = Path(__file__).resolve().parent
ROOT = SITE.parents[1]

# Files of the root, and their pages.
FROM_ROOT = {
    "FORMAT.md": "format.md",
    "GUARANTEES.md": "proofs.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}

# Pages of the reference: a title, what it says first, and the modules, or the names of `tailrace`,
# that are on it. What `tailrace` has besides is on the page of stores.
LOGS = ["Log", "Record", "Headers", "Receipt", "Batch", "Follower", "VacuumReport"]
ERRORS = [*importlib.import_module("tailrace.errors").__all__]
REFERENCE: dict[str, tuple[str, str, list[str]]] = {
    "stores": (
        "Stores and queues",
        "Names of `tailrace`. [Queues](../queues.md) is the guide.",
        [],
    ),
    "logs": (
        "Logs",
        "Names of `tailrace`. [The log](../log.md) is the guide.",
        [f"tailrace.{name}" for name in LOGS],
    ),
    "aio": (
        "asyncio",
        "Names of `tailrace.aio`: what the blocking side has, as coroutines and async iterators.",
        ["tailrace.aio"],
    ),
    "errors": (
        "Errors",
        "Names of `tailrace`, and of `tailrace.errors`.",
        [f"tailrace.{name}" for name in ERRORS],
    ),
    "config": (
        "Configuration",
        "Names of `tailrace.config`. [Configuration](../configuration.md) has the keys of a file.",
        ["tailrace.config"],
    ),
    "observing": (
        "Metrics, traces, logging",
        "[Observability](../observability.md) is the guide.",
        ["tailrace.metrics", "tailrace.tracing", "tailrace.jsonlog"],
    ),
    "spark": (
        "Spark",
        "Names of `tailrace.spark`. [Spark](../spark.md) is the guide.",
        ["tailrace.spark", "tailrace.spark.builder.Table"],
    ),
    "testing": (
        "Testing",
        "[Testing your application](../testing-your-app.md) is the guide.",
        ["tailrace.testing"],
    ),
}

FENCE = re.compile(r"(?ms)^(`{3,}|~{3,}).*?^\1$")
INNER_LIST = re.compile(r"(?m)^   - ")
LINK = re.compile(r"(?<=\]\()([^)\s#]+)(?=[)#])")


def stage(folder: Path) -> None:
    """Write everything that the builder needs; the site goes to `site` beside it, by default."""
    shutil.rmtree(folder / "pages", ignore_errors=True)
    for source, page, text in pages():
        path = folder / "pages" / page
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(adapted(text, source, page), encoding="utf-8")
    shutil.copy(SITE / "style.css", folder / "pages")
    schema = importlib.import_module("tailrace.config.keys").json_schema()
    text = json.dumps(schema, indent=2) + "\n"
    (folder / "pages" / "tailrace.schema.json").write_text(text, encoding="utf-8")
    config = (SITE / "mkdocs.yml").read_text(encoding="utf-8")
    (folder / "mkdocs.yml").write_text(config.replace("ROOT", ROOT.as_posix()), encoding="utf-8")


def pages() -> Iterator[tuple[str, str, str]]:
    """Each with the place in the project from which its links lead, and its place on the site."""
    for path in sorted((ROOT / "docs").glob("*.md")):
        yield f"docs/{path.name}", path.name, path.read_text(encoding="utf-8")
    for name, page in FROM_ROOT.items():
        yield name, page, (ROOT / name).read_text(encoding="utf-8")
    for path in sorted((ROOT / "examples").glob("*.py")):
        text = path.read_text(encoding="utf-8")
        page = f"examples/{path.stem}.md"
        yield f"docs/{page}", page, f"# {path.name}\n\n````python\n{text}````\n"
    for name, (title, intro, parts) in REFERENCE.items():
        page = f"reference/{name}.md"
        yield f"docs/{page}", page, f"# {title}\n\n{intro}\n\n" + "\n".join(entries(parts))


# --- the reference --------------------------------------------------------------------------


def entries(parts: list[str]) -> Iterator[str]:
    """What mkdocstrings is to put there: each object, with the members that are for users."""
    for path in parts or rest_of_tailrace():
        found = resolve(path)
        if isinstance(found, ModuleType):
            yield from (entry(f"{path}.{name}", getattr(found, name)) for name in found.__all__)
        else:
            yield entry(path, found)


def rest_of_tailrace() -> list[str]:
    package = importlib.import_module("tailrace")
    elsewhere = {*LOGS, *ERRORS, "aio", "spark", "__version__"}
    names = [name for name in package.__all__ if name not in elsewhere]
    first = ["open", "Store", "Queue", "Stream", "Consumer", "StreamConsumer", "Message"]
    return [f"tailrace.{name}" for name in [*first, *(n for n in names if n not in first)]]


def resolve(path: str) -> Any:
    module, _, name = path.rpartition(".")
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError:
        return getattr(importlib.import_module(module), name)


def entry(path: str, found: Any) -> str:
    if not inspect.isclass(found):
        return f"::: {path}\n"
    members = "".join(f"\n        - {name}" for name in members_of(path, found))
    return f"::: {path}\n    options:\n      members:{members or ' []'}\n"


def members_of(path: str, cls: type) -> list[str]:
    """The fields of a class, and what it documents. Of one with a twin for asyncio, or of that,
    what both have: the rest is what their parts ask of each other."""
    found: dict[str, Any] = {}
    fields: set[str] = set()
    for each in reversed(cls.__mro__):
        if each.__module__.startswith("tailrace"):
            found |= {name: value for name, value in vars(each).items() if name[0] != "_"}
            if hasattr(cls, "__dataclass_fields__") or hasattr(cls, "_fields"):
                fields |= {name for name in inspect.get_annotations(each) if name[0] != "_"}
    documented = {name for name, value in found.items() if name in fields or is_told(value)}
    twin = twin_of(path)
    if twin is not None:
        documented &= {*dir(twin), "length", "log", "open"}
    return sorted(documented | fields)


def is_told(value: Any) -> bool:
    is_verb = callable(value) or isinstance(value, (property, classmethod, staticmethod))
    return is_verb and bool(inspect.getdoc(value))


def twin_of(path: str) -> type | None:
    name = path.rpartition(".")[2]
    blocking, tasks = (importlib.import_module(module) for module in ("tailrace", "tailrace.aio"))
    if name not in tasks.__all__ or name not in blocking.__all__:
        return None
    twin = getattr(blocking if path.startswith("tailrace.aio.") else tasks, name)
    return twin if isinstance(twin, type) else None


# --- prose ----------------------------------------------------------------------------------


def adapted(text: str, source: str, page: str) -> str:
    """Links are written as they lead in the project; have them lead on the site. A list in a list
    is indented by three here, and by four for the builder. Code stays as it is."""

    def lead(match: re.Match[str]) -> str:
        target = match[1]
        if ":" in target:
            return target
        place = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        return posixpath.relpath(place_on_site(place), posixpath.dirname(page) or ".")

    parts = []
    position = 0
    for code in [*FENCE.finditer(text), None]:
        prose = text[position : code.start() if code else None]
        parts.append(INNER_LIST.sub("    - ", LINK.sub(lead, prose)))
        if code:
            parts.append(code[0])
            position = code.end()
    return "".join(parts)


def place_on_site(place: str) -> str:
    """The page of a file of the project; if it has none, a name that the builder refuses."""
    if place in FROM_ROOT:
        return FROM_ROOT[place]
    if place.startswith("examples/") and place.endswith(".py"):
        return place.removesuffix(".py") + ".md"
    return place.removeprefix("docs/") if place.startswith("docs/") else f"not-on-the-site/{place}"


if __name__ == "__main__":
    stage(Path(sys.argv[1]))
