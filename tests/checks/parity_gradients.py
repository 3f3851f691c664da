"""Compare programs that compute their own gradients with PyTorch's autograd; `parity.py` runs it.

Each case compiles the same small random Llama, trains the program and the oracle (`tests/gradient_oracle.py`) side by
side, and prints one row: the largest relative difference of a loss, of the whole gradient of a step, the smallest
cosine of the two gradients, and how far the trained B end apart. Where frozen weights are rounded, the oracle trains a
model with these weights; what is left is the rounding of activations and of the transposed weights.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from prgec.core.contract.names import OPTIMIZERS, TRAINING_METHODS
from prgec.core.machine.quiet import quiet_libraries

if TYPE_CHECKING:
    from tests.gradient_lockstep import GradientComparison

LR = 2e-3
POOL = 8
GRADIENT_METHODS = tuple(method for method in TRAINING_METHODS if method != "prge")


@dataclass(frozen=True)
class GradientBounds:
    """The bounds of a case.

    Attributes:
        loss: Largest relative difference of a loss.
        gradient: Largest relative difference of a gradient.
        cosine: Smallest cosine of two gradients.
        state: Largest relative difference of the final B.
    """

    loss: float
    gradient: float
    cosine: float
    state: float


@dataclass(frozen=True)
class GradientCase:
    """One program.

    Attributes:
        method: How it trains.
        optimizer: Update rule.
        backend: Backend that lowers it.
        quantize: Scheme of the frozen weights.
        layers: Blocks to train.
        steps: Training steps where the user names no number.
    """

    method: str
    optimizer: str
    backend: str
    quantize: str = "none"
    layers: str = "all"
    steps: int = 40


_F32 = GradientBounds(loss=1e-4, gradient=1e-4, cosine=0.999999, state=1e-3)
# By scheme of the weights; by backend, where it computes in 16 bits.
BOUNDS = {
    "none": _F32,
    "qnn": GradientBounds(loss=1e-2, gradient=2e-2, cosine=0.9999, state=5e-2),
    "8da8w": GradientBounds(loss=0.1, gradient=0.25, cosine=0.98, state=0.1),
    "8da4w": GradientBounds(loss=0.15, gradient=0.5, cosine=0.9, state=0.4),
}
CASES = tuple(
    GradientCase(method, optimizer, *each)
    for method, (each, optimizers) in itertools.product(
        GRADIENT_METHODS,
        {
            ("xnnpack", "none"): OPTIMIZERS,
            # Updates are f32 kernels outside the delegate: what rounds weights does not change them.
            ("xnnpack", "8da8w"): ("norm",),
            ("xnnpack", "8da4w"): ("norm",),
            ("portable", "none"): ("norm", "adamw"),
            ("openvino", "none"): ("norm", "adamw"),
        }.items(),
    )
    for optimizer in optimizers
) + (GradientCase("exact", "norm", "qnn", layers="last:1", steps=10), GradientCase("shortcut", "norm", "qnn", steps=10))


@dataclass(frozen=True)
class GradientRow:
    """The measurements of one case; see `tests.gradient_lockstep.GradientComparison`.

    Attributes:
        delegates: Delegates of `forward`.
        seconds: Time to compile and to run.
        passed: Whether all differences are within bounds.
    """

    method: str
    optimizer: str
    backend: str
    quantize: str
    layers: str
    steps: int
    max_rel_loss_diff: float
    max_rel_gradient_diff: float
    min_cosine: float
    rel_state_diff: float
    max_abs_state: float
    first_loss: float
    last_loss: float
    delegates: int
    seconds: float
    passed: bool


def run_case(case: GradientCase, folder: Path, steps: int | None, layers: int) -> GradientRow:
    """Compile one program and follow it."""
    from transformers import AutoModelForCausalLM

    from prgec.compiler.compile import compile_model
    from prgec.compiler.options import CompileOptions
    from prgec.passes.weights import SCHEMES
    from prgec.runtime.engines.executorch.open import open_pte
    from tests.gradient_lockstep import follow_gradients
    from tests.lockstep import random_steps
    from tests.models import TinyLlama, rounded_checkpoint

    started = time.perf_counter()
    checkpoint = TinyLlama(num_layers=layers, hidden_size=64).write(folder / "checkpoint")
    options = CompileOptions(
        model=str(checkpoint),
        output=folder / f"{'-'.join(map(str, vars(case).values())).replace(':', '')}.pte",
        method=case.method,
        optimizer=case.optimizer,
        backend=case.backend,
        quantize=case.quantize,
        layers=(case.layers,),
        batch_size=4,
        seq_len=24,
        num_labels=3,
        rank=4,
        alpha=8.0,
    )
    done = compile_model(options)
    rounded = checkpoint
    if case.quantize != "none":
        rounded = rounded_checkpoint(checkpoint, folder / case.quantize, SCHEMES[case.quantize])
    program = open_pte(done.path)
    found = follow_gradients(
        program,
        lambda: AutoModelForCausalLM.from_pretrained(rounded, local_files_only=True).eval(),
        random_steps(steps or case.steps, program.manifest, lr=LR, pool=POOL),
    )
    told = {name: value for name, value in asdict(case).items() if name != "steps"}
    return GradientRow(
        **told,
        **asdict(found),
        delegates=len(done.delegation.delegates),
        seconds=round(time.perf_counter() - started, 1),
        passed=is_within(found, bounds_of(case.backend, case.quantize)),
    )


def bounds_of(backend: str, quantize: str) -> GradientBounds:
    """The bounds of a case."""
    return BOUNDS.get(backend) or BOUNDS[quantize]


def is_within(found: GradientComparison, bounds: GradientBounds) -> bool:
    """Whether a comparison keeps all bounds."""
    return (
        found.max_rel_loss_diff <= bounds.loss
        and found.max_rel_gradient_diff <= bounds.gradient
        and found.min_cosine >= bounds.cosine
        and found.rel_state_diff <= bounds.state
    )


def gradients_main(options: argparse.Namespace) -> int:
    """Run the chosen cases and print them; return the exit code.

    Args:
        options: Options of the command line of `parity.py`.
    """
    quiet_libraries()
    import torch

    torch.set_num_threads(1)
    started = time.perf_counter()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for case in filter(lambda each: _is_chosen(each, options), CASES):
            print(f"{' '.join(map(str, vars(case).values()))} ...", file=sys.stderr, flush=True)
            rows.append(run_case(case, Path(folder), options.steps, options.layers))
    if not rows:
        print("parity: no case is of these methods, backends, schemes and update rules", file=sys.stderr)
        return 2
    if options.json:
        document = {"passed": all(row.passed for row in rows), "lr": LR, "cases": [asdict(row) for row in rows]}
        print(json.dumps(document, indent=2))
    else:
        print("\n".join(_table(rows, is_markdown=options.markdown)))
        passed = sum(row.passed for row in rows)
        print(f"{passed} of {len(rows)} cases within bounds, {time.perf_counter() - started:.0f} s", file=sys.stderr)
    return 0 if all(row.passed for row in rows) else 1


def _is_chosen(case: GradientCase, options: argparse.Namespace) -> bool:
    return (
        case.method in options.method
        and case.backend in options.backend
        and case.optimizer in (options.optimizer or OPTIMIZERS)
        and case.quantize in (options.quantize or (case.quantize,))
    )


_HEAD = ("method", "rule", "backend", "weights", "blocks", "delegates", "losses", "gradient", "cosine", "B", "loss", "")


def _table(rows: Sequence[GradientRow], *, is_markdown: bool) -> list[str]:
    table = [_HEAD, *(_cells(row) for row in rows)]
    if is_markdown:
        table.insert(1, tuple("---" for _ in _HEAD))
        return ["| " + " | ".join(cells) + " |" for cells in table]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) for cells in table]


def _cells(row: GradientRow) -> tuple[str, ...]:
    return (
        row.method,
        row.optimizer,
        row.backend,
        row.quantize,
        row.layers,
        str(row.delegates),
        f"{row.max_rel_loss_diff:.1e}",
        f"{row.max_rel_gradient_diff:.1e}",
        f"{row.min_cosine:.7f}" if row.min_cosine > 0.9999 else f"{row.min_cosine:.3f}",
        f"{row.rel_state_diff:.1e}",
        f"{row.first_loss:.2f} to {row.last_loss:.2f}",
        "pass" if row.passed else "FAIL",
    )
