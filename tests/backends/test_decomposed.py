"""A graph is decomposed once: what ExecuTorch asks for after that is there already, where a size varies too."""

from __future__ import annotations

import torch
from executorch.exir.tracer import _default_decomposition_table
from torch.export import Dim, ExportedProgram, export

from prgec.backends.decomposed import decompose

SILU = torch.ops.aten.silu.default


class _Gate(torch.nn.Module):
    """Takes a size that varies into account and has ops that a table takes apart."""

    def forward(self, x_TD: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(x_TD).reshape(x_TD.shape[0] * 2, 2).mean()


def _exported() -> ExportedProgram:
    return export(_Gate(), (torch.ones(3, 4),), dynamic_shapes=({0: Dim("T", min=2, max=9)},))


def _ops(program: ExportedProgram) -> list[str]:
    return [str(node.target) for node in program.graph.nodes if node.op == "call_function"]


def test_what_is_decomposed_is_not_traced_again() -> None:
    table = _default_decomposition_table()
    done = decompose(_exported())
    assert torch.ops.aten.sym_size.int in {node.target for node in done.graph.nodes}, "T varies"
    assert done.run_decompositions({}) is done
    assert done.run_decompositions(table) is done
    assert _ops(done) == _ops(_exported().run_decompositions(table))


def test_what_was_kept_is_taken_apart_on_demand() -> None:
    table = _default_decomposition_table()
    done = decompose(_exported(), kept=[SILU])
    assert str(SILU) in _ops(done)
    again = done.run_decompositions(table)
    assert str(SILU) not in _ops(again)
    assert _ops(again) == _ops(_exported().run_decompositions(table))
