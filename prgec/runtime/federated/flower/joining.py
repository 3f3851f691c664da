"""A device of a run over Flower: a SuperNode with the device's app."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from prgec.core.machine.files import write_atomic
from prgec.errors import UsageError
from prgec.runtime.federated.flower.app_files import write_settings
from prgec.runtime.federated.flower.children import (
    FLOWER_NAME,
    LOOPBACK,
    POLL_SECONDS,
    START_SECONDS,
    STOP_SECONDS,
    check_alive,
    check_flower,
    free_port,
    running,
)
from prgec.runtime.federated.flower.names import OPTIONS_KEY
from prgec.runtime.federated.node import read_node
from prgec.runtime.federated.options import NODE_TABLE, NodeOptions

# Times in a row that a SuperNode may end soon after its start.
_MAX_FAILURES = 5


@dataclass(frozen=True, kw_only=True)
class Superlink:
    """Where a device finds its server.

    Attributes:
        address: HOST:PORT.
        ca: Certificates to trust as PEM; None for a connection without TLS.
        key: The device's private key as PEM, where the server knows devices by keys.
        trusted: Flower's file of those whose apps this device runs; None for any that the server sends.
    """

    address: str
    ca: Path | None = None
    key: Path | None = None
    trusted: Path | None = None

    def check(self) -> None:
        """Refuse addresses and files that cannot be used.

        Raises:
            UsageError: If the address is none, or one of another machine without TLS, or a file is missing.
        """
        host, _, port = self.address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise UsageError(f"--server is {self.address!r}; expected HOST:PORT")
        if self.ca is None and host not in (LOOPBACK, "localhost", "[::1]"):
            raise UsageError(
                "a server of another machine needs --ca",
                hint=f"or make its port one of this machine's: ssh -N -L {port}:{LOOPBACK}:{port} {host}",
            )
        for path in filter(None, (self.ca, self.key, self.trusted)):
            if not path.is_file():
                raise UsageError("no such file", where=path)


def join(options: NodeOptions, superlink: Superlink, *, should_stop: Callable[[], bool] = lambda: False) -> bool:
    """Take part as a device, until the server says that the run is over.

    Args:
        options: Options of the device.
        superlink: Where the server is.
        should_stop: Checked twice a second.

    Returns:
        Whether the run is over; False if it was stopped.

    Raises:
        PrgecError: If the options cannot be used, or Flower cannot be started.
    """
    check_flower()
    superlink.check()
    flower = options.out / FLOWER_NAME
    flower.mkdir(parents=True, exist_ok=True)
    settings = write_settings(flower / "join.toml", vars(options), NODE_TABLE)
    # Flower takes the settings of a node from a file, too, whatever is in its path.
    node = flower / "node.toml"
    write_atomic(node, f"{OPTIONS_KEY} = {json.dumps(str(settings), ensure_ascii=False)}\n".encode())
    command = ["flower-supernode", "--superlink", superlink.address, "--node-config", str(node)]
    command += ["--port", str(free_port())]
    command += ["--root-certificates", str(superlink.ca.absolute())] if superlink.ca else ["--insecure"]
    command += ["--auth-supernode-private-key", str(superlink.key.absolute())] if superlink.key else []
    command += ["--trusted-entities", str(superlink.trusted.absolute())] if superlink.trusted else []
    log = flower / "supernode.log"
    failures = 0
    while not _is_over(options.out):
        start = time.monotonic()
        with running(command, flower, log) as process:
            while process.poll() is None and not _is_over(options.out):
                if should_stop():
                    return False
                time.sleep(POLL_SECONDS)
            if _is_over(options.out):
                # The answer to the last message is on its way.
                time.sleep(STOP_SECONDS / 3)
                break
        # A SuperNode ends when its SuperLink has been started again, and forgot it.
        failures = 1 if time.monotonic() - start > START_SECONDS else failures + 1
        if failures == _MAX_FAILURES:
            check_alive(process, log)
        time.sleep(1)
    return True


def _is_over(out: Path) -> bool:
    return bool(read_node(out).get("is_over"))
