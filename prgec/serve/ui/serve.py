"""Serves the page on this machine's loopback until it is stopped; runs it started go on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from prgec.errors import UsageError
from prgec.serve.web.listening import LIMITS, check_packages, check_port, listen

HOST = "127.0.0.1"


@dataclass(frozen=True)
class UiOptions:
    """The content of the page, and where it listens.

    Attributes:
        root: Folder of the runs.
        program: A program to offer besides those found there.
        port: 0 for any that is free.
    """

    root: Path
    program: Path | None = None
    port: int = 0

    def check(self) -> None:
        """Refuse what cannot be.

        Raises:
            UsageError: Naming it.
        """
        check_port(self.port)
        if self.root.exists() and not self.root.is_dir():
            raise UsageError("RUNS is a file", where=self.root, hint="name a folder")
        if self.program is not None and not self.program.is_file():
            raise UsageError("there is no such program", where=self.program)


def serve(options: UiOptions, on_ready: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM.

    Args:
        options: Content and address.
        on_ready: Called with the address, token and all, once it listens.

    Raises:
        UsageError: If the options are impossible, the port cannot be had, or packages are missing.
    """
    options.check()
    check_packages("ui")
    import uvicorn

    from prgec.serve.ui.app import make_app
    from prgec.serve.ui.guard import Guard, new_token
    from prgec.serve.ui.state import State
    from prgec.serve.ui.view import prepare

    prepare()
    listening = listen(HOST, options.port)
    port, token = listening.getsockname()[1], new_token()
    state = State(options.root, options.program and options.program.absolute())
    # Otherwise the first page would wait for this.
    state.run_list.runs()
    config = uvicorn.Config(Guard(make_app(state), port, token), **LIMITS)
    on_ready(f"http://{HOST}:{port}/?token={token}")
    try:
        uvicorn.Server(config).run(sockets=[listening])
    finally:
        state.inference.close()
