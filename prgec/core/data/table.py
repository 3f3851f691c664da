"""Tables of text: csv with any separator, and GLUE's tsv, which knows no quotes."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from pathlib import Path

from prgec.core.data.jsonl import Record
from prgec.core.data.opening import open_data, text_of_file
from prgec.errors import DataError

SEPARATORS = ",;\t|"
_NAMES = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
# A cell may be a whole document.
_MOST_CELL_BYTES = 1 << 30


def separator_of(head: bytes) -> str:
    """Return the separator that splits a header into most columns; a comma where none does."""
    text = head.decode("utf-8", "replace")
    header = {each: len(next(_rows(io.StringIO(text, newline=""), each), [])) for each in SEPARATORS}
    return max(SEPARATORS, key=lambda each: header[each])


def read_csv(path: Path, separator: str) -> tuple[Iterator[Record], str]:
    """Read a table with a header; quotes, and line breaks within them, are what the csv module says.

    Returns:
        The rows, and what the file is, for people.

    Raises:
        DataError: If it is not UTF-8, a row has another number of columns than the header, or a quote is not closed.
    """
    return _csv_records(path, separator), _kind(separator)


def _csv_records(path: Path, separator: str) -> Iterator[Record]:
    with open_data(path) as (file, _):
        text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
        reader = csv.reader(text, delimiter=separator, strict=True)
        csv.field_size_limit(_MOST_CELL_BYTES)
        try:
            header = [name.strip() for name in next(reader, [])]
            _check_header(header, path)
            for row in reader:
                if any(cell.strip() for cell in row):
                    yield Record(_named(header, row, path, reader.line_num), path, reader.line_num)
        except csv.Error as error:
            raise DataError(f"not csv: {error}", where=f"{path}, line {reader.line_num}") from error
        except UnicodeDecodeError as error:
            raise DataError(f"not UTF-8 text (byte {error.start + 1})", where=path) from error


def read_tsv(path: Path) -> tuple[Iterable[Record], str]:
    """Read a table whose cells are between tabs: GLUE's, where quotes mean nothing, or one with quoted cells.

    Raises:
        DataError: If a row has another number of columns than the header either way.
    """
    # GLUE's files hold unbalanced quotes: a tab is the only thing that means anything, unless the header is quoted too.
    lines = io.StringIO(text_of_file(path), newline=None).read().split("\n")
    header = lines[0].split("\t")
    if any(name.startswith('"') and name.endswith('"') for name in header):
        return read_csv(path, "\t")
    _check_header(header, path)
    try:
        rows = ((number, line.split("\t")) for number, line in enumerate(lines[1:], start=2) if line.strip())
        records = [Record(_named(header, cells, path, number), path, number) for number, cells in rows]
    except DataError:
        try:
            return list(_csv_records(path, "\t")), _kind("\t")
        except DataError:
            pass
        raise
    return records, "tsv"


def _kind(separator: str) -> str:
    return f"csv with {_NAMES[separator]}"


def _rows(lines: Iterable[str], separator: str) -> Iterator[list[str]]:
    try:
        yield from csv.reader(lines, delimiter=separator)
    except csv.Error:
        return


def _check_header(header: list[str], path: Path) -> None:
    twice = next((name for n, name in enumerate(header) if name in header[:n]), None)
    if twice is not None:
        raise DataError(f'the header names the column "{twice}" twice', where=f"{path}, line 1")


def _named(header: list[str], cells: list[str], path: Path, line: int) -> dict[str, str]:
    if len(cells) != len(header):
        raise DataError(f"{len(cells)} columns, but the header has {len(header)}", where=f"{path}, line {line}")
    return {name: cell for name, cell in zip(header, cells, strict=True) if name}
