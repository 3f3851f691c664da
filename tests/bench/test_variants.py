"""The table of variants describes real ways of computing the same step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from prgec.backends import load_backend
from prgec.errors import UsageError
from prgec.lab.bench.build import backend_of, pipeline_of
from prgec.lab.bench.options import BenchOptions, Cell
from prgec.lab.bench.variants import VARIANTS, Branch, find_variant
from prgec.passes import PASSES
from prgec.passes.pipeline import check_order
from prgec.passes.spec import print_pipeline

CELL = Cell("8da4w", q=3, batch_size=5, seq_len=32)
OPTIONS = BenchOptions(model="demo", q=(3,), batch_size=(5,), seq_len=(32,), quantize=("8da4w",))
COMPILED = [name for name, variant in VARIANTS.items() if not variant.is_eager]


def _pipeline(name: str) -> str:
    variant = VARIANTS[name]
    chosen = {"method": variant.method, "state": variant.state, "recompute": variant.recompute}
    options = replace(OPTIONS.compile_options(CELL, Path("model.pte")), **chosen)
    passes = pipeline_of(variant, CELL, options, load_backend("xnnpack"))
    check_order(passes)
    return print_pipeline(passes)


def test_every_step_has_all_rows() -> None:
    for variant in VARIANTS.values():
        expected = 5 if variant.is_batch else 2 * 3 * 5
        assert variant.rows(3, 5) * variant.calls(3) == expected, variant.name


@pytest.mark.parametrize(
    ("name", "rows", "copies", "calls"),
    [
        ("prgec", 30, 6, 1),
        ("paper", 30, 6, 1),
        ("inner", 10, 2, 3),
        ("outer", 15, 3, 2),
        ("sequential", 5, 1, 6),
        ("inference", 30, 6, 1),
        ("eager", 5, 1, 6),
    ],
)
def test_rows_and_calls(name: str, rows: int, copies: int, calls: int) -> None:
    variant = VARIANTS[name]
    assert (variant.rows(3, 5), variant.copies(3), variant.calls(3)) == (rows, copies, calls)


def test_only_real_passes_are_left_out() -> None:
    for variant in VARIANTS.values():
        assert variant.left_out <= set(PASSES), variant.name


@pytest.mark.parametrize("name", COMPILED)
def test_pipelines(name: str) -> None:
    text, variant = _pipeline(name), VARIANTS[name]
    is_hosts = variant.branch is Branch.HOSTED
    assert ("state=host" in text) == is_hosts
    assert ("insert-self-update" in text) == (
        variant.branch is Branch.UPDATED or (is_hosts and variant.method == "prge")
    )
    assert (f"feed-copies{{copies={variant.copies(3)}}}" in text.replace("feed-copies,", "feed-copies{copies=1},")) == (
        variant.branch is Branch.FED
    )
    is_gradient = variant.branch is Branch.DIFFERENTIATED or (is_hosts and variant.method == "exact")
    spelled_out = text.replace("differentiate,", "differentiate{method=exact},")
    assert (f"differentiate{{method={variant.method}}}" in spelled_out) == is_gradient
    assert ("insert-optimizer" in text) == is_gradient
    assert ("rematerialize" in text) == (is_gradient and name != "exact-kept")
    assert ("rematerialize{layers=true}" in text) == (name == "exact-layers")
    assert ("inject-lora-fa" in text) == (variant.branch is not Branch.NONE)
    assert "quantize-base{scheme=8da4w" in text


def test_forwards_are_legal_and_quantised_like_the_training_program() -> None:
    def rest(name: str) -> list[str]:
        return [each for each in _pipeline(name).split(",") if each.partition("{")[0] not in training]

    training = {"inject-lora-fa", "feed-copies", *VARIANTS["inference"].left_out}
    assert rest("inner") == rest("outer") == rest("sequential") == rest("inference") == rest("prgec")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"variants": ("prgec", "fast")}, "no variant called 'fast'. Hint: variants: prgec, paper"),
        ({"variants": ()}, "--variants is empty"),
        ({"q": (2, 2)}, "--q names a value twice: 2,2"),
        ({"q": (0,)}, "--q is 0; expected at least 1"),
        ({"quantize": ("none", "fp8")}, "--quantize is 'fp8'; expected one of none, 8da8w, 8da4w"),
        ({"repeats": 0}, "--repeats is 0"),
        ({"out": Path(__file__)}, "--out is a file"),
    ],
)
def test_impossible_options(change: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        BenchOptions(model="demo", **change).check()  # type: ignore[arg-type]


def test_the_matrix() -> None:
    options = BenchOptions(model="demo", q=(1, 4), seq_len=(64, 128), quantize=("none", "8da4w"))
    cells = options.cells()
    assert [str(cell) for cell in cells[:3]] == ["none q=1 B=1 T=64", "none q=1 B=1 T=128", "none q=4 B=1 T=64"]
    assert len(cells) == 8


def test_a_variant_runs_on_another_backend_beside_its_own() -> None:
    found = find_variant("exact@openvino")
    assert (found.name, found.backend, found.method) == ("exact@openvino", "openvino", "exact")
    assert found.summary == f"{VARIANTS['exact'].summary}, on openvino"
    assert backend_of(found, OPTIONS) == "openvino" and backend_of(VARIANTS["exact"], OPTIONS) == "xnnpack"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("exakt@openvino", "there is no variant called 'exakt'"),
        ("exact@openvinno", "there is no variant called 'exact@openvinno'. Hint: programs run on: xnnpack, "),
        ("eager@openvino", "there is no variant called 'eager@openvino'"),
    ],
)
def test_unknown_pairs_are_refused(name: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        find_variant(name)
