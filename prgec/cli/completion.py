"""`prgec completion`: what a shell needs to complete commands, options and their values."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from prgec.cli.render import print_lines

_SHELLS = ("bash", "zsh", "fish")
_VARIABLE = "_PRGEC_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS))
def completion(shell: str) -> int:
    """Print a script that completes prgec's commands and options in SHELL.

    bash: prgec completion bash >> ~/.bashrc. zsh: the same into ~/.zshrc. fish: prgec completion fish >
    ~/.config/fish/completions/prgec.fish.
    """
    from prgec.cli.main import cli

    found = get_completion_class(shell)
    assert found is not None, "click knows these shells"
    print_lines(found(cli, {}, "prgec", _VARIABLE).source().strip())
    return 0
