"""Read data into records, whatever people keep them in: recognised by content, else by name.

JSON in any layout, csv and tsv, plain text, Parquet and Arrow, each packed or not, folders of such files, what
`datasets` saves, and its hub. GLUE's files are read as they are published (MRPC's odd header and QQP's too). MultiRC of
SuperGLUE and the SQuAD json are flattened to one record a question and answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import EntryPoint
from itertools import chain, islice
from pathlib import Path
from typing import Any

from prgec.core.contract.plugins import load_plugin, plugins_of
from prgec.core.data.arrow import read_arrow
from prgec.core.data.folders import files_of
from prgec.core.data.jsonl import Record, items_of, read_json
from prgec.core.data.opening import ARROW_FILE, ARROW_STREAM, PARQUET, STDIN, head_of, open_data, text_of_file
from prgec.core.data.table import SEPARATORS, read_csv, read_tsv, separator_of
from prgec.core.machine.extras import extra_hint
from prgec.errors import DataError

# `hf:NAME:CONFIG:SPLIT` is loaded by `datasets`, from a folder, its cache or the hub; the split is train if not named.
HUB_PREFIX = "hf:"
# Prefix of values of a path option that do not name a file.
NO_FILE = (HUB_PREFIX, STDIN)
# First column of the MRPC corpus, whose files are called .txt.
_MRPC_HEADER = b"Quality\t"
# Packages add readers by entry points of this group: the name is the end of a file's name, without its dot, and the
# function takes the path and yields a dict for each row.
ENTRY_POINTS = "prgec.readers"
_PLUGINS = {f".{name}": point for name, point in plugins_of(ENTRY_POINTS).items()}
_PACKED_SUFFIXES = (".gz", ".xz", ".bz2", ".zst")


def read_records(path: Path) -> tuple[Iterator[Record], str]:
    """Read a data file, a folder of them, or `-`, standard input: records one at a time, as far as the format allows.

    Returns:
        The records, and what they were kept in, for people.

    Raises:
        DataError: If something is missing, empty or damaged, or needs a package that is not installed: then, or while
            records are used.
    """
    if str(path).startswith(HUB_PREFIX):
        return _some(_read_with_datasets(path), path), "datasets"
    files = files_of(path)
    first, kind = _read_file(files[0])
    others = (record for file in files[1:] for record in _read_file(file)[0])
    return _some(chain(first, others), path), kind if len(files) == 1 else f"{len(files)} files of {kind}"


def _read_file(path: Path) -> tuple[Iterator[Record], str]:
    with open_data(path) as (_, packing):
        pass
    records, kind = _read_unpacked(path, head_of(path))
    flat = chain.from_iterable(map(_flatten, _unwrapped(records)))
    return flat, f"{kind}, {packing}" if packing else kind


def _read_unpacked(path: Path, head: bytes) -> tuple[Iterable[Record], str]:
    for magic in (PARQUET, ARROW_FILE, ARROW_STREAM):
        if head.startswith(magic):
            return read_arrow(path, magic)
    suffix = _suffix_of(path)
    if suffix in _PLUGINS:
        return _read_by_plugin(path, _PLUGINS[suffix])
    if suffix in (".parquet", ".arrow"):
        raise DataError("the file is named .parquet or .arrow, but holds neither", where=path)
    if head.startswith(_MRPC_HEADER) or suffix == ".tsv":
        return read_tsv(path)
    is_json = head.lstrip()[:1] in (b"{", b"[")
    if suffix == ".csv" and not is_json:
        return read_csv(path, separator_of(head))
    if suffix == ".txt" and not _is_jsonl(head):
        text = text_of_file(path)
        return ([Record({"text": text}, path, 1)] if text.strip() else []), "text"
    if not is_json and suffix not in (".json", ".jsonl") and (separator := _table_separator(head)):
        return read_tsv(path) if separator == "\t" else read_csv(path, separator)
    return read_json(path)


def _read_by_plugin(path: Path, point: EntryPoint) -> tuple[Iterator[Record], str]:
    """Read a file by the function of an installed package; whatever it raises is a fault of the file."""
    read = load_plugin(point)

    def rows() -> Iterator[dict[str, Any]]:
        try:
            yield from read(path)
        except Exception as error:  # of a module of strangers
            raise DataError(f"{point.value} cannot read it: {error}", where=path) from error

    return (Record(dict(row), path, number, "row") for number, row in enumerate(rows(), start=1)), point.name


def _suffix_of(path: Path) -> str:
    """Return the suffix that says what a file holds, before the one of its packing."""
    return Path(path.stem if path.suffix.lower() in _PACKED_SUFFIXES else path.name).suffix.lower()


def _is_jsonl(head: bytes) -> bool:
    return head.lstrip().startswith((b'{"', b'[{"'))


def _table_separator(head: bytes) -> str:
    """Return the separator of a table without a name that says so; empty where it is none."""
    header, _, rest = head.partition(b"\n")
    separator = separator_of(header)
    is_table = bool(rest.strip()) and separator.encode() in header
    return separator if is_table and separator in SEPARATORS else ""


def _unwrapped(records: Iterable[Record]) -> Iterable[Record]:
    """Return the rows that a single object holds as `data`, SQuAD's articles among them."""
    rest = iter(records)
    first = list(islice(rest, 2))
    rows = first[0].fields.get("data") if len(first) == 1 else None
    if not (isinstance(rows, list) and rows and all(isinstance(row, dict) for row in rows)):
        return chain(first, rest)
    path = first[0].path
    return items_of(_checked(_squad, rows, path) if any("paragraphs" in row for row in rows) else rows, path)


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


def _read_with_datasets(path: Path) -> Iterator[Record]:
    try:
        import datasets
    except ImportError as error:
        raise DataError("the hub needs the package datasets", where=path, hint=extra_hint("datasets")) from error
    source, config, split, *_ = [*str(path).removeprefix(HUB_PREFIX).split(":"), "", ""]
    try:
        loaded = datasets.load_dataset(source, config or None, split=split or "train")
    except Exception as error:  # the library raises dozens of unrelated types
        raise DataError(f"datasets cannot load it: {error}", where=path) from error
    records = (Record(dict(row), path, number, "row") for number, row in enumerate(loaded, start=1))
    return chain.from_iterable(map(_flatten, records))


def _some(records: Iterator[Record], path: Path) -> Iterator[Record]:
    first = next(records, None)
    if first is None:
        raise DataError("the data file is empty", where=path, hint="it needs some rows, below a header in a table")
    return chain([first], records)
