"""`prgec study`: methods, seeds and hyper-parameters at equal rows, seconds or memory."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from prgec.cli.interrupt import stop_on_interrupt
from prgec.cli.main import INTERRUPTED_EXIT_CODE
from prgec.cli.render import print_json, print_lines, stderr_console
from prgec.core.machine.files import write_atomic
from prgec.errors import UsageError
from prgec.lab.study.presets import STUDY_PRESETS, study_of, table_of
from prgec.lab.study.results import Result
from prgec.lab.study.spec import EXECUTORCH, Run, Study, read_study

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
def study(out: Path | None, only: tuple[str, ...], place: str | None, as_json: bool, **flags: Any) -> int:
    """Train every method of STUDY (a TOML file) on every task and seed, and tabulate the scores.

    A study that was stopped goes on with the runs that have no result yet.
    """
    from prgec.lab.study.curves import plot_curves
    from prgec.lab.study.report import report
    from prgec.lab.study.results import read_results
    from prgec.lab.study.runner import RESULTS_NAME

    asked = _Asked(**flags)
    spec = asked.read()
    _check_names(spec, only)
    folder = out or Path("runs") / f"study-{spec.path.stem}"
    with stop_on_interrupt(STOPPING) as should_stop:
        results = _run(spec, folder, only, place, should_stop)
        stopped = should_stop()
    text = report(spec, results, asked.command, read_results(folder / RESULTS_NAME))
    if asked.preset is not None and asked.data is not None:
        table = table_of(asked.preset, spec, results, asked.data, asked.command)
        text += "\n".join(["", f"## {spec.title}", "", *table]) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / REPORT_NAME, text.encode())
    plot_curves(folder / CURVES_NAME, spec, results)
    if as_json:
        print_json({"report": str(folder / REPORT_NAME), "interrupted": stopped, "results": _rows(results)})
    else:
        print_lines(*text.splitlines(), str(folder / REPORT_NAME))
    return INTERRUPTED_EXIT_CODE if stopped else 0


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """The requested study: a file, or a preset and its parts; the flags of their names."""

    study: Path | None
    preset: str | None
    model: str | None
    data: Path | None
    forward_rows: int | None
    seeds: str
    rates: tuple[float, ...]

    def read(self) -> Study:
        if (self.study is None) == (self.preset is None):
            raise UsageError("name a study's file, or a --preset")
        if self.study is not None:
            if self.model or self.data or self.forward_rows or self.rates:
                raise UsageError("--model, --data, --forward-rows and --lr are of a --preset; a study's file says them")
            return read_study(self.study)
        if self.model is None or self.data is None:
            raise UsageError(f"--preset {self.preset} needs --model and --data")
        try:
            seeds = tuple(int(seed) for seed in self.seeds.split(","))
        except ValueError as error:
            raise UsageError(f"--seeds is {self.seeds!r}; expected numbers between commas") from error
        assert self.preset is not None, "one of the two"
        return study_of(
            self.preset, self.model, self.data, forward_rows=self.forward_rows, seeds=seeds, rates=self.rates
        )

    @property
    def command(self) -> str:
        """The command that repeats this study."""
        if self.study is not None:
            return f"prgec study {self.study}"
        said = ["prgec", "study", "--preset", str(self.preset), "--model", str(self.model), "--data", str(self.data)]
        said += ["--seeds", self.seeds]
        said += ["--forward-rows", str(self.forward_rows)] if self.forward_rows else []
        said += [part for rate in self.rates for part in ("--lr", f"{rate:g}")]
        return shlex.join(said)


def _check_names(spec: Study, only: Sequence[str]) -> None:
    known = [each.name for each in spec.methods]
    for name in only:
        if name not in known:
            raise UsageError(f"the study has no method {name!r}", where=spec.path, hint=f"known: {', '.join(known)}")


def _run(
    spec: Study, folder: Path, only: Sequence[str], place: str | None, should_stop: Callable[[], bool]
) -> Sequence[Result]:
    if place is None:
        from prgec.lab.study.runner import run_study

        return run_study(spec, folder, only=only, begin=_begin, report=_tell, should_stop=should_stop)
    from prgec.lab.study.on_ray import run_study_on_ray

    return run_study_on_ray(spec, folder, place, only=only, report=_tell, should_stop=should_stop)


def _begin(number: int, total: int, run: Run) -> None:
    console = stderr_console()
    what = "compiles and trains" if run.options.get("engine") == EXECUTORCH else "trains"
    # On a terminal the line of the result takes its place.
    end = "\r" if console.is_terminal else "\n"
    console.print(f"{number}/{total} {run.task.name} {run.method} seed {run.seed} {what}", end=end, soft_wrap=True)


def _tell(done: int, total: int, result: Result) -> None:
    options = ", ".join(f"{name}={value}" for name, value in result.options.items() if name != "kind")
    stderr_console().print(
        f"{done}/{total} {result.task} {result.method} seed {result.seed}: test {result.test_accuracy:.1%} ({options})",
        highlight=False,
        soft_wrap=True,
    )


def _rows(results: Sequence[Result]) -> list[dict[str, Any]]:
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
