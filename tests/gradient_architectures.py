"""How the gradient of a compiled program of every architecture compares with autograd's on the untouched model.

Two blocks at least, so that a shortcut has one to hand its gradient down to.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from prgec.core.contract.calls import Batch
from prgec.runtime.engines.executorch.pte_program import PteProgram
from tests.architectures import LENGTHS, SEQ_LEN, Architecture, random_rows
from tests.autograd import IGNORED
from tests.gradient_lockstep import by_site, cosine, flat, told_gradient
from tests.gradient_oracle import GradientOracle

BLOCKS = 2
BATCH_SIZE = 3


@dataclass(frozen=True)
class MeasuredGradient:
    """The result of compiling one architecture, and how its gradient compares.

    Attributes:
        architecture: Its name.
        method: `exact` or `shortcut`.
        sites: Trained layers.
        delegates: Ops in each delegate.
        cpu_ops: Calls outside all delegates, updates left out.
        max_rel_loss_diff: Largest |difference| / |loss| of a row.
        max_rel_gradient_diff: Largest |difference| / |gradient| over several T, the whole gradient.
        min_cosine: Smallest cosine of the two gradients.
    """

    architecture: str
    method: str
    sites: int
    delegates: tuple[int, ...]
    cpu_ops: int
    max_rel_loss_diff: float
    max_rel_gradient_diff: float
    min_cosine: float


def measure_gradient(each: Architecture, folder: Path, method: str, *, backend: str = "xnnpack") -> MeasuredGradient:
    """Compile one architecture, with a dynamic T where the backend has it, and compare at several T.

    Args:
        each: Architecture to compile.
        folder: For the checkpoint and the program.
        method: `exact` or `shortcut`.
        backend: Backend to compile it for.
    """
    from prgec.compiler.compile import compile_model
    from prgec.compiler.options import CompileOptions
    from prgec.runtime.engines.executorch.open import open_pte

    each = each.deeper(max(BLOCKS, each.num_layers))
    done = compile_model(
        CompileOptions(
            model=str(each.write(folder / each.model_type)),
            output=folder / f"{each.model_type}-{method}.pte",
            method=method,
            # Its running mean contains the gradient itself.
            optimizer="adamw",
            backend=backend,
            batch_size=BATCH_SIZE,
            seq_len=SEQ_LEN,
            num_labels=2,
            rank=4,
            alpha=8.0,
        )
    )
    program = open_pte(done.path)
    oracle = GradientOracle(each.build(), program.manifest)
    _randomise_state(program)
    oracle.put(by_site(program.read_state()))
    lengths = LENGTHS if program.manifest.dynamic_seq_len else (SEQ_LEN,)
    apart = [_difference(program, oracle, length) for length in lengths]
    return MeasuredGradient(
        each.name,
        method,
        len(done.manifest.sites),
        tuple(delegate.ops for delegate in done.delegation.delegates),
        sum(op.count for op in done.delegation.cpu_ops if not op.op.startswith("prge.")),
        max(loss for loss, _, _ in apart),
        max(gradient for _, gradient, _ in apart),
        min(angle for _, _, angle in apart),
    )


def _randomise_state(program: PteProgram) -> None:
    """Values of B that matter."""
    rng = np.random.default_rng(7)
    state = {name: 0.1 * rng.standard_normal(b.shape) for name, b in program.read_state().items()}
    program.write_state({name: b.astype(np.float32) for name, b in state.items()})


def _difference(program: PteProgram, oracle: GradientOracle, length: int) -> tuple[float, float, float]:
    """How far losses and gradient are apart at one T, and the cosine of the two gradients; B stays as it is."""
    rows = random_rows(BATCH_SIZE, length)
    rows[2][-1] = IGNORED
    tokens, label_pos, targets = (each.numpy() for each in rows)
    losses, found = told_gradient(program, Batch(tokens, label_pos, targets), lr=0.0)
    expected = flat(oracle.gradients(rows).values())
    # The last row counts for nothing, and its loss is 0.
    expected_losses = oracle.losses(rows)[:-1].numpy()
    apart = np.abs(losses[:-1] - expected_losses) / np.abs(expected_losses)
    assert torch.isfinite(torch.from_numpy(losses)).all()
    return (
        float(apart.max()),
        float(np.linalg.norm(found - expected) / np.linalg.norm(expected)),
        cosine(found, expected),
    )
