"""A program fed with copies of B computes what PyTorch computes with the same B on the Hugging Face model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from prgec.backends import load_backend
from prgec.compiler.frontend.model import LossModel, export_loss
from prgec.errors import PassError
from prgec.lab.bench.build import pipeline_of
from prgec.lab.bench.eager import EagerMezo
from prgec.lab.bench.job import EPS, LR
from prgec.lab.bench.options import BenchOptions, Cell
from prgec.lab.bench.variants import VARIANTS
from prgec.passes.pipeline import run_pipeline
from tests.models import VOCAB_SIZE, TinyLlama

CELL = Cell("none", q=2, batch_size=2, seq_len=12)
NUM_LABELS = 4


def _rows(num_rows: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(VOCAB_SIZE, (CELL.batch_size, CELL.seq_len), generator=generator)
    positions = torch.tensor([[3, 5, 7, 10]]).expand(CELL.batch_size, -1)
    each = [tokens, positions.contiguous(), tokens.gather(1, positions + 1)]
    return [tensor.repeat(num_rows // CELL.batch_size, 1) for tensor in each]


def _graph(name: str) -> Any:
    variant = VARIANTS[name]
    options = BenchOptions(model="tiny").compile_options(CELL, Path("model.pte"))
    program = export_loss(
        TinyLlama().build(),
        num_rows=variant.rows(CELL.q, CELL.batch_size),
        seq_len=CELL.seq_len,
        num_labels=NUM_LABELS,
        dynamic=False,
    )
    run_pipeline(program, pipeline_of(variant, CELL, options, load_backend("portable")))
    return program


def _copies(program: Any, generator: torch.Generator) -> list[Tensor]:
    inputs = [node.meta["val"].shape for node in program.placeholders()[3:]]
    return [torch.randn(*shape, generator=generator) for shape in inputs]


@pytest.mark.parametrize("name", ["sequential", "inner", "outer"])
def test_each_copy_serves_its_rows(name: str) -> None:
    program, num_copies = _graph(name), VARIANTS[name].copies(CELL.q)
    copies = _copies(program, torch.Generator().manual_seed(2))
    assert [tuple(each.shape) for each in copies[:2]] == [(num_copies, 16, 32), (num_copies, 16, 16)]
    rows = _rows(num_copies * CELL.batch_size)
    with torch.no_grad():
        found = program.module(*rows, *copies)[0].view(num_copies, CELL.batch_size)
        eager = EagerMezo(model := TinyLlama().build(), _rows(CELL.batch_size), CELL.q)
        for index in range(num_copies):
            for b_RO, copy in zip(eager.state, copies, strict=True):
                b_RO.copy_(copy[index])
            expected = LossModel(model)(*_rows(CELL.batch_size))
            torch.testing.assert_close(found[index], expected, rtol=1e-5, atol=0)
    assert found.std() > 1e-3


def test_rows_that_are_no_multiple_of_the_copies() -> None:
    program = export_loss(TinyLlama().build(), num_rows=3, seq_len=12, num_labels=2, dynamic=False)
    options = BenchOptions(model="tiny").compile_options(CELL, Path("model.pte"))
    passes = pipeline_of(VARIANTS["inner"], CELL, options, load_backend("portable"))
    with pytest.raises(PassError, match="feed-copies: cannot run: 3 rows are not a multiple of 2 copies"):
        run_pipeline(program, passes)


def test_an_eager_step_is_a_mezo_step() -> None:
    program = _graph("inner")
    eager = EagerMezo(TinyLlama().build(), _rows(CELL.batch_size), q=1)
    generator = torch.Generator().manual_seed(0)
    z = [torch.randn(b_RO.shape, generator=generator) for b_RO in eager.state]
    with torch.no_grad():
        copies = [torch.stack([EPS * each, -EPS * each]) for each in z]
        losses = program.module(*_rows(4), *copies)[0].view(2, -1)
    g = float(losses[0].mean() - losses[1].mean()) / (2 * EPS)
    eager.step()
    assert abs(g) > 0.1
    for b_RO, each in zip(eager.state, z, strict=True):
        torch.testing.assert_close(b_RO, -LR * g * each, rtol=1e-3, atol=1e-8)


def test_layers_choose_the_branches() -> None:
    model = TinyLlama(num_layers=3).build()
    assert len(EagerMezo(model, _rows(2), q=1).state) == 21
    assert len(EagerMezo(TinyLlama(num_layers=3).build(), _rows(2), q=1, layers=("last:2",)).state) == 14
