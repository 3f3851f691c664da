"""`prgec study`: methods, seeds and hyper-parameters at equal rows, seconds or memory."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from prgec.cli.interrupt import stop_on_interrupt
from prgec.cli.main import INTERRUPTED_EXIT_CODE
from prgec.cli.render import print_json, print_lines, stderr_console
from prgec.errors import UsageError
from prgec.machine.files import write_atomic
from prgec.study.presets import STUDY_PRESETS, study_of, table_of
from prgec.study.spec import Study, read_study

FILE = click.Path(path_type=Path)
REPORT_NAME, CURVES_NAME = "report.md", "curves.png"
STOPPING = "stopping after this run; the study goes on when it is started again"


@click.command()
@click.argument("study", type=FILE, required=False)
@click.option(
    "--preset", type=click.Choice(list(STUDY_PRESETS)), help="A table of the paper in place of STUDY (docs/study.md)."
)
@click.option("--model", help="Checkpoint of a preset.")
@click.option("--data", type=FILE, metavar="DIR", help="Folder of a preset's tasks: DIR/sst2/train.jsonl and so on.")
@click.option("--forward-rows", type=click.IntRange(min=1), help="Budget of a preset's runs [default: the paper's].")
@click.option("--seeds", default="0", show_default=True, metavar="N,...", help="Seeds of a preset.")
@click.option("--lr", "rates", type=float, multiple=True, help="Rate to try in place of a preset's (repeatable).")
@click.option("--out", type=FILE, help="Folder of results, report and curves [default: runs/study-<name>].")
@click.option("--only", multiple=True, metavar="METHOD", help="Do the runs of this method only (repeatable).")
@click.option(
    "--on",
    "place",
    metavar="PLACE",
    help="Do the runs as tasks of Ray: ray for this machine, ray://HOST:PORT for a cluster [default: one by one].",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def study(
    study: Path | None,
    preset: str | None,
    model: str | None,
    data: Path | None,
    forward_rows: int | None,
    seeds: str,
    rates: tuple[float, ...],
    out: Path | None,
    only: tuple[str, ...],
    place: str | None,
    as_json: bool,
) -> int:
    """Train every method of STUDY (a TOML file) on every task and seed, and tabulate the scores.

    A study that was stopped goes on with the runs that have no result yet.
    """
    spec, command = _asked_for(study, preset, model, data, forward_rows, seeds, rates)
    for name in only:
        if name not in {each.name for each in spec.methods}:
            raise UsageError(
                f"the study has no method {name!r}",
                where=spec.path,
                hint=f"known: {', '.join(each.name for each in spec.methods)}",
            )
    folder = out or Path("runs") / f"study-{spec.path.stem}"
    from prgec.study.curves import plot_curves
    from prgec.study.report import report
    from prgec.study.results import Result, read_results
    from prgec.study.runner import RESULTS_NAME, run_study

    console = stderr_console()

    def tell(done: int, total: int, result: Result) -> None:
        options = ", ".join(f"{name}={value}" for name, value in result.options.items() if name != "kind")
        console.print(
            f"{done}/{total} {result.task} {result.method} seed {result.seed}: test "
            f"{result.test_accuracy:.1%} ({options})",
            highlight=False,
            soft_wrap=True,
        )

    stopped = False
    with stop_on_interrupt(STOPPING) as should_stop:
        if place is None:
            results = run_study(spec, folder, only=only, report=tell, should_stop=should_stop)
        else:
            from prgec.study.on_ray import run_study_on_ray

            results = run_study_on_ray(spec, folder, place, only=only, report=tell, should_stop=should_stop)
        stopped = should_stop()
    text = report(spec, results, command, read_results(folder / RESULTS_NAME))
    if preset is not None and data is not None:
        text += "\n".join(["", f"## {spec.title}", "", *table_of(preset, spec, results, data, command)]) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / REPORT_NAME, text.encode())
    plot_curves(folder / CURVES_NAME, spec, results)
    if as_json:
        print_json({"report": str(folder / REPORT_NAME), "interrupted": stopped, "results": _rows(results)})
    else:
        print_lines(*text.splitlines(), str(folder / REPORT_NAME))
    return INTERRUPTED_EXIT_CODE if stopped else 0


def _asked_for(
    path: Path | None,
    preset: str | None,
    model: str | None,
    data: Path | None,
    forward_rows: int | None,
    seeds: str,
    rates: tuple[float, ...],
) -> tuple[Study, str]:
    """Return the study of a file or of a preset, and the command that does it."""
    if (path is None) == (preset is None):
        raise UsageError("name a study's file, or a --preset")
    if path is not None:
        if model or data or forward_rows or rates:
            raise UsageError("--model, --data, --forward-rows and --lr are of a --preset; a study's file says them")
        return read_study(path), f"prgec study {path}"
    if model is None or data is None:
        raise UsageError(f"--preset {preset} needs --model and --data")
    try:
        chosen = tuple(int(seed) for seed in seeds.split(","))
    except ValueError as error:
        raise UsageError(f"--seeds is {seeds!r}; expected numbers between commas") from error
    assert preset is not None, "one of the two"
    made = study_of(preset, model, data, forward_rows=forward_rows, seeds=chosen, rates=rates)
    said = ["prgec", "study", "--preset", preset, "--model", model, "--data", str(data), "--seeds", seeds]
    said += ["--forward-rows", str(forward_rows)] if forward_rows else []
    return made, shlex.join([*said, *(part for rate in rates for part in ("--lr", f"{rate:g}"))])


def _rows(results: Any) -> list[dict[str, Any]]:
    return [
        {
            "method": each.method,
            "task": each.task,
            "seed": each.seed,
            "options": each.options,
            "accuracy": each.test_accuracy,
            "loss": each.test_loss,
        }
        for each in results
    ]
