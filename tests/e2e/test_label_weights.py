"""Label weights: ones are a program without them, bit for bit; others are the weighted loss, as autograd says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from prgec.compiler.options import CompileOptions
from prgec.core.contract.arrays import FloatArray
from prgec.core.contract.calls import Batch, Call
from prgec.core.contract.engine import TrainableProgram
from prgec.errors import ProgramError, UsageError
from prgec.lab.torch.program import TorchProgram
from prgec.runtime.engines.executorch.open import open_pte
from tests.architectures import random_rows
from tests.autograd import IGNORED, LoraFa
from tests.gradient_lockstep import by_site
from tests.models import TinyLlama
from tests.shared import Shared

ROWS, LR, BETA1 = 4, 0.01, 0.9
WEIGHTS = np.array([[2.0, 9.0], [-0.75, 0.5], [0.0, 0.0], [1.0, -3.0]], dtype=np.float32)
ONES = np.ones_like(WEIGHTS)
SLOW = pytest.mark.slow
# Every way to train that changes what becomes of a gradient.
KINDS: dict[str, dict[str, Any]] = {
    "exact": {},
    "shortcut": {"method": "shortcut"},
    "recomputed": {"recompute": "layers", "backend": "xnnpack"},
    "prefix": {"layers": ("last:1",), "prefix": "method"},
}


@pytest.fixture(scope="module")
def checkpoint(shared: Shared) -> Path:
    return shared.once("weighed", lambda path: TinyLlama(num_layers=2).write(path))


def _options(checkpoint: Path, **changes: Any) -> CompileOptions:
    options: dict[str, Any] = {
        "backend": "portable",
        "method": "exact",
        "optimizer": "momentum",
        "batch_size": ROWS,
        "seq_len": 12,
        "num_labels": 2,
        "rank": 4,
        "alpha": 8.0,
        "static": True,
        "targets": ("o_proj", "down_proj"),
        "polyak": 0.0,
    }
    return CompileOptions(model=str(checkpoint), output=Path("model.pte"), **{**options, **changes})


def _batch(weights: FloatArray | None = None, part: slice = slice(None)) -> Batch:
    rows = (each.numpy()[part] for each in random_rows(ROWS, 12))
    return Batch(*rows, weights_NK=None if weights is None else weights[part])


def _begin(program: TrainableProgram) -> None:
    random = np.random.default_rng(4)
    state = {name: random.normal(0, 0.05, b.shape).astype(np.float32) for name, b in program.read_state().items()}
    program.write_state(state)


def _gradient(program: TrainableProgram, weights: FloatArray | None, calls: int = 1) -> dict[str, Tensor]:
    """The gradient of the first step, which momentum keeps a tenth of."""
    size = ROWS // calls
    for before in range(calls):
        batch = _batch(weights, slice(before * size, (before + 1) * size))
        _, factors = program.train(batch, LR, Call(before, before + 1 == calls))
    kept = {name.removesuffix("_mean"): b for name, b in program.read_optimizer().items() if name.endswith("_mean")}
    return by_site({name: b / ((1 - BETA1) * factors[0]) for name, b in kept.items()})


def _weighted_loss(oracle: LoraFa, rows: Sequence[Tensor], weights: Tensor) -> Tensor:
    """The mean over the rows of each row's weighted mean, written out label by label."""
    tokens, label_pos, targets = rows
    logits = oracle.model(input_ids=tokens, use_cache=False).logits
    total = torch.zeros(())
    for b in range(ROWS):
        counted = [k for k in range(targets.shape[1]) if targets[b, k] != IGNORED]
        for k in counted:
            nll = F.cross_entropy(logits[b, label_pos[b, k]], targets[b, k])
            total = total + weights[b, k] * nll / (len(counted) * ROWS)
    return total


def _oracle(checkpoint: Path, state: Mapping[str, FloatArray]) -> LoraFa:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(checkpoint, attn_implementation="eager").eval()
    return LoraFa(model, by_site(state), alpha=8.0, a_seed=0)


