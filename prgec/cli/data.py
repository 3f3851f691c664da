"""`prgec data`: what a data file asks of a program, before one is compiled."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from prgec.cli.render import print_json, print_lines
from prgec.cli.task_option import COLUMNS, NO_EOS, TASK
from prgec.core.data.tasks import AUTO_TASK, TASK_HELP

if TYPE_CHECKING:
    from prgec.core.contract.tokenizer import Tokenizer
    from prgec.core.data.dataset import Dataset
    from prgec.core.data.encode import Encoded
    from prgec.core.data.stats import RowStats, Spread

FILE = click.Path(path_type=Path)
_BATCH_SIZES = (1, 2, 4, 8, 16)
_PROGRAM_SUFFIX = ".pte"


@click.group()
def data() -> None:
    """Look at a data file as a program will see it (docs/data.md)."""


@data.command()
@click.argument("file", type=FILE)
@click.option(
    "--model",
    required=True,
    help="Whose tokenizer: a checkpoint as prgec compile takes it, or a .pte, whose T and K then hold.",
)
@click.option("--task", type=TASK, default=AUTO_TASK, show_default=True, help=TASK_HELP)
@COLUMNS
@NO_EOS
@click.option("--seq-len", type=click.IntRange(min=2), help="T to count cuts for [default: what the rows need].")
@click.option("--generate", is_flag=True, help="Count as prgec compile --generate does: with room for answers.")
@click.option(
    "--batch-size",
    "batch_sizes",
    type=click.IntRange(min=1),
    multiple=True,
    default=_BATCH_SIZES,
    show_default=True,
    help="Examples a step, whose padding is counted (repeatable).",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def stats(
    file: Path,
    model: str,
    task: str,
    columns: tuple[str, ...],
    no_eos: bool,
    seq_len: int | None,
    generate: bool,
    batch_sizes: tuple[int, ...],
    as_json: bool,
) -> int:
    """Count lengths, padding by batch size, cuts and answers of FILE, and say the T and K it needs."""
    from prgec.core.data.dataset import load_dataset
    from prgec.core.data.stats import stats_of
    from prgec.errors import UsageError

    is_program = model.endswith(_PROGRAM_SUFFIX)
    if is_program and seq_len is not None:
        raise UsageError("a program has its T; leave out --seq-len, or give the checkpoint as --model")
    dataset = load_dataset(file, task, no_eos=no_eos, columns=columns, takes_feedback=True)
    encoded, sizes, _, shorter = (_for_program if is_program else _for_checkpoint)(
        dataset, model, seq_len or 0, generate
    )
    found = stats_of(dataset, encoded, sizes, sorted(set(batch_sizes)))
    if as_json:
        print_json(_document(dataset, model, found, sizes))
    else:
        lengths = f"T = {sizes.seq_len}, K = {sizes.num_labels}, "
        lengths += f"of {model}" if is_program else "as prgec compile --data would choose"
        if seq_len is None and shorter:
            lengths += f"; {shorter}"
        print_lines(*_lines(dataset, found, lengths))
    return 0


@data.command()
@click.argument("file", type=FILE)
@click.option(
    "--model", help="Whose tokenizer and chat template: as prgec data stats takes it [default: none, the texts alone]."
)
@click.option("-n", "count", type=click.IntRange(min=1), default=2, show_default=True, help="Rows to show.")
@click.option("--task", type=TASK, default=AUTO_TASK, show_default=True, help=TASK_HELP)
@COLUMNS
@NO_EOS
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def show(
    file: Path, model: str | None, count: int, task: str, columns: tuple[str, ...], no_eos: bool, as_json: bool
) -> int:
    """Print the first rows of FILE as the model sees them, with the learned tokens between marks."""
    from prgec.core.data.dataset import load_dataset

    dataset = load_dataset(file, task, no_eos=no_eos, columns=columns, takes_feedback=True)
    shown = _texts_of(dataset, count) if model is None else _rows_of(dataset, model, count)
    if as_json:
        print_json({"file": str(file), "task": dataset.task.name, "found_by": dataset.found_by, "rows": shown})
        return 0
    print_lines(dataset.describe())
    for row in shown:
        sizes = f"  {row['tokens']} tokens, {row['learned']} learned" if "tokens" in row else ""
        print_lines("", f"{row['where']}{sizes}", row["text"])
    return 0


def _texts_of(dataset: Dataset, count: int) -> list[dict[str, Any]]:
    from prgec.core.data.show import marked_item

    return [{"where": item.where, "text": marked_item(item)} for item in dataset.examples[:count]]


def _rows_of(dataset: Dataset, model: str, count: int) -> list[dict[str, Any]]:
    """Rows with their tokens counted, cut where the model is a program."""
    from prgec.core.data.cut import Shortening
    from prgec.core.data.show import marked_row

    few = dataclasses.replace(dataset, examples=dataset.examples[:count])
    is_program = model.endswith(_PROGRAM_SUFFIX)
    encoded, sizes, tokenizer, _ = (_for_program if is_program else _for_checkpoint)(few, model, 0, False)
    rows = []
    for each in map(Shortening(sizes.seq_len), itertools.islice(encoded, count)):
        text = marked_row(each.row, lambda ids: tokenizer.decode(ids, skip_special_tokens=False))
        rows.append(
            {"where": each.where, "tokens": len(each.row.tokens), "learned": len(each.row.targets), "text": text}
        )
    return rows


def _for_program(
    dataset: Dataset, model: str, seq_len: int, generate: bool
) -> tuple[Iterable[Encoded], Any, Tokenizer, str]:
    """Rows of right answers as a program reads them, and its sizes."""
    del seq_len, generate
    from prgec.core.data.encode import encode_each
    from prgec.core.data.first_tokens import up_to_first
    from prgec.runtime.engines.executorch.runtime import read_constants

    manifest, tokenizer = read_constants(Path(model))
    encoded = encode_each(dataset.choosing_from(manifest.answers).examples, tokenizer)
    return map(up_to_first, encoded) if manifest.emits else encoded, manifest, tokenizer, ""


def _for_checkpoint(
    dataset: Dataset, model: str, seq_len: int, generate: bool
) -> tuple[Iterable[Encoded], Any, Tokenizer, str]:
    """Rows of right answers, the sizes a program compiled for them would have, and which shorter T would do."""
    from prgec.compiler.frontend.limits import read_limits
    from prgec.compiler.lengths import Lengths, encode_choices, lengths_of, shorter_length
    from prgec.compiler.options import CompileOptions
    from prgec.core.data.encode import RowSizes, encode_each
    from prgec.core.data.kept_rows import kept_encoded

    limits = read_limits(model)
    # A wrong candidate may be the longest: T and K are for scoring too.
    scored = kept_encoded(encode_choices(dataset, limits.tokenizer), limits.tokenizer)
    lengths = Lengths.of(scored)
    options = CompileOptions(model=model, seq_len=seq_len, num_labels=0, generate=generate)
    chosen = lengths_of(lengths, options, limits.max_positions)
    encoded = scored
    if dataset.has_choices:
        encoded = kept_encoded(encode_each(dataset.examples, limits.tokenizer), limits.tokenizer)
        lengths = Lengths.of(encoded)
    shorter = shorter_length(lengths, chosen[0], generate)
    return encoded, RowSizes(*chosen, limits.vocab_size), limits.tokenizer, shorter


def _document(dataset: Dataset, model: str, found: RowStats, sizes: Any) -> dict[str, Any]:
    return {
        "file": str(dataset.path),
        "model": model,
        "task": dataset.task.name,
        "examples": len(dataset.examples),
        "seq_len": sizes.seq_len,
        "label_tokens": sizes.num_labels,
        **dataclasses.asdict(found),
    }


def _lines(dataset: Dataset, found: RowStats, sizes: str) -> list[str]:
    total = sum(found.answers.values())
    answers = ", ".join(f"{text.strip()} {count} ({count / total:.1%})" for text, count in found.answers.items())
    padding = ", ".join(f"B = {size}: {share:.1%}" for size, share in found.padding.items())
    return [
        f"{dataset.path}  task {dataset.task.name} ({dataset.found_by}), {len(dataset.examples)} examples, "
        f"{found.num_rows} rows",
        f"  tokens a row   {_spread(found.tokens)}",
        f"  learned        {_spread(found.targets)}",
        f"  lengths        {sizes}",
        f"  cut            {found.num_cut} of {found.num_rows} rows are longer than T",
        f"  answers        {answers or 'free'}",
        f"  padding        {padding}; every row to T: {found.padding_to_t:.1%}",
    ]


def _spread(found: Spread) -> str:
    return (
        f"{found.least} to {found.most}, mean {found.mean:.1f}, median {found.median}, 90 % up to {found.p90}, "
        f"99 % up to {found.p99}; {found.total:,} in all"
    )
