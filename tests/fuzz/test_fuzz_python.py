"""Atheris sees the branches of the readers, so that its mutations are guided."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_atheris_keeps_inputs_that_take_new_branches() -> None:
    pytest.importorskip("atheris", reason="Atheris has no wheel for this system")
    command = [sys.executable, "tools/fuzz.py", "--atheris", "300", "--only", "journal"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    kind, tried, kept, crashes = ended.stdout.splitlines()[-1].split()
    assert (kind, int(tried), int(crashes), ended.returncode) == ("journal", 300, 0, 0), ended.stdout
    assert int(kept) > 2
