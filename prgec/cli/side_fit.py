"""`prgec side fit`: shards in, a side network out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from prgec.cli.interrupt import stop_on_interrupt
from prgec.cli.output_option import FORCE
from prgec.cli.render import print_json, print_lines, stderr_console
from prgec.core.machine.files import check_free

if TYPE_CHECKING:
    from prgec.serve.side.progress import Epoch

FILE = click.Path(path_type=Path)


@click.command()
@click.argument("shards", type=FILE)
@click.option("-o", "--output", type=FILE, default=Path("side.safetensors"), show_default=True, help="File to write.")
@click.option("--rank", type=int, default=64, show_default=True, help="Width of each block's adapter.")
@click.option("--epochs", type=int, default=20, show_default=True, help="Passes over the rows.")
@click.option("--lr", type=float, default=5e-4, show_default=True, help="Learning rate of AdamW.")
@click.option("--weight-decay", type=float, default=0.01, show_default=True, help="Its decoupled weight decay.")
@click.option("--batch-size", type=int, default=8, show_default=True, help="Rows a step.")
@click.option("--no-norm", is_flag=True, help="Take activations as they are, as the paper does.")
@click.option(
    "--held-out", type=float, default=0.1, show_default=True, help="Share of the rows to measure by, not learnt from."
)
@click.option(
    "--early-stop", "patience", type=int, default=0, metavar="N", help="End after N epochs without a better network."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the first weights and the order of the rows.")
@click.option("--resume", is_flag=True, help="Go on where an earlier fit of the same output was stopped.")
@FORCE
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def fit(shards: Path, output: Path, no_norm: bool, resume: bool, force: bool, as_json: bool, **said: Any) -> int:
    """Learn a side network from SHARDS, a folder that prgec side emit wrote. The base model is not needed.

    Beside the output go its .jsonl, what every epoch measured, and its .png.
    """
    from prgec.serve.side.cache import read_cache
    from prgec.serve.side.fit import fit as learn
    from prgec.serve.side.fit_options import FitOptions
    from prgec.serve.side.picture import write_measures

    check_free(output, force=force or resume)
    options = FitOptions(norm="none" if no_norm else "rms", **said)
    options.check()
    cache = read_cache(shards)
    with stop_on_interrupt("stopping after this epoch") as should_stop:
        done = learn(cache, output, options, resume=resume, on_epoch=_show, should_stop=should_stop)
    write_measures(output, done.epochs)
    if as_json:
        last = done.epochs[-1] if done.epochs else None
        print_json(
            {
                "output": str(output),
                "rows": done.num_rows,
                "held_out": done.num_held_out,
                "epochs": len(done.epochs),
                "best_epoch": done.best_epoch,
                "loss": last.loss if last else None,
                "held_out_loss": last.held_out if last else None,
                "seconds": round(done.seconds, 3),
                "sha256": done.network.sha256,
            }
        )
    else:
        print_lines(
            f"{output}  best of {len(done.epochs)} epochs: {done.best_epoch}, {done.num_rows} rows and "
            f"{done.num_held_out} held out, {done.seconds:.1f} s"
        )
    if done.interrupted:
        raise KeyboardInterrupt
    return 0


def _show(epochs: Sequence[Epoch]) -> None:
    epoch = epochs[-1]
    held_out = "" if epoch.held_out is None else f"  held out {epoch.held_out:.4f}, {epoch.explained:.1%} explained"
    stderr_console().print(f"epoch {epoch.number}: loss {epoch.loss:.4f}{held_out}", markup=False, soft_wrap=True)
