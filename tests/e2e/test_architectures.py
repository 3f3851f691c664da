"""Every promised architecture: rewritten, it computes what transformers computes; lowered, it is one delegate."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from prgec.backends import load_backend
from prgec.compiler.frontend.model import export_loss
from prgec.compiler.options import CompileOptions
from prgec.compiler.pipelines import default_pipeline
from prgec.passes.pipeline import run_pipeline
from prgec.passes.program import GraphProgram
from tests.architectures import (
    ARCHITECTURES,
    LENGTHS,
    SEQ_LEN,
    Architecture,
    architecture,
    measure,
    random_rows,
    transformers_losses,
)

ROOT = Path(__file__).resolve().parents[2]
aten = torch.ops.aten
OPTIONS = CompileOptions(
    model="tiny", output=Path("tiny.pte"), q=1, batch_size=2, seq_len=SEQ_LEN, num_labels=2, rank=3, alpha=6.0
)
# Ops XNNPACK takes in any shape, or in the shapes the legality passes leave.
LEGAL = frozenset(
    {
        aten.linear.default,
        aten.bmm.default,
        aten.add.Tensor,
        aten.sub.Tensor,
        aten.mul.Tensor,
        aten.div.Tensor,
        aten.rsqrt.default,
        aten.tanh.default,
        aten.softmax.int,
        aten.silu.default,
        aten.relu.default,
        aten.gelu.default,
        aten.view.default,
        aten.reshape.default,
        aten.transpose.int,
        aten.clone.default,
        aten.contiguous.default,
        aten.cat.default,
        aten.slice.Tensor,
        aten.pow.Tensor_Scalar,
    }
)
FAST = ("GPT-2",)


def _ids(each: Architecture) -> str:
    return each.model_type


@pytest.mark.parametrize("each", ARCHITECTURES, ids=_ids)
def test_rewritten_graph_computes_what_transformers_computes(each: Architecture) -> None:
    model = each.build()
    program = export_loss(model, num_rows=OPTIONS.num_rows, seq_len=SEQ_LEN, num_labels=2, dynamic=True)
    run_pipeline(program, default_pipeline(OPTIONS, load_backend("xnnpack")))
    assert len(program.state_names()) == each.num_sites
    assert illegal(program) == []
    for length in LENGTHS:
        rows = random_rows(OPTIONS.num_rows, length)
        scalars = torch.zeros(1), torch.tensor(0.0), torch.tensor(0.0), torch.tensor(7), torch.tensor(1)
        with torch.no_grad():
            found = program.module(*rows, *scalars)
        expected = transformers_losses(model, *rows)
        torch.testing.assert_close(found[0] if isinstance(found, tuple) else found, expected, rtol=1e-5, atol=0.0)


def illegal(program: GraphProgram) -> list[str]:
    """Calls between the embedding and the log-softmax that XNNPACK does not take."""
    nodes = list(program.graph.nodes)
    begin = next(i for i, node in enumerate(nodes) if node.target is aten.embedding.default)
    end = next(i for i, node in enumerate(nodes) if node.target is aten.log_softmax.int)
    return [str(node) for node in nodes[begin + 1 : end] if node.op == "call_function" and not _is_legal(node)]


def _is_legal(node: torch.fx.Node) -> bool:
    is_dynamic = any(not isinstance(size, int) for size in node.meta["val"].shape)
    if node.target is aten.slice.Tensor:
        return not is_dynamic
    if node.target is aten.pow.Tensor_Scalar:
        return node.args[1] == 2 and isinstance(node.args[1], int)
    if node.target is aten.gelu.default:
        return not node.kwargs
    return node.target in LEGAL


@pytest.mark.parametrize(
    "each",
    [pytest.param(each, marks=() if each.name in FAST else pytest.mark.slow) for each in ARCHITECTURES],
    ids=_ids,
)
def test_lowered_program_is_one_delegate_and_trains(each: Architecture, tmp_path: Path) -> None:
    found = measure(each, tmp_path)
    assert found.sites == each.num_sites
    assert len(found.delegates) == 1
    assert found.max_rel_loss_diff < 1e-4
    assert found.max_rel_train_diff < 1e-4
    assert found.max_abs_state > 0.01


@pytest.mark.slow
def test_tool() -> None:
    command = [sys.executable, str(ROOT / "tools" / "architectures.py"), "OPT", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    document = json.loads(done.stdout)
    assert done.returncode == 0 and document["passed"] is True
    assert [row["architecture"] for row in document["rows"]] == ["OPT"]
    assert subprocess.run([*command[:-1], "GPT-5"], capture_output=True, timeout=100).returncode == 2


def test_names_are_unique() -> None:
    assert len({each.name for each in ARCHITECTURES}) == len(ARCHITECTURES) == 12
    assert architecture("GPT-2").model_type == "gpt2"
