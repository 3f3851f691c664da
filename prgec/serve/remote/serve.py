"""Runs the server: TLS, an address, and limits on what a connection may cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from prgec.errors import UsageError
from prgec.serve.web.listening import LIMITS, check_packages, check_port, is_loopback, listen


@dataclass(frozen=True, kw_only=True)
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
                hint="add --tls-cert and --tls-key, or listen on 127.0.0.1 and let a proxy add them",
            )
        check_port(self.port)


def serve(options: ServeOptions, on_ready: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM.

    Args:
        options: Where.
        on_ready: Called with the URL once it listens.

    Raises:
        UsageError: If the options are impossible, the address cannot be had, or packages are missing.
    """
    options.check()
    check_packages("side")
    import uvicorn

    from prgec.serve.remote.app import SideServer
    from prgec.serve.remote.worker import Worker

    options.store.mkdir(parents=True, exist_ok=True, mode=0o700)
    listening = listen(options.host, options.port)
    worker = Worker(options.store)
    config = uvicorn.Config(
        SideServer(options.store, worker).app(), ssl_certfile=options.cert, ssl_keyfile=options.key, **LIMITS
    )
    worker.start()
    scheme = "http" if options.cert is None else "https"
    on_ready(f"{scheme}://{options.host}:{listening.getsockname()[1]}")
    try:
        uvicorn.Server(config).run(sockets=[listening])
    finally:
        worker.stop()