def _autograd(checkpoint: Path, state: Mapping[str, FloatArray]) -> dict[str, Tensor]:
    oracle = _oracle(checkpoint, state)
    loss = _weighted_loss(oracle, random_rows(ROWS, 12), torch.from_numpy(WEIGHTS))
    return dict(zip(oracle.leaves, torch.autograd.grad(loss, list(oracle.leaves.values())), strict=True))


def _is_near(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> bool:
    return all(float((found[name] - each).norm()) < 2e-5 * float(each.norm()) for name, each in expected.items())


def test_the_gradient_is_that_of_the_weighted_loss(checkpoint: Path) -> None:
    program = TorchProgram.build(_options(checkpoint, label_weights=True))
    _begin(program)
    expected = _autograd(checkpoint, program.read_state())
    losses = program.evaluate(_batch())
    plain = TorchProgram.build(_options(checkpoint))
    _begin(plain)
    np.testing.assert_array_equal(losses, plain.evaluate(_batch()))
    assert _is_near(_gradient(program, WEIGHTS), expected)
    assert not _is_near(_gradient(plain, None), expected)


def test_a_step_of_several_calls_weighs_all_of_them(checkpoint: Path) -> None:
    program = TorchProgram.build(_options(checkpoint, label_weights=True, accumulate=True, batch_size=2))
    _begin(program)
    expected = _autograd(checkpoint, program.read_state())
    assert _is_near(_gradient(program, WEIGHTS, calls=2), expected)


@pytest.mark.parametrize("name", [name if name == "exact" else pytest.param(name, marks=SLOW) for name in KINDS])
def test_ones_change_no_bit(checkpoint: Path, name: str) -> None:
    plain, weighed = (
        TorchProgram.build(_options(checkpoint, label_weights=flag, **KINDS[name])) for flag in (False, True)
    )
    for program, weights in ((plain, None), (weighed, ONES), (weighed, None)):
        program.forget_steps()
        _begin(program)
        losses, factors = program.train(_batch(weights), LR)
        if program is plain:
            expected = losses, factors, program.state_sha256()
        np.testing.assert_array_equal(losses, expected[0])
        np.testing.assert_array_equal(factors, expected[1])
        assert program.state_sha256() == expected[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes", [{"quantize": "8da4w"}, {"state": "host"}, {"accumulate": True}], ids=lambda changes: next(iter(changes))
)
def test_a_lowered_program_weighs_as_its_graph_does(shared: Shared, checkpoint: Path, changes: dict[str, Any]) -> None:
    """On XNNPACK ones are a program without weights bit for bit, and the step is linear in the weights."""
    lowered = {"backend": "xnnpack", **changes}
    plain, weighed = (
        open_pte(shared.program(_options(checkpoint, label_weights=flag, **lowered))) for flag in (False, True)
    )
    for program, weights in ((plain, None), (weighed, ONES)):
        _begin(program)
        program.train(_batch(weights), LR)
    assert plain.state_sha256() == weighed.state_sha256()
    found = []
    for weights in (WEIGHTS, -2 * WEIGHTS):
        weighed.forget_steps()
        _begin(weighed)
        found.append(_gradient(weighed, weights))
    for name, each in found[0].items():
        torch.testing.assert_close(found[1][name], -2 * each, rtol=1e-3, atol=1e-3 * float(each.abs().max()))
        assert float(each.norm()) > 0


def test_who_cannot_weigh_says_so(checkpoint: Path) -> None:
    program = TorchProgram.build(_options(checkpoint))
    with pytest.raises(ProgramError, match="takes no label weights.*--label-weights"):
        program.train(_batch(WEIGHTS), LR)
    with pytest.raises(UsageError, match="--label-weights needs gradients"):
        TorchProgram.build(_options(checkpoint, method="prge", optimizer="norm", polyak=None, label_weights=True))
