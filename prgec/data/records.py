"""Read a data file of any published layout into records: jsonl, json, tsv, txt, and whatever `datasets` reads.

GLUE's tsv files are read as they are published (no quoting; MRPC's odd header and QQP's too), SuperGLUE's MultiRC and
the SQuAD json are flattened to one record a question and answer.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from prgec.data.jsonl import Record, read_bytes, read_jsonl
from prgec.errors import DataError
from prgec.machine.extras import extra_hint

# `hf:NAME:CONFIG:SPLIT` is loaded by `datasets`, from a folder, its cache or the hub; the split is train if not named.
HUB_PREFIX = "hf:"
_DATASETS_SUFFIXES = {".parquet": "parquet", ".arrow": "arrow", ".csv": "csv"}
# First column of the MRPC corpus, whose files are called .txt.
_MRPC_HEADER = b"Quality\t"


def read_records(path: Path) -> list[Record]:
    """Read a data file, chosen by its suffix; a file of another suffix is read as jsonl.

    Raises:
        DataError: If it is missing, empty or damaged, or needs `datasets`, which is not installed.
    """
    if str(path).startswith(HUB_PREFIX) or path.suffix in _DATASETS_SUFFIXES or path.is_dir():
        return _read_with_datasets(path)
    reader = {".tsv": _read_tsv, ".txt": _read_txt, ".json": _read_json}.get(path.suffix.lower(), read_jsonl)
    return list(chain.from_iterable(map(_flatten, reader(path))))


def _read_tsv(path: Path) -> list[Record]:
    # GLUE's files hold unbalanced quotes: a tab is the only thing that means anything.
    lines = io.StringIO(_text(path), newline=None).read().split("\n")
    header = lines[0].split("\t")
    records = []
    for number, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        cells = line.split("\t")
        if len(cells) != len(header):
            raise DataError(f"{len(cells)} columns, but the header has {len(header)}", where=f"{path}, line {number}")
        records.append(Record(dict(zip(header, cells, strict=True)), path, number))
    return _some(records, path, "it needs a header and rows, separated by tabs")


def _read_txt(path: Path) -> list[Record]:
    if read_bytes(path).removeprefix(b"\xef\xbb\xbf").startswith(_MRPC_HEADER):
        return _read_tsv(path)
    text = _text(path)
    return _some([Record({"text": text}, path, 1)] if text.strip() else [], path, "it needs some text")


def _read_json(path: Path) -> list[Record]:
    """Read SQuAD's layout, an array of objects, or jsonl under the name of json."""
    text = _text(path)
    try:
        value = json.loads(text)
    except ValueError:
        return read_jsonl(path)
    except RecursionError as error:
        raise DataError("invalid JSON: nested too deeply", where=path) from error
    if isinstance(value, dict) and isinstance(value.get("data"), list):
        rows = _checked(_squad, value["data"], path)
    else:
        rows = value if isinstance(value, list) else [value]
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise DataError(f"item {number} is not a JSON object but {type(row).__name__}", where=path)
    records = [Record(row, path, number, "item") for number, row in enumerate(rows, start=1)]
    return _some(records, path, "it needs an array of objects, or SQuAD's data")


def _squad(articles: list[Any]) -> Iterator[dict[str, Any]]:
    for article in articles:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                yield {**question, "title": article["title"], "context": paragraph["context"]}


def _flatten(record: Record) -> Iterator[Record]:
    """Yield the answers of a MultiRC passage one by one; any other record as it is."""
    passage = record.fields.get("passage")
    if not (isinstance(passage, dict) and "questions" in passage):
        yield record
        return
    for row in _checked(_multirc, passage, record.where):
        yield Record(row, record.path, record.line)


def _multirc(passage: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for question in passage["questions"]:
        for answer in question["answers"]:
            label = {"label": answer["label"]} if "label" in answer else {}
            yield {"paragraph": passage["text"], "question": question["question"], "answer": answer["text"], **label}


def _checked(layout: Callable[[Any], Iterator[dict[str, Any]]], value: Any, where: object) -> list[dict[str, Any]]:
    try:
        return list(layout(value))
    except (KeyError, TypeError) as error:
        raise DataError(f"not the published layout: {type(error).__name__} {error}", where=where) from error


def _read_with_datasets(path: Path) -> list[Record]:
    try:
        import datasets
    except ImportError as error:
        raise DataError(
            "this kind of data needs the package datasets", where=path, hint=extra_hint("datasets")
        ) from error
    try:
        loaded = _load(datasets, path)
    except Exception as error:  # the library raises dozens of unrelated types
        raise DataError(f"datasets cannot load it: {error}", where=path) from error
    if isinstance(loaded, dict):
        raise DataError(
            f"it has the splits {', '.join(loaded)}", where=path, hint="name the folder of one, or hf:NAME:CONFIG:SPLIT"
        )
    records = [Record(dict(row), path, number, "row") for number, row in enumerate(loaded, start=1)]
    return _some(list(chain.from_iterable(map(_flatten, records))), path, "it has no rows")


def _load(datasets: Any, path: Path) -> Any:
    name = str(path)
    if name.startswith(HUB_PREFIX):
        source, config, split, *_ = [*name.removeprefix(HUB_PREFIX).split(":"), "", ""]
        return datasets.load_dataset(source, config or None, split=split or "train")
    if path.suffix in _DATASETS_SUFFIXES:
        return datasets.load_dataset(_DATASETS_SUFFIXES[path.suffix], data_files=name, split="train")
    return datasets.load_from_disk(name)


def _text(path: Path) -> str:
    try:
        return read_bytes(path).removeprefix(b"\xef\xbb\xbf").decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"not UTF-8 text (byte {error.start + 1})", where=path) from error


def _some(records: list[Record], path: Path, hint: str) -> list[Record]:
    if not records:
        raise DataError("the data file is empty", where=path, hint=hint)
    return records
