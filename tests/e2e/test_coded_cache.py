"""A cache of 8 bits says what transformers says, but for its rounding, on every engine."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from prgec.cli.main import main
from prgec.core.contract.names import EXTEND_METHOD
from prgec.lab.torch.program import TorchProgram
from prgec.runtime.engines.executorch.open import open_pte
from tests.architectures import architecture
from tests.shared import Shared
from tests.talking import NAME, chat_options, text_of, write_checkpoint


def _token_by_token(program: Any, ids: list[int]) -> NDArray[np.float32]:
    """Logits [T, V] where every token reads what is kept of those before it."""
    program.cache.clear()
    return np.stack([program.cache.extend(np.array([token]), place) for place, token in enumerate(ids)])


@pytest.mark.parametrize(
    "backend", ["torch", *(pytest.param(each, marks=pytest.mark.slow) for each in ("portable", "xnnpack"))]
)
def test_a_cache_of_8_bits(backend: str, shared: Shared, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = shared.once("chat", write_checkpoint)
    small = {"method": "prge", "q": 1, "layers": ("last:1",), "quantize_cache": 8}
    options = chat_options(checkpoint, backend=backend.replace("torch", "portable"), **small)
    program: Any = TorchProgram.build(options) if backend == "torch" else open_pte(shared.program(options))
    ids = text_of(30)
    model: Any = architecture(NAME).build()
    with torch.no_grad():
        expected_TV = model(input_ids=torch.tensor([ids])).logits[0].numpy()
    error = _token_by_token(program, ids) - expected_TV
    # Codes are up to 0.4 % of a row's largest value away, and what is computed with them by more than f32 rounds.
    assert 1e-5 < float(np.abs(error).mean() / expected_TV.std()) < 1e-2
    if backend == "xnnpack":
        assert main(["inspect", str(program.path), "--json"]) == 0
        assert len(json.loads(capsys.readouterr().out)["methods"][EXTEND_METHOD]["delegates"]) == 1
