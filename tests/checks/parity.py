"""Compare compiled programs with the oracle: textbook MeZO on the unmodified Hugging Face model.

    python tools/parity.py [--steps 100] [--json]
    python tools/parity.py --backend openvino --backend xnnpack
    python tools/parity.py --backend qnn         # on the HTP simulator; 20 steps, some minutes
    python tools/parity.py --method exact --method shortcut     # beside PyTorch's autograd: parity_gradients.py

Each case compiles the same small random Llama, trains the program and the oracle side by side, each by its own losses
alone, and prints one row: the largest relative difference of a loss over all rows and steps, that of the trained B, and
how many of all g have the oracle's sign. Where the program rounds its frozen weights, the oracle trains a model with
these weights. The exit code is 1 if a case is out of bounds.
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
from tests.checks.parity_gradients import gradients_main

if TYPE_CHECKING:
    from rich.table import Table

    from tests.lockstep import Comparison

# B ends between 0.1 and 0.5, hundreds of times the bound in f32. At five times this rate the training itself amplifies
# rounding a thousandfold, and any two correct f32 programs part.
LR = 2e-3
EPS = 1e-2
SEED = 7
POOL = 8


@dataclass(frozen=True)
class Bounds:
    """The bounds of a case.

    Attributes:
        loss: Largest relative difference of a loss.
        mean_loss: Mean absolute difference of a loss.
        state: Largest difference of B relative to the largest |B|.
        signs: Smallest fraction of g with the oracle's sign.
    """

    loss: float
    mean_loss: float
    state: float
    signs: float


@dataclass(frozen=True)
class Plan:
    """How a backend is compared.

    Attributes:
        bounds: Bounds of every case.
        steps: Training steps where the user names no number.
        hidden_size: Width of the model.
    """

    bounds: Bounds
    steps: int = 100
    hidden_size: int = 32


@dataclass(frozen=True)
class Case:
    """One program.

    Attributes:
        q: Queries a step.
        state: State mode.
        backend: Backend that lowers it.
        quantize: Scheme of the frozen weights.
    """

    q: int
    state: str
    backend: str
    quantize: str = "none"


_F32 = Plan(Bounds(loss=1e-4, mean_loss=1e-4, state=1e-3, signs=0.99))
# In fp16; its RMSNorm needs rows of 64.
_F16 = Plan(Bounds(loss=1e-2, mean_loss=1e-2, state=5e-2, signs=0.95), steps=20, hidden_size=64)
PLANS = {"xnnpack": _F32, "portable": _F32, "openvino": _F32, "qnn": _F16}
CASES = (
    *(Case(*each) for each in itertools.product((1, 4), ("seeded", "dual"), ("xnnpack", "portable", "openvino"))),
    Case(4, "seeded", "openvino", "w8a16"),
    Case(4, "seeded", "openvino", "w4a16"),
    Case(1, "seeded", "qnn"),
    Case(4, "seeded", "qnn"),
    Case(4, "dual", "qnn"),
    Case(4, "seeded", "qnn", "w8a16"),
    Case(4, "seeded", "qnn", "w4a16"),
)


@dataclass(frozen=True)
class Row:
    """The measurements of one case; see `tests.lockstep.Comparison`.

    Attributes:
        seconds: Time to compile and to run.
        passed: Whether all differences are within bounds.
    """

    q: int
    state: str
    backend: str
    quantize: str
    steps: int
    max_rel_loss_diff: float
    max_rel_state_diff: float
    max_abs_state: float
    mean_abs_loss_diff: float
    g_sign_agreement: float
    first_loss: float
    last_loss: float
    seconds: float
    passed: bool


def main(argv: Sequence[str] | None = None) -> int:
    """Run all cases; return the exit code."""
    options = _parse(argv)
    if options.method != ["prge"]:
        return gradients_main(options)
    quiet_libraries()
    import torch

    # Tensors this small lose more to threads than they gain.
    torch.set_num_threads(1)
    started = time.perf_counter()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for case in [case for case in CASES if case.backend in options.backend]:
            name = f"q={case.q} {case.state} {case.backend} {case.quantize}"
            print(f"{name} ...", file=sys.stderr, flush=True)
            rows.append(_run(case, Path(folder), options.steps, options.layers))
    seconds = time.perf_counter() - started
    if options.json:
        print(_document(rows, seconds))
    else:
        _print_table(rows, seconds)
    return 0 if all(row.passed for row in rows) else 1


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", action="append", choices=PLANS, help="repeatable (default: xnnpack, portable)")
    parser.add_argument("--steps", type=int, help="training steps a case (default: 100; 20 with qnn)")
    parser.add_argument("--layers", type=int, default=2, help="layers of the model (default: 2)")
    parser.add_argument("--method", action="append", choices=TRAINING_METHODS, help="repeatable [prge]")
    parser.add_argument("--optimizer", action="append", choices=OPTIMIZERS, help="update rules; repeatable [all]")
    parser.add_argument("--quantize", action="append", help="schemes of methods with gradients; repeatable [all]")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of a table")
    parser.add_argument("--markdown", action="store_true", help="print rows of Markdown, of methods with gradients")
    options = parser.parse_args(argv)
    options.method = options.method or ["prge"]
    if "prge" in options.method and len(options.method) > 1:
        parser.error("--method prge is compared with another oracle: run it by itself")
    if (options.steps is not None and options.steps < 1) or options.layers < 1:
        parser.error("--steps and --layers are at least 1")
    options.backend = options.backend or ["xnnpack", "portable"]
    return options


def _run(case: Case, folder: Path, steps: int | None, layers: int) -> Row:
    from prgec.compiler.compile import compile_model
    from prgec.compiler.options import CompileOptions
    from prgec.passes.weights import SCHEMES
    from prgec.runtime.engines.executorch.open import open_pte
    from tests.lockstep import follow, oracle_for, random_steps
    from tests.models import TinyLlama, rounded_checkpoint

    started = time.perf_counter()
    plan = PLANS[case.backend]
    checkpoint = TinyLlama(num_layers=layers, hidden_size=plan.hidden_size).write(folder / "checkpoint")
    path = folder / f"{case.q}-{case.state}-{case.backend}-{case.quantize}.pte"
    compile_model(
        CompileOptions(
            model=str(checkpoint),
            output=path,
            backend=case.backend,
            q=case.q,
            batch_size=2,
            seq_len=24,
            num_labels=3,
            rank=4,
            alpha=8.0,
            state=case.state,
            quantize=case.quantize,
        )
    )
    if case.quantize != "none":
        checkpoint = rounded_checkpoint(checkpoint, folder / case.quantize, SCHEMES[case.quantize])
    program = open_pte(path)
    oracle = oracle_for(program, checkpoint, eps=EPS, seed=SEED)
    found = follow(program, oracle, random_steps(steps or plan.steps, program.manifest, lr=LR, pool=POOL))
    passed = is_within(found, plan.bounds)
    return Row(**asdict(case), **asdict(found), seconds=round(time.perf_counter() - started, 1), passed=passed)


def is_within(found: Comparison, bounds: Bounds) -> bool:
    """Whether a comparison keeps all bounds."""
    return (
        found.max_rel_loss_diff <= bounds.loss
        and found.mean_abs_loss_diff <= bounds.mean_loss
        and found.max_rel_state_diff <= bounds.state
        and found.g_sign_agreement >= bounds.signs
    )


def _document(rows: Sequence[Row], seconds: float) -> str:
    document = {
        "passed": all(row.passed for row in rows),
        "plans": {name: asdict(PLANS[name]) for name in sorted({row.backend for row in rows})},
        "lr": LR,
        "eps": EPS,
        "seconds": round(seconds, 1),
        "cases": [asdict(row) for row in rows],
    }
    return json.dumps(document, indent=2)


def _print_table(rows: Sequence[Row], seconds: float) -> None:
    from rich.console import Console

    console = Console()
    # Where nobody watches, the table has as much room as it needs.
    console.width = console.width if console.is_terminal else 120
    console.print(_table(rows))
    passed = sum(row.passed for row in rows)
    console.print(f"{passed} of {len(rows)} cases within bounds, {seconds:.0f} s", highlight=False)


def _table(rows: Sequence[Row]) -> Table:
    from rich.table import Table

    table = Table(title=f"Program against oracle, {rows[0].steps} steps", padding=0, caption="\n".join(_bounds(rows)))
    for name in ("q", "state", "backend", "weights", "losses", "mean", "B", "signs", "max |B|", "loss", "s", ""):
        is_text = name in ("state", "backend", "weights", "")
        table.add_column(name, justify="left" if is_text else "right", no_wrap=True)
    for row in rows:
        verdict = "[green]pass[/green]" if row.passed else "[bold red]FAIL[/bold red]"
        table.add_row(
            str(row.q),
            row.state,
            row.backend,
            row.quantize,
            f"{row.max_rel_loss_diff:.1e}",
            f"{row.mean_abs_loss_diff:.1e}",
            f"{row.max_rel_state_diff:.1e}",
            f"{row.g_sign_agreement:.1%}",
            f"{row.max_abs_state:.3f}",
            f"{row.first_loss:.2f} to {row.last_loss:.2f}",
            f"{row.seconds:.0f}",
            verdict,
        )
    return table


def _bounds(rows: Sequence[Row]) -> list[str]:
    """One line for each plan the rows followed."""
    plans = {PLANS[row.backend]: row.backend for row in rows}
    return [
        f"{name}: losses <= {plan.bounds.loss:g}, mean <= {plan.bounds.mean_loss:g}, B <= {plan.bounds.state:g}, "
        f"signs >= {plan.bounds.signs:.0%}"
        for plan, name in plans.items()
    ]


if __name__ == "__main__":
    sys.exit(main())
