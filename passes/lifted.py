"""An exported program whose graph is edited and never run as Python."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.exported_program import ModuleCallEntry
from torch.export.graph_signature import ExportGraphSignature, InputKind
from torch.fx import Graph, GraphModule, Node


def results_of(graph: Graph) -> tuple[Node, ...]:
    """Results of a graph, in order."""
    (results,) = graph.output_node().args
    assert isinstance(results, tuple | list)
    return tuple(each for each in results if isinstance(each, Node))


class EditedModule(GraphModule):
    """A graph module that generates no code: its graph is read and changed, and code would take a second each time."""

    def recompile(self) -> Any:
        """Leave the code as it is."""
        return None


class Signature(ExportGraphSignature):
    """A signature that looks names up in tables, made again when its inputs are replaced.

    Serialisers ask it about every argument of every node, and `torch.export`'s makes each answer of all inputs anew.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        """Forget the tables when the inputs are replaced."""
        if name == "input_specs":
            for table in ("inputs_to_parameters", "inputs_to_buffers", "inputs_to_lifted_tensor_constants"):
                self.__dict__.pop(table, None)
        super().__setattr__(name, value)

    @cached_property
    def inputs_to_parameters(self) -> dict[str, str]:
        """Name of a parameter by its input."""
        return self._of(InputKind.PARAMETER)

    @cached_property
    def inputs_to_buffers(self) -> dict[str, str]:
        """Name of a buffer by its input."""
        return self._of(InputKind.BUFFER)

    @cached_property
    def inputs_to_lifted_tensor_constants(self) -> dict[str, str]:
        """Name of a constant by its input."""
        return self._of(InputKind.CONSTANT_TENSOR)

    @property
    def non_persistent_buffers(self) -> frozenset[str]:
        """None: lifted buffers are all in the state."""
        return frozenset()

    def _of(self, kind: InputKind) -> dict[str, str]:
        return {spec.arg.name: str(spec.target) for spec in self.input_specs if spec.kind == kind}


class LiftedProgram(ExportedProgram):
    """An exported program with an `EditedModule`; `validate` checks it when somebody asks.

    Args:
        graph: Graph, which belongs to the program from now on.
        signature: Its inputs and outputs.
        tensors: Values of parameters and buffers, by name.
        range_constraints: Range of each symbolic size.
        module_call_graph: How the program is called.
        verifier: Checks its dialect.
    """

    def __init__(
        self,
        graph: Graph,
        signature: Signature,
        tensors: dict[str, torch.Tensor],
        range_constraints: dict[Any, Any],
        module_call_graph: list[ModuleCallEntry],
        verifier: type[Any],
    ) -> None:
        # The constructor above compiles and checks a graph, several times for each that is made of another.
        self._graph_module = EditedModule({}, graph)
        self._graph_signature = signature
        self._state_dict = tensors
        self._range_constraints = range_constraints
        self._module_call_graph = module_call_graph
        self._example_inputs = None
        self._constants = {}
        self._verifiers = [verifier]
        self._guards_code = []
