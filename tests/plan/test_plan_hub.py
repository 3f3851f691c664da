"""Hub ids: a configuration in the cache is enough, and a missing or silent hub ends in one line, soon."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path

import pytest

from prgec.compiler.plan import source
from prgec.compiler.plan.source import known_models, read_shape
from prgec.errors import CheckpointError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a hub that is never the real one."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    # Port 9 discards; nothing listens there.
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    return tmp_path / "cache"


def test_a_cached_configuration_is_enough(cache: Path) -> None:
    repository = cache / "models--someone--some-model"
    (repository / "snapshots" / "abc").mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    (repository / "snapshots" / "abc" / "config.json").write_text(json.dumps(known_models()["OPT-1.3B"]))
    assert read_shape("someone/some-model").num_weights == read_shape("OPT-1.3B").num_weights


def test_not_cached_and_no_network() -> None:
    with pytest.raises(CheckpointError) as caught:
        read_shape("someone/some-model")
    message = str(caught.value)
    assert message.startswith("the configuration of someone/some-model is not in the local cache and could not be ")
    assert message.endswith("Hint: pass a folder or a config.json instead") and "\n" not in message


def test_silent_hub_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(source, "_HUB_TIMEOUT_S", 0.5)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        started = time.monotonic()
        with pytest.raises(CheckpointError, match="could not be downloaded"):
            read_shape("someone/some-model")
    assert time.monotonic() - started < 20
