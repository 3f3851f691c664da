"""Refuse an option that is given twice and keeps one value: click would take the last without a word."""

from __future__ import annotations

from collections.abc import Sequence

import click

from prgec.errors import UsageError


def refuse_repeats(command: click.Command, arguments: Sequence[str], parent: click.Context) -> None:
    """Check the arguments of a command, and of the command below a group.

    Raises:
        UsageError: Naming the first option that is given twice.
    """
    context = click.Context(command, parent=parent)
    try:
        _, rest, order = command.make_parser(context).parse_args(list(arguments))
    except click.UsageError:
        return  # The command reports it when it parses its arguments.
    seen = set()
    for parameter in order:
        is_single = isinstance(parameter, click.Option) and not (
            parameter.multiple or parameter.count or parameter.is_flag
        )
        if is_single and parameter.name in seen:
            raise UsageError(f"{parameter.opts[0]} is given twice", hint="it takes one value: leave the others out")
        seen.add(parameter.name)
    if isinstance(command, click.Group) and rest:
        below = command.get_command(context, rest[0])
        if below is not None:
            refuse_repeats(below, rest[1:], context)
