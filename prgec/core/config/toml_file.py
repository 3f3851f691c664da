"""Options from a TOML file and back: arguments on top, then a table for each section, paths relative to the file."""

from __future__ import annotations

import difflib
import json
import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from prgec.core.config.option import Item
from prgec.errors import UsageError


def read_options(path: Path, table: Sequence[Item]) -> dict[str, Any]:
    """Return what a file says, by name of the field.

    Args:
        path: The file.
        table: Options it may say.

    Raises:
        UsageError: If it cannot be read, or says something there is not.
    """
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"cannot read the options: {reason}", where=path) from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"the options are not TOML: {error}", where=path) from error
    sections = {item.option.section for item in table}
    found: dict[str, Any] = {}
    for key, value in raw.items():
        if isinstance(value, dict):
            if key not in sections:
                raise UsageError(f"there is no section [{key}]", where=path, hint=_nearest(key, sections - {""}))
            found.update(_read(path, key, value, table))
        else:
            found.update(_read(path, "", {key: value}, table))
    return found


def write_options(values: Mapping[str, Any], table: Sequence[Item], *, folder: Path | None, remark: str) -> str:
    """Return the text of a file that says `values` again.

    Args:
        values: By name of the field; what is None, or belongs to one piece of work alone, is left out.
        table: Options to say.
        folder: Where the file will be: paths under the working directory become relative to it, others absolute.
            None leaves them as they are.
        remark: First line, a comment.
    """
    lines = [f"# {remark}"]
    section = ""
    kept = [item for item in table if item.option.is_kept and values.get(item.name) is not None]
    for item in sorted(kept, key=lambda item: [each.option.section for each in table].index(item.option.section)):
        if item.option.section != section:
            section = item.option.section
            lines += ["", f"[{section}]"]
        lines.append(f"{item.key} = {_value_text(values[item.name], item, folder)}")
    return "\n".join(lines) + "\n"


def _read(path: Path, section: str, values: Mapping[str, Any], table: Sequence[Item]) -> dict[str, Any]:
    """Check the keys and values of one section."""
    rows = {item.key: item for item in table if item.option.section == section}
    found: dict[str, Any] = {}
    for key, value in values.items():
        if key not in rows:
            place = f" in [{section}]" if section else ""
            others = [item for item in table if item.key == key]
            known = rows or [item.key for item in table]
            hint = f"it belongs in [{others[0].option.section}]" if others else _nearest(key, known)
            raise UsageError(f"there is no option {key!r}{place}", where=path, hint=hint)
        found[rows[key].name] = _checked(value, rows[key], path)
    return found


def _nearest(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else f"known: {', '.join(names)}"


def _checked(value: Any, item: Item, path: Path) -> Any:
    """Return a value as the command line takes it."""
    if item.is_many:
        # As on the command line, where names are between commas.
        many = value if isinstance(value, list) else [part for part in str(value).split(",") if part]
        return tuple(_checked_one(each, item, path) for each in many)
    return _checked_one(value, item, path)


def _checked_one(value: Any, item: Item, path: Path) -> Any:
    wanted = {Path: (str,), float: (float, int)}.get(item.kind, (item.kind,))
    if type(value) not in wanted:
        name = {bool: "true or false", int: "an integer", float: "a number"}.get(item.kind, "a text in quotes")
        raise UsageError(f"{item.key} is {value!r}; expected {name}", where=path)
    if item.option.choices and value not in item.option.choices:
        choices = ", ".join(map(str, item.option.choices))
        raise UsageError(f"{item.key} is {value!r}; expected one of {choices}", where=path)
    if item.is_path(value):
        return path.parent / value
    if item.option.is_place and (path.parent / value).exists():
        return str(path.parent / value)
    return item.kind(value)


def _value_text(value: Any, item: Item, folder: Path | None) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(_value_text(each, item, folder) for each in value) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    text = str(value)
    if folder is not None and (item.is_path(text) or (item.option.is_place and Path(text).exists())):
        text = _as_seen_from(folder, Path(text))
    # Strings of JSON are strings of TOML, but for DEL and halves of characters beyond 16 bits.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _as_seen_from(folder: Path, path: Path) -> str:
    """A tree that moves as a whole keeps its meaning; what lies elsewhere stays there."""
    here, target, seat = Path.cwd(), Path(os.path.abspath(path)), Path(os.path.abspath(folder))
    is_near = target.is_relative_to(here) and seat.is_relative_to(here)
    return os.path.relpath(target, seat) if is_near else str(target)
