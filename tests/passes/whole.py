"""Default pipelines run over a tiny random Llama, once a session each.

One layer, grouped queries, biases on all projections; q = 2 queries, B = 2 examples, so N = 8 rows.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

from prgec.backends import load_backend
from prgec.compiler.frontend.model import export_loss
from prgec.compiler.options import CompileOptions
from prgec.compiler.pipelines import default_pipeline
from prgec.passes.pipeline import run_pipeline
from prgec.passes.program import GraphProgram
from prgec.passes.record import PassRecord
from prgec.passes.spec import print_pipeline
from tests.models import TinyLlama

OPTIONS = CompileOptions(
    model="tiny", output=Path("tiny.pte"), q=2, batch_size=2, seq_len=8, num_labels=2, rank=2, alpha=4.0, a_seed=3
)
MODEL = TinyLlama(has_bias=True)


@dataclass(frozen=True)
class Finished:
    """A program that trains itself, and how it came about.

    Attributes:
        pipeline: Text of the passes.
        records: Effect of each pass.
        program: The result; its state is shared by all tests of the session, so a test sets it first.
    """

    pipeline: str
    records: tuple[PassRecord, ...]
    program: GraphProgram


@functools.cache
def finished(backend: str, state: str) -> Finished:
    """Export the model and run the default pipeline of a backend."""
    target = load_backend(backend)
    options = CompileOptions(**{**vars(OPTIONS), "backend": backend, "state": state})
    program = export_loss(
        MODEL.build(),
        num_rows=options.num_rows,
        seq_len=options.seq_len,
        num_labels=options.num_labels,
        dynamic=target.dynamic_seq_len,
    )
    passes = default_pipeline(options, target)
    records = run_pipeline(program, passes)
    return Finished(print_pipeline(passes), tuple(records), program)
