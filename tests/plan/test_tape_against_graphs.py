"""The operations a plan writes down are those of the graphs the compiler makes, for every architecture and method."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.fx import Node

from prgec.compiler.compile import build_graphs
from prgec.compiler.options import CompileOptions
from prgec.compiler.plan.shape import shape_of_config
from prgec.compiler.plan.step import step_sizes
from prgec.compiler.plan.workload import Workload
from tests.architectures import ARCHITECTURES, Architecture

aten = torch.ops.aten
_SIZES = {"q": 2, "batch_size": 3, "seq_len": 16, "num_labels": 2, "rank": 4}


def _products(graph: Any) -> Counter[str]:
    """Multiplications of matrices in a graph, by kind."""
    found: Counter[str] = Counter()
    for node in graph.nodes:
        if node.target in (aten.linear.default, aten.bmm.default):
            source = node.args[0]
            assert isinstance(source, Node)
            kind = "linear" if node.target is aten.linear.default else "bmm"
            found[kind] += math.prod(map(_size, node.meta["val"].shape)) * _size(source.meta["val"].shape[-1])
    return found


def _size(dim: Any) -> int:
    """A dimension at the largest T, the only symbol there is."""
    if isinstance(dim, int):
        return dim
    expression = dim.node.expr
    return int(expression.subs({symbol: _SIZES["seq_len"] for symbol in expression.free_symbols}))


# The families that differ most; the others take too long to be built each time.
_USUAL = ("Llama", "Gemma 3", "Phi-3", "GPT-NeoX")


@pytest.mark.parametrize(
    ("method", "recompute"), [("prge", "cheap"), ("exact", "cheap"), ("exact", "layers"), ("shortcut", "cheap")]
)
@pytest.mark.parametrize(
    "each",
    [pytest.param(each, id=each.name, marks=() if each.name in _USUAL else pytest.mark.slow) for each in ARCHITECTURES],
)
def test_multiplications_are_those_of_the_graph(
    each: Architecture, method: str, recompute: str, tmp_path: Path
) -> None:
    sizes = {**_SIZES, "q": 1} if method != "prge" else _SIZES
    checkpoint = each.write(tmp_path / "model")
    graphs = build_graphs(CompileOptions(model=str(checkpoint), method=method, recompute=recompute, alpha=8.0, **sizes))
    found = _products(graphs.methods["forward"].graph)
    planned = step_sizes(
        shape_of_config({**each.options, "model_type": each.model_type}, each.name),
        Workload(method, recompute=recompute, **sizes),
    )
    # A plan rotates in every layer; SmolLM3 leaves some out.
    tolerance = 0.03 if each.name == "SmolLM3" else 0.0
    assert planned.multiplies_f32 == pytest.approx(found.total(), rel=tolerance), found


def test_a_model_that_stays_as_it_is(tmp_path: Path) -> None:
    """The output of each block is read at the label positions."""
    sizes = {"batch_size": 3, "seq_len": 16, "num_labels": 1}
    each = next(each for each in ARCHITECTURES if each.name == "Gemma 3")
    checkpoint = each.write(tmp_path / "model")
    graphs = build_graphs(CompileOptions(model=str(checkpoint), method="side", **sizes))
    found = _products(graphs.methods["emit"].graph)
    planned = step_sizes(
        shape_of_config({**each.options, "model_type": each.model_type}, each.name), Workload("side", **sizes)
    )
    assert planned.multiplies_f32 == found.total()
