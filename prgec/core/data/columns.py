"""Columns under other names: `--map prompt=question` reads the field `question` as `prompt`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from prgec.core.data.jsonl import Record
from prgec.core.data.records import read_records
from prgec.core.data.task import reach
from prgec.errors import DataError, UsageError

MAP_HELP = "Read column THEIRS as OURS, such as prompt=question (repeatable)."


def parse_columns(texts: Iterable[str]) -> dict[str, str]:
    """Return our name -> their column.

    Raises:
        UsageError: If a text is not `ours=theirs`, or a name is mapped twice.
    """
    columns: dict[str, str] = {}
    for text in texts:
        ours, equals, theirs = text.partition("=")
        if not (ours and equals and theirs):
            raise UsageError(f"--map {text!r} is not of the form OURS=THEIRS", hint="for example --map prompt=question")
        if ours in columns:
            raise UsageError(f"--map names {ours!r} twice")
        columns[ours] = theirs
    return columns


def read_renamed(path: Path, columns: Iterable[str]) -> tuple[Iterator[Record], str]:
    """Read a data file with its columns under our names; return its layout, too.

    Args:
        path: The data file.
        columns: Texts as `--map` takes them.

    Raises:
        UsageError: If a column is mapped wrongly.
        DataError: If the file is bad, or a record lacks a column.
    """
    mapped = parse_columns(columns)
    found, kept_in = read_records(path)
    return (renamed(record, mapped) for record in found), kept_in


def renamed(record: Record, columns: Mapping[str, str]) -> Record:
    """Return a record with its columns under our names; those that are not mapped stay.

    Raises:
        DataError: If it lacks a column.
    """
    if not columns:
        return record
    fields = {name: value for name, value in record.fields.items() if name not in columns.values()}
    for ours, theirs in columns.items():
        value = reach(record.fields, theirs)
        if value is None:
            found = ", ".join(sorted(record.fields)) or "none"
            raise DataError(f'no column "{theirs}" to read as "{ours}"; found {found}', where=record.where)
        fields[ours] = value[0]
    return replace(record, fields=fields)
