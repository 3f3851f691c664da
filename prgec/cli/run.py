"""`prgec run`: train a compiled program on a jsonl file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from prgec.cli.interrupt import stop_on_interrupt
from prgec.cli.main import INTERRUPTED_EXIT_CODE
from prgec.cli.progress import RunDisplay
from prgec.cli.render import print_json, print_lines
from prgec.cli.task_option import TASK, TASK_HELP
from prgec.engines.choose import ENGINES
from prgec.errors import UsageError
from prgec.formats.run_folder import ADAPTER_NAME, METRICS_NAME, PLOT_NAME, SUMMARY_NAME
from prgec.runs.options import RunOptions
from prgec.runs.result import RunResult
from prgec.runs.run import run as train
from prgec.training.estimators import ESTIMATORS
from prgec.training.limits import NOT_FINITE_POLICIES, OVER_LIMIT_POLICIES
from prgec.training.schedules import SCHEDULES

FILE = click.Path(path_type=Path)
STOPPING = "stopping after this step; press Ctrl-C again to abort without saving"


def _refuse_lr_probe(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        steps = f" --steps {value}" if value else ""
        raise UsageError("--lr-probe is a command of its own", hint=f"prgec probe PROGRAM{steps}, and the other flags")


@click.command()
@click.argument("program", type=FILE)
@click.option(
    "--data",
    type=FILE,
    help="Training rows: jsonl, json, tsv, txt, parquet, a folder of datasets, or hf:NAME:CONFIG:SPLIT.",
)
@click.option("--eval-data", type=FILE, help="Rows to evaluate before and after.")
@click.option("--rows", type=FILE, help="Training rows made by prgec tokenize, instead of --data.")
@click.option("--eval-rows", type=FILE, help="Rows made by prgec tokenize, instead of --eval-data.")
@click.option("--task", type=TASK, default=RunOptions.task, show_default=True, help=TASK_HELP)
@click.option(
    "--low-volume",
    is_flag=True,
    help="Train on 1,000 rows of --data, choose by 500 others, evaluate on "
    "1,000 of --eval-data (on the 500 without it).",
)
@click.option("--steps", type=int, default=RunOptions.steps, show_default=True, help="Training steps.")
@click.option("--lr", type=float, default=RunOptions.lr, show_default=True, help="Learning rate.")
@click.option(
    "--lr-schedule",
    "schedule",
    type=click.Choice(list(SCHEDULES)),
    default=RunOptions.schedule,
    show_default=True,
    help="How the learning rate changes over the run.",
)
@click.option("--warmup", type=int, default=RunOptions.warmup, metavar="N", help="Steps over which lr rises first.")
@click.option("--eps", type=float, default=RunOptions.eps, show_default=True, help="Perturbation scale.")
@click.option("--seed", type=int, default=RunOptions.seed, show_default=True, help="Key of noise and data order.")
@click.option(
    "--estimator",
    type=click.Choice(list(ESTIMATORS)),
    default=RunOptions.estimator,
    show_default=True,
    help="How losses become coefficients; plain is the paper's.",
)
@click.option("--eval-every", type=int, default=RunOptions.eval_every, metavar="N", help="Also evaluate every N steps.")
@click.option(
    "--early-stop",
    "patience",
    type=int,
    default=RunOptions.patience,
    metavar="N",
    help="End after N evaluations without a better score; the best state is kept.",
)
@click.option(
    "--init-adapter",
    "--adapter",
    "adapter",
    type=FILE,
    help="Start from this adapter: adapter.safetensors of a run, or a PEFT adapter's folder.",
)
@click.option(
    "--prefix-cache",
    type=FILE,
    metavar="DIR",
    help="Keep hidden states here, so that later epochs run the trained blocks only "
    "(programs compiled with --prefix method).",
)
@click.option(
    "--engine",
    type=click.Choice(ENGINES),
    default=RunOptions.engine,
    show_default=True,
    help="What runs it: torch builds the graph again from the checkpoint (docs/study.md).",
)
@click.option("--base", metavar="MODEL", help="The checkpoint, for --engine torch [default: the one PROGRAM names].")
@click.option("--device", default=RunOptions.device, show_default=True, help="Where --engine torch runs: cpu, cuda.")
@click.option("--torch-compile", "compiled", is_flag=True, help="Let --engine torch generate code.")
@click.option("--out", type=FILE, help="Run folder [default: the first free runs/<program>-<n>].")
@click.option("--resume", is_flag=True, help="Go on with the run in --out, from its journal.")
@click.option(
    "--snapshot-every",
    type=int,
    default=RunOptions.snapshot_every,
    show_default=True,
    metavar="N",
    help="Keep the state every N steps, so that resuming is quick; 0 for never.",
)
@click.option(
    "--max-g",
    type=float,
    default=RunOptions.max_g,
    show_default=True,
    metavar="X",
    help="Largest coefficient |g| a step may apply; 0 for any.",
)
@click.option(
    "--over-limit",
    type=click.Choice(OVER_LIMIT_POLICIES),
    default=RunOptions.over_limit,
    show_default=True,
    help="What becomes of a step with a larger one.",
)
@click.option(
    "--not-finite",
    type=click.Choice(NOT_FINITE_POLICIES),
    default=RunOptions.not_finite,
    show_default=True,
    help="What a loss or g that is not finite does: stop the run, or skip the step.",
)
@click.option(
    "--diverged",
    type=float,
    default=RunOptions.diverged,
    show_default=True,
    metavar="X",
    help="End with the best state when the mean loss is X times what it was at first; 0: never.",
)
@click.option(
    "--window",
    type=int,
    default=RunOptions.window,
    show_default=True,
    metavar="N",
    help="Steps that mean is taken over.",
)
@click.option("--force", is_flag=True, help="Use --out even if it holds other files or an unfinished run.")
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
        lines.append(f"  eval loss   {before.loss:.4f} -> {after.loss:.4f} ({after.num_examples} examples)")
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
