"""`prgec plan`: what fits a device, how long it takes, and which command to type."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from prgec.backends import BACKENDS
from prgec.cli.plan_tables import plan_lines, plan_page
from prgec.cli.render import print_json, print_lines, stderr_console
from prgec.compiler.plan.calibration import calibrated_speed, keep_calibration
from prgec.compiler.plan.options import PlanOptions
from prgec.compiler.plan.plan import make_plan
from prgec.compiler.plan.source import compile_name, read_config, read_shape
from prgec.compiler.plan.speed import reported_speed, speed_of_bench
from prgec.compiler.plan.units import parse_bytes, parse_seconds
from prgec.core.machine.files import write_atomic
from prgec.core.machine.memory import available_memory_bytes
from prgec.errors import UsageError

if TYPE_CHECKING:
    from prgec.compiler.plan.shape import ModelShape

FILE = click.Path(path_type=Path)
_DEFAULTS = PlanOptions(memory=0)


@click.command()
@click.argument("model")
@click.option(
    "--memory",
    metavar="SIZE",
    help="Memory the device can give: 512M, 4G, 3.5GiB [default: what is free on this machine].",
)
@click.option("--time", "seconds", metavar="TIME", help="Time for all steps: 90m, 2h.")
@click.option("--steps", type=int, default=_DEFAULTS.steps, show_default=True, help="Steps of the run.")
@click.option("--data", type=FILE, metavar="FILE", help="Rows of a checkpoint's folder, which say T and K.")
@click.option("--seq-len", type=int, default=_DEFAULTS.seq_len, show_default=True, help="Most tokens a row may have.")
@click.option(
    "--label-tokens",
    "num_labels",
    type=int,
    default=_DEFAULTS.num_labels,
    show_default=True,
    help="Most tokens a completion may have.",
)
@click.option(
    "--context",
    type=int,
    default=_DEFAULTS.context,
    show_default=True,
    metavar="C",
    help="Positions of the cache of a program that also answers.",
)
@click.option(
    "--rollouts",
    type=int,
    default=_DEFAULTS.rollouts,
    show_default=True,
    metavar="R",
    help="Answers that it writes at once, to learn from rewards.",
)
@click.option("--backend", type=click.Choice(list(BACKENDS)), default=_DEFAULTS.backend, show_default=True)
@click.option(
    "--driver",
    type=click.Choice(["cpp", "python"]),
    default=_DEFAULTS.driver,
    show_default=True,
    help="What runs the program: the C++ driver, or prgec run.",
)
@click.option("--bench", type=FILE, metavar="FILE", help="Take speeds from this bench.json of prgec bench.")
@click.option(
    "--calibrate",
    "does_calibrate",
    is_flag=True,
    help="First compile and time blocks of the model on this machine (minutes); later plans use what it finds.",
)
@click.option("--watts", type=float, metavar="W", help="Power of the device while it trains; adds energy.")
@click.option("--chart", type=FILE, metavar="FILE", help="Draw memory against tokens a row, as PNG.")
@click.option("--html", "page", type=FILE, metavar="FILE", help="Write the plan and its chart as one HTML page.")
@click.option("--all", "show_all", is_flag=True, help="Show every row, and not the best of each group.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def plan(
    model: str,
    memory: str | None,
    seconds: str | None,
    steps: int,
    data: Path | None,
    seq_len: int,
    num_labels: int,
    context: int,
    rollouts: int,
    backend: str,
    driver: str,
    bench: Path | None,
    does_calibrate: bool,
    watts: float | None,
    chart: Path | None,
    page: Path | None,
    show_all: bool,
    as_json: bool,
) -> int:
    """Say which ways to train MODEL fit a budget, and the command to type.

    MODEL is a checkpoint's folder, a config.json, a well-known name such as Llama-2-7B, or a hub id; no weights are
    read. Times are estimates, memory is within a few percent, and accuracy is not estimated.
    """
    shape = read_shape(model)
    num_examples = None
    if data is not None:
        seq_len, num_labels, num_examples = _lengths(model, data)
    options = PlanOptions(
        memory=parse_bytes(memory) if memory is not None else available_memory_bytes(),
        seconds=None if seconds is None else parse_seconds(seconds),
        steps=steps,
        seq_len=seq_len,
        num_labels=num_labels,
        backend=backend,
        driver=driver,
        watts=watts,
        num_examples=num_examples,
        context=context,
        rollouts=rollouts,
    )
    options.check(shape)
    if does_calibrate and bench is not None:
        raise UsageError("--calibrate and --bench both set the speed of this machine; give one of them")
    if does_calibrate:
        _calibrate(model, shape, options)
    speed = speed_of_bench(bench, shape) if bench is not None else calibrated_speed() or reported_speed(backend)
    found = make_plan(shape, options, speed, compile_name(model))
    if chart is not None:
        from prgec.compiler.plan.chart import plot_plan

        plot_plan(chart, found)
    if page is not None:
        write_atomic(page, plan_page(found, show_all=show_all).encode())
    if as_json:
        print_json(found.to_json())
    else:
        print_lines(*plan_lines(found, show_all=show_all))
    return 0


def _calibrate(model: str, shape: ModelShape, options: PlanOptions) -> None:
    """Time blocks of the model and keep what that says."""
    # Imported here: the compiler takes seconds, and other plans need none of it.
    from prgec.lab.bench.calibrate import calibrate

    console = stderr_console()
    with console.status("calibrating") as status:

        def tell(text: str) -> None:
            console.print(text, markup=False, soft_wrap=True)
            status.update(text)

        found = calibrate(read_config(model), shape.name, options.seq_len, options.num_labels, tell)
        path = keep_calibration(found, shape.name, datetime.date.today().isoformat())
    console.print(f"calibrated; kept in {path}", markup=False, soft_wrap=True)


def _lengths(model: str, data: Path) -> tuple[int, int, int]:
    """T, K and the number of rows of a data file, as prgec compile would choose them."""
    from prgec.compiler.frontend.checkpoint import find_checkpoint
    from prgec.compiler.frontend.tokenizer import pack_tokenizer
    from prgec.compiler.lengths import fit_options
    from prgec.compiler.options import CompileOptions
    from prgec.core.contract.tokenizer import Tokenizer
    from prgec.core.data.dataset import load_dataset

    options = CompileOptions(model=model, data=(data,), seq_len=0, num_labels=0)
    tokenizer = Tokenizer.unpack(pack_tokenizer(find_checkpoint(model).path))
    fitted = fit_options(options, tokenizer, None)
    return fitted.seq_len, fitted.num_labels, len(load_dataset(data, options.task, takes_feedback=True).examples)
