"""The graph that reads on behind a cache has the B and the weights of the graph that is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from prgec.compile.options import CompileOptions
from prgec.contract.names import IGNORE_TARGET
from prgec.engines.torch.program import TorchProgram
from prgec.errors import UsageError
from prgec.training.reader import Reader
from tests.architectures import VOCAB_SIZE, architecture
from tests.shared import Shared

# Grouped queries, soft caps, and a window of five in every other layer.
NAME = "Gemma 2"


@pytest.fixture(scope="module")
def checkpoint(shared: Shared) -> Path:
    return shared.once("extend", architecture(NAME).write)


def _options(checkpoint: Path, **changes: Any) -> CompileOptions:
    given: dict[str, Any] = {
        "model": str(checkpoint),
        "output": Path("model.pte"),
        "method": "exact",
        "batch_size": 2,
        "seq_len": 16,
        "num_labels": 2,
        "rank": 4,
        "alpha": 8.0,
        "generate": True,
        "context": 40,
    }
    return CompileOptions(**{**given, **changes})


def _other_state(program: Any) -> None:
    """Give the program a B that matters."""
    random = np.random.default_rng(5)
    state = {name: random.normal(0, 0.2, b.shape).astype(np.float32) for name, b in program.read_state().items()}
    program.write_state(state)


def _loss(program: Any, ids: list[int], target: int) -> tuple[float, float]:
    """What a token costs behind a text, by the cache and by the method that evaluates."""
    logits_V = Reader(program).read(ids)
    by_cache = float(np.log(np.exp(logits_V.astype(np.float64)).sum()) - logits_V[target])
    m = program.manifest
    label_pos: NDArray[np.int64] = np.zeros((m.num_rows, m.num_labels), dtype=np.int64)
    targets = np.full_like(label_pos, IGNORE_TARGET)
    label_pos[:, 0], targets[:, 0] = len(ids) - 1, target
    return by_cache, float(program.evaluate(np.tile(ids, (m.num_rows, 1)), label_pos, targets)[0])


def test_it_reads_the_trained_b_and_the_same_weights(checkpoint: Path) -> None:
    program = TorchProgram.build(_options(checkpoint, method="prge", q=2, state="dual", quantize="8da8w"))
    ids = [int(token) for token in np.random.default_rng(12).integers(3, VOCAB_SIZE, 12)]
    before, _ = _loss(program, ids, 9)
    _other_state(program)
    # Copies as an evaluation leaves them: equal ones.
    program.apply(np.zeros(program.manifest.q, dtype=np.float32), 0.0, 0, 1)
    by_cache, by_forward = _loss(program, ids, 9)
    assert abs(by_cache - before) > 0.05
    # Quantised activations are rounded, and by other neighbours.
    assert by_cache == pytest.approx(by_forward, rel=1e-3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"context": 2}, "--context is 2; expected at least 4"),
        ({"generate": False}, "--context is for programs that generate"),
        ({"state": "host"}, "--state host has no cache in the program; leave out --context"),
        ({"static": True}, "--context needs a T that varies from call to call"),
        ({"context": 65}, "--context is 65, but the model knows 64 positions"),
    ],
)
def test_contexts_that_cannot_be(changes: dict[str, Any], message: str, checkpoint: Path) -> None:
    with pytest.raises(UsageError, match=f"^{message}"):
        TorchProgram.build(_options(checkpoint, **changes))
