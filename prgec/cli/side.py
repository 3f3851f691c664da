"""`prgec side`: learn a small network beside a frozen program, elsewhere."""

from __future__ import annotations

import importlib

import click

# Name -> `module:attribute` of the command and what `prgec side --help` says of it.
_COMMANDS = {
    "emit": ("prgec.cli.side_emit:emit", "Run a backbone once over labelled rows and write shards to learn from."),
    "fit": ("prgec.cli.side_fit:fit", "Learn a side network from shards alone."),
    "build": ("prgec.cli.side_build:build", "Lower a side network to a program for the device."),
    "audit": ("prgec.cli.side_audit:audit", "Try what shards give away."),
    "serve": ("prgec.cli.side_remote:serve", "Learn side networks for devices, over HTTP."),
    "token": ("prgec.cli.side_remote:token", "Let a device use the server."),
    "push": ("prgec.cli.side_remote:push", "Send shards to a server and ask for a network."),
    "pull": ("prgec.cli.side_remote:pull", "Fetch the network."),
    "forget": ("prgec.cli.side_remote:forget", "Delete what the server has."),
}


class _SideGroup(click.Group):
    """Subcommands that are imported when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of use."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one subcommand, or None when there is no such name."""
        if cmd_name not in _COMMANDS:
            return None
        module, attribute = _COMMANDS[cmd_name][0].split(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list without importing a command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in _COMMANDS.items()])


@click.group(cls=_SideGroup)
def side() -> None:
    """Learn a small network beside a program that stays as it is (docs/side.md)."""
