"""A tiny program with its rows, for the tools that break runs and files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from prgec.compiler.options import CompileOptions


def make_inputs(
    work: Path,
    method: str = "prge",
    backend: str = "portable",
    optimizer: str = "norm",
    state: str = "seeded",
    *,
    seq_len: int = 8,
    num_labels: int = 1,
) -> tuple[Path, Path, Path]:
    """Compile a tiny program that trains by a method; return it with rows to train on and to evaluate."""
    from prgec.core.machine.quiet import quiet_libraries

    quiet_libraries()
    from prgec.compiler.compile import compile_model
    from prgec.compiler.options import CompileOptions
    from tests.models import TinyLlama

    # A shortcut needs a block to hand its gradient down to.
    num_layers, target = (2, "o_proj") if method == "shortcut" else (1, "q_proj")
    checkpoint = TinyLlama(num_layers=num_layers).write(work / "checkpoint")
    program = work / "tiny.pte"
    compile_model(
        CompileOptions(
            model=str(checkpoint),
            output=program,
            method=method,
            optimizer=optimizer,
            state=state,
            q=2,
            batch_size=1,
            seq_len=seq_len,
            num_labels=num_labels,
            rank=4,
            alpha=8.0,
            targets=(target,),
            backend=backend,
        )
    )
    return program, write_rows(work / "rows.bin", program, 5), write_rows(work / "eval.bin", program, 3)


def rewarded_options(method: str, output: Path) -> CompileOptions:
    """Options of the bundled model as a program that writes answers and learns from rewards."""
    from prgec.compiler.options import CompileOptions
    from prgec.demo import checkpoint_dir

    return CompileOptions(
        model=str(checkpoint_dir()),
        output=output,
        method=method,
        optimizer="adamw" if method == "exact" else "norm",
        label_weights=method == "exact",
        generate=True,
        context=48,
        seq_len=40,
        num_labels=5,
        batch_size=8,
        q=4,
    )


def write_rows(path: Path, program: Path, examples: int) -> Path:
    """Write random rows with two answers each."""
    from prgec.core.data.encode import Row
    from prgec.core.data.rows_file import RowSet, pack_rows
    from prgec.runtime.engines.executorch.runtime import read_constants

    manifest, tokenizer = read_constants(program)
    ids = np.random.default_rng(examples).integers(0, manifest.vocab_size, (2 * examples, manifest.seq_len)).tolist()
    rows = [Row(tuple(row[:-1]), (len(row) - 2,), (row[-1],)) for row in ids]
    path.write_bytes(pack_rows(RowSet(rows, 2, (0,) * examples), manifest, tokenizer.sha256, "random"))
    return path
