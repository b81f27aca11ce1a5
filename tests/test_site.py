"""The documentation builds as a site: every page is on it, every link leads somewhere, and every
public name is in the reference."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tailrace.config.keys import json_schema
from tests.project import ROOT

SITE = ROOT / "docs" / "site"
MODULES = [
    "tailrace",
    "tailrace.aio",
    "tailrace.config",
    "tailrace.jsonlog",
    "tailrace.metrics",
    "tailrace.spark",
    "tailrace.testing",
    "tailrace.tracing",
]
NOT_THERE = {"tailrace.__version__", "tailrace.aio", "tailrace.spark"}
ENTRY = re.compile(r"(?m)^::: (\S+)$")


def run(*command: str | Path) -> None:
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def staged(folder: Path) -> Path:
    """The pages, as the builder gets them."""
    run(SITE / "stage.py", folder)
    return folder / "pages"


def public_names() -> set[str]:
    names = {
        f"{module}.{name}" for module in MODULES for name in importlib.import_module(module).__all__
    }
    return names - NOT_THERE


def entries(pages: Path) -> list[str]:
    """What is in the reference."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(pages.glob("reference/*.md"))]
    return [name for text in texts for name in ENTRY.findall(text)]


def test_every_public_name_is_in_the_reference_once(tmp_path: Path) -> None:
    found = entries(staged(tmp_path))
    assert len(found) == len(set(found))
    assert public_names() <= set(found)


def test_links_to_files_of_the_project_lead_to_their_pages(tmp_path: Path) -> None:
    pages = staged(tmp_path)
    index = (pages / "index.md").read_text(encoding="utf-8")
    assert "(format.md)" in index
    assert "../FORMAT.md" not in index
    how_to = (pages / "how-to.md").read_text(encoding="utf-8")
    assert "(examples/outbox.md)" in how_to
    assert not [path for path in pages.rglob("*.md") if "not-on-the-site" in path.read_text()]


@pytest.mark.skipif(
    importlib.util.find_spec("mkdocs") is None, reason="mkdocs is missing: pip install '.[docs]'"
)
def test_the_site_builds(tmp_path: Path) -> None:
    """Strictly: a link, an anchor or a menu that leads nowhere, or a page in no menu, fails."""
    pages = staged(tmp_path)
    run("-m", "mkdocs", "build", "--strict", "--config-file", tmp_path / "mkdocs.yml")
    site = tmp_path / "site"
    for path in pages.rglob("*.md"):
        place = path.relative_to(pages).with_suffix("")
        built = site / ("" if place.name == "index" else place) / "index.html"
        assert built.is_file(), place
    ids = {
        found
        for page in site.glob("reference/*/index.html")
        for found in re.findall(r'id="([^"]+)"', page.read_text(encoding="utf-8"))
    }
    schema = json.loads((site / "tailrace.schema.json").read_text(encoding="utf-8"))
    assert schema == json_schema()
    assert set(entries(pages)) <= ids
    assert "tailrace.Queue.publish" in ids
    assert "tailrace.Store.open_log" not in ids  # what parts ask of each other is not for users
