"""`prgec report`: a run as one HTML page."""

from __future__ import annotations

from pathlib import Path

import click

from prgec.cli.render import print_json, print_lines


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Page to write [default: RUN/report.html].")
@click.option("--side", "is_side", is_flag=True, help="RUN is a network of prgec side fit instead.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def report(run: Path, output: Path | None, is_side: bool, as_json: bool) -> int:
    """Turn RUN, a run folder, into one self-contained HTML page."""
    if is_side:
        return _report_side(run, output or run.with_name(f"{run.name}.html"), as_json)
    from prgec.formats.run_folder import REPORT_NAME
    from prgec.machine.files import write_atomic
    from prgec.report.page import to_html
    from prgec.report.record import read_run

    record = read_run(run)
    page = to_html(record).encode()
    output = output or run / REPORT_NAME
    write_atomic(output, page)
    if as_json:
        print_json({"output": str(output), "bytes": len(page), "steps": len(record.steps)})
    else:
        print_lines(f"{output}  {len(page) / 1e3:.0f} KB")
    return 0


def _report_side(network: Path, output: Path, as_json: bool) -> int:
    from prgec.machine.files import write_atomic
    from prgec.report.side_page import side_page

    page = side_page(network).encode()
    write_atomic(output, page)
    if as_json:
        print_json({"output": str(output), "bytes": len(page)})
    else:
        print_lines(f"{output}  {len(page) / 1e3:.0f} KB")
    return 0
