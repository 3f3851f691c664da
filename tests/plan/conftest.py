"""Plans of tests know nothing of what somebody calibrated on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    folder = tmp_path / "own-cache"
    monkeypatch.setenv("PRGEC_CACHE", str(folder))
    return folder
