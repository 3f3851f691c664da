"""A pass of ExecuTorch that is left out would have changed nothing, and programs are byte for byte the same."""

from __future__ import annotations

import pytest
import torch
from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower
from executorch.exir.pass_base import ExportPass
from executorch.exir.passes import OpReplacePass
from executorch.exir.passes.scalar_to_tensor_pass import ScalarToTensorPass
from torch.export import Dim, export
from torch.fx import GraphModule
from torch.utils._pytree import tree_leaves

from prgec.backends.decomposed import decompose
from prgec.backends.needed_passes import OP_BY_OP, changes, only_needed_passes, rewrite_in_place


class _Clean(torch.nn.Module):
    def forward(self, x_TD: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(torch.add(x_TD, x_TD))


class _Transposed(torch.nn.Module):
    def forward(self, x_TD: torch.Tensor) -> torch.Tensor:
        return x_TD.t() * x_TD.sum()


class _Scaled(torch.nn.Module):
    def forward(self, x_TD: torch.Tensor) -> torch.Tensor:
        return x_TD * 0.5


class _Twice(torch.nn.Module):
    def forward(self, x_TD: torch.Tensor) -> torch.Tensor:
        return 3 * (x_TD * 0.5 - 1)


class _Largest(torch.nn.Module):
    """An op with several results, and a number that goes with integers."""

    def forward(self, x_TD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        largest, where = x_TD.max(dim=1)
        return largest * 2, where + 1.5


class _Counted(torch.nn.Module):
    def forward(self, x_TD: torch.Tensor) -> torch.Tensor:
        return x_TD * x_TD.shape[0]


class _Mixed(torch.nn.Module):
    def forward(self, x_TD: torch.Tensor) -> torch.Tensor:
        return x_TD + x_TD.argmax(dim=-1, keepdim=True)


def _graph(module: torch.nn.Module) -> GraphModule:
    program = export(module, (torch.ones(3, 4),), dynamic_shapes=({0: Dim("T", min=2, max=9)},))
    graph: GraphModule = decompose(program).graph_module
    return graph


def _written(graph: GraphModule) -> list[tuple[str, str]]:
    """The ops and what they are given, by names that a trace does not change."""
    names = {node: str(index) for index, node in enumerate(graph.graph.nodes)}
    rows = [(str(node.target), torch.fx.node.map_arg(node.args, names.__getitem__)) for node in graph.graph.nodes]
    return [(target, str(args)) for target, args in rows]


def _values(graph: GraphModule) -> list[str]:
    """Shapes, types and strides; a trace names sizes that vary anew."""
    return [
        f"{value.shape} {value.dtype} {value.stride()}"
        for node in graph.graph.nodes
        if node.op != "output"
        for value in tree_leaves(node.meta.get("val"))
        if isinstance(value, torch.Tensor)
    ]


def _constants(graph: GraphModule) -> dict[str, tuple[torch.dtype, float]]:
    return {name: (value.dtype, float(value)) for name, value in graph.named_buffers()}


@pytest.mark.parametrize("module", [_Clean, _Transposed, _Scaled, _Counted, _Mixed])
def test_a_pass_is_left_out_where_it_changes_nothing(module: type[torch.nn.Module]) -> None:
    graph, changing = _graph(module()), set()
    for each in OP_BY_OP:
        export_pass: ExportPass = each()
        needed, before = changes(export_pass, graph), _written(graph)
        # Each is for what those before it have left.
        graph = export_pass(graph).graph_module
        assert needed == (before != _written(graph)), each.__name__
        changing |= {each} if needed else set()
    assert bool(changing) == (module is not _Clean), "each module but the first has something for a pass"


@pytest.mark.parametrize("module", [_Clean, _Transposed, _Scaled, _Twice, _Counted, _Mixed, _Largest])
def test_in_place_is_what_a_trace_gives(module: type[torch.nn.Module]) -> None:
    """Ops, their arguments, values' shapes, types and strides, and constants."""
    traced, edited = _graph(module()), _graph(module())
    for each in (ScalarToTensorPass, OpReplacePass):
        traced = each()(traced).graph_module
        rewrite_in_place(each(), edited)
        edited.graph.lint()
        assert _written(edited) == _written(traced)
        assert _values(edited) == _values(traced)
        assert _constants(edited) == _constants(traced)


@pytest.mark.parametrize("module", [_Transposed, _Scaled, _Twice, _Mixed, _Largest])
def test_programs_are_the_same(module: type[torch.nn.Module]) -> None:
    def lowered() -> bytes:
        program = export(module(), (torch.ones(4, 4),))
        config = EdgeCompileConfig(_check_ir_validity=False, _skip_dim_order=True)
        data: bytes = to_edge_transform_and_lower(program, compile_config=config).to_executorch().buffer
        return data

    whole = lowered()
    with only_needed_passes():
        assert lowered() == whole
