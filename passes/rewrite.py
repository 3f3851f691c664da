"""The only place where graph nodes are created or rewired.

Every node made here carries `meta["val"]` (shape and dtype, symbolic T included), the source line of the node
it stands for, and the name of the rule that made it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import Argument, map_arg

from prgec.errors import InternalError
from prgec.passes.fake_values import value_of
from prgec.passes.lazy_module import LazyModule
from prgec.passes.program import GraphProgram, is_mutation

RULE_META = "prgec_rule"
# Not `nn_module_stack`: ExecuTorch takes whatever carries a Linear's for a part of that Linear, a LoRA branch included.
_INHERITED_META = ("stack_trace",)
# Python's operators trace to spellings that ExecuTorch has no kernels for.
_SPELLINGS = {
    torch.ops.aten.__rshift__.Scalar: torch.ops.aten.bitwise_right_shift.Tensor_Scalar,
    torch.ops.aten.__lshift__.Scalar: torch.ops.aten.bitwise_left_shift.Tensor_Scalar,
}


class Rewriter:
    """Creates, replaces and erases nodes of one program on behalf of one rule.

    Args:
        program: Graph to edit in place.
        rule: Name of the pass, kept on every node it makes.
    """

    def __init__(self, program: GraphProgram, rule: str) -> None:
        self.program = program
        self.rule = rule
        self._anchor: Node | None = None

    @contextmanager
    def before(self, node: Node) -> Iterator[Rewriter]:
        """Insert new nodes before `node`, inheriting its source line."""
        outer, self._anchor = self._anchor, node
        try:
            with self.program.graph.inserting_before(node):
                yield self
        finally:
            self._anchor = outer

    def call(self, op: Callable[..., Any], *args: Any, **kwargs: Any) -> Node:
        """Add one op; its shape and dtype come from running it on the fake values of its arguments."""
        node = self.program.graph.call_function(op, args, kwargs)
        self._describe(node, self.program.fake_values.of_call(op, args, kwargs))
        return node

    def inline(self, function: Callable[..., torch.Tensor], *args: Node) -> Node:
        """Add the ATen ops that `function` runs on tensors like `args`; it may read nothing but its arguments."""
        with self.program.fake_mode, torch.no_grad():
            traced = make_fx(function)(*self.program.fake_values.apart(map(value_of, args)))
        copies: dict[Node, Any] = {}
        values = iter(args)
        for node in traced.graph.nodes:
            if node.op == "placeholder":
                copies[node] = next(values)
            elif node.op == "call_function":
                mapped = [map_arg(each, copies.__getitem__) for each in (node.args, node.kwargs)]
                copies[node] = self.call(_SPELLINGS.get(node.target, node.target), *mapped[0], **mapped[1])
            elif node.op == "output":
                result: Node = copies[node.args[0]]
                return result
        raise InternalError("the traced function returns nothing")

    def constant(self, name: str, value: torch.Tensor) -> Node:
        """Add a read-only tensor under the fully qualified `name`.

        Raises:
            InternalError: If the name stands for another value already, which somebody may read.
        """
        if _has_attribute(self.program.module, name) and not self._holds(name, value):
            raise InternalError(f"{self.rule} stores a second tensor as {name}")
        return self._tensor(name, value)

    def state(self, name: str, value: torch.Tensor) -> Node:
        """Add a mutable buffer under the fully qualified `name`; it is part of the program's state."""
        return self._tensor(name, value)

    def folded(self, value: torch.Tensor) -> Node:
        """Add a read-only tensor under a fresh name of the form `folded.c<n>`."""
        index = self.program.num_folded
        while _has_attribute(self.program.module, f"folded.c{index}"):
            index += 1
        self.program.num_folded = index + 1
        return self._tensor(f"folded.c{index}", value)

    def read(self, name: str) -> Node:
        """Read an attribute that exists already."""
        node = self.program.graph.get_attr(name)
        value = self.program.attribute(node)
        self._describe(node, self.program.fake_values.of_tensor(value))
        return node

    def overwrite(self, name: str, value: torch.Tensor) -> None:
        """Give a read-only tensor another value; every node that reads it sees the new one."""
        owner_name, _, leaf = name.rpartition(".")
        owner = _submodule(self.program.module, owner_name)
        delattr(owner, leaf)
        owner.register_buffer(leaf, value)
        for node in self._reads_of(name):
            self._describe(node, self.program.fake_values.of_tensor(value))

    def release(self, name: str) -> None:
        """Free a tensor as soon as nobody reads it: the end of a pass is late for one copy of all weights."""
        reads = self._reads_of(name)
        if any(node.users for node in reads):
            return
        for node in reads:
            self.program.graph.erase_node(node)
        owner_name, _, leaf = name.rpartition(".")
        delattr(_submodule(self.program.module, owner_name), leaf)

    def input(self, name: str, value: torch.Tensor) -> Node:
        """Append an input called `name` that looks like `value`."""
        last = self.program.placeholders()[-1]
        with self.program.graph.inserting_after(last):
            node = self.program.graph.placeholder(name)
        node.meta["val"] = self.program.fake_values.of_tensor(value)
        node.meta[RULE_META] = self.rule
        return node

    def input_like(self, name: str, node: Node) -> Node:
        """Append an input called `name` with the shape (T included) and dtype of `node`."""
        last = self.program.placeholders()[-1]
        with self.program.graph.inserting_after(last):
            entry = self.program.graph.placeholder(name)
        self._describe(entry, node.meta["val"].new_empty(node.meta["val"].shape))
        return entry

    def feed(self, node: Node, old: Node, new: Node) -> None:
        """Let `node` read `new` where it reads `old`; `refresh` it once all of its inputs are right."""
        node.replace_input_with(old, new)

    def take_over(self, entry: Node, node: Node) -> None:
        """Leave `node` to the caller: the input `entry` gets its shape and dtype, and takes its place."""
        entry.meta["val"] = node.meta["val"]
        self.replace(node, entry)

    def return_values(self, values: Sequence[Argument]) -> None:
        """Let the graph return `values`."""
        self.program.graph.output_node().args = (tuple(values),)

    def set_arg(self, node: Node, index: int, value: Argument) -> None:
        """Change one argument in place and recompute the node's value."""
        node.update_arg(index, value)
        self.refresh(node)

    def refresh(self, node: Node) -> None:
        """Recompute the value of a node whose arguments changed."""
        if callable(node.target):
            node.meta["val"] = self.program.fake_values.of_call(node.target, node.args, node.kwargs)

    def refresh_all(self) -> None:
        """Recompute the value of every call, in order; brings strides up to date after a chain of rewrites."""
        for node in self.program.graph.nodes:
            if node.op == "call_function":
                self.refresh(node)

    def replace(self, old: Node, new: Node) -> None:
        """Send every user of `old` to `new`, then erase `old`."""
        old.replace_all_uses_with(new)
        self.program.graph.erase_node(old)

    def redirect(self, old: Node, new: Node) -> None:
        """Send every user of `old` but `new` itself to `new`."""
        old.replace_all_uses_with(new, delete_user_cb=lambda user: user is not new)

    def redirect_all_but(self, old: Node, new: Node, kept: Node) -> None:
        """Send every user of `old` but `kept` to `new`."""
        old.replace_all_uses_with(new, delete_user_cb=lambda user: user is not kept)

    def erase(self, node: Node) -> None:
        """Remove a node nobody uses."""
        self.program.graph.erase_node(node)

    def move_before(self, node: Node, anchor: Node) -> None:
        """Move `node` directly before `anchor`."""
        anchor.prepend(node)

    def _tensor(self, name: str, value: torch.Tensor) -> Node:
        owner_name, _, leaf = name.rpartition(".")
        owner = _submodule(self.program.module, owner_name)
        owner.register_buffer(leaf, value)
        return self.read(name)

    def _reads_of(self, name: str) -> list[Node]:
        """The nodes that read an attribute, in no order: sorting all reads of a graph takes longer than looking."""
        reads: list[Node] = self.program.graph.find_nodes(op="get_attr", sort=False)
        return [node for node in reads if node.target == name]

    def _holds(self, name: str, value: torch.Tensor) -> bool:
        held = operator.attrgetter(name)(self.program.module)
        return held.dtype == value.dtype and torch.equal(held, value)

    def _describe(self, node: Node, value: Any) -> None:
        node.meta["val"] = value
        node.meta[RULE_META] = self.rule
        if self._anchor is not None:
            for key in _INHERITED_META:
                if key in self._anchor.meta:
                    node.meta[key] = self._anchor.meta[key]


