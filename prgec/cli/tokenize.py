"""`prgec tokenize`: a data file in, the rows a program reads out."""

from __future__ import annotations

from pathlib import Path

import click

from prgec.cli.output_option import FORCE
from prgec.cli.render import print_json, print_lines
from prgec.cli.task_option import COLUMNS, NO_EOS, TASK
from prgec.core.data.tasks import AUTO_TASK, TASK_HELP

FILE = click.Path(path_type=Path)


@click.command()
@click.argument("program", type=FILE)
@click.argument("data", type=FILE)
@click.option("-o", "--output", type=FILE, default=Path("rows.bin"), show_default=True, help="File to write.")
@click.option("--task", type=TASK, default=AUTO_TASK, show_default=True, help=TASK_HELP)
@COLUMNS
@NO_EOS
@FORCE
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def tokenize(
    program: Path,
    data: Path,
    output: Path,
    task: str,
    columns: tuple[str, ...],
    no_eos: bool,
    force: bool,
    as_json: bool,
) -> int:
    """Encode DATA for PROGRAM (a .pte), so that a device can train without a tokenizer."""
    from prgec.core.data.batches import warn_of_padding
    from prgec.core.data.dataset import load_dataset
    from prgec.core.data.eval_set import encode_row_set
    from prgec.core.data.first_tokens import encode_dataset
    from prgec.core.data.rows_file import RowSet, pack_rows
    from prgec.core.machine.files import check_free, write_atomic
    from prgec.runtime.engines.executorch.runtime import read_constants

    check_free(output, force=force)
    dataset = load_dataset(data, task, no_eos=no_eos, columns=columns)
    manifest, tokenizer = read_constants(program)
    if manifest.emits:
        row_set: RowSet = encode_dataset(dataset, tokenizer, manifest).row_set()
    else:
        row_set = encode_row_set(dataset, tokenizer, manifest)
    warn_of_padding(row_set.rows, manifest)
    packed = pack_rows(row_set, manifest, tokenizer.sha256, dataset.task.name)
    write_atomic(output, packed)
    if as_json:
        print_json(
            {
                "output": str(output),
                "examples": len(row_set.answers),
                "candidates": row_set.num_candidates,
                "bytes": len(packed),
                "task": dataset.task.name,
            }
        )
    else:
        print_lines(f"{output}  {len(row_set.answers)} examples ({dataset.task.name}), {len(packed)} bytes")
    return 0
