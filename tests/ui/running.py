"""A real `prgec ui` in a process of its own, and requests to it as they are spelled."""

from __future__ import annotations

import http.client
import re
import signal
import subprocess
import sys
from html import unescape
from pathlib import Path
from types import TracebackType
from urllib.parse import urlencode, urlsplit


class RunningUi:
    """`prgec ui` over a folder; a context manager that ends it.

    Args:
        root: The folder.
        arguments: Further arguments.
    """

    def __init__(self, root: Path, *arguments: object) -> None:
        command = [sys.executable, "-m", "prgec", "ui", str(root), "--port", "0", *map(str, arguments)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self._process.stdout is not None and self._process.stderr is not None
        line = self._process.stdout.readline()
        assert line.startswith("open http://127.0.0.1:"), self._process.stderr.read()
        self.address = line.split()[-1]
        parts = urlsplit(self.address)
        self.port, self.token = parts.port, parts.query.removeprefix("token=")
        self.origin = f"http://127.0.0.1:{self.port}"
        self.cookie = f"prgec-{self.port}={self.token}"

    def __enter__(self) -> RunningUi:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end(signal.SIGTERM)

    def end(self, number: int) -> None:
        """End it."""
        if self._process.poll() is None:
            self._process.send_signal(number)
        self._process.communicate(timeout=30)

    def request(
        self, method: str, path: str, body: bytes | None = None, **headers: str | None
    ) -> tuple[int, str, dict[str, str]]:
        """Make a request with the cookie and this page's origin, unless headers say otherwise; None leaves one out."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        sent = {"Host": f"127.0.0.1:{self.port}", "Cookie": self.cookie}
        if method == "POST":
            length = str(len(body or b""))
            sent |= {
                "Origin": self.origin,
                "Content-Type": "application/x-www-form-urlencoded",
                "Content-Length": length,
            }
        merged = {**sent, **{name.replace("_", "-"): value for name, value in headers.items()}}
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in merged.items():
            if value is not None:
                connection.putheader(name, value)
        connection.endheaders(body)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text, {name.lower(): value for name, value in answer.getheaders()}

    def get(self, path: str) -> str:
        """Return a page."""
        status, text, _ = self.request("GET", path)
        assert status == 200, (status, text)
        return text

    def post(self, path: str, **form: object) -> tuple[int, str, str]:
        """Send a form; return the status, the page and where it leads."""
        status, text, headers = self.request("POST", path, urlencode(form).encode())
        return status, text, headers.get("location", "")

    def start_run(self, **form: object) -> str:
        """Start a run by the form, and return its id."""
        status, page, place = self.post("/runs/new", **form, do="start")
        assert status == 303, error_of(page)
        return place.removeprefix("/runs/")

    def live(self, run: str) -> tuple[str | None, int | None]:
        """Return the status and the steps that the page shows of a run; None for what it does not show."""
        _, text, _ = self.request("GET", f"/runs/{run}/live")
        status = re.search(r'data-status="([^"]*)"', text)
        steps = re.search(r"<span>(\d+)(?: of \d+)? steps</span>", text)
        return status[1] if status else None, int(steps[1]) if steps else None

    def id_of(self, name: str) -> str:
        """Return the id of a run in the list."""
        found = re.search(rf'<a href="/runs/([0-9a-f]{{16}})">{re.escape(name)}</a>', self.get("/"))
        assert found is not None
        return found[1]


def error_of(page: str) -> str:
    """Return what a page says went wrong."""
    found = re.search(r'<p class="error" role="alert">(.*?)</p>', page, re.S)
    return unescape(found[1]) if found else ""
