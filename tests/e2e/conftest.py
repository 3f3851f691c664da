"""Programs compiled once a session and shared: compiling costs more than all the tests together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prgec.compiler.options import CompileOptions
from prgec.runtime.engines.executorch.open import open_pte
from prgec.runtime.engines.executorch.pte_program import PteProgram
from tests.models import TinyLlama
from tests.shared import Shared

# One layer with biases and grouped queries: sites with out < in, out > in and out = in.
MODEL = TinyLlama(has_bias=True)
Compile = Callable[..., Path]

# T varies where it may, so that both kinds of program are there for either backend and either state.
PROGRAMS = {
    "portable-seeded-static": {"backend": "portable", "state": "seeded", "static": True},
    "portable-dual": {"backend": "portable", "state": "dual"},
    "xnnpack-seeded": {"backend": "xnnpack", "state": "seeded"},
    "xnnpack-dual-static": {"backend": "xnnpack", "state": "dual", "static": True},
}


@pytest.fixture(scope="session")
def checkpoint(shared: Shared) -> Path:
    return shared.once("checkpoint", MODEL.write)


@pytest.fixture(scope="session")
def compile_once(shared: Shared, checkpoint: Path) -> Compile:
    """Compile with these options, or return what equal options gave before."""
    return compiler(shared, checkpoint)


def compiler(shared: Shared, checkpoint: Path) -> Compile:
    """Implements `compile_once`; tests in other folders that use it share programs with these."""
    defaults: dict[str, Any] = {
        "model": str(checkpoint),
        "output": Path("model.pte"),
        "q": 2,
        "batch_size": 2,
        "seq_len": 16,
        "num_labels": 2,
        "rank": 4,
        "alpha": 8.0,
    }
    return lambda **options: shared.program(CompileOptions(**{**defaults, **options}))


@pytest.fixture(params=PROGRAMS)
def open_program(request: pytest.FixtureRequest, compile_once: Compile) -> Callable[[], PteProgram]:
    """Open a program of either backend and state any number of times, each time in its initial state."""
    path = compile_once(**PROGRAMS[request.param])
    return lambda: open_pte(path)
