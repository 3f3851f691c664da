"""The reference driver of docs/contract.md: NumPy and a stock ExecuTorch train the demo as `prgec demo` does."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prgec.cli.main import main
from prgec.compiler.compile import compile_model
from prgec.compiler.options import CompileOptions
from prgec.demo import BATCH_SIZES, SEQ_LEN, STEPS, data_file

DRIVER = Path(__file__).parents[2] / "docs" / "host_driver.py"
# Importing prgec fails.
_ALONE = """
import runpy, sys
sys.modules["prgec"] = None
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def _drive(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _ALONE, str(DRIVER), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_trains_the_demo_without_prgec(tmp_path: Path) -> None:
    method = "exact"
    options = CompileOptions(
        model="demo",
        output=tmp_path / "m.pte",
        method=method,
        state="host",
        seq_len=SEQ_LEN,
        batch_size=BATCH_SIZES[method],
    )
    manifest = compile_model(options).manifest
    rows = [tmp_path / f"{split}.bin" for split in ("train", "test")]
    for path in rows:
        assert main(["tokenize", str(options.output), str(data_file(path.stem)), "-o", str(path)]) == 0
    result = _drive(options.output, *rows, STEPS[method], tmp_path / "b.npz")
    assert result.returncode == 0, result.stderr
    before, after = map(float, re.findall(r"\d\.\d+", result.stdout))
    assert before < 0.8 < 0.99 <= after, result.stdout
    saved: Any = np.load(tmp_path / "b.npz")
    assert list(saved) == [site.state_name for site in manifest.sites]


def test_it_is_short_and_imports_little() -> None:
    lines = DRIVER.read_text(encoding="utf-8").split('"""', 2)[2].splitlines()
    code = [line for line in lines if line.strip() and not line.strip().startswith(("#", '"""'))]
    assert len(code) <= 65
    imported = {line.split()[1].split(".")[0] for line in code if line.startswith(("import ", "from "))}
    assert imported == {"json", "sys", "numpy", "torch", "executorch"}
