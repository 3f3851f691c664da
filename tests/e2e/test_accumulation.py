"""Steps of several calls on rewritten graphs: as one call over all rows, and as autograd and textbook optimisers say.

Nothing is lowered here: graphs run in PyTorch as they would be lowered.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from prgec.compiler.options import CompileOptions
from prgec.core.contract.calls import Batch, Call
from prgec.lab.torch.program import TorchProgram
from tests.architectures import random_rows
from tests.autograd import LoraFa
from tests.models import TinyLlama

CALLS, ROWS, LENGTH, STEPS, LR, DECAY = 3, 2, 12, 3, 0.05, 0.1
Model = tuple[TinyLlama, Path]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    tiny = TinyLlama(num_layers=2)
    return tiny, tiny.write(tmp_path_factory.mktemp("accumulated") / "checkpoint")


def _program(model: Model, **changes: Any) -> TorchProgram:
    options = CompileOptions(
        model=str(model[1]),
        output=Path("unused.pte"),
        backend="portable",
        seq_len=16,
        num_labels=2,
        rank=4,
        alpha=8.0,
        targets=("o_proj", "down_proj"),
        weight_decay=DECAY,
    )
    return TorchProgram.build(replace(options, **changes))


def _rows(step: int) -> list[np.ndarray[Any, Any]]:
    """All rows of a step."""
    return [each.numpy() for each in random_rows(CALLS * ROWS, LENGTH + step)]


def _train(program: TorchProgram, rows: Any, calls: int) -> float:
    losses = []
    for before in range(calls):
        part = slice(before * len(rows[0]) // calls, (before + 1) * len(rows[0]) // calls)
        found, factors = program.train(Batch(*(each[part] for each in rows)), LR, Call(before, before + 1 == calls))
        losses += found.tolist()
    assert factors[0] > 0
    return float(np.mean(losses))


@pytest.mark.parametrize(
    ("method", "optimizer"),
    [
        ("exact", "adamw"),
        pytest.param("exact", "momentum", marks=pytest.mark.slow),
        pytest.param("shortcut", "norm", marks=pytest.mark.slow),
    ],
)
def test_several_calls_are_one_call_over_all_rows(model: Model, method: str, optimizer: str) -> None:
    kind = {"method": method, "optimizer": optimizer}
    large = _program(model, batch_size=CALLS * ROWS, **kind)
    small = _program(model, batch_size=ROWS, accumulate=True, **kind)
    assert small.manifest.accumulates and not large.manifest.accumulates
    for step in range(STEPS):
        rows = _rows(step)
        assert _train(small, rows, CALLS) == pytest.approx(_train(large, rows, 1), rel=1e-6)
        # Signs of numbers that are nearly nothing may differ where AdamW divides by their size.
        most = 1e-2 if optimizer == "adamw" else 1e-4
        for name, value in large.read_state().items():
            assert np.linalg.norm(small.read_state()[name] - value) < most * np.linalg.norm(value), name


def test_a_step_of_one_call_is_that_of_a_program_that_gathers_nothing(model: Model) -> None:
    """Bit for bit: the mean of one value is the value."""
    programs = [
        _program(model, method="exact", optimizer="adamw", batch_size=CALLS * ROWS, accumulate=accumulate)
        for accumulate in (False, True)
    ]
    for step in range(STEPS):
        assert len({_train(program, _rows(step), 1) for program in programs}) == 1
    assert len({program.state_sha256() for program in programs}) == 1


def test_several_calls_follow_autograd_over_all_rows(model: Model) -> None:
    """AdamW of PyTorch on the unmodified model, whose one gradient is that of all rows at once."""
    program = _program(model, method="exact", optimizer="adamw", batch_size=ROWS, accumulate=True)
    sites = {site.name: torch.zeros(4, site.out_features) for site in program.manifest.sites}
    oracle = LoraFa(model[0].build(), sites, alpha=8.0, a_seed=0)
    optimizer = torch.optim.AdamW(oracle.leaves.values(), LR, betas=(0.9, 0.999), eps=1e-8, weight_decay=DECAY)
    for step in range(STEPS):
        rows = _rows(step)
        losses = oracle.losses(*map(torch.from_numpy, rows))
        optimizer.zero_grad()
        losses.mean().backward()
        optimizer.step()
        assert _train(program, rows, CALLS) == pytest.approx(float(losses.mean().detach()), rel=1e-4)
    for name, leaf in oracle.leaves.items():
        expected = leaf.detach().numpy()
        found = program.read_state()[f"{name}.lora_B"]
        assert np.linalg.norm(found - expected) < 1e-2 * np.linalg.norm(expected), name
