"""How a user says a field of an options class: one description, from which flags, keys of TOML files and help come."""

from __future__ import annotations

import types
import typing
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

_METADATA = "option"


@dataclass(frozen=True, kw_only=True)
class Option:
    """The spelling and meaning of one field.

    Attributes:
        section: Table of the TOML file, and heading in help; empty for an argument, which has neither.
        help: Effect of the option, in a sentence.
        flags: Spellings on the command line, the one that is also the key first; empty for `--` and the field's name.
        metavar: Placeholder of a value in help; None for one by type.
        choices: All values there are; empty for any of the type.
        unset: The default in words, where it is not a fixed value.
        is_place: Whether a text names a file or folder wherever there is one of that name.
        no_path: Prefixes of values of a path option that are not paths.
        words: Values of a path option that are not paths either.
        is_repeated: Whether texts are given one a flag, not between commas.
        is_kept: Whether a file that repeats the work records it.
    """

    section: str
    help: str
    flags: tuple[str, ...] = ()
    metavar: str | None = None
    choices: tuple[str | int, ...] = ()
    unset: str = ""
    is_place: bool = False
    no_path: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    is_repeated: bool = False
    is_kept: bool = True


@dataclass(frozen=True)
class Item:
    """One row of a table of options.

    Attributes:
        name: Name of the field.
        kind: Type of a value, or of one of many: bool, int, float, str or Path.
        is_many: Whether the field is a tuple.
        default: Value where none is given; None also where one is required.
        option: Its spelling and meaning.
    """

    name: str
    kind: type
    is_many: bool
    default: Any
    option: Option

    @property
    def is_argument(self) -> bool:
        """Whether it is given without a flag."""
        return not self.option.section

    @property
    def flags(self) -> tuple[str, ...]:
        """Spellings on the command line; none of an argument."""
        return () if self.is_argument else self.option.flags or (f"--{self.name.replace('_', '-')}",)

    @property
    def key(self) -> str:
        """Its name in a file: the first flag without dashes."""
        return self.name if self.is_argument else self.flags[0].removeprefix("--")

    def is_path(self, text: str) -> bool:
        """Whether a value names a file or folder."""
        return self.kind is Path and not text.startswith(self.option.no_path) and text not in self.option.words


def option(section: str, default: Any, text: str, *flags: str, **rest: Any) -> Any:
    """Return a field of an options class.

    Args:
        section: Table of the TOML file, and heading in help.
        default: Value where none is given.
        text: Help, in a sentence.
        flags: Spellings on the command line.
        rest: Other attributes of `Option`.
    """
    return field(default=default, metadata={_METADATA: Option(section=section, help=text, flags=flags, **rest)})


def argument(**rest: Any) -> dict[str, Option]:
    """Return metadata of a required field that comes before all flags."""
    return {_METADATA: Option(section="", help="", **rest)}


def table_of(options: type) -> tuple[Item, ...]:
    """Return a row for every field of an options class that a user can set, in order."""
    hints = typing.get_type_hints(options)
    return tuple(
        Item(each.name, *_kind(hints[each.name]), None if each.default is MISSING else each.default, found)
        for each in fields(options)
        if (found := each.metadata.get(_METADATA)) is not None
    )


def _kind(hint: Any) -> tuple[type, bool]:
    """Return the type of a value, and whether there are many."""
    if isinstance(hint, types.UnionType):
        hint = next(each for each in typing.get_args(hint) if each is not type(None))
    if typing.get_origin(hint) is tuple:
        return typing.get_args(hint)[0], True
    assert hint in (bool, int, float, str, Path), hint
    return hint, False
