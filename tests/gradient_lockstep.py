"""Trains a program that computes its own gradients and the oracle side by side, and says how far they part.

A program returns losses, not gradients, but its state reveals them: where the rule keeps a running mean, by its change
in a call; else by how far B moved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from prgec.core.contract.arrays import Float64Array, FloatArray, State
from prgec.core.contract.calls import Batch
from prgec.core.contract.manifest import Manifest
from prgec.core.contract.names import STATE_SUFFIX, STATE_SUFFIX_MEAN
from prgec.runtime.engines.executorch.pte_program import PteProgram
from tests.gradient_oracle import BETA1, GradientOracle
from tests.lockstep import Step, batch_of


@dataclass(frozen=True)
class GradientComparison:
    """How a program and the oracle compare after a run.

    Attributes:
        steps: Steps of the run.
        max_rel_loss_diff: Largest |difference| / |oracle's loss| over all rows of all steps, each run by its own steps.
        max_rel_gradient_diff: Largest |difference| / |gradient| of a step, the whole gradient, at the program's B.
        min_cosine: Smallest cosine of the two.
        rel_state_diff: |difference| / |B| after the run, each run by its own steps.
        max_abs_state: Largest |B| of the oracle after the run.
        first_loss: The oracle's mean loss in the first step.
        last_loss: The oracle's mean loss in the last step.
    """

    steps: int
    max_rel_loss_diff: float
    max_rel_gradient_diff: float
    min_cosine: float
    rel_state_diff: float
    max_abs_state: float
    first_loss: float
    last_loss: float


def follow_gradients(
    program: PteProgram, make_model: Callable[[], nn.Module], steps: Iterable[Step]
) -> GradientComparison:
    """Train both on the same examples; compare every loss, every gradient, and the final B.

    Args:
        program: A program in its initial state.
        make_model: Makes the Hugging Face model whose gradients are right; called twice.
        steps: Examples and learning rate of each step.
    """
    m = program.manifest
    beside, alone = (GradientOracle(make_model(), m) for _ in range(2))
    losses, apart, cosines, means = [], [], [], []
    for examples, lr in steps:
        batch = batch_of(examples, m)
        rows = tensors_of(batch)
        beside.put(by_site(program.read_state()))
        found_losses, found = told_gradient(program, batch, lr)
        expected = flat(beside.gradients(rows).values())
        apart.append(float(np.linalg.norm(found - expected) / np.linalg.norm(expected)))
        cosines.append(cosine(found, expected))
        expected_losses = alone.step(rows, lr).numpy()
        losses.append(float((np.abs(found_losses - expected_losses) / np.abs(expected_losses)).max()))
        means.append(float(expected_losses.mean()))
    final = flat(alone.state().values())
    difference = flat(program.read_state().values()) - final
    return GradientComparison(
        len(means),
        max(losses),
        max(apart),
        min(cosines),
        float(np.linalg.norm(difference) / np.linalg.norm(final)),
        float(np.abs(final).max()),
        means[0],
        means[-1],
    )


def told_gradient(program: PteProgram, batch: Batch, lr: float) -> tuple[FloatArray, Float64Array]:
    """Take one step; return its losses, f32[B], and the whole gradient, site after site, as computed from the state."""
    before = {**program.read_state(), **program.read_optimizer()}
    losses, factors = program.train(batch, lr)
    after = {**program.read_state(), **program.read_optimizer()}
    scale = float(factors[0])
    assert scale > 0, "the step was skipped"
    return losses, _gradient(program.manifest, before, after, lr, scale)


def _gradient(manifest: Manifest, before: State, after: State, lr: float, scale: float) -> Float64Array:
    names = [site.state_name for site in manifest.sites]
    if manifest.optimizer == "norm":
        return (flat(before[name] for name in names) - flat(after[name] for name in names)) / (lr * scale)
    names = [name + STATE_SUFFIX_MEAN for name in names]
    kept, found = (flat(state[name] for name in names) for state in (before, after))
    return (found - BETA1 * kept) / ((1 - BETA1) * scale)


def tensors_of(batch: Batch) -> tuple[Tensor, ...]:
    """Tokens, label positions and targets as PyTorch takes them."""
    return tuple(map(torch.from_numpy, (batch.tokens_NT, batch.label_pos_NK, batch.targets_NK)))


def by_site(state: Mapping[str, FloatArray]) -> dict[str, Tensor]:
    """B by module path."""
    return {name.removesuffix(STATE_SUFFIX): torch.from_numpy(b) for name, b in state.items()}


def flat(parts: Iterable[FloatArray | Tensor]) -> Float64Array:
    """All numbers one after the other, f64."""
    return np.concatenate([np.asarray(each, dtype=np.float64).ravel() for each in parts])


def cosine(found: Float64Array, expected: Float64Array) -> float:
    """Cosine of the angle between two vectors."""
    return float(found @ expected / (np.linalg.norm(found) * np.linalg.norm(expected)))