def copy_returning(program: GraphProgram, values: Sequence[Node]) -> GraphProgram:
    """Return a copy of a graph that returns `values` of it; the tensors are shared."""
    graph = Graph()
    copies: dict[Node, Node] = {}
    graph.graph_copy(program.graph, copies)
    graph.output(tuple(copies[value] for value in values))
    return GraphProgram(LazyModule(program.module, graph), program.fake_values)


def erase_dead(program: GraphProgram, *, updates_too: bool = False) -> int:
    """Erase calls whose results nobody reads; return how many there were.

    Args:
        program: Graph to edit in place.
        updates_too: Whether calls that change state go as well.
    """
    count = 0
    for node in reversed(list(program.graph.nodes)):
        if node.op == "call_function" and not node.users and (updates_too or not is_mutation(node)):
            program.graph.erase_node(node)
            count += 1
    return count


def _has_attribute(module: torch.nn.Module, name: str) -> bool:
    owner_name, _, leaf = name.rpartition(".")
    owner: Any = module
    for part in filter(None, owner_name.split(".")):
        owner = owner._modules.get(part)
        if owner is None:
            return False
    return leaf in owner._buffers or leaf in owner._parameters


def _submodule(root: torch.nn.Module, name: str) -> torch.nn.Module:
    owner = root
    for part in filter(None, name.split(".")):
        if part not in owner._modules:
            owner.add_module(part, torch.nn.Module())
        child = owner._modules[part]
        if child is None:
            raise InternalError(f"module path {name} is not a module")
        owner = child
    return owner
