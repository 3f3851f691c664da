"""`prgec demo`: compile the bundled model, train it on the bundled task, show accuracy before and after."""

from __future__ import annotations

from typing import Any

import click

from prgec.cli.interrupt import stop_on_interrupt
from prgec.cli.main import INTERRUPTED_EXIT_CODE
from prgec.cli.options import FILE
from prgec.cli.progress import RunDisplay
from prgec.cli.render import print_json, print_lines, stderr_console
from prgec.cli.run import STOPPING, summary_lines
from prgec.runs.demo import DemoOptions, run_demo
from prgec.training.estimators import ESTIMATORS


@click.command()
@click.option("--steps", type=int, default=DemoOptions.steps, show_default=True, help="Training steps.")
@click.option("--lr", type=float, default=DemoOptions.lr, show_default=True, help="Learning rate.")
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
def demo(as_json: bool, **flags: Any) -> int:
    """Compile the bundled model, train it on the bundled reviews, show test accuracy before and after."""
    options = DemoOptions(**flags)
    with stop_on_interrupt(STOPPING) as should_stop, RunDisplay(options.steps) as display:
        result = run_demo(options, _say_stage, display, should_stop)
    if as_json:
        print_json(result.to_json())
    else:
        print_lines(*summary_lines(result.run))
    return INTERRUPTED_EXIT_CODE if result.run.interrupted else 0


def _say_stage(name: str) -> None:
    stderr_console().print(f"compile: {name}", markup=False)
