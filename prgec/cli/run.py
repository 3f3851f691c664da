"""`prgec run`: train a compiled program on a jsonl file."""

from __future__ import annotations

from typing import Any

import click

from prgec.cli.interrupt import stop_on_interrupt
from prgec.cli.main import INTERRUPTED_EXIT_CODE
from prgec.cli.options import SectionedCommand, options_of
from prgec.cli.progress import RunDisplay
from prgec.cli.render import print_json, print_lines
from prgec.cli.task_option import TASK
from prgec.core.formats.run_folder import ADAPTER_NAME, METRICS_NAME, PLOT_NAME, SUMMARY_NAME
from prgec.errors import UsageError
from prgec.runtime.runs.options import RUN_TABLE, RunOptions
from prgec.runtime.runs.result import RunResult
from prgec.runtime.runs.run import run as train
from prgec.runtime.training.evaluate import Evaluation

_COMMON = (
    *("data", "eval_data", "task", "steps", "lr", "accumulate", "seed", "adapter"),
    *("eval_every", "patience", "out", "resume", "force"),
)
STOPPING = "stopping after this step; press Ctrl-C again to abort without saving"


def _refuse_lr_probe(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        steps = f" --steps {value}" if value else ""
        raise UsageError("--lr-probe is a command of its own", hint=f"prgec probe PROGRAM{steps}, and the other flags")


@click.command(cls=SectionedCommand, common=_COMMON)
@options_of(RUN_TABLE, kinds={"task": TASK})
@click.option("--lr-probe", is_flag=False, flag_value="", hidden=True, callback=_refuse_lr_probe, expose_value=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def run(as_json: bool, **flags: Any) -> int:
    """Train PROGRAM (a .pte made by prgec compile) on a data file.

    Rows are those of a known task (docs/tasks.md), prompt and completion, chat messages or text. The run folder gets
    metrics.jsonl, adapter.safetensors, plot.png and run.json; prgec report turns it into a page.
    """
    options = RunOptions(**flags)
    with stop_on_interrupt(STOPPING) as should_stop, RunDisplay(options.steps) as display:
        result = train(options, display, should_stop)
    if as_json:
        print_json(result.to_json())
    else:
        print_lines(*summary_lines(result))
    return INTERRUPTED_EXIT_CODE if result.interrupted else 0


def summary_lines(result: RunResult) -> list[str]:
    """Return the one-screen summary; the last line names the run folder."""
    before, after = result.before, result.after
    lines = [
        "",
        f"  steps       {result.steps}{' (interrupted)' if result.interrupted else ''}, "
        f"{result.steps_per_second:.1f} per second, {result.seconds:.0f} s in all",
        f"  train loss  {result.loss:.4f} (mean of the last steps)",
    ]
    if before and after:
        lines.append(_evaluated(before, after))
    if before and after and before.accuracy is not None and after.accuracy is not None:
        points = 100 * (after.accuracy - before.accuracy)
        lines.append(f"  accuracy    {before.accuracy:.1%} -> {after.accuracy:.1%} ({points:+.1f} points)")
    if before and after and before.f1 is not None and after.f1 is not None:
        lines.append(f"  F1          {before.f1:.1%} -> {after.f1:.1%}, exact match {after.exact_match:.1%}")
    if result.best_step is not None:
        lines.append(f"  kept        the state of step {result.best_step}, which scored best")
    files = ", ".join((ADAPTER_NAME, METRICS_NAME, PLOT_NAME, SUMMARY_NAME))
    return [
        *lines,
        f"  state       sha256 {result.state_sha256[:16]}",
        f"  files       {files}",
        f"  run folder  {result.run}",
    ]


def _evaluated(before: Evaluation, after: Evaluation) -> str:
    if before.reward is not None and after.reward is not None:
        return f"  reward      {before.reward:.4f} -> {after.reward:.4f} ({after.num_examples} prompts)"
    return f"  eval loss   {before.loss:.4f} -> {after.loss:.4f} ({after.num_examples} examples)"
