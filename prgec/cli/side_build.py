"""`prgec side build`: a side network in, its program for the device out."""

from __future__ import annotations

from pathlib import Path

import click

from prgec.cli.output_option import FORCE
from prgec.cli.render import print_json, print_lines
from prgec.core.machine.files import check_free

FILE = click.Path(path_type=Path)


@click.command()
@click.argument("network", type=FILE)
@click.option("-o", "--output", type=FILE, default=Path("side.pte"), show_default=True, help="File to write.")
@click.option(
    "--backend",
    type=click.Choice(["xnnpack", "portable"]),
    default="xnnpack",
    show_default=True,
    help="Runtime that executes the program.",
)
@click.option("--batch-size", type=int, default=8, show_default=True, help="Rows a call.")
@FORCE
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def build(network: Path, output: Path, backend: str, batch_size: int, force: bool, as_json: bool) -> int:
    """Lower NETWORK, which prgec side fit wrote, to a program that eval and predict take with --side."""
    from prgec.core.formats.side_network import read_network
    from prgec.serve.side.build import build as lower

    check_free(output, force=force)
    found = read_network(network)
    done = lower(found, output, backend, batch_size)
    delegates = [each.ops for each in done.delegation.delegates]
    if as_json:
        print_json({"output": str(output), "bytes": done.file_bytes, "delegates": delegates, "sha256": found.sha256})
    else:
        shape = found.shape
        print_lines(
            f"{output}  {shape.num_blocks} blocks of width {shape.width}, rank {found.rank}, {shape.num_classes} "
            f"answers; {len(delegates)} delegate{'' if len(delegates) == 1 else 's'}, {done.file_bytes / 1e6:.2f} MB"
        )
    return 0
