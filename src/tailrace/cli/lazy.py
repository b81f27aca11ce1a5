"""A group that imports its commands when they are needed, and ends every error in one line."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import click

from tailrace.errors import TailraceError

__all__ = ["FAILED", "LazyGroup", "forget_stdout", "one_line"]

FAILED = 2  # the command could not do its work: wrong usage, an I/O error, an error of the library
_INTERRUPTED = 130  # as shells do: 128 + SIGINT
_BROKEN_PIPE = 141  # 128 + SIGPIPE
_SHORT = 75  # columns of a command in the list


class LazyGroup(click.Group):
    """`commands_by_path` maps a command's name to where it is: `package.module:attribute`.
    `short_help_by_name` is what the list of commands says of each, so that nothing has to be
    imported to show it."""

    def __init__(
        self,
        *args: Any,
        commands_by_path: dict[str, str],
        short_help_by_name: dict[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._paths = commands_by_path
        self._short_help = short_help_by_name or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self._paths)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        path = self._paths.get(cmd_name)
        if path is None:
            return None
        module, _, attribute = path.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = []
        for name in self.list_commands(ctx):
            text = self._short_help.get(name)
            if text is None and (command := self.get_command(ctx, name)) is not None:
                text = command.get_short_help_str(_SHORT)
            rows.append((name, text or ""))
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """What the shell has closed (`>&-`) Python has no file for, and the next file that is
        opened would take its number: one of a log might get what was meant for the terminal."""
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            if getattr(sys, name) is None:
                opened = open(os.devnull, "w" if number else "r", encoding="utf-8")  # noqa: SIM115
                if opened.fileno() != number:
                    os.dup2(opened.fileno(), number)
                setattr(sys, name, opened)
                if name == "stdout":  # nobody would see what the command has to say
                    click.echo("tailrace: standard output is closed; use >/dev/null", err=True)
                    sys.exit(FAILED)
        return super().main(*args, **kwargs)

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with _ending_in_one_line():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with _ending_in_one_line():
            result = super().invoke(ctx)
            sys.stdout.flush()
        return result


@contextlib.contextmanager
def _ending_in_one_line() -> Iterator[None]:
    """Every error becomes a line and an exit code, before click has words of its own for it."""
    try:
        yield
    except KeyboardInterrupt as error:
        code = getattr(error, "code", _INTERRUPTED)  # `signals.Terminated` has one of its own
        raise click.exceptions.Exit(code) from None
    except BrokenPipeError:
        forget_stdout()
        raise click.exceptions.Exit(_BROKEN_PIPE) from None
    except click.exceptions.NoArgsIsHelpError:  # whoever says nothing is shown the help
        raise
    except click.ClickException as error:
        said = " ".join(error.format_message().split()).removesuffix(".")
        where = getattr(error, "ctx", None)
        hint = f"; see {where.command_path} --help" if where is not None else ""
        click.echo(f"tailrace: {said}{hint}", err=True)
        raise click.exceptions.Exit(FAILED) from None
    except (TailraceError, OSError) as error:
        if os.environ.get("TAILRACE_DEBUG"):
            raise
        click.echo(f"tailrace: {one_line(error)}", err=True)
        raise click.exceptions.Exit(FAILED) from None


def one_line(error: Exception) -> str:
    """What a person is told of an error."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__


def forget_stdout() -> None:
    """Nobody reads it any more; Python would complain when it flushes it at the end."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)
