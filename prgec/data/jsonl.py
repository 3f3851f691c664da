"""Read a jsonl file into records that remember their line number, with one clear error for each way it can be bad."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prgec.errors import DataError


@dataclass(frozen=True, slots=True)
class Record:
    """One JSON object of a data file.

    Attributes:
        fields: The object as parsed.
        path: File it came from, for messages.
        line: Line number, counted from 1.
        unit: What `line` counts.
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


def read_jsonl(path: Path) -> list[Record]:
    """Read every non-blank line of a UTF-8 jsonl file, one at a time; a byte order mark is skipped.

    Raises:
        DataError: If the file is missing, unreadable, empty, not UTF-8, or a line is not a JSON object.
    """
    try:
        with path.open("rb") as file:
            records = list(_records(file, path))
    except FileNotFoundError as error:
        raise DataError("no such data file", where=path) from error
    except OSError as error:
        raise DataError(f"cannot read the data file: {error.strerror}", where=path) from error
    if not records:
        raise DataError("the data file is empty", where=path, hint="it needs one JSON object per line")
    return records


def read_bytes(path: Path) -> bytes:
    """Return the bytes of a data file.

    Raises:
        DataError: If the file is missing or unreadable.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise DataError("no such data file", where=path) from error
    except OSError as error:
        raise DataError(f"cannot read the data file: {error.strerror}", where=path) from error


def _records(lines: Iterable[bytes], path: Path) -> Iterator[Record]:
    for number, line in enumerate(lines, start=1):
        text = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
        if text.strip():
            yield _parse_line(text.removesuffix(b"\n"), path, number)


def _parse_line(raw: bytes, path: Path, line: int) -> Record:
    where = f"{path}, line {line}"
    try:
        value = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(f"not UTF-8 text (byte {error.start + 1} of the line)", where=where) from error
    except ValueError as error:
        raise DataError(f"invalid JSON: {error}", where=where) from error
    except RecursionError as error:
        raise DataError("invalid JSON: nested too deeply", where=where) from error
    if not isinstance(value, dict):
        raise DataError(f"not a JSON object but {type(value).__name__}", where=where)
    return Record(fields=value, path=path, line=line)
