"""Equal rows come out of every reader, and damaged files are one clear line."""

from __future__ import annotations

import gzip
import json
import lzma
import subprocess
import sys
from pathlib import Path

import pytest

from prgec.core.data.dataset import load_dataset
from prgec.core.data.encode import encode_each
from prgec.core.data.records import read_records
from prgec.core.data.row import Row
from prgec.errors import DataError
from tests.chat_tokenizer import byte_tokenizer
from tests.checks.formats import NUM_ROWS, TEMPLATE, Sample, write_samples


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> list[Sample]:
    pytest.importorskip("datasets")
    return write_samples(tmp_path_factory.mktemp("formats") / "rows")


def _rows(sample: Sample) -> list[Row]:
    dataset = load_dataset(sample.path, columns=sample.columns)
    return [each.row for each in encode_each(dataset.examples, byte_tokenizer(TEMPLATE))]


def test_equal_rows_come_out_of_every_reader(samples: list[Sample]) -> None:
    first: dict[str, list[Row]] = {}
    for sample in samples:
        rows = _rows(sample)
        assert len(rows) == NUM_ROWS, sample
        assert rows == first.setdefault(sample.group, rows), sample
    assert {name: len([each for each in samples if each.group == name]) for name in first} == {
        "pairs": 23,
        "chats": 10,
        "numbers": 2,
        "names": 2,
    }
    assert first["numbers"] != first["names"]


def test_layouts_are_said(samples: list[Sample]) -> None:
    said = {sample.path.name: read_records(sample.path)[1] for sample in samples}
    assert said["pairs.jsonl"] == "jsonl" and said["array.json"] == "json array" and said["pretty.jsonl"] == "json"
    assert said["excel.CSV"] == "csv with semicolons" and said["bars.csv"] == "csv with bars"
    assert said["pairs.jsonl.gz"] == "jsonl, gzip" and said["pairs.csv.bz2"] == "csv with commas, bzip2"
    assert said["pairs.parquet"] == "Parquet" and said["stream.arrow"] == "Arrow"
    assert said["shards"] == "3 files of jsonl"
    pretty = next(sample.path for sample in samples if sample.path.name == "pretty.jsonl")
    assert load_dataset(pretty).describe().endswith("pretty.jsonl (json)")


def test_standard_input_is_read_as_a_file_is(samples: list[Sample]) -> None:
    """More than once, packed or not."""
    code = (
        "from pathlib import Path; from prgec.core.data.dataset import load_dataset\n"
        "first, second = (load_dataset(Path('-')) for _ in range(2))\n"
        "assert first.examples == second.examples\n"
        "print(len(first.examples), first.kept_in, first.examples[0].where)"
    )
    for name, kept_in in {"pairs.jsonl": "jsonl", "pairs.parquet": "Parquet", "pairs.jsonl.xz": "jsonl, xz"}.items():
        content = next(sample.path for sample in samples if sample.path.name == name).read_bytes()
        found = subprocess.run([sys.executable, "-c", code], input=content, capture_output=True, check=True, timeout=60)
        unit = "row" if kept_in == "Parquet" else "line"
        assert found.stdout.decode().strip() == f"{NUM_ROWS} {kept_in} -, {unit} 1"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.jsonl.gz",
            gzip.compress(b'{"prompt": "a"}' * 99, mtime=0)[:-20],
            "the packed file is damaged or cut short",
        ),
        ("a.jsonl.gz", gzip.compress(b"{}", mtime=0)[:9] + b"\xff" * 9, "the packed file is damaged or cut short"),
        ("a.jsonl.xz", lzma.compress(b'{"prompt": "a"}')[:-9], "the packed file is damaged or cut short"),
        ("a.csv", b'text,label\n"open,1\n', "not csv: unexpected end of data .*line 2"),
        ("a.csv", b"text,label\na,1,2\n", "3 columns, but the header has 2 .*line 2"),
        ("a.csv", b"text,text\na,1\n", 'the header names the column "text" twice'),
        ("a.csv", b"", "the data file is empty"),
        ("a.csv", b"text,label\n\xff,1\n", "not UTF-8 text"),
        ("a.json", b'{"a": 1}\n{"b": \n', "invalid JSON: Expecting value at column .*line 2"),
        ("a.jsonl", b'{\n "a": 1\n}\n{\n "b": }\n', "invalid JSON: Expecting value at column 7 .*line 5"),
        ("a.json", b'[{"a": 1},\n{"a" 2}]', "invalid JSON: Expecting ':' delimiter at column 6 .*line 2"),
        ("a.arrow", b"ARROW1\0\0damaged", "pyarrow cannot read it"),
        ("a.arrow", b"\xff\xff\xff\xff\x10\0\0\0", "pyarrow cannot read it"),
        ("a.jsonl.zst", b"\x28\xb5\x2f\xfdno", "cannot read the data file"),
    ],
)
def test_damaged_files(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        load_dataset(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "the folder has no data files"),
        (["README.md"], "the folder has no data files"),
        (["train-0.jsonl", "test-0.jsonl"], "the folder has files of the splits test, train"),
        (["dataset_dict.json", "train/a", "test/a"], "the folder has the splits test, train"),
        (["state.json"], "the saved data set is damaged"),
    ],
)
def test_folders_that_are_no_data_set(tmp_path: Path, names: list[str], message: str) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps({"prompt": "a", "completion": "b"}))
    with pytest.raises(DataError, match=message):
        load_dataset(tmp_path)


def test_a_saved_data_set_cannot_name_files_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": [{"filename": "../secret.arrow"}]}))
    with pytest.raises(DataError, match="names files elsewhere"):
        load_dataset(tmp_path)


def test_a_pattern_that_fits_nothing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no file fits the pattern"):
        load_dataset(tmp_path / "train-*")


def test_quotes_mean_nothing_in_the_tsv_of_glue(tmp_path: Path) -> None:
    (tmp_path / "dev.tsv").write_text('sentence\tlabel\n"an open quote\t1\n"closed"\t0\n')
    prompts = [each.prompt for each in load_dataset(tmp_path / "dev.tsv").examples]  # type: ignore[union-attr]
    assert prompts == ['"an open quote It was', '"closed" It was']
