"""Hub ids: the local cache is enough, and without it a missing or silent network ends in one line, soon."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from prgec.compiler.frontend import checkpoint
from prgec.compiler.frontend.checkpoint import ALIASES, find_checkpoint
from prgec.errors import CheckpointError
from tests.models import TinyLlama

HINT = "pass the folder of a checkpoint instead: prgec compile path/to/checkpoint"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a hub that is never the real one."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    # Port 9 discards; nothing listens there.
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    return tmp_path / "cache"


@pytest.fixture
def silent_hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A server that takes connections and never says a word."""
    from huggingface_hub import constants

    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        yield


@pytest.mark.parametrize("name", ["tinyllama", "someone/some-model"])
def test_not_cached_and_no_network(name: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        find_checkpoint(name)
    message = str(caught.value)
    assert message.startswith(f"{ALIASES.get(name, name)} is not in the local cache and could not be downloaded: ")
    assert message.endswith(f"Hint: {HINT}") and "\n" not in message


def test_silent_hub_is_not_waited_for(silent_hub: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "_HUB_TIMEOUT_S", 0.5)
    started = time.monotonic()
    with pytest.raises(CheckpointError, match="could not be downloaded: timed out"):
        find_checkpoint("tinyllama")
    assert time.monotonic() - started < 20


def test_cached_snapshot_needs_no_network(cache: Path) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    repo = cache / "models--someone--some-model"
    folder = TinyLlama().write(repo / "snapshots" / commit)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(commit)
    found = find_checkpoint("someone/some-model")
    assert (found.name, found.path) == ("someone/some-model", folder)


def test_compile_says_how_to_pass_a_folder(tmp_path: Path) -> None:
    """The user's view: no traceback, one line on stderr, the exit code of checkpoints, nothing written."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-m", "prgec", "compile", "tinyllama", "-o", "m.pte"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=120)
    assert done.returncode == CheckpointError.exit_code and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1 and HINT in done.stderr
    assert not (tmp_path / "m.pte").exists()
