"""The driver under AddressSanitizer and UndefinedBehaviorSanitizer: a run, and a run that goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.device.conftest import build_driver, run_driver, write_rows


@pytest.mark.slow
def test_twenty_steps_are_clean(program: Callable[[str], Path], tmp_path: Path) -> None:
    executable = build_driver(tmp_path / "d", "host-asan")
    path = program("portable")
    rows = write_rows(tmp_path / "rows.bin", path, examples=7, candidates=2, seed=1)
    arguments = [
        path,
        "--rows",
        rows,
        "--eval-rows",
        rows,
        "--steps",
        20,
        "--snapshot-every",
        6,
        "--out",
        tmp_path / "o",
    ]
    assert run_driver(executable, *arguments).returncode == 0
    # A run whose last records were torn off, and its files with the names of an unfinished one.
    journal = (tmp_path / "o" / "journal.bin").read_bytes()
    (tmp_path / "o" / "journal.partial.bin").write_bytes(journal[: len(journal) // 2])
    adapter = (tmp_path / "o" / "adapter.safetensors").read_bytes()
    resumed = run_driver(executable, *arguments, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert "are damaged: going on after step" in resumed.stderr
    assert (tmp_path / "o" / "adapter.safetensors").read_bytes() == adapter
