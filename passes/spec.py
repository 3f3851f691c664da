"""Pipelines as text: `canonicalize,inject-lora-fa{targets=q_proj,v_proj rank=8},dualize{q=4}`.

Options are the dataclass fields of a pass. Text parses to passes and prints back to the same text: options at
their default are left out, values with spaces, braces, quotes or nothing in them are JSON strings.
"""

from __future__ import annotations

import json
import re
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any

from prgec.errors import UsageError
from prgec.passes.infra import Pass

_PASS = re.compile(r"\s*(?P<name>[a-z0-9-]+)\s*(?P<options>\{(?:[^{}\"]|\"(?:[^\"\\]|\\.)*\")*\})?\s*(?:,|$)")
_OPTION = re.compile(r"\s*(?P<key>[a-z0-9_-]+)=(?P<value>\"(?:[^\"\\]|\\.)*\"|[^\s\"]+)(?=\s|$)")
_PLAIN = re.compile(r"[^\s{}\"]+")


def parse_pipeline(text: str, table: Mapping[str, type[Pass]]) -> tuple[Pass, ...]:
    """Parse pipeline text.

    Args:
        text: Passes separated by commas, options in braces.
        table: Pass classes by name.

    Raises:
        UsageError: On an unknown pass, an unknown option, or a value of the wrong type.
    """
    passes: list[Pass] = []
    position = 0
    while position < len(text.rstrip()):
        match = _PASS.match(text, position)
        if match is None:
            raise UsageError(
                f"cannot read the pipeline at {text[position : position + 20]!r}",
                hint="write it as pass-name{option=value other=value},next-pass",
            )
        passes.append(_parse_pass(match["name"], (match["options"] or "{}")[1:-1], table))
        position = match.end()
    return tuple(passes)


def print_pipeline(passes: Sequence[Pass]) -> str:
    """Return the text `parse_pipeline` reads back."""
    return ",".join(print_pass(each) for each in passes)


def print_pass(each: Pass) -> str:
    """Return the text of one pass; options at their default are left out."""
    options = []
    for field in fields(each):
        value = getattr(each, field.name)
        default = field.default if field.default is not MISSING else None
        if value != default:
            options.append(f"{field.name.replace('_', '-')}={_print_value(value)}")
    return each.name + (f"{{{' '.join(options)}}}" if options else "")


def _parse_pass(name: str, options: str, table: Mapping[str, type[Pass]]) -> Pass:
    if name not in table:
        raise UsageError(f"there is no pass called {name!r}", hint=f"known passes: {', '.join(table)}")
    hints = typing.get_type_hints(table[name])
    known = {field.name: hints[field.name] for field in fields(table[name])}
    values: dict[str, Any] = {}
    position = 0
    while position < len(options.rstrip()):
        match = _OPTION.match(options, position)
        if match is None:
            raise UsageError(f"{name}: cannot read the options at {options[position : position + 20]!r}")
        key = match["key"].replace("-", "_")
        if key not in known:
            raise UsageError(
                f"{name} has no option {match['key']!r}", hint=f"its options: {', '.join(known) or 'none'}"
            )
        values[key] = _parse_value(f"{name}: {match['key']}", match["value"], known[key])
        position = match.end()
    try:
        return table[name](**values)
    except TypeError as error:
        raise UsageError(f"{name}: {error}") from error


def _parse_value(what: str, text: str, kind: Any) -> Any:
    if isinstance(kind, types.UnionType):
        kind = next(each for each in typing.get_args(kind) if each is not type(None))
    try:
        raw = json.loads(text) if text.startswith('"') else text
    except ValueError as error:
        raise UsageError(
            f"{what} is {text}, which is not a JSON string", hint='write a backslash twice: "a\\\\.b"'
        ) from error
    if kind is bool:
        if raw not in {"true", "false"}:
            raise UsageError(f"{what} is {raw!r}; expected true or false")
        return raw == "true"
    if typing.get_origin(kind) is tuple:
        return tuple(part for part in raw.split(",") if part)
    try:
        return kind(raw)
    except ValueError as error:
        raise UsageError(f"{what} is {raw!r}; expected a {kind.__name__}") from error


def _print_value(value: Any) -> str:
    text = (
        ",".join(value) if isinstance(value, tuple) else str(value).lower() if isinstance(value, bool) else str(value)
    )
    return text if _PLAIN.fullmatch(text) else json.dumps(text)
