"""`prgec probe`: try learning rates on a program and its data, and say which one to take."""

from __future__ import annotations

from typing import Any

import click

from prgec.cli.interrupt import end_on_terminate
from prgec.cli.options import SectionedCommand, options_of
from prgec.cli.progress import RunDisplay
from prgec.cli.render import print_json, print_lines
from prgec.cli.task_option import TASK
from prgec.runtime.runs.options import RUN_TABLE, RunOptions
from prgec.runtime.runs.probe import DEFAULT_STEPS, probe_rates

# Options of a run without a use in a probe: it writes nothing, every rate is constant, and only ends are evaluated.
_OF_RUNS_ONLY = {
    "steps",
    "schedule",
    "warmup",
    "eval_every",
    "patience",
    "out",
    "force",
    "resume",
    "snapshot_every",
    "diverged",
    "window",
    "log_to",
}
_SECTIONS_OF_RUNS_ONLY = ("objective", "reward", "privacy")
_TABLE = tuple(
    item for item in RUN_TABLE if item.name not in _OF_RUNS_ONLY and item.option.section not in _SECTIONS_OF_RUNS_ONLY
)


@click.command(cls=SectionedCommand)
@options_of(_TABLE, kinds={"task": TASK}, file_table=RUN_TABLE)
@click.option("--steps", type=int, default=DEFAULT_STEPS, show_default=True, help="Training steps of each rate.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def probe(as_json: bool, **flags: Any) -> int:
    """Try learning rates around --lr on PROGRAM (a .pte made by prgec compile), and say which one to take.

    Every rate trains from the same state on the same rows with the same noise. Nothing is written.
    """
    with end_on_terminate(), RunDisplay(steps=0) as display:
        result = probe_rates(RunOptions(**flags), display, display.on_probe)
    if as_json:
        print_json(result.to_json())
        return 0
    print_lines(f"{'lr':>9}  {'loss':>8}  accuracy", f"{'none':>9}  {result.before:8.4f}")
    for each in result.probes:
        loss = "diverged" if each.loss is None else f"{each.loss:8.4f}"
        accuracy = "" if each.accuracy is None else f"{each.accuracy:8.1%}"
        print_lines(f"{each.lr:9.2g}  {loss}  {accuracy}{'  <' if each is result.best else ''}".rstrip())
    print_lines(result.advice())
    return 0
