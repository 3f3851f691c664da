"""Rules of the fields of a manifest, as annotations: the values that it may hold, and its meaning.

The Python checks read them; `tools/manifest_table.py` writes the C++ driver's rules and the reference page from them.

    >>> @dataclass(frozen=True)
    ... class Shape:
    ...     q: Annotated[int, Rule("Queries a step.", low=1)]
    >>> check_fields(Shape(q=4))
"""

from __future__ import annotations

import functools
import math
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Annotated, Any

from prgec.errors import ProgramError


@dataclass(frozen=True)
class Rule:
    """Bounds of a field.

    Attributes:
        meaning: Text for the reference page.
        low: Smallest integer.
        high: Largest integer; a program beyond it is damaged, or made to exhaust memory.
        choices: Texts that it may hold; empty for any.
    """

    meaning: str
    low: int = 0
    high: int = (1 << 63) - 1
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RuledField:
    """A field with a rule.

    Attributes:
        name: Its name.
        kind: Its type.
        rule: Its rule.
        is_required: Whether a manifest without it is refused.
        default: Its value where a manifest lacks it and need not have it.
    """

    name: str
    kind: Any
    rule: Rule
    is_required: bool
    default: Any


@functools.cache
def ruled_fields(owner: type) -> tuple[RuledField, ...]:
    """Return the fields of a dataclass that are annotated with a rule, in their order."""
    hints = typing.get_type_hints(owner, include_extras=True)
    found = []
    for item in fields(owner):
        hint = hints[item.name]
        if typing.get_origin(hint) is not Annotated:
            continue
        kind, rule = typing.get_args(hint)
        default = item.default if item.default_factory is MISSING else item.default_factory()
        found.append(RuledField(name=item.name, kind=kind, rule=rule, is_required=default is MISSING, default=default))
    return tuple(found)


def check_fields(value: Any) -> None:
    """Compare every field that has a rule with it: what follows computes with them.

    Raises:
        ProgramError: If one has another type, or is out of bounds.
    """
    owner: type = type(value)
    for item in ruled_fields(owner):
        held = getattr(value, item.name)
        expected = _broken(item, held)
        if expected:
            raise ProgramError(f"the program's manifest has {item.name} = {held!r}; expected {expected}")


def _broken(item: RuledField, value: Any) -> str:
    """Return what a value should have been; empty where it is right."""
    rule = item.rule
    if not _has_type(value, item.kind):
        return "a finite number" if item.kind is float else f"{getattr(item.kind, '__name__', item.kind)}"
    if item.kind is int and not rule.low <= value <= rule.high:
        return f"an integer from {rule.low} to {rule.high}"
    if rule.choices and value not in rule.choices:
        return f"one of {', '.join(map(repr, rule.choices))}"
    return ""


def _has_type(value: Any, kind: Any) -> bool:
    """Whether a value of a JSON document has a type; a number without a fraction is an int."""
    if kind is float:
        return type(value) in (float, int) and math.isfinite(value)
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple:
        return type(value) is tuple and all(_has_type(each, parts[0]) for each in value)
    if origin is dict:
        return isinstance(value, Mapping) and all(_has_type(each, parts[1]) for each in value.values())
    return type(value) is kind
