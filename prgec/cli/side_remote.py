"""`prgec side serve`, `token`, `push`, `pull` and `forget`: the server and the device's end of the line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from prgec.cli.interrupt import stop_on_interrupt
from prgec.cli.output_option import FORCE
from prgec.cli.render import print_json, print_lines, stderr_console
from prgec.cli.server_options import connection, server_of
from prgec.core.machine.files import check_free

FILE = click.Path(path_type=Path)
_STORE = click.option(
    "--store", type=FILE, default=Path("side-store"), show_default=True, help="Folder of everything the server keeps."
)


@click.command()
@_STORE
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; others need TLS.")
@click.option("--port", type=int, default=8765, show_default=True, help="0 for any that is free.")
@click.option("--tls-cert", type=FILE, help="Certificate chain as PEM.")
@click.option("--tls-key", type=FILE, help="Its private key as PEM.")
def serve(store: Path, host: str, port: int, tls_cert: Path | None, tls_key: Path | None) -> int:
    """Learn side networks for devices, until Ctrl-C."""
    from prgec.serve.remote.serve import ServeOptions
    from prgec.serve.remote.serve import serve as run

    run(
        ServeOptions(store=store, host=host, port=port, cert=tls_cert, key=tls_key),
        lambda url: print_lines(f"listening on {url}"),
    )
    return 0


@click.command()
@click.argument("device")
@_STORE
@click.option("--quota-mb", type=int, default=4096, show_default=True, help="Most MB of the device's shards.")
def token(device: str, store: Path, quota_mb: int) -> int:
    """Print a new token for DEVICE, once: the server keeps a hash. An older token of the device is void."""
    from prgec.serve.remote.tokens import add_device

    print_lines(add_device(store, device, quota_mb * 10**6))
    return 0


@click.command()
@click.argument("shards", type=FILE)
@connection(required=True)
@click.option("--no-train", is_flag=True, help="Send only.")
@click.option("--rank", type=int, help="As of prgec side fit.")
@click.option("--epochs", type=int, help="As of prgec side fit.")
@click.option("--lr", type=float, help="As of prgec side fit.")
@click.option("--early-stop", "patience", type=int, metavar="N", help="As of prgec side fit.")
@click.option("--seed", type=int, help="As of prgec side fit.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def push(
    shards: Path, url: str, token_file: Path | None, ca: Path | None, no_train: bool, as_json: bool, **said: Any
) -> int:
    """Send SHARDS, a folder that prgec side emit wrote, and ask for a network. The same command goes on."""
    from prgec.serve.remote.client import push as send

    options = None if no_train else {name: value for name, value in said.items() if value is not None}
    with stderr_console().status("sending") as status:
        done = send(
            server_of(url, token_file, ca), shards, options, lambda n, total: status.update(f"sent {n} of {total}")
        )
    if as_json:
        print_json({**vars(done), "seconds": round(done.seconds, 3)})
    else:
        print_lines(
            f"job {done.job}  {done.num_sent} of {done.num_shards} shards sent, {done.num_bytes / 1e6:.2f} MB, "
            f"{done.seconds:.1f} s; {done.state}"
        )
    return 0


@click.command()
@click.argument("shards", type=FILE)
@connection(required=True)
@click.option("-o", "--output", type=FILE, default=Path("side.safetensors"), show_default=True, help="File to write.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Whether to wait until it is learnt.")
@FORCE
def pull(
    shards: Path, url: str, token_file: Path | None, ca: Path | None, output: Path, wait: bool, force: bool
) -> int:
    """Fetch the network that was learnt from SHARDS, a folder that was pushed."""
    from prgec.serve.remote.client import pull as fetch

    check_free(output, force=force)
    with stop_on_interrupt("stopping") as should_stop, stderr_console().status("waiting") as status:
        size = fetch(
            server_of(url, token_file, ca),
            shards,
            output,
            wait=wait,
            on_status=lambda found: status.update(_status(found)),
            should_stop=should_stop,
        )
    if size is None:
        raise KeyboardInterrupt
    print_lines(f"{output}  {size / 1e6:.2f} MB")
    return 0


@click.command()
@click.argument("shards", type=FILE)
@connection(required=True)
def forget(shards: Path, url: str, token_file: Path | None, ca: Path | None) -> int:
    """Delete what the server has of SHARDS, a folder that was pushed."""
    from prgec.serve.remote.client import forget as delete

    delete(server_of(url, token_file, ca), shards)
    return 0


def _status(found: dict[str, Any]) -> str:
    epochs = found.get("epochs") or []
    last = epochs[-1] if isinstance(epochs, list) and epochs else {}
    return f"{found.get('state')}" + (f", epoch {last.get('number')}: loss {last.get('loss'):.4f}" if last else "")
