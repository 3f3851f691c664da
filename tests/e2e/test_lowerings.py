"""Lowering in place against ExecuTorch's own route: the files are equal byte for byte.

Where they are not, the difference is one of `EXPLAINED`, and losses and state are equal bit for bit.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prgec.backends import IN_PLACE, STOCK
from prgec.compiler.compile import compile_model
from prgec.compiler.options import CompileOptions
from prgec.errors import BackendError
from prgec.runtime.engines.executorch.open import open_pte
from tests.architectures import ARCHITECTURES, SEQ_LEN, Architecture, architecture
from tests.families import family
from tests.lockstep import Run, random_steps

ROWS: dict[str, Any] = {"batch_size": 2, "seq_len": SEQ_LEN, "num_labels": 2, "rank": 4, "alpha": 8.0}
PRGE: dict[str, Any] = {"method": "prge", "q": 2}
EXACT: dict[str, Any] = {"method": "exact"}
# A view of a matrix product with a T that varies infers one size, where a trace multiplies sizes at run time.
EXPLAINED = "portable"

CHAT: dict[str, Any] = {**EXACT, "generate": True, "context": 32}

FAST = [{**PRGE, "state": "dual"}]
SLOW = [
    EXACT,
    {**EXACT, "quantize": "8da4w", "quantize_embedding": 4, "generate": True, "context": 32, "quantize_cache": 8},
    PRGE,
    {"method": "shortcut"},
    {**EXACT, "state": "host"},
    {**PRGE, "state": "host"},
    {**EXACT, "quantize": "8da8w", "quantize_embedding": 8},
    {**PRGE, "quantize": "8da4w"},
    {**EXACT, "optimizer": "momentum"},
    {**EXACT, "optimizer": "norm", "clip_norm": 1.0},
    {**EXACT, "accumulate": True, "recompute": "layers"},
    CHAT,
    {**PRGE, "rng": "decomposed"},
    {**EXACT, "rng": "decomposed"},
]


def both_routes(model: Path, folder: Path, **options: Any) -> tuple[Path, Path]:
    paths = folder / "in-place.pte", folder / "stock.pte"
    for path, route in zip(paths, (IN_PLACE, STOCK), strict=True):
        compile_model(CompileOptions(model=str(model), output=path, lowering=route, **{**ROWS, **options}))
    return paths


def check_equal_bytes(model: Path, folder: Path, **options: Any) -> None:
    ours, stock = both_routes(model, folder, **options)
    assert ours.read_bytes() == stock.read_bytes(), f"{options} differ"


@pytest.mark.parametrize("options", FAST, ids=str)
def test_a_llama_has_equal_bytes(tmp_path: Path, options: dict[str, Any]) -> None:
    check_equal_bytes(architecture("Llama").write(tmp_path / "llama"), tmp_path, **options)


@pytest.mark.slow
@pytest.mark.parametrize("options", SLOW, ids=str)
def test_every_way_has_equal_bytes(tmp_path: Path, options: dict[str, Any]) -> None:
    check_equal_bytes(architecture("Llama").write(tmp_path / "llama"), tmp_path, **options)


@pytest.mark.slow
@pytest.mark.parametrize("options", [EXACT, PRGE, {"method": "shortcut"}, CHAT], ids=str)
@pytest.mark.parametrize("model", ARCHITECTURES, ids=lambda each: each.name)
def test_every_architecture_has_equal_bytes(tmp_path: Path, model: Architecture, options: dict[str, Any]) -> None:
    check_equal_bytes(model.write(tmp_path / model.model_type), tmp_path, **options)


@pytest.mark.slow
@pytest.mark.parametrize("model", ARCHITECTURES, ids=lambda each: each.name)
def test_portable_programs_have_equal_losses(tmp_path: Path, model: Architecture) -> None:
    paths = both_routes(model.write(tmp_path / model.model_type), tmp_path, **PRGE, backend=EXPLAINED)
    losses = []
    for path in paths:
        program = open_pte(path)
        run = Run(program, eps=1e-2, seed=5)
        losses.append([run.step(examples, lr) for examples, lr in random_steps(3, program.manifest, lr=5e-3, pool=4)])
    assert all(np.array_equal(a, b) for a, b in zip(*losses, strict=True))


@pytest.mark.slow
def test_an_op_without_a_rule_goes_executorchs_own_way(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Only where no way is requested; the program is that of --lowering stock."""
    model = family("XGLM").write(tmp_path / "xglm")
    sizes = {"method": "prge", "q": 1, "batch_size": 1, "seq_len": 8, "num_labels": 1, "rank": 2}
    options = CompileOptions(model=str(model), output=tmp_path / "auto.pte", **sizes)  # type: ignore[arg-type]
    compile_model(options)
    assert "the op table has no row for" in caplog.text and "instead" in caplog.text
    stock = replace(options, lowering="stock", output=tmp_path / "stock.pte")
    compile_model(stock)
    assert stock.output.read_bytes() == options.output.read_bytes()
    with pytest.raises(BackendError, match="the op table has no row for"):
        compile_model(replace(options, lowering="in-place", output=tmp_path / "no.pte"))
