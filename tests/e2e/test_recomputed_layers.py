"""Programs that compute layers again train to the same bits, with less memory."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import numpy as np
import pytest

from prgec.compiler.compile import compile_model
from prgec.compiler.options import CompileOptions
from prgec.core.contract.arrays import State
from prgec.core.contract.calls import Batch
from prgec.core.contract.names import CHEAP, LAYERS
from prgec.core.machine.apart import call_apart
from prgec.core.machine.memory import SampledGrowth
from prgec.runtime.engines.executorch.open import open_pte

STEPS, TOKENS = 3, 64


@pytest.mark.slow
@pytest.mark.parametrize("quantize", ["none", "8da4w"])
def test_same_bits_in_less_memory(quantize: str, tmp_path: Path) -> None:
    (kept, kept_bytes), (again, again_bytes) = (
        _trained(quantize, recompute, tmp_path / f"{recompute}.pte") for recompute in (CHEAP, LAYERS)
    )
    assert kept.keys() == again.keys()
    for name, value in kept.items():
        assert value.any() or not name.endswith("lora_B"), "it trains"
        np.testing.assert_array_equal(again[name], value)
    assert again_bytes < 0.75 * kept_bytes, "of four blocks one is there in either"


def _trained(quantize: str, recompute: str, path: Path) -> tuple[State, int]:
    """Return what a few steps of the demo's model leave, and the most memory they hold."""
    options = CompileOptions(
        model="demo",
        output=path,
        method="exact",
        optimizer="adamw",
        backend="xnnpack",
        quantize=quantize,
        recompute=recompute,
        batch_size=16,
        seq_len=TOKENS,
        num_labels=1,
    )
    compile_model(options)
    # Memory that the tests' process has freed and not given back would hide that of a step.
    found: tuple[State, int] = call_apart(multiprocessing.get_context("spawn"), "training", _train, path)
    return found


def _train(path: Path) -> tuple[State, int]:
    program = open_pte(path)
    generator = np.random.default_rng(0)
    rows, vocab = program.manifest.batch_size, program.manifest.vocab_size
    growth = SampledGrowth()
    for _ in range(STEPS):
        tokens = generator.integers(3, vocab, (rows, TOKENS))
        targets = generator.integers(3, vocab, (rows, 1))
        program.train(Batch(tokens, np.full((rows, 1), TOKENS - 1), targets), 0.001)  # type: ignore[attr-defined]
    growth.pause()
    return {**program.read_state(), **program.read_optimizer()}, growth.bytes  # type: ignore[attr-defined]
