"""`prgec export`: a trained adapter for other tools."""

from __future__ import annotations

from pathlib import Path

import click

from prgec.cli.render import print_json, print_lines

FILE = click.Path(path_type=Path)
_FORMATS = ("peft", "merged", "gguf-lora")
_SUFFIXES = {"peft": "-peft", "merged": "-merged", "gguf-lora": "-lora.gguf"}


@click.command()
@click.argument("run", type=FILE)
@click.option(
    "--format",
    "kind",
    type=click.Choice(_FORMATS),
    required=True,
    help="A PEFT folder, a checkpoint with the adapter merged in, or a file for llama.cpp.",
)
@click.option("--base", help="Checkpoint the program was compiled from [default: what it was called then].")
@click.option("--program", type=FILE, help="The .pte, where RUN is an adapter without a run.json beside it.")
@click.option(
    "--data",
    type=FILE,
    help="Rows whose loss is measured before and after a merge [default: those of the run, where they still are].",
)
@click.option("-o", "--output", type=FILE, help="Folder or file to write [default: beside RUN, called after it].")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def export(
    run: Path, kind: str, base: str | None, program: Path | None, data: Path | None, output: Path | None, as_json: bool
) -> int:
    """Write the adapter of RUN, a run folder or an adapter.safetensors, for other tools."""
    from prgec.compiler.export import export_adapter, open_trained, rows_of_run

    trained = open_trained(run, program)
    resolved = run.resolve()
    output = output or resolved.with_name(resolved.name.removesuffix(".safetensors") + _SUFFIXES[kind])
    measured = export_adapter(trained, kind, output, base, rows_of_run(run, data))
    if as_json:
        print_json(
            {
                "output": str(output),
                "format": kind,
                "sites": len(trained.manifest.sites),
                "rank": trained.manifest.rank,
                "alpha": trained.manifest.alpha,
                "loss_before": measured.before if measured else None,
                "loss_after": measured.after if measured else None,
            }
        )
    else:
        print_lines(f"{output}  {kind}, {len(trained.manifest.sites)} layers, rank {trained.manifest.rank}")
        if measured is not None:
            rows = f"{measured.num_rows} rows of {measured.data.name}"
            print_lines(f"{rows}: loss {measured.before:.4f} before, {measured.after:.4f} with the adapter merged")
    return 0
