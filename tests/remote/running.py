"""A real server in a process of its own, and raw requests to it."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit


class RunningServer:
    """`prgec side serve` over a store; a context manager that ends it.

    Args:
        store: Folder of the store.
        arguments: Further arguments.
    """

    def __init__(self, store: Path, *arguments: str, port: int = 0) -> None:
        command = [sys.executable, "-m", "prgec", "side", "serve", "--store", str(store), "--port", str(port)]
        self._log = (store.parent / f"{store.name}.log").open("ab")
        self._process = subprocess.Popen(
            [*command, *arguments], stdout=subprocess.PIPE, stderr=self._log, text=True, env={**os.environ}
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.startswith("listening on "), Path(self._log.name).read_text()
        self.url = line.split()[-1]
        self.port = urlsplit(self.url).port

    def __enter__(self) -> RunningServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a power cut would."""
        self._end(signal.SIGKILL)

    def log(self) -> str:
        """Its stderr so far."""
        return Path(self._log.name).read_text()

    def _end(self, number: int) -> None:
        if self._process.poll() is None:
            self._process.send_signal(number)
        self._process.wait(timeout=30)
        self._log.close()

    def request(
        self, method: str, path: str, token: str | None, body: bytes = b"", **headers: str
    ) -> tuple[int, dict[str, Any]]:
        """Make one request as it is spelled; return the status and the JSON answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        try:
            connection.request(method, path, body, sent)
            response = connection.getresponse()
            answer = response.read()
            return response.status, json.loads(answer) if answer.startswith(b"{") else {}
        finally:
            connection.close()


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """Write a certificate of 127.0.0.1 and its key into `folder`."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-days", "1", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(cert)),
        ],
        check=True,
        capture_output=True,
    )
    return cert, key
