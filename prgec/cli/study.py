"""`prgec study`: methods, seeds and hyper-parameters at equal rows, seconds or memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from prgec.cli.interrupt import stop_on_interrupt
from prgec.cli.main import INTERRUPTED_EXIT_CODE
from prgec.cli.render import print_json, print_lines, stderr_console
from prgec.errors import UsageError
from prgec.machine.files import write_atomic
from prgec.study.spec import read_study

FILE = click.Path(path_type=Path)
REPORT_NAME, CURVES_NAME = "report.md", "curves.png"
STOPPING = "stopping after this run; the study goes on when it is started again"


@click.command()
@click.argument("study", type=FILE)
@click.option("--out", type=FILE, help="Folder of results, report and curves [default: runs/study-<name>].")
@click.option("--only", multiple=True, metavar="METHOD", help="Do the runs of this method only (repeatable).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def study(study: Path, out: Path | None, only: tuple[str, ...], as_json: bool) -> int:
    """Train every method of STUDY (a TOML file) on every task and seed, and tabulate the scores.

    A study that was stopped goes on with the runs that have no result yet.
    """
    spec = read_study(study)
    for name in only:
        if name not in {each.name for each in spec.methods}:
            raise UsageError(
                f"the study has no method {name!r}",
                where=study,
                hint=f"known: {', '.join(each.name for each in spec.methods)}",
            )
    folder = out or Path("runs") / f"study-{study.stem}"
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
        results = run_study(spec, folder, only=only, report=tell, should_stop=should_stop)
        stopped = should_stop()
    text = report(spec, results, f"prgec study {study}", read_results(folder / RESULTS_NAME))
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / REPORT_NAME, text.encode())
    plot_curves(folder / CURVES_NAME, spec, results)
    if as_json:
        print_json({"report": str(folder / REPORT_NAME), "interrupted": stopped, "results": _rows(results)})
    else:
        print_lines(*text.splitlines(), str(folder / REPORT_NAME))
    return INTERRUPTED_EXIT_CODE if stopped else 0


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
