"""The step that a pipeline implies, for users who named some of it."""

from __future__ import annotations

import pytest

from prgec.backends import load_backend
from prgec.compiler.check import check_options
from prgec.compiler.extend import reading_passes
from prgec.compiler.options import CompileOptions
from prgec.compiler.pipelines import default_pipeline
from prgec.core.contract.manifest import Site
from prgec.errors import UsageError
from prgec.passes.infra import Role
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
    options = CompileOptions(model="m", method="exact", optimizer=optimizer, polyak=polyak)
    passes = default_pipeline(options, load_backend("portable"))
    assert [text for each in passes if (text := print_pipeline([each])).startswith("insert-optimizer")] == [expected]


def test_layers_are_computed_again_on_request() -> None:
    texts = [
        print_pipeline(
            default_pipeline(CompileOptions(model="m", method="exact", recompute=each), load_backend("xnnpack"))
        )
        for each in ("cheap", "layers")
    ]
    assert ["rematerialize{layers=true}" in each for each in texts] == [False, True]
    assert texts[1].replace("{layers=true}", "") == texts[0]


@pytest.mark.parametrize("method", ["prge", "exact", "shortcut"])
def test_a_cache_is_read_by_a_graph_that_no_training_pass_sees(method: str) -> None:
    passes = default_pipeline(CompileOptions(model="m", method=method), load_backend("xnnpack"))
    kept = [each.name for each in reading_passes(passes, [Site("layers.0.q_proj", 0, 8, 8)])]
    named = {each.name: each.role for each in passes}
    assert [name for name in kept if named.get(name) is not Role.SHARED] == ["inject-lora-fa", "branch-to-bmm"]


@pytest.mark.parametrize("method", ["prge", "shortcut", "side"])
def test_layers_are_computed_again_by_exact_alone(method: str) -> None:
    num_labels = 1 if method == "side" else 4
    with pytest.raises(UsageError, match="^--recompute"):
        check_options(CompileOptions(model="m", method=method, recompute="layers", num_labels=num_labels))


def test_a_backend_with_an_order_of_its_own_computes_no_layers_again() -> None:
    with pytest.raises(UsageError, match="^--backend openvino orders a program itself, so .* Hint: leave out --recomp"):
        default_pipeline(
            CompileOptions(model="m", method="exact", recompute="layers", backend="openvino"), load_backend("openvino")
        )
