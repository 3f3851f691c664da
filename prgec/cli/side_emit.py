"""`prgec side emit`: labelled rows in, shards of activations out."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import click

from prgec.cli.interrupt import stop_on_interrupt
from prgec.cli.progress import RunDisplay
from prgec.cli.render import print_json, print_lines
from prgec.cli.server_options import connection, server_of
from prgec.cli.task_option import TASK
from prgec.cli.verify_option import NO_VERIFY
from prgec.core.data.tasks import AUTO_TASK, TASK_HELP

FILE = click.Path(path_type=Path)
KEY_HELP = "The device's key, made where there is none [default: prgec/device.key in your folder of settings]."


@click.command()
@click.argument("program", type=FILE)
@click.option("--data", type=FILE, required=True, help="Labelled rows.")
@click.option("--task", type=TASK, default=AUTO_TASK, show_default=True, help=TASK_HELP)
@click.option("-o", "--output", type=FILE, default=Path("acts"), show_default=True, help="Folder of shards to write.")
@click.option(
    "--y-pre",
    type=click.Choice(["candidates", "secret"]),
    default="candidates",
    show_default=True,
    help="What the network adds to: the model's scores of the answers, or those of a head only this device has.",
)
@click.option("--label-dp", type=float, metavar="EPS", help="Label differential privacy: change labels at random.")
@click.option(
    "--dtype", type=click.Choice(["f16", "i8"]), default="f16", show_default=True, help="What activations travel as."
)
@click.option("--shard-rows", type=int, default=256, show_default=True, metavar="N", help="Most rows of a shard.")
@click.option("--key", type=FILE, help=KEY_HELP)
@NO_VERIFY
@connection(required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def emit(
    program: Path,
    data: Path,
    task: str,
    output: Path,
    y_pre: str,
    label_dp: float | None,
    dtype: str,
    shard_rows: int,
    key: Path | None,
    no_verify: bool,
    url: str | None,
    token_file: Path | None,
    ca: Path | None,
    as_json: bool,
) -> int:
    """Run PROGRAM (of prgec compile --method side) once over labelled rows and write shards for prgec side fit."""
    from prgec.core.data.dataset import load_dataset
    from prgec.core.data.first_tokens import encode_dataset
    from prgec.runtime.engines.executorch.emitting_program import open_emitting
    from prgec.serve.remote.upload import Sender
    from prgec.serve.side.emit import EmitOptions
    from prgec.serve.side.emit import emit as write_shards
    from prgec.serve.side.row_ids import default_key_path, load_key

    options = EmitOptions(y_pre, label_dp, dtype, shard_rows)
    options.check()
    dataset = load_dataset(data, task)
    loaded = open_emitting(program, verify=not no_verify)
    encoded = encode_dataset(dataset, loaded.tokenizer, loaded.manifest)
    with (
        stop_on_interrupt("stopping after this shard") as should_stop,
        RunDisplay(steps=0) as display,
        ExitStack() as stack,
    ):
        display.on_data(dataset)
        device_key = load_key(key or default_key_path())
        output.mkdir(parents=True, exist_ok=True)
        sender = stack.enter_context(Sender(server_of(url, token_file, ca), output)) if url else None
        send = sender.put if sender else _keep
        done = write_shards(loaded, encoded, output, device_key, options, display.on_eval_batch, should_stop, send)
        sent = {"bytes_sent": sender.num_bytes} if sender else {}
    if as_json:
        print_json({"output": str(output), **vars(done), "seconds": round(done.seconds, 3), **sent})
    elif not done.interrupted:
        new = "" if done.num_new == done.num_shards else f", {done.num_new} of them new"
        print_lines(
            f"{output}  {done.num_rows} rows in {done.num_shards} shards{new}, {done.num_bytes / 1e6:.2f} MB, "
            f"{done.seconds:.1f} s"
        )
    if done.interrupted:
        raise KeyboardInterrupt
    return 0


def _keep(path: Path) -> None:
    """Send nothing."""
