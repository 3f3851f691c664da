"""`prgec opt`: run passes on a saved graph and look at the result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from prgec.cli.output_option import FORCE
from prgec.cli.render import print_json, print_lines, stderr_console
from prgec.core.machine.files import check_free
from prgec.errors import ProgramError, UsageError

FILE = click.Path(path_type=Path)


@click.command()
@click.argument("program", type=FILE, required=False)
@click.option("-p", "--passes", default="", help="Passes to run: name{option=value ...},name,... [default: none]")
@click.option("-o", "--output", type=FILE, help="Save the result as .pt2.")
@click.option("--dump-passes", type=FILE, metavar="DIR", help="Write the graph after each pass to DIR.")
@click.option("--why", metavar="PASS", help="Print why places were left alone by PASS.")
@click.option("--list", "list_passes", is_flag=True, help="List all passes with their options and stop.")
@FORCE
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def opt(program: Path | None, list_passes: bool, **flags: Any) -> int:
    """Run passes on PROGRAM, a graph saved by `prgec compile --save-program`, and print the result."""
    if list_passes:
        print_lines(*_catalogue())
        return 0
    if program is None:
        raise UsageError("no graph to run passes on", hint="name a .pt2 file, or list the passes with --list")
    if not program.is_file():
        raise ProgramError("no such graph", where=program, hint="make one with prgec compile --save-program")
    output, force = flags["output"], flags.pop("force")
    if output is not None:
        check_free(output, force=force)
    return _run(program, **flags)


def _run(
    program: Path, passes: str, output: Path | None, dump_passes: Path | None, why: str | None, as_json: bool
) -> int:
    from prgec.passes import pass_table
    from prgec.passes.pipeline import dump_to, run_pipeline
    from prgec.passes.printer import print_program
    from prgec.passes.saved import load_program, save_program
    from prgec.passes.spec import parse_pipeline

    table = pass_table()
    if why is not None and why not in table:
        raise UsageError(f"there is no pass called {why!r}", hint=f"known passes: {', '.join(table)}")
    pipeline = parse_pipeline(passes, table)
    graph = load_program(program)
    records = run_pipeline(graph, pipeline, dump_to(dump_passes) if dump_passes else None)
    if output is not None:
        save_program(graph, output)
    for record in records:
        stderr_console().print(record.summary(), markup=False, soft_wrap=True)
    text = print_program(graph)
    refusals = [str(r) for record in records if why and record.text.partition("{")[0] == why for r in record.refusals]
    if as_json:
        print_json({"passes": [record.summary() for record in records], "refusals": refusals, "graph": text})
    elif why is not None:
        print_lines(*(refusals or [f"{why} left nothing alone"]))
    elif output is None:
        print_lines(text.rstrip("\n"))
    return 0


def _catalogue() -> list[str]:
    from dataclasses import fields

    from prgec.passes import pass_table

    lines = []
    for name, cls in pass_table().items():
        options = " ".join(field.name.replace("_", "-") for field in fields(cls))
        summary = (cls.__doc__ or "").strip().splitlines()[0]
        lines.append(
            f"{name:<24} {cls.tier.name:<9} {'legality' if cls.is_legality else '':<9} {summary}"
            + (f" [{options}]" if options else "")
        )
    return lines
