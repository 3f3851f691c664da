"""`prgec side serve`, `token`, `push`, `pull` and `forget`: the server and the device's end of the line."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from prgec.cli.interrupt import stop_on_interrupt
from prgec.cli.render import print_json, print_lines, stderr_console
from prgec.errors import UsageError

if TYPE_CHECKING:
    from prgec.remote.client import Server

FILE = click.Path(path_type=Path)
TOKEN_VARIABLE = "PRGEC_SIDE_TOKEN"
_STORE = click.option(
    "--store", type=FILE, default=Path("side-store"), show_default=True, help="Folder of everything the server keeps."
)


def _connection(command: Callable[..., int]) -> Callable[..., int]:
    """Add what a device needs to reach a server."""
    for option in (
        click.option("--ca", type=FILE, help="Certificates to trust as PEM [default: the system's]."),
        click.option("--token-file", type=FILE, help=f"File with the device's token [default: ${TOKEN_VARIABLE}]."),
        click.option("--server", "url", required=True, metavar="URL", help="https://HOST:PORT."),
        click.argument("shards", type=FILE),
    ):
        command = option(command)
    return command


@click.command()
@_STORE
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; others need TLS.")
@click.option("--port", type=int, default=8765, show_default=True, help="0 for any that is free.")
@click.option("--tls-cert", type=FILE, help="Certificate chain as PEM.")
@click.option("--tls-key", type=FILE, help="Its private key as PEM.")
def serve(store: Path, host: str, port: int, tls_cert: Path | None, tls_key: Path | None) -> int:
    """Learn side networks for devices, until Ctrl-C."""
    from prgec.remote.serve import ServeOptions
    from prgec.remote.serve import serve as run

    run(ServeOptions(store, host, port, tls_cert, tls_key), lambda url: print_lines(f"listening on {url}"))
    return 0


@click.command()
@click.argument("device")
@_STORE
@click.option("--quota-mb", type=int, default=4096, show_default=True, help="Most MB of the device's shards.")
def token(device: str, store: Path, quota_mb: int) -> int:
    """Print a new token for DEVICE, once: the server keeps a hash. An older token of the device is void."""
    from prgec.remote.tokens import add_device

    print_lines(add_device(store, device, quota_mb * 10**6))
    return 0


@click.command()
@_connection
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
    from prgec.remote.client import push as send

    options = None if no_train else {name: value for name, value in said.items() if value is not None}
    with stderr_console().status("sending") as status:
        done = send(
            _server(url, token_file, ca), shards, options, lambda n, total: status.update(f"sent {n} of {total}")
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
@_connection
@click.option("-o", "--output", type=FILE, default=Path("side.safetensors"), show_default=True, help="File to write.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Whether to wait until it is learnt.")
def pull(shards: Path, url: str, token_file: Path | None, ca: Path | None, output: Path, wait: bool) -> int:
    """Fetch the network that was learnt from SHARDS, a folder that was pushed."""
    from prgec.remote.client import pull as fetch

    with stop_on_interrupt("stopping") as should_stop, stderr_console().status("waiting") as status:
        size = fetch(
            _server(url, token_file, ca),
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
@_connection
def forget(shards: Path, url: str, token_file: Path | None, ca: Path | None) -> int:
    """Delete what the server has of SHARDS, a folder that was pushed."""
    from prgec.remote.client import forget as delete

    delete(_server(url, token_file, ca), shards)
    return 0


def _server(url: str, token_file: Path | None, ca: Path | None) -> Server:
    from prgec.remote.client import Server

    if token_file is not None:
        return Server(url, token_file.read_text(encoding="utf-8").strip(), ca)
    token = os.environ.get(TOKEN_VARIABLE, "")
    if not token:
        raise UsageError(f"the device needs its token: --token-file FILE, or ${TOKEN_VARIABLE}")
    return Server(url, token, ca)


def _status(found: dict[str, Any]) -> str:
    epochs = found.get("epochs") or []
    last = epochs[-1] if isinstance(epochs, list) and epochs else {}
    return f"{found.get('state')}" + (f", epoch {last.get('number')}: loss {last.get('loss'):.4f}" if last else "")
