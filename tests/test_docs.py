"""The documentation is true: its Python runs, its commands exist, its links lead somewhere."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from tailrace.cli import main
from tests.project import NEEDS_JAVA, ROOT, project_files, relative

PAGES = [
    path
    for path in project_files()
    if path.suffix == ".md" and path.parent in (ROOT, ROOT / "docs")
]
ALONE = {"docs/spark.md"}  # in a process of its own: it starts Spark, and stops it
FENCE = re.compile(r"(?ms)^```([\w-]*)\n(.*?)^```$")
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """A fenced block: what it is written in, its text, and the line where the text begins."""

    language: str
    text: str
    line: int


def blocks(page: Path, language: str) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for match in FENCE.finditer(text):
        if match[1] == language:
            yield Block(language, match[2], text.count("\n", 0, match.start(2)) + 1)


def commands(page: Path) -> Iterator[list[str]]:
    """The command lines of a page's console blocks, as words."""
    for block in blocks(page, "console"):
        for line in block.text.replace("\\\n", " ").splitlines():
            if line.startswith("$ "):
                yield shlex.split(line[2:], comments=True)


def cli_commands() -> dict[str, click.Command]:
    """Every command, by its full name: `tailrace`, `tailrace verify`, `tailrace bench log`."""
    found: dict[str, click.Command] = {}

    def walk(name: str, command: click.Command) -> None:
        found[name] = command
        if isinstance(command, click.Group):
            with click.Context(command, info_name=name) as context:
                for child_name in command.list_commands(context):
                    child = command.get_command(context, child_name)
                    assert child is not None, f"{name} {child_name} is listed but not there"
                    walk(f"{name} {child_name}", child)

    walk("tailrace", main)
    return found


def pages_with(language: str) -> list[Path]:
    return [page for page in PAGES if any(blocks(page, language))]


def run_alone(command: list[str], folder: Path) -> str:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=NEEDS_JAVA if relative(page) in ALONE else (), id=relative(page))
        for page in pages_with("python")
    ],
)
def test_python_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All Python of a page runs, in order, in one namespace and an empty directory."""
    if relative(page) in ALONE:
        pytest.importorskip("pyspark", reason="pyspark is missing: tailrace[spark]")
        text = "\n".join(block.text for block in blocks(page, "python"))
        run_alone([sys.executable, "-c", text], tmp_path)
        return
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(page, "python"):
        source = "\n" * (block.line - 1) + block.text  # so that a traceback names the page's line
        exec(compile(source, str(page), "exec"), namespace)


@pytest.mark.parametrize("page", pages_with("console"), ids=relative)
def test_commands_exist(page: Path) -> None:
    """`$ tailrace …` names commands and options that are there, `$ scripts/…` scripts."""
    for words in commands(page):
        if words[0] == "tailrace":
            check_tailrace_command(words)
        elif "/" in words[0]:
            assert os.access(ROOT / words[0], os.X_OK), f"{words[0]} is not a script"


def check_tailrace_command(words: list[str]) -> None:
    known = cli_commands()
    name, command = "tailrace", known["tailrace"]
    for word in words[1:]:
        if not isinstance(command, click.Group):
            break
        if word.startswith("-"):
            continue
        name = f"{name} {word}"
        assert name in known, f"{name} is not a command"
        command = known[name]
    options = {"--help"}
    for part in (known["tailrace"], command):
        for parameter in part.params:
            options.update(parameter.opts, parameter.secondary_opts)
    for word in words[1:]:
        if word.startswith("--"):
            option = word.partition("=")[0]
            assert option in options, f"{name} has no option {option}"


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        assert file.exists(), f"{relative(page)} links to {target}"
        if anchor and file.suffix == ".md":
            assert anchor in anchors(file), f"{relative(page)} links to {target}"


def anchors(page: Path) -> set[str]:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    titles = re.findall(r"(?m)^#+ (.+)$", text)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_command_has_help() -> None:
    for name, command in cli_commands().items():
        assert command.help or command.short_help, f"{name} has no help"
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                assert parameter.help, f"{name} {parameter.opts[0]} has no help"


def test_every_command_is_documented() -> None:
    """docs/cli.md has a heading for each command, and names each of its options."""
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    titles = [title.replace("`", "") for title in re.findall(r"(?m)^##+ (.+)$", text)]
    for name, command in cli_commands().items():
        if not isinstance(command, click.Group):
            documented = any(title == name or title.startswith(f"{name} ") for title in titles)
            assert documented, f"docs/cli.md has no heading for {name}"
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                for option in parameter.opts:
                    if option.startswith("--") and option != "--help":
                        assert option in text, f"docs/cli.md does not name {name} {option}"
