"""`prgec report`: a run as one HTML page, or several side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from prgec.cli.output_option import FORCE
from prgec.cli.render import print_json, print_lines
from prgec.core.machine.files import check_free
from prgec.errors import UsageError

# Further runs beside the first.
COMPARE_NAME = "compare.html"


@click.command()
@click.argument("runs", type=click.Path(path_type=Path), nargs=-1, required=True, metavar="RUN...")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help=f"Page to write [default: RUN/report.html; of several, {COMPARE_NAME} beside the first].",
)
@click.option("--side", "is_side", is_flag=True, help="RUN is a network of prgec side fit instead.")
@FORCE
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def report(runs: tuple[Path, ...], output: Path | None, is_side: bool, force: bool, as_json: bool) -> int:
    """Turn RUN, a run folder, into one self-contained HTML page; several into one that compares them."""
    if output is not None:
        check_free(output, force=force)
    if is_side:
        return _report_side(runs, output, as_json)
    from prgec.core.formats.run_folder import REPORT_NAME
    from prgec.runtime.report import compare, page
    from prgec.runtime.report.record import read_run

    records = [read_run(run) for run in runs]
    first, steps = runs[0], sum(len(record.steps) for record in records)
    if len(records) == 1:
        return _write(page.to_html(records[0]), output or first / REPORT_NAME, as_json, steps=steps)
    output = output or first.absolute().parent / COMPARE_NAME
    return _write(compare.to_html(records), output, as_json, steps=steps, runs=len(records))


def _report_side(networks: tuple[Path, ...], output: Path | None, as_json: bool) -> int:
    from prgec.runtime.report.side_page import side_page

    if len(networks) > 1:
        raise UsageError("--side takes one network", hint="make a page of each")
    (network,) = networks
    return _write(side_page(network), output or network.with_name(f"{network.name}.html"), as_json)


def _write(text: str, output: Path, as_json: bool, **told: Any) -> int:
    from prgec.core.machine.files import write_atomic

    page = text.encode()
    write_atomic(output, page)
    if as_json:
        print_json({"output": str(output), "bytes": len(page), **told})
    else:
        print_lines(f"{output}  {len(page) / 1e3:.0f} KB")
    return 0
