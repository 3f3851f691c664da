"""Every way a jsonl file can be bad is one DataError that names the file and the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from prgec.core.data.jsonl import read_jsonl
from prgec.errors import DataError


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "rows.jsonl"


def test_reads_objects_with_line_numbers(data: Path) -> None:
    data.write_bytes(b'\xef\xbb\xbf{"a": "x"}\r\n\n  \n{"a": "\xc3\xa9"}')
    records = list(read_jsonl(data))
    assert [(record.fields, record.line) for record in records] == [({"a": "x"}, 1), ({"a": "\u00e9"}, 4)]


def test_line_separators_inside_strings_do_not_split_lines(data: Path) -> None:
    data.write_text('{"a": "one\u2028two\u0085three"}\n', encoding="utf-8")
    assert len(list(read_jsonl(data))) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\n \n", "is empty"),
        (b'{"a": 1}\n{"a": \n', r"invalid JSON: .*line 2"),
        (b'{"a": 1}\n\n[1]\n', r"not a JSON object but list .*line 3"),
        (b'{"a": 1}\n"text"\n', r"not a JSON object but str .*line 2"),
        (b'{"a": "\xff"}\n', r"not UTF-8 text \(byte 8 of the line\) .*line 1"),
        (b'{"a": ' + b"[" * 100_000, r"invalid JSON.*line 1"),
    ],
)
def test_bad_content(data: Path, content: bytes, message: str) -> None:
    data.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        list(read_jsonl(data))
    assert str(data) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_file(data: Path) -> None:
    with pytest.raises(DataError, match="no such data file"):
        list(read_jsonl(data))


def test_folder_instead_of_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot read the data file"):
        list(read_jsonl(tmp_path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"b": "x"}', 'missing field "a"; found b .*line 1'),
        ('{"a": 3}', 'field "a" is int; expected a string'),
        ('{"a": null}', 'field "a" is NoneType; expected a string'),
        ('{"a": "\\ud800"}', "unpaired surrogate"),
    ],
)
def test_bad_field(data: Path, content: str, message: str) -> None:
    data.write_text(content)
    with pytest.raises(DataError, match=message):
        next(read_jsonl(data)).text("a")
