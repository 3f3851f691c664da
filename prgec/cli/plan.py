"""`prgec plan`: what fits a device, how long it takes, and which command to type."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from prgec.backends import BACKENDS
from prgec.cli.render import print_json, print_lines
from prgec.plan.choose import way_text
from prgec.plan.options import PlanOptions
from prgec.plan.plan import Plan, make_plan
from prgec.plan.source import compile_name, read_shape
from prgec.plan.speed import reported_speed, speed_of_bench
from prgec.plan.units import bytes_text, parse_bytes, parse_seconds, seconds_text

if TYPE_CHECKING:
    from prgec.plan.rows import PlanRow

FILE = click.Path(path_type=Path)
_DEFAULTS = PlanOptions(memory=0)


@click.command()
@click.argument("model")
@click.option("--memory", required=True, metavar="SIZE", help="Memory the device can give: 512M, 4G, 3.5GiB.")
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
@click.option("--backend", type=click.Choice(list(BACKENDS)), default=_DEFAULTS.backend, show_default=True)
@click.option(
    "--driver",
    type=click.Choice(["cpp", "python"]),
    default=_DEFAULTS.driver,
    show_default=True,
    help="What runs the program: the C++ driver, or prgec run.",
)
@click.option("--bench", type=FILE, metavar="FILE", help="Take speeds from this bench.json of prgec bench.")
@click.option("--watts", type=float, metavar="W", help="Power of the device while it trains; adds energy.")
@click.option("--chart", type=FILE, metavar="FILE", help="Draw memory against tokens a row, as PNG.")
@click.option("--all", "show_all", is_flag=True, help="Show every row, and not the best of each group.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def plan(
    model: str,
    memory: str,
    seconds: str | None,
    steps: int,
    data: Path | None,
    seq_len: int,
    num_labels: int,
    backend: str,
    driver: str,
    bench: Path | None,
    watts: float | None,
    chart: Path | None,
    show_all: bool,
    as_json: bool,
) -> int:
    """Say which ways to train MODEL fit a budget, and the command to type.

    MODEL is a checkpoint's folder, a config.json, a well-known name such as Llama-2-7B, or a hub id; no weights are
    read. Times are estimates, memory is within a few percent, and nothing is said of accuracy.
    """
    shape = read_shape(model)
    num_examples = None
    if data is not None:
        seq_len, num_labels, num_examples = _lengths(model, data)
    options = PlanOptions(
        parse_bytes(memory),
        None if seconds is None else parse_seconds(seconds),
        steps,
        seq_len,
        num_labels,
        backend,
        driver,
        watts,
        num_examples,
    )
    options.check(shape)
    speed = reported_speed(backend) if bench is None else speed_of_bench(bench, shape)
    found = make_plan(shape, options, speed, compile_name(model))
    if chart is not None:
        from prgec.plan.chart import plot_plan

        plot_plan(chart, found)
    if as_json:
        print_json(found.to_json())
    else:
        print_lines(*_lines(found, show_all))
    return 0


def _lengths(model: str, data: Path) -> tuple[int, int, int]:
    """T, K and the number of rows of a data file, as prgec compile would choose them."""
    from prgec.compile.lengths import fit_options
    from prgec.compile.options import CompileOptions
    from prgec.contract.tokenizer import Tokenizer
    from prgec.data.dataset import load_dataset
    from prgec.frontend.checkpoint import find_checkpoint
    from prgec.frontend.tokenizer import pack_tokenizer

    options = CompileOptions(model=model, data=(data,), seq_len=0, num_labels=0)
    tokenizer = Tokenizer.unpack(pack_tokenizer(find_checkpoint(model).path))
    fitted = fit_options(options, tokenizer, None)
    return fitted.seq_len, fitted.num_labels, len(load_dataset(data, options.task).examples)


def _lines(found: Plan, show_all: bool) -> list[str]:
    shape, options = found.shape, found.options
    budget = f"{bytes_text(options.memory)}" + (f", {seconds_text(options.seconds)}" if options.seconds else "")
    lines = [
        f"{shape.name}: {shape.num_weights / 1e6:.0f}M weights, {shape.layers} blocks; {budget}; "
        f"{options.steps} steps, T={options.seq_len} K={options.num_labels}",
        "",
        *_table(found, found.rows if show_all else _best_of_groups(found.rows)),
        "",
        f"take {way_text(found.choice.row)}",
        *(f"  - {reason}" for reason in found.choice.reasons),
    ]
    energy = found.energy_j(found.choice.row)
    if energy is not None:
        lines.append(f"  - {energy / 3.6e6:.3g} kWh at {options.watts:g} W")
    lines += ["", *(f"    {command}" for command in found.choice.commands), "", *_others(found)]
    lines.append(f"times are of {found.speed.origin}")
    return lines


def _table(found: Plan, rows: Sequence[PlanRow]) -> list[str]:
    head = ("way to train", "peak", "mapped", "s/step", "run", "file", "to compile", "kept prefixes", "fits")
    body = [
        (
            way_text(row),
            bytes_text(row.memory.total),
            bytes_text(row.mapped_bytes),
            "?" if row.step_s is None else f"{row.step_s:.3g}",
            "?" if row.run_s is None else seconds_text(row.run_s),
            bytes_text(row.file_bytes),
            bytes_text(row.compile_bytes) if row.compile_bytes else "?",
            bytes_text(row.kept_bytes) if row.kept_bytes else "-",
            "yes" if row.fits else "no",
        )
        for row in rows
    ]
    return aligned([head, *body])


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns of a table, the first to the left and the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    ]


def _best_of_groups(rows: Sequence[PlanRow]) -> list[PlanRow]:
    """Of each method, choice of layers and scheme the first row that fits, else the smallest."""
    groups: dict[tuple[str, str, str], list[PlanRow]] = {}
    for row in rows:
        groups.setdefault((row.work.method, row.work.layers, row.work.quantize), []).append(row)
    return [
        next((row for row in group if row.fits), min(group, key=lambda row: row.memory.total))
        for group in groups.values()
    ]


def _others(found: Plan) -> list[str]:
    work = found.choice.row.work
    head = (f"instead, with {work.batch_size} rows of {work.seq_len} tokens", "peak", "fits", "largest that fits")
    body = [
        (row.name, bytes_text(row.peak_bytes), "yes" if row.fits else "no", row.largest or "none")
        for row in found.others
    ]
    ours = [(f"prgec {name}, 8da4w, 1 row", "", "", each or "none") for name, each in found.largest.items()]
    return [*aligned([head, *body, *ours]), ""]
