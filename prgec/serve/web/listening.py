"""Where a server listens, and what a connection may cost it."""

from __future__ import annotations

import ipaddress
import socket
from typing import Any

from prgec.core.machine.extras import extra_hint
from prgec.errors import UsageError

# Nothing of a connection is logged that its other end did not do wrong.
LIMITS: dict[str, Any] = {
    "log_level": "warning",
    "access_log": False,
    "server_header": False,
    "http": "prgec.serve.web.protocol:ImpatientProtocol",
    "ws": "none",
    "lifespan": "off",
    "limit_concurrency": 64,
    "timeout_keep_alive": 5,
    "timeout_graceful_shutdown": 5,
    "h11_max_incomplete_event_size": 16 << 10,
}


def check_packages(extra: str) -> None:
    """Check that the packages of servers are installed.

    Args:
        extra: Extra that installs them.

    Raises:
        UsageError: If it is not.
    """
    try:
        import starlette  # noqa: F401 - checked here, used by the application
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as error:
        raise UsageError(f"the server needs {error.name}", hint=extra_hint(extra)) from error


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's own."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_port(port: int) -> None:
    """Refuse a number that is not a port.

    Raises:
        UsageError: If it is none.
    """
    if not 0 <= port < 1 << 16:
        raise UsageError(f"--port is {port}; expected 0 to 65535")


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; port 0 is any that is free.

    Raises:
        UsageError: If the address cannot be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen()
    except OSError as error:
        listening.close()
        raise UsageError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    return listening
