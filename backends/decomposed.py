"""Graphs that are functional and decomposed before ExecuTorch asks for either.

`to_edge_transform_and_lower` makes every method functional and then decomposes it, and each of the two traces the whole
graph: a third of the time of lowering a Llama. One trace does both, and a graph that is done is given back as it is.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from executorch.exir.tracer import _default_decomposition_table
from torch._ops import OpOverload
from torch.export import ExportedProgram


class DecomposedProgram(ExportedProgram):
    """A functional graph, traced again only where a table decomposes one of its ops."""

    # Ops that a table has and a trace leaves all the same: it writes `sym_size.int` itself wherever a size varies.
    left: frozenset[Any] = frozenset()

    def run_decompositions(self, decomp_table: Any = None, *more: Any, **named: Any) -> ExportedProgram:
        """Return this program where the table has none of its ops; an empty table asks for a functional graph alone."""
        if decomp_table is not None and not (_targets(self) - self.left) & decomp_table.keys():
            return self
        decomposed: ExportedProgram = super().run_decompositions(decomp_table, *more, **named)
        return decomposed


def decompose(program: ExportedProgram, kept: Collection[OpOverload] = ()) -> DecomposedProgram:
    """Make a graph functional and take its ops apart as ExecuTorch does by default, in one trace.

    Args:
        program: A method.
        kept: Ops to leave whole.
    """
    table = {op: how for op, how in _default_decomposition_table().items() if op not in kept}
    done = program.run_decompositions(table)
    decomposed = DecomposedProgram(
        root=done.graph_module,
        graph=done.graph,
        graph_signature=done.graph_signature,
        state_dict=done.state_dict,
        range_constraints=done.range_constraints,
        module_call_graph=done.module_call_graph,
        example_inputs=done.example_inputs,
        constants=done.constants,
        verifiers=done.verifiers,
    )
    decomposed.left = _targets(decomposed) & table.keys()
    return decomposed


def _targets(program: ExportedProgram) -> frozenset[Any]:
    return frozenset(node.target for node in program.graph.nodes if node.op == "call_function")
