"""`prgec replay`: rebuild an adapter from the journal of a run, without its data."""

from __future__ import annotations

from pathlib import Path

import click

from prgec.cli.output_option import FORCE
from prgec.cli.render import print_json, print_lines
from prgec.cli.verify_option import NO_VERIFY
from prgec.core.machine.files import check_free

FILE = click.Path(path_type=Path)


@click.command()
@click.argument("journal", type=FILE)
@click.option("--program", type=FILE, required=True, help="A .pte of the same base model and layers.")
@click.option(
    "-o", "--output", type=FILE, default=Path("adapter.safetensors"), show_default=True, help="Adapter to write."
)
@click.option("--step", type=int, help="Stop after this step [default: the last].")
@click.option("--adapter", type=FILE, help="The adapter the run began from, if any.")
@click.option(
    "--signers", type=FILE, help="Refuse a journal whose signature, JOURNAL.sig, is not by one of these public keys."
)
@FORCE
@NO_VERIFY
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def replay(
    journal: Path,
    program: Path,
    output: Path,
    step: int | None,
    adapter: Path | None,
    signers: Path | None,
    force: bool,
    no_verify: bool,
    as_json: bool,
) -> int:
    """Rebuild the adapter of any step of a run from its JOURNAL, or its folder, with no data and no forward pass."""
    from prgec.core.formats.adapter import masters_sha256, save_adapter
    from prgec.core.formats.journal import read_journal
    from prgec.core.formats.run_folder import journal_of
    from prgec.core.machine.signatures import check_signature
    from prgec.runtime.runs.open import open_with_adapter
    from prgec.runtime.runs.resume import rebuild

    check_free(output, force=force)
    path = journal_of(journal) if journal.is_dir() else journal
    signer = check_signature(path, signers) if signers is not None else None
    read = read_journal(path)
    loaded = open_with_adapter(program, adapter, verify=not no_verify)
    done = rebuild(loaded, read, step)
    save_adapter(output, loaded)
    is_verified = done in read.states
    if as_json:
        print_json(
            {
                "output": str(output),
                "steps": done,
                "state_sha256": masters_sha256(loaded),
                "verified": is_verified,
                "signer": signer,
                "bad_bytes": read.bad_bytes,
            }
        )
    else:
        signed = f", signed by {signer}" if signer else ""
        note = "equal to the run's own state" if is_verified else "the run recorded no hash of this step"
        print_lines(f"{output}  after step {done}, {note}{signed}")
    return 0
