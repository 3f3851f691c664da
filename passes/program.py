"""The graph every pass works on: an unlifted `GraphModule` whose weights are attributes.

`torch.export` lifts parameters and state into the signature, which makes adding a weight a signature change.
A `GraphProgram` holds the unlifted form instead: parameters, constants and mutable state are `get_attr` nodes,
so a pass adds a weight by adding an attribute. One final `to_exported` restores signature, mutation and shapes.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim, ExportedProgram
from torch.fx import GraphModule, Node

from prgec.errors import InternalError
from prgec.passes.fake_values import FakeValues
from prgec.passes.lazy_module import LazyModule
from prgec.passes.shapes import largest

TOKENS = "tokens"
_VARYING = "size_"


class GraphProgram:
    """An unlifted graph with its attributes.

    Args:
        module: Graph whose nodes all carry `meta["val"]`.
        fake_values: Cache of fake values, shared with the graph that this one is a copy of, if any.

    Attributes:
        activations: Inputs of layers over a few rows, f32[n, D] by layer; empty without calibration.
        num_folded: Names of the form `folded.c<n>` that were given; a name is never given twice.
    """

    def __init__(self, module: GraphModule, fake_values: FakeValues | None = None) -> None:
        self.module = module
        self._fake_values = fake_values
        self.activations: dict[str, torch.Tensor] = {}
        self.num_folded = 0

    @classmethod
    def from_exported(cls, exported: ExportedProgram) -> GraphProgram:
        """Unlift an exported program.

        `ExportedProgram.module()` carries a pre-hook and a `_guards_fn` call that check the *old* inputs, and a
        code generator that repacks them; passes add inputs, so all three are dropped here.
        """
        source = exported.module()
        if not isinstance(source, GraphModule):
            raise InternalError(f"expected a GraphModule, got {type(source).__name__}")
        for node in source.graph.find_nodes(op="call_module"):
            source.graph.erase_node(node)
        if hasattr(source, "_guards_fn"):
            del source._guards_fn
        source.graph.set_codegen(torch.fx.graph.CodeGen())
        return cls(LazyModule(source, source.graph))

    @property
    def graph(self) -> torch.fx.Graph:
        """The graph itself."""
        return self.module.graph

    @property
    def fake_mode(self) -> FakeTensorMode:
        """Mode (and symbolic shapes) every `meta["val"]` belongs to."""
        for node in self.placeholders():
            val = node.meta["val"]
            if isinstance(val, torch.Tensor):
                mode: FakeTensorMode = val.fake_mode  # type: ignore[attr-defined]
                return mode
        raise InternalError("the graph has no tensor input")

    @property
    def fake_values(self) -> FakeValues:
        """Values of calls, shared with the copies of this graph."""
        if self._fake_values is None:
            self._fake_values = FakeValues(self.fake_mode)
        return self._fake_values

    def placeholders(self) -> list[Node]:
        """Inputs in call order."""
        inputs: list[Node] = self.graph.find_nodes(op="placeholder")
        return inputs

    def placeholder(self, name: str) -> Node | None:
        """The input called `name`, or None."""
        return next((node for node in self.placeholders() if node.target == name), None)

    def calls(self, *targets: Callable[..., Any]) -> Iterator[Node]:
        """Calls of any of `targets`, in graph order; safe against edits while iterating."""
        yield from [node for node in self.graph.nodes if node.op == "call_function" and node.target in targets]

    def attribute(self, node: Node) -> torch.Tensor:
        """The tensor a `get_attr` node reads."""
        value = operator.attrgetter(str(node.target))(self.module)
        if not isinstance(value, torch.Tensor):
            raise InternalError(f"attribute {node.target} is not a tensor")
        return value

    def state_names(self) -> list[str]:
        """Fully qualified names of the mutable state, in graph order of first use."""
        written = {str(each.target) for node in self.graph.nodes for each in written_by(node) if each.op == "get_attr"}
        reads = [str(node.target) for node in self.graph.nodes if node.op == "get_attr"]
        return [name for name in dict.fromkeys(reads) if name in written]

    def max_seq_len(self) -> int:
        """T of the graph; the upper bound where T is symbolic."""
        node = self.placeholder(TOKENS)
        if node is None:
            raise InternalError("the graph has no tokens input")
        return largest(node.meta["val"].shape[1])

    def finish(self) -> None:
        """Remove unused attributes, nodes and run-time checks; code that was generated before is out of date."""
        # This lints the graph first, and leaves it as sound as it was.
        self.graph.eliminate_dead_code(is_impure_node=is_impure)
        self.module.recompile()
        self.module.delete_all_unused_submodules()
        _delete_unused_tensors(self.module)

    def to_exported(self) -> ExportedProgram:
        """Export the rewritten graph: one re-trace restores signature, mutated buffers and sizes that vary."""
        example: list[torch.Tensor] = []
        shapes: dict[str, Any] = {}
        varying: dict[str, Any] = {}
        for node in self.placeholders():
            val = node.meta["val"]
            dynamic = {d: size for d, size in enumerate(val.shape) if not isinstance(size, int)}
            for size in dynamic.values():
                varying.setdefault(str(size), Dim(f"{_VARYING}{len(varying)}", min=2, max=largest(size)))
            sizes = [traced_seq_len(largest(size)) if d in dynamic else size for d, size in enumerate(val.shape)]
            example.append(torch.zeros(sizes, dtype=val.dtype))
            shapes[str(node.target)] = {d: varying[str(size)] for d, size in dynamic.items()} or None
        with torch.no_grad():
            exported = torch.export.export(self.module, tuple(example), dynamic_shapes=shapes, strict=False)
        return exported


def give_own_memory(programs: Iterable[GraphProgram]) -> None:
    """Copy every tensor that is a part of a larger one.

    ExecuTorch writes the memory that a contiguous tensor lies in from its beginning, whichever part the tensor is
    (`XNNPACK`'s `get_serialized_buffer_index`): the weights of the second of two experts became those of the first.
    """
    copies: dict[tuple[int, torch.Size, torch.dtype], torch.Tensor] = {}
    for program in programs:
        for module in program.module.modules():
            for name, tensor in [*module._parameters.items(), *module._buffers.items()]:
                if tensor is None or not tensor.is_contiguous() or tensor.nbytes == tensor.untyped_storage().nbytes():
                    continue
                key = (tensor.data_ptr(), tensor.shape, tensor.dtype)
                if key not in copies:
                    copies[key] = tensor.detach().clone()
                delattr(module, name)
                module.register_buffer(name, copies[key])


def traced_seq_len(max_seq_len: int) -> int:
    """A T to trace a dynamic graph with: not the maximum, where cutting a table to T would look like no cut at all."""
    return max(2, max_seq_len - 1)


def is_mutation(node: Node) -> bool:
    """Whether a node writes to one of its arguments."""
    return bool(written_by(node))


def written_by(node: Node) -> list[Node]:
    """Arguments that a call writes to."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return []
    args = node.args
    return [each for index in _written_by(node.target) if index < len(args) and isinstance(each := args[index], Node)]


@functools.cache
def _written_by(op: torch._ops.OpOverload) -> tuple[int, ...]:
    """Numbers of the arguments that an op writes to."""
    infos = enumerate(declared.alias_info for declared in op._schema.arguments)
    return tuple(index for index, info in infos if info is not None and info.is_write)


def is_impure(node: Node) -> bool:
    """Whether dead-code elimination must keep a node: inputs, the output, and whatever changes state."""
    return node.op in {"placeholder", "output"} or is_mutation(node)


def argument(node: Node, index: int, name: str, default: object = None) -> object:
    """An argument of a call, however it was passed."""
    return node.args[index] if len(node.args) > index else node.kwargs.get(name, default)


def _delete_unused_tensors(module: GraphModule) -> None:
    used = {str(node.target) for node in module.graph.nodes if node.op == "get_attr"}
    for owner_name, owner in list(module.named_modules()):
        prefix = f"{owner_name}." if owner_name else ""
        for table in (owner._parameters, owner._buffers):
            for name in [n for n in table if prefix + n not in used]:
                del table[name]
