"""`tailrace completion`."""

from __future__ import annotations

import click

__all__ = ["completion"]

_VARIABLE = "_TAILRACE_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Write what a shell needs to complete commands, options, and the names of queues and groups.

    \b
    Examples:
      eval "$(tailrace completion bash)"                                      # in ~/.bashrc
      eval "$(tailrace completion zsh)"                                       # in ~/.zshrc
      tailrace completion fish > ~/.config/fish/completions/tailrace.fish
    """
    from click.shell_completion import get_completion_class

    root = context.find_root().command
    kind = get_completion_class(shell)
    assert kind is not None
    completer = kind(root, {}, "tailrace", _VARIABLE)
    # Not `source()`: it would run a shell only to learn how old that is.
    click.echo(completer.source_template % completer.source_vars())
