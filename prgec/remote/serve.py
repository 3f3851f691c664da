"""Runs the server: TLS, an address, and limits on what a connection may cost."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prgec.errors import UsageError
from prgec.machine.extras import extra_hint

# What a connection may cost, and that nothing of it is logged that a device did not do wrong.
_LIMITS: dict[str, Any] = {
    "log_level": "warning",
    "access_log": False,
    "server_header": False,
    "http": "h11",
    "ws": "none",
    "lifespan": "off",
    "limit_concurrency": 64,
    "timeout_keep_alive": 5,
    "timeout_graceful_shutdown": 5,
    "h11_max_incomplete_event_size": 16 << 10,
}


@dataclass(frozen=True)
class ServeOptions:
    """Where a server listens.

    Attributes:
        store: Folder of everything it keeps.
        host: Address; the loopback unless there is TLS.
        port: 0 for any that is free.
        cert: Certificate chain as PEM; None for no TLS.
        key: Its private key.
    """

    store: Path
    host: str = "127.0.0.1"
    port: int = 8765
    cert: Path | None = None
    key: Path | None = None

    def check(self) -> None:
        """Refuse to send tokens over a network in the clear.

        Raises:
            UsageError: Naming the option.
        """
        if (self.cert is None) != (self.key is None):
            raise UsageError("--tls-cert and --tls-key need each other")
        for path in (self.cert, self.key):
            if path is not None and not path.is_file():
                raise UsageError("there is no such file", where=path)
        if self.cert is None and not is_loopback(self.host):
            raise UsageError(
                f"--host {self.host} without TLS would send tokens and activations in the clear",
                hint="add --tls-cert and --tls-key, or listen on 127.0.0.1 behind a proxy that has them",
            )
        if not 0 <= self.port < 1 << 16:
            raise UsageError(f"--port is {self.port}; expected 0 to 65535")


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's own."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def serve(options: ServeOptions, on_ready: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM.

    Args:
        options: Where.
        on_ready: Called with the URL once it listens.

    Raises:
        UsageError: If the options are impossible, the address cannot be had, or packages are missing.
    """
    options.check()
    try:
        import starlette  # noqa: F401 - asked for here, used by the application
        import uvicorn
    except ModuleNotFoundError as error:
        raise UsageError(f"the server needs {error.name}", hint=extra_hint("side")) from error
    from prgec.remote.app import SideServer
    from prgec.remote.worker import Worker

    options.store.mkdir(parents=True, exist_ok=True, mode=0o700)
    listening = _listen(options)
    worker = Worker(options.store)
    config = uvicorn.Config(
        SideServer(options.store, worker).app(), ssl_certfile=options.cert, ssl_keyfile=options.key, **_LIMITS
    )
    worker.start()
    scheme = "http" if options.cert is None else "https"
    on_ready(f"{scheme}://{options.host}:{listening.getsockname()[1]}")
    try:
        uvicorn.Server(config).run(sockets=[listening])
    finally:
        worker.stop()


def _listen(options: ServeOptions) -> socket.socket:
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((options.host, options.port))
        listening.listen()
    except OSError as error:
        listening.close()
        raise UsageError(f"cannot listen on {options.host}:{options.port}: {error.strerror}") from error
    return listening
