"""Core ML and Vulkan: programs are lowered here, compared op by op, and refused by whatever would run them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from prgec.backends import find_backend
from prgec.cli.main import main
from prgec.core.contract.inspection import inspect_program
from prgec.errors import BackendError, UsageError
from prgec.runtime.engines.executorch.open import open_pte
from tests.e2e.conftest import Compile

needs_coremltools = pytest.mark.skipif(importlib.util.find_spec("coremltools") is None, reason="needs the extra coreml")
TARGETS = [pytest.param("coreml", "CoreMLBackend", 1, marks=needs_coremltools), ("vulkan", "VulkanBackend", 1)]
# Few sites and short rows, to be quick.
SMALL: dict[str, Any] = {"targets": ("q_proj", "down_proj"), "seq_len": 8, "num_labels": 1}
OUTSIDE = {"the state update, in memory the host reads", "the f32 loss"}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "delegate", "delegates"), TARGETS)
def test_the_forward_is_lowered_and_refused_here(
    name: str, delegate: str, delegates: int, compile_once: Compile, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = compile_once(**SMALL, backend=name)
    report = inspect_program(path)
    assert [each["backend"] for each in report.delegates] == [delegate] * delegates
    assert {op["reason"] for op in report.cpu_ops} == OUTSIDE
    needs = find_backend(name).needs  # type: ignore[attr-defined]
    with pytest.raises(BackendError, match=f"programs for --backend {name} run on {needs}"):
        open_pte(path)
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"sentence": "a film", "label": 1}\n')
    assert main(["run", str(path), "--data", str(rows), "--steps", "1", "--out", str(tmp_path / "run")]) == 7
    said = capsys.readouterr().err.strip().splitlines()
    assert said[-1].startswith(f"error: programs for --backend {name} run on ") and "--backend xnnpack" in said[-1]
    assert not (tmp_path / "run" / "adapter.safetensors").exists()


@pytest.mark.slow
def test_gradients_are_lowered_for_vulkan_too(compile_once: Compile) -> None:
    report = inspect_program(compile_once(**SMALL, backend="vulkan", method="exact"))
    assert [each["backend"] for each in report.delegates] == ["VulkanBackend"]
    assert {op["reason"] for op in report.cpu_ops} == OUTSIDE


@needs_coremltools
def test_core_ml_has_no_gradients(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["compile", "demo", "--backend", "coreml", "--method", "exact", "-o", str(tmp_path / "m.pte")])
    assert code == UsageError.exit_code
    assert "--backend coreml cannot train with --method exact" in capsys.readouterr().err
