"""What a pipeline says of the step, for those who named some of it."""

from __future__ import annotations

import pytest

from prgec.backends import load_backend
from prgec.compile.options import CompileOptions
from prgec.compile.pipelines import default_pipeline
from prgec.passes.spec import print_pipeline


@pytest.mark.parametrize(
    ("optimizer", "polyak", "expected"),
    [
        ("norm", None, "insert-optimizer"),
        ("norm", 0.5, "insert-optimizer{polyak=0.5}"),
        ("adamw", None, "insert-optimizer{rule=adamw polyak=5.0}"),
        ("adamw", 0.0, "insert-optimizer{rule=adamw polyak=0.0}"),
        ("sgd", None, "insert-optimizer{rule=sgd}"),
    ],
)
def test_each_optimizer_has_a_bound_of_its_own(optimizer: str, polyak: float | None, expected: str) -> None:
    options = CompileOptions("m", method="exact", optimizer=optimizer, polyak=polyak)
    passes = default_pipeline(options, load_backend("portable"))
    assert [text for each in passes if (text := print_pipeline([each])).startswith("insert-optimizer")] == [expected]
