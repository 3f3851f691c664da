"""Options of a command as a form, and a form as options and as the TOML file they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prgec.core.config.option import Item
from prgec.errors import UsageError

# Where a run writes, and how it begins, is the page's to say.
_OF_THE_PAGE = {"out", "force", "resume", "output", "dump_passes", "save_program"}
# A section whose options run code: whoever reaches the page must not choose it.
_RUNS_CODE = "reward"
# Sections most people never open are folded.
OPEN = ("data", "training", "evaluation", "step", "rows")
_MOST_CHARACTERS = 4096


@dataclass(frozen=True, kw_only=True)
class Field:
    """One option as a form shows it.

    Attributes:
        name: Name of the option, in requests too.
        label: Its flag.
        help: Effect of the option.
        kind: `checkbox`, `select`, `number` or `text`.
        value: Its content.
        choices: Choices of a `select`.
        step: Step of a `number`.
    """

    name: str
    label: str
    help: str
    kind: str
    value: str
    choices: tuple[str, ...] = ()
    step: str = ""


@dataclass(frozen=True)
class Section:
    """Fields under a heading."""

    title: str
    is_open: bool
    fields: Sequence[Field]


def is_shown(item: Item) -> bool:
    """Whether the page has a field for an option."""
    return item.name not in _OF_THE_PAGE and item.option.section != _RUNS_CODE


def sections(table: Sequence[Item], given: Mapping[str, str]) -> list[Section]:
    """Return a form.

    Args:
        table: The options.
        given: Values given before, by name; the others have their defaults.
    """
    titles = dict.fromkeys(item.option.section for item in table if is_shown(item))
    return [
        Section(
            title or "what",
            title in ("", *OPEN),
            [_field(item, given) for item in table if item.option.section == title and is_shown(item)],
        )
        for title in titles
    ]


def _field(item: Item, given: Mapping[str, str]) -> Field:
    option, default = item.option, "" if item.option.unset else _text(item.default)
    value = given.get(item.name, "" if given and item.kind is bool else default)
    text = f"{option.help.removesuffix('.')} [default: {option.unset}]." if option.unset else option.help
    label = item.flags[0] if item.flags else item.name.upper()
    if item.kind is bool:
        return Field(name=item.name, label=label, help=text, kind="checkbox", value=value)
    if option.choices and not item.is_many:
        choices = ("", *map(str, option.choices)) if option.unset else tuple(map(str, option.choices))
        return Field(name=item.name, label=label, help=text, kind="select", value=value, choices=choices)
    if item.kind in (int, float):
        return Field(
            name=item.name, label=label, help=text, kind="number", value=value, step="1" if item.kind is int else "any"
        )
    return Field(
        name=item.name,
        label=label,
        help=text + (" Several between commas." if item.is_many else ""),
        kind="text",
        value=value,
    )


def _text(value: Any) -> str:
    if value is None or value is False:
        return ""
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def values(table: Sequence[Item], given: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of a form, by name of the option, without empty ones.

    Raises:
        UsageError: Naming the first field that cannot be.
    """
    return {
        item.name: _value(item, given[item.name].strip())
        for item in table
        if is_shown(item) and given.get(item.name, "").strip()
    }


def _value(item: Item, text: str) -> Any:
    if len(text) > _MOST_CHARACTERS or not text.isprintable():
        raise UsageError(f"{item.key} is not a line of text")
    if item.is_many:
        return tuple(_one(item, part.strip()) for part in text.split(",") if part.strip())
    return _one(item, text)


def _one(item: Item, text: str) -> Any:
    if item.kind is bool:
        return True
    try:
        value = item.kind(text)
    except (ValueError, OverflowError) as error:
        kind = "an integer" if item.kind is int else "a number"
        raise UsageError(f"{item.key} is {text!r}; expected {kind}") from error
    if item.option.choices and value not in item.option.choices:
        raise UsageError(f"{item.key} is {text!r}; expected one of {', '.join(map(str, item.option.choices))}")
    if item.is_path(text):
        return Path(text).expanduser().absolute()
    return value
