"""Options classes as flags: one for each row of their table, in sections of `--help`, and `--config` for a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import click

from prgec.core.config.option import Item
from prgec.core.config.toml_file import read_options

FILE = click.Path(path_type=Path)
_Command: TypeAlias = Callable[..., int]
_OTHER = "other"
# Shown by every --help.
_ALWAYS = frozenset({"help", "help_all", "as_json"})


_ALL = "prgec.help_all"


def _show_all(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta[_ALL] = True
        click.echo(ctx.get_help())
        ctx.exit()


class SectionedCommand(click.Command):
    """A command whose help has a heading for each section of its options.

    Args:
        common: Names of the options that `--help` shows; `--help-all` shows the others too. Empty for all.
    """

    def __init__(self, *args: Any, common: Sequence[str] = (), **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.common = frozenset(common)
        if common:
            self.params.append(
                click.Option(
                    ["--help-all"],
                    is_flag=True,
                    is_eager=True,
                    expose_value=False,
                    callback=_show_all,
                    help="Show all options and exit.",
                )
            )

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections in the order of the table, what belongs to none last."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if self.common and not ctx.meta.get(_ALL) and parameter.name not in self.common | _ALWAYS:
                continue
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                sections.setdefault(getattr(parameter, "section", _OTHER), []).append(record)
        for name in sorted(sections, key=lambda name: name == _OTHER):
            with formatter.section(name.capitalize()):
                formatter.write_dl(sections[name])


class _SectionedOption(click.Option):
    """A flag that knows its section."""

    def __init__(self, *args: Any, section: str, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.section = section


class _Names(click.ParamType[tuple[str, ...]]):
    """Names between commas."""

    name = "TEXT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """Split a text; a file gives them split."""
        return value if isinstance(value, tuple) else tuple(part for part in str(value).split(",") if part)


def options_of(
    table: Sequence[Item],
    *,
    kinds: Mapping[str, click.ParamType[Any]] | None = None,
    file_table: Sequence[Item] | None = None,
) -> Callable[[_Command], _Command]:
    """Add the arguments and flags of a table to a command, and `--config`.

    The command gets a value for each row by its name; None for one that is not given and has no fixed default.

    Args:
        table: Rows of an options class.
        kinds: Types of single rows, by name, that say more than the table does.
        file_table: Options of a file, where these are more than the command's.
    """
    parameters = [_parameter(item, (kinds or {}).get(item.name)) for item in table]

    def add(command: _Command) -> _Command:
        command = _config_option(table, file_table or table)(command)
        for parameter in reversed(parameters):
            command = parameter(command)
        return command

    return add


def _parameter(item: Item, kind: click.ParamType[Any] | None) -> Callable[[_Command], _Command]:
    option = item.option
    if item.is_argument:
        return click.argument(item.name, type=kind or _kind(item))
    attributes: dict[str, Any] = {"help": option.help, "section": option.section, "metavar": option.metavar}
    names = item.is_many and item.kind is str and not option.choices and not option.is_repeated
    if option.unset:
        attributes["help"] = f"{option.help.removesuffix('.')} [default: {option.unset}]."
        attributes["default"] = None
    else:
        attributes["default"] = ",".join(item.default) if names else item.default
        attributes["show_default"] = not (item.default is None or item.default is False or item.default == ())
    if item.kind is bool:
        attributes["is_flag"] = True
    else:
        is_repeated = item.is_many and not names
        attributes |= {"type": kind or _kind(item), "multiple": is_repeated}
    return click.option(*item.flags, item.name, cls=_SectionedOption, **attributes)


def _kind(item: Item) -> click.ParamType[Any]:
    if item.option.choices:
        return click.Choice(item.option.choices)
    if item.is_many and item.kind is str and not item.option.is_repeated:
        return _Names()
    kinds: dict[type, click.ParamType[Any]] = {Path: FILE, int: click.INT, float: click.FLOAT, str: click.STRING}
    return kinds[item.kind]


def _config_option(table: Sequence[Item], file_table: Sequence[Item]) -> Callable[[_Command], _Command]:
    def read(ctx: click.Context, parameter: click.Parameter, path: Path | None) -> None:
        del parameter
        if path is not None:
            said, taken = read_options(path, file_table), {item.name for item in table}
            # The defaults of click: flags win, and everything is converted and checked as flags are.
            ctx.default_map = {name: value for name, value in said.items() if name in taken}

    return click.option(
        "-c",
        "--config",
        type=FILE,
        is_eager=True,
        expose_value=False,
        callback=read,
        metavar="FILE",
        help="Take options from this TOML file: the flags' names in the sections above. Flags win.",
    )
