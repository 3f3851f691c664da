"""Ten rows in every format that prgec reads: `python tools/formats.py` compiles, trains and evaluates with each.

Files of a group hold the same rows, so their losses are equal to the last bit.
"""

from __future__ import annotations

import argparse
import bz2
import csv
import gzip
import io
import json
import lzma
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prgec.demo import checkpoint_dir, data_file

NUM_ROWS, NUM_SHARDS = 10, 3
# Templates of published models need their special tokens; this one is plain text.
TEMPLATE = (
    "{% for m in messages %}{{ m.role + ': ' + m.content + eos_token + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
_ANSWERS = ("terrible", "great")


@dataclass(frozen=True)
class Sample:
    """The rows in one format.

    Attributes:
        group: Samples of one group hold equal rows.
        path: File, folder, or pattern.
        columns: Arguments of `--map` for it.
    """

    group: str
    path: Path
    columns: tuple[str, ...] = ()


def write_samples(folder: Path) -> list[Sample]:
    """Write the rows in every format below a folder; the first of each group is plain jsonl."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [json.loads(line) for line in data_file("test").read_text().splitlines()[:NUM_ROWS]]
    return [*_pairs(folder, rows), *_chats(folder, rows), *_labels(folder, rows)]


def _pairs(folder: Path, rows: Sequence[dict[str, Any]]) -> list[Sample]:
    """Prompts and completions, one with everything that a table has to quote."""
    pairs = [{"prompt": f"{row['sentence']} It was", "completion": f" {_ANSWERS[row['label']]}"} for row in rows]
    pairs[3]["prompt"] = 'He said "no, no"; then\n\ta | b. It was'
    texts = {name: "".join(json.dumps(pair) + "\n" for pair in part) for name, part in {"all": pairs}.items()}
    lines = texts["all"].encode()
    files = {
        "pairs.jsonl": lines,
        "array.json": json.dumps(pairs).encode(),
        "pretty.jsonl": "\n".join(json.dumps(pair, indent=2) for pair in pairs).encode(),
        "wrapped.json": json.dumps({"version": 1, "data": pairs}, indent=1).encode(),
        "bom.jsonl": b"\xef\xbb\xbf" + lines.replace(b"\n", b"\r\n"),
        "no-suffix": lines,
        "pairs.csv": _csv(pairs, ",").encode(),
        "excel.CSV": b"\xef\xbb\xbf" + _csv(pairs, ";").encode(),
        "bars.csv": _csv(pairs, "|").encode(),
        "table": _csv(pairs, ",").encode(),
        "quoted.tsv": _csv(pairs, "\t", quoting=csv.QUOTE_ALL).encode(),
        "capitals.csv": _csv([{name.upper(): text for name, text in pair.items()} for pair in pairs], ",").encode(),
        "pairs.jsonl.gz": gzip.compress(lines),
        "pairs.jsonl.xz": lzma.compress(lines),
        "pairs.csv.bz2": bz2.compress(_csv(pairs, ",").encode()),
        **_arrow_files(pairs, lines),
    }
    samples = []
    for name, content in files.items():
        (folder / name).write_bytes(content)
        samples.append(Sample("pairs", folder / name))
    renamed = "".join(json.dumps({"question": each["prompt"], "reply": each["completion"]}) + "\n" for each in pairs)
    (folder / "mapped.jsonl").write_text(renamed)
    samples.append(Sample("pairs", folder / "mapped.jsonl", ("prompt=question", "completion=reply")))
    return samples + _shards(folder, pairs)


def _csv(rows: Sequence[dict[str, Any]], separator: str, quoting: Any = csv.QUOTE_MINIMAL) -> str:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, rows[0].keys(), delimiter=separator, quoting=quoting)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _arrow_files(pairs: Sequence[dict[str, Any]], lines: bytes) -> dict[str, bytes]:
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.Table.from_pylist(list(pairs))
    parquet, arrow_file, stream = io.BytesIO(), io.BytesIO(), io.BytesIO()
    pyarrow.parquet.write_table(table, parquet, row_group_size=4)
    for buffer, new in ((arrow_file, pyarrow.ipc.new_file), (stream, pyarrow.ipc.new_stream)):
        with new(buffer, table.schema) as writer:
            writer.write_table(table, max_chunksize=4)
    return {
        "pairs.parquet": parquet.getvalue(),
        "pairs.arrow": arrow_file.getvalue(),
        "stream.arrow": stream.getvalue(),
        "pairs.jsonl.zst": pyarrow.Codec("zstd").compress(lines, asbytes=True),
    }


def _shards(folder: Path, pairs: Sequence[dict[str, Any]]) -> list[Sample]:
    """A folder of files, a pattern over them, and what datasets saves."""
    import datasets

    shards = folder / "shards"
    shards.mkdir()
    for number in range(NUM_SHARDS):
        part = pairs[number * NUM_ROWS // NUM_SHARDS : (number + 1) * NUM_ROWS // NUM_SHARDS]
        text = "".join(json.dumps(pair) + "\n" for pair in part).encode()
        name = f"train-{number:05d}-of-{NUM_SHARDS:05d}.jsonl"
        (shards / (name + ".gz" * (number == 1))).write_bytes(gzip.compress(text) if number == 1 else text)
    (shards / "README.md").write_text("# Rows\n")
    datasets.Dataset.from_list(list(pairs)).save_to_disk(str(folder / "saved"), num_shards=2)
    places = (shards, shards / "train-*", folder / "saved")
    return [Sample("pairs", place) for place in places]


def _chats(folder: Path, rows: Sequence[dict[str, Any]]) -> list[Sample]:
    """The same conversations in every spelling."""
    import pyarrow
    import pyarrow.parquet

    pairs = [(row["sentence"], _ANSWERS[row["label"]]) for row in rows]
    turns = [({"role": "user", "content": asked}, {"role": "assistant", "content": said}) for asked, said in pairs]
    spellings: dict[str, list[dict[str, Any]]] = {
        "messages": [{"messages": list(each)} for each in turns],
        "sharegpt": [
            {"conversations": [{"from": "human", "value": asked}, {"from": "gpt", "value": said}]}
            for asked, said in pairs
        ],
        "conversations": [{"conversations": list(each)} for each in turns],
        "turns": [{"prompt": [asked], "completion": [said]} for asked, said in turns],
        "turns-text": [{"prompt": [asked], "completion": said["content"]} for asked, said in turns],
        "weights": [{"messages": [asked, {**said, "weight": 1}], "tools": []} for asked, said in turns],
        "parts": [
            {"messages": [{"role": "user", "content": [{"type": "text", "text": asked["content"]}]}, said]}
            for asked, said in turns
        ],
        "alpaca": [{"instruction": asked, "input": "", "output": said} for asked, said in pairs],
    }
    samples = []
    for name, records in spellings.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        samples.append(Sample("chats", folder / f"{name}.jsonl"))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(spellings["messages"]), folder / "messages.parquet")
    as_text = [{"messages": json.dumps(record["messages"])} for record in spellings["messages"]]
    (folder / "messages.csv").write_text(_csv(as_text, ","), newline="")
    return samples + [Sample("chats", folder / name) for name in ("messages.parquet", "messages.csv")]


def _labels(folder: Path, rows: Sequence[dict[str, Any]]) -> list[Sample]:
    """Texts with labels: as numbers, as the text of numbers, and with the names that datasets keeps."""
    import datasets

    numbered = [{"text": row["sentence"], "label": row["label"]} for row in rows]
    named = [{"text": row["sentence"], "label": _ANSWERS[row["label"]]} for row in rows]
    (folder / "numbers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in numbered))
    (folder / "numbers.csv").write_text(_csv(numbered, ","), newline="")
    (folder / "names.jsonl").write_text("".join(json.dumps(row) + "\n" for row in named))
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=list(_ANSWERS))})
    datasets.Dataset.from_list(numbered, features=features).to_parquet(str(folder / "names.parquet"))
    return [
        Sample("numbers", folder / "numbers.jsonl"),
        Sample("numbers", folder / "numbers.csv"),
        Sample("names", folder / "names.jsonl"),
        Sample("names", folder / "names.parquet"),
    ]


def compile_for(samples: Sequence[Sample], folder: Path) -> Path:
    """Compile the bundled model, with a chat template, for the rows of every group."""
    from prgec.compiler.compile import compile_model
    from prgec.compiler.options import CompileOptions

    checkpoint = folder / "checkpoint"
    shutil.copytree(checkpoint_dir(), checkpoint)
    settings = json.loads((checkpoint / "tokenizer_config.json").read_bytes())
    (checkpoint / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": TEMPLATE}))
    firsts = {sample.group: sample.path for sample in reversed(samples)}
    options = CompileOptions(
        model=str(checkpoint),
        data=tuple(firsts.values()),
        method="exact",
        optimizer="adamw",
        batch_size=2,
        seq_len=0,
        num_labels=0,
        output=folder / "model.pte",
    )
    compile_model(options)
    return options.output


def losses_of(program: Path, sample: Sample, out: Path) -> tuple[float, ...]:
    """Train two steps on a sample and evaluate on it; return the losses before, in training and after."""
    from prgec.runtime.runs.options import RunOptions
    from prgec.runtime.runs.run import run

    options = RunOptions(
        program=program, data=sample.path, eval_data=sample.path, columns=sample.columns, steps=2, lr=0.01, out=out
    )
    result = run(options)
    assert result.before is not None and result.after is not None
    return result.before.loss, result.loss, result.after.loss


def main(arguments: Sequence[str]) -> int:
    """Print a line for each format; the exit code is 1 where rows of a group learn differently."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        samples = write_samples(folder / "rows")
        program = compile_for(samples, folder)
        first: dict[str, tuple[float, ...]] = {}
        is_good = True
        for number, sample in enumerate(samples):
            found = losses_of(program, sample, folder / f"run-{number}")
            is_equal = found == first.setdefault(sample.group, found)
            is_good &= is_equal
            shown = "  ".join(f"{loss:.6f}" for loss in found)
            print(f"{sample.group:8} {sample.path.name:22} {shown}  {'equal' if is_equal else 'DIFFERENT'}")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
