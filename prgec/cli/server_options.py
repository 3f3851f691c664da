"""The options with which a device reaches a server."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from prgec.errors import UsageError

if TYPE_CHECKING:
    from prgec.serve.remote.connection import Server

FILE = click.Path(path_type=Path)
TOKEN_VARIABLE = "PRGEC_SIDE_TOKEN"


def connection(*, required: bool) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Return what adds the options to a command.

    Args:
        required: Whether it is nothing without a server.
    """
    why = "" if required else " Send each shard there while the next one is made."
    options = (
        click.option("--ca", type=FILE, help="Certificates to trust as PEM [default: the system's]."),
        click.option("--token-file", type=FILE, help=f"File with the device's token [default: ${TOKEN_VARIABLE}]."),
        click.option("--server", "url", required=required, metavar="URL", help=f"https://HOST:PORT.{why}"),
    )

    def add(command: Callable[..., int]) -> Callable[..., int]:
        for option in options:
            command = option(command)
        return command

    return add


def server_of(url: str, token_file: Path | None, ca: Path | None) -> Server:
    """Return the server that options name.

    Raises:
        UsageError: If there is no token.
    """
    from prgec.serve.remote.connection import Server

    if token_file is not None:
        return Server(url, token_file.read_text(encoding="utf-8").strip(), ca)
    token = os.environ.get(TOKEN_VARIABLE, "")
    if not token:
        raise UsageError(f"the device needs its token: --token-file FILE, or ${TOKEN_VARIABLE}")
    return Server(url, token, ca)
