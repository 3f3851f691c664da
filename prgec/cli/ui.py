"""`prgec ui`: runs, programs and answers on a page of this machine."""

from __future__ import annotations

from pathlib import Path

import click

from prgec.cli.options import FILE
from prgec.cli.render import print_lines
from prgec.core.formats.run_folder import DEFAULT_PARENT


@click.command()
@click.argument("runs", type=FILE, default=DEFAULT_PARENT, required=False)
@click.option("--program", type=FILE, help="Offer this program too.")
@click.option("--port", type=int, default=0, help="Port on the loopback [default: any that is free].")
def ui(runs: Path, program: Path | None, port: int) -> int:
    """Show the runs below RUNS [default: runs] in a browser, start and stop them, and try what they learnt.

    Open the address it prints. Runs go on when the page or this command ends.
    """
    from prgec.serve.ui.serve import UiOptions, serve

    serve(UiOptions(runs, program, port), lambda address: print_lines(f"open {address}"))
    return 0
