"""Compare compiled programs with the oracle: textbook MeZO on the unmodified Hugging Face model.

    python tools/parity.py [--steps 100] [--json]

Each case compiles the same small random Llama, trains the program and the oracle side by side, each by its own losses
alone, and prints one row: the largest relative difference of a loss over all rows and steps, and that of the trained B.
The exit code is 1 if a case is out of bounds.
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

from prgec.cli.quiet import quiet_libraries

if TYPE_CHECKING:
    from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
MAX_REL_LOSS_DIFF = 1e-4
MAX_REL_STATE_DIFF = 1e-3
# B ends between 0.1 and 0.5, hundreds of times the bound. At five times this rate the training itself amplifies
# rounding a thousandfold, and any two correct f32 programs part.
LR = 2e-3
EPS = 1e-2
SEED = 7
POOL = 8


@dataclass(frozen=True)
class Case:
    """One program.

    Attributes:
        q: Queries a step.
        state: State mode.
        backend: Backend that lowers it.
    """

    q: int
    state: str
    backend: str


CASES = tuple(Case(*each) for each in itertools.product((1, 4), ("seeded", "dual"), ("xnnpack", "portable")))


@dataclass(frozen=True)
class Row:
    """What one case measured; see `tests.lockstep.Comparison`.

    Attributes:
        seconds: Time to compile and to run.
        passed: Whether both differences are within bounds.
    """

    q: int
    state: str
    backend: str
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
    quiet_libraries()
    # The oracle belongs to the tests, and they are not installed.
    sys.path.insert(0, str(ROOT))
    import torch

    # Tensors this small lose more to threads than they gain.
    torch.set_num_threads(1)
    started = time.perf_counter()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            print(f"q={case.q} {case.state} {case.backend} ...", file=sys.stderr, flush=True)
            rows.append(_run(case, Path(folder), options.steps, options.layers))
    seconds = time.perf_counter() - started
    if options.json:
        print(_document(rows, seconds))
    else:
        _print_table(rows, seconds)
    return 0 if all(row.passed for row in rows) else 1


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100, help="training steps a case (default: 100)")
    parser.add_argument("--layers", type=int, default=2, help="layers of the model (default: 2)")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of a table")
    options = parser.parse_args(argv)
    if options.steps < 1 or options.layers < 1:
        parser.error("--steps and --layers are at least 1")
    return options


def _run(case: Case, folder: Path, steps: int, layers: int) -> Row:
    from prgec.compiler import compile_model
    from prgec.driver.program import Program
    from prgec.options import CompileOptions
    from tests.lockstep import follow, oracle_for, random_steps
    from tests.models import TinyLlama

    started = time.perf_counter()
    checkpoint = TinyLlama(num_layers=layers).write(folder / "checkpoint")
    path = folder / f"{case.q}-{case.state}-{case.backend}.pte"
    compile_model(CompileOptions(
        model=str(checkpoint), output=path, backend=case.backend, q=case.q, batch_size=2, seq_len=24, num_labels=3,
        rank=4, alpha=8.0, state=case.state,
    ))  # fmt: skip
    program = Program.open(path)
    oracle = oracle_for(program, checkpoint, eps=EPS, seed=SEED)
    found = follow(program, oracle, random_steps(steps, program.manifest, lr=LR, pool=POOL))
    passed = found.max_rel_loss_diff <= MAX_REL_LOSS_DIFF and found.max_rel_state_diff <= MAX_REL_STATE_DIFF
    return Row(**asdict(case), **asdict(found), seconds=round(time.perf_counter() - started, 1), passed=passed)


def _document(rows: Sequence[Row], seconds: float) -> str:
    bounds = {"max_rel_loss_diff": MAX_REL_LOSS_DIFF, "max_rel_state_diff": MAX_REL_STATE_DIFF}
    document = {
        "passed": all(row.passed for row in rows),
        "bounds": bounds,
        "lr": LR,
        "eps": EPS,
        "seconds": round(seconds, 1),
        "cases": [asdict(row) for row in rows],
    }
    return json.dumps(document, indent=2)


def _print_table(rows: Sequence[Row], seconds: float) -> None:
    from rich.console import Console

    console = Console()
    console.print(_table(rows))
    passed = sum(row.passed for row in rows)
    console.print(f"{passed} of {len(rows)} cases within bounds, {seconds:.0f} s", highlight=False)


def _table(rows: Sequence[Row]) -> Table:
    from rich.table import Table

    bounds = f"relative difference of losses <= {MAX_REL_LOSS_DIFF:g}, of B <= {MAX_REL_STATE_DIFF:g}"
    table = Table(title=f"Program against oracle, {rows[0].steps} steps\n{bounds}", padding=0)
    for name in ("q", "state", "backend", "losses", "B", "max |B|", "loss", "s", ""):
        table.add_column(name, justify="left" if name in ("state", "backend", "") else "right", no_wrap=True)
    for row in rows:
        verdict = "[green]pass[/green]" if row.passed else "[bold red]FAIL[/bold red]"
        table.add_row(str(row.q), row.state, row.backend, f"{row.max_rel_loss_diff:.1e}",
                      f"{row.max_rel_state_diff:.1e}", f"{row.max_abs_state:.3f}",
                      f"{row.first_loss:.2f} to {row.last_loss:.2f}", f"{row.seconds:.0f}", verdict)  # fmt: skip
    return table


if __name__ == "__main__":
    sys.exit(main())
