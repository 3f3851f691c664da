"""`prgec demo`: compile the bundled model, train it on the bundled task in two ways, show accuracy before and after."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from prgec.cli.demo_run import DemoOptions, DemoResult, run_demo
from prgec.cli.interrupt import stop_on_interrupt
from prgec.cli.main import INTERRUPTED_EXIT_CODE
from prgec.cli.options import FILE
from prgec.cli.progress import RunDisplay
from prgec.cli.render import print_json, print_lines, stderr_console
from prgec.cli.run import STOPPING, summary_lines
from prgec.compiler.progress import Progress
from prgec.core.contract.names import TRAINING_METHODS
from prgec.demo import STEPS
from prgec.runtime.training.estimators import ESTIMATORS
from prgec.runtime.training.evaluate import Evaluation

# The papers' method, and the one that learns fastest for the time it takes to compile.
_BOTH = ("prge", "shortcut")
_STEPS = ", ".join(f"{steps} for {name}" for name, steps in STEPS.items())


@click.command()
@click.option(
    "--method",
    type=click.Choice(["both", *TRAINING_METHODS]),
    default="both",
    show_default=True,
    help="How the program trains; both is prge, by measured losses, and then shortcut, by its own gradient.",
)
@click.option("--steps", type=int, help=f"Training steps [default: {_STEPS}].")
@click.option("--lr", type=float, help="Learning rate [default: the program's own].")
@click.option(
    "--estimator",
    type=click.Choice(list(ESTIMATORS)),
    default=DemoOptions.estimator,
    show_default=True,
    help="How losses become coefficients; plain is the paper's.",
)
@click.option("--seed", type=int, default=DemoOptions.seed, show_default=True, help="Key of noise and data order.")
@click.option("--backend", default=DemoOptions.backend, show_default=True, help="Backend to compile for.")
@click.option("--out", type=FILE, help="Run folder [default: the first free runs/demo-<n>].")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def demo(method: str, out: Path | None, as_json: bool, **flags: Any) -> int:
    """Compile the bundled model, train it on the bundled reviews, show test accuracy before and after."""
    results: dict[str, DemoResult] = {}
    for each in _BOTH if method == "both" else (method,):
        options = DemoOptions(method=each, out=out / each if out and method == "both" else out, **flags)
        with stop_on_interrupt(STOPPING) as should_stop, RunDisplay(options.num_steps) as display:
            results[each] = run_demo(options, _print_stage, display, should_stop)
        if not as_json:
            print_lines(*summary_lines(results[each].run))
        if results[each].run.interrupted:
            break
    *_, last = results.values()
    if as_json:
        print_json({**last.to_json(), "methods": {name: result.to_json() for name, result in results.items()}})
    elif len(results) > 1:
        print_lines(*_side_by_side(results))
    return INTERRUPTED_EXIT_CODE if last.run.interrupted else 0


def _side_by_side(results: Mapping[str, DemoResult]) -> list[str]:
    lines = ["", f"  {'method':<10}{'accuracy':>20}{'steps':>8}{'training':>12}"]
    for name, result in results.items():
        before, after = (_percent(each) for each in (result.run.before, result.run.after))
        seconds = result.run.steps / result.run.steps_per_second if result.run.steps_per_second else 0.0
        lines.append(f"  {name:<10}{f'{before} -> {after}':>20}{result.run.steps:>8}{f'{seconds:.0f} s':>12}")
    return lines


def _percent(evaluation: Evaluation | None) -> str:
    return "-" if evaluation is None or evaluation.accuracy is None else f"{100 * evaluation.accuracy:.1f}%"


def _print_stage(progress: Progress) -> None:
    if not progress.done and not progress.detail:
        stderr_console().print(f"compile: {progress.stage}", markup=False)
