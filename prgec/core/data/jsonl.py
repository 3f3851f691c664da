"""Read JSON files into records that remember their place, with one clear error for each way they can be bad."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from prgec.core.data.opening import BOM, head_of, open_data, text_of_file
from prgec.errors import DataError


@dataclass(frozen=True, slots=True)
class Record:
    """One JSON object of a data file.

    Attributes:
        fields: The object as parsed.
        path: File it came from, for messages.
        line: Line number, counted from 1.
        unit: Unit of `line`.
    """

    fields: dict[str, Any]
    path: Path
    line: int
    unit: str = "line"

    @property
    def where(self) -> str:
        """Return `file, line n`, the location shown in error messages."""
        return f"{self.path}, {self.unit} {self.line}"

    def text(self, name: str) -> str:
        """Return a string field.

        Raises:
            DataError: If the field is missing, is not a string, or cannot be written as UTF-8.
        """
        if name not in self.fields:
            found = ", ".join(sorted(self.fields)) or "none"
            raise DataError(f'missing field "{name}"; found {found}', where=self.where)
        return text_of(self.fields[name], name, self)


def text_of(value: Any, name: str, record: Record) -> str:
    """Return a value that must be text.

    Raises:
        DataError: If it is something else, or cannot be written as UTF-8.
    """
    if not isinstance(value, str):
        raise DataError(f'field "{name}" is {type(value).__name__}; expected a string', where=record.where)
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(f'field "{name}" holds an unpaired surrogate', where=record.where) from error
    return value


def read_json(path: Path) -> tuple[Iterable[Record], str]:
    """Read JSON in any layout: an object a line, an array, objects over several lines, or one object around the rows.

    Returns:
        The records, and what the file is, for people.

    Raises:
        DataError: If the file is missing, unreadable, not UTF-8, or holds anything but JSON objects.
    """
    if not head_of(path).lstrip().startswith(b"["):
        try:
            return read_jsonl(path), "jsonl"
        except _FirstLineError as error:
            records = _objects(text_of_file(path), path)
            if records is None:
                raise DataError(error.what, where=error.where, hint=error.hint) from error
            return records, "json"
    try:
        value = json.loads(text_of_file(path))
    except ValueError as error:
        place = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise DataError(f"invalid JSON: {_reason(error)}", where=f"{path}{place}") from error
    except RecursionError as error:
        raise DataError("invalid JSON: nested too deeply", where=path) from error
    return items_of(value, path), "json array"


def items_of(values: list[Any], path: Path) -> list[Record]:
    """Return the objects of an array as records.

    Raises:
        DataError: If one is none.
    """
    for number, value in enumerate(values, start=1):
        if not isinstance(value, dict):
            raise DataError(f"item {number} is not a JSON object but {type(value).__name__}", where=path)
    return [Record(value, path, number, "item") for number, value in enumerate(values, start=1)]


def read_jsonl(path: Path) -> Iterator[Record]:
    """Read every non-blank line of a UTF-8 jsonl file, one at a time; a byte order mark is skipped.

    The first record is read at once, the others as they are used.

    Raises:
        DataError: If the file is missing, unreadable, empty, not UTF-8, or a line is not a JSON object.
    """
    records = _records(path)
    first = next(records, None)
    if first is None:
        raise DataError("the data file is empty", where=path, hint="it needs one JSON object per line")
    return chain([first], records)


class _FirstLineError(DataError):
    """The first line with anything on it is not JSON: the file may have another layout."""


def _objects(text: str, path: Path) -> list[Record] | None:
    """Return objects that take several lines each; None where there are none of them."""
    decoder, place, records = json.JSONDecoder(), 0, list[Record]()
    while place < len(text):
        if text[place].isspace():
            place += 1
            continue
        try:
            value, end = decoder.raw_decode(text, place)
        except (ValueError, RecursionError) as error:
            if not records:
                return None
            line = text.count("\n", 0, getattr(error, "pos", place)) + 1
            raise DataError(f"invalid JSON: {_reason(error)}", where=f"{path}, line {line}") from error
        line = text.count("\n", 0, place) + 1
        if not isinstance(value, dict):
            raise DataError(f"not a JSON object but {type(value).__name__}", where=f"{path}, line {line}")
        records.append(Record(value, path, line))
        # Objects in a row may have commas between them.
        place = end + 1 if text[end : end + 1] == "," else end
    return records


def _records(path: Path) -> Iterator[Record]:
    is_first = True
    with open_data(path) as (lines, _):
        for number, line in enumerate(lines, start=1):
            text = line.removeprefix(BOM) if number == 1 else line
            if text.strip():
                yield _parse_line(text.removesuffix(b"\n"), path, number, is_first=is_first)
                is_first = False


def _parse_line(raw: bytes, path: Path, line: int, *, is_first: bool) -> Record:
    where = f"{path}, line {line}"
    try:
        value = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(f"not UTF-8 text (byte {error.start + 1} of the line)", where=where) from error
    except ValueError as error:
        kind = _FirstLineError if is_first else DataError
        raise kind(f"invalid JSON: {_reason(error)}", where=where) from error
    except RecursionError as error:
        raise DataError("invalid JSON: nested too deeply", where=where) from error
    if not isinstance(value, dict):
        raise DataError(f"not a JSON object but {type(value).__name__}", where=where)
    return Record(fields=value, path=path, line=line)


def _reason(error: Exception) -> str:
    """Return what is wrong and in which column, without a line: it is that of the place."""
    return f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
