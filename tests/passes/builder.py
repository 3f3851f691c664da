"""Graphs for tests of passes, built node by node: no model, no export.

Letters: N rows, T tokens, K label positions, D width, r rank, O outputs, q queries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext, StrictMinMaxConstraint
from torch.utils._sympy.value_ranges import ValueRanges

from prgec.core.contract.names import FROZEN_SUFFIX, STATE_SUFFIX
from prgec.passes.lazy_module import LazyModule
from prgec.passes.program import GraphProgram, traced_seq_len
from prgec.passes.rewrite import Rewriter

aten = torch.ops.aten


class GraphBuilder:
    """Builds one `GraphProgram` with the row inputs tokens, label_pos and targets.

    Args:
        num_rows: N.
        seq_len: T, the maximum where `dynamic`.
        num_labels: K.
        dynamic: Whether T is symbolic, from 2 to `seq_len`.
    """

    def __init__(self, *, num_rows: int = 4, seq_len: int = 8, num_labels: int = 2, dynamic: bool = False) -> None:
        graph = Graph()
        mode = FakeTensorMode(shape_env=ShapeEnv())
        self.tokens = graph.placeholder("tokens")
        self.tokens.meta["val"] = _fake_tokens(mode, num_rows, seq_len, dynamic)
        self._end = graph.output(())
        self.program = GraphProgram(LazyModule(torch.nn.Module(), graph))
        self._rewriter = Rewriter(self.program, "test")
        labels = torch.zeros(num_rows, num_labels, dtype=torch.int64)
        self.label_pos = self.input("label_pos", labels)
        self.targets = self.input("targets", labels.clone())

    def input(self, name: str, value: Tensor) -> Node:
        """Add an input that looks like `value`."""
        return self._rewriter.input(name, value)

    def call(self, op: Callable[..., Any], *args: Any, **kwargs: Any) -> Node:
        """Add one op at the end."""
        with self._rewriter.before(self._end):
            return self._rewriter.call(op, *args, **kwargs)

    def tensor(self, name: str, value: Tensor) -> Node:
        """Add and read a tensor under the fully qualified `name`."""
        with self._rewriter.before(self._end):
            return self._rewriter.constant(name, value)

    def read(self, name: str) -> Node:
        """Read a tensor once more."""
        with self._rewriter.before(self._end):
            return self._rewriter.read(name)

    def weight(self, name: str, *shape: int) -> Node:
        """Add a tensor of normals that depend on its name only."""
        generator = torch.Generator().manual_seed(sum(name.encode()))
        return self.tensor(name, torch.randn(*shape, generator=generator))

    def length(self) -> Node:
        """Read T off the tokens; only where it is symbolic."""
        return self.call(aten.sym_size.int, self.tokens, 1)

    def hidden(self, width: int = 4, name: str = "embed.weight") -> Node:
        """Embed the tokens: f32[N, T, D], different in every row."""
        return self.call(aten.embedding.default, self.weight(name, 16, width), self.tokens)

    def heads(self, num_heads: int, width: int, name: str) -> Node:
        """Values laid out as attention heads, f32[N, H, T, d]: a transposed view, as models make them."""
        split = self.call(
            aten.view.default, self.hidden(num_heads * width, name), [self.num_rows, -1, num_heads, width]
        )
        return self.call(aten.transpose.int, split, 1, 2)

    def label_index(self, width: int) -> Node:
        """Index i64[N, K, width] of a gather over label positions."""
        unsqueezed = self.call(aten.unsqueeze.default, self.label_pos, -1)
        return self.call(aten.expand.default, unsqueezed, [-1, -1, width])

    def injected_site(self, source: Node, name: str, *, rank: int, out: int) -> Node:
        """Add a LoRA-FA branch in the form inject-lora-fa leaves."""
        low_rank = self.call(aten.linear.default, source, self._frozen(source, name, rank))
        return self.call(aten.matmul.default, low_rank, self.tensor(name + STATE_SUFFIX, torch.zeros(rank, out)))

    def dualized_site(self, source: Node, name: str, *, q: int, rank: int, out: int) -> Node:
        """Add a LoRA-FA branch in the form dualize leaves."""
        low_rank = self.call(aten.linear.default, source, self._frozen(source, name, rank))
        state = self.call(aten.unsqueeze.default, self.tensor(name + STATE_SUFFIX, torch.zeros(rank, out)), 0)
        copies = self.call(aten.expand.default, state, [2 * q, -1, -1])
        grouped = self.call(aten.reshape.default, low_rank, [2 * q, -1, rank])
        product = self.call(aten.bmm.default, grouped, copies)
        return self.call(aten.view.default, product, [self.num_rows, -1, out])

    def broken(self, source: Node) -> Node:
        """Add a node no valid graph may hold."""
        with self.program.graph.inserting_before(self._end):
            node = self.program.graph.call_method("relu", (source,))
        node.meta["val"] = source.meta["val"]
        return node

    def done(self, *outputs: Node) -> GraphProgram:
        """Return the graph that returns `outputs`."""
        self._end.args = (outputs,)
        self.program.finish()
        return self.program

    @property
    def num_rows(self) -> int:
        """N."""
        return int(self.tokens.meta["val"].shape[0])

    def _frozen(self, source: Node, name: str, rank: int) -> Node:
        return self.weight(name + FROZEN_SUFFIX, rank, int(source.meta["val"].shape[-1]))


def break_graph(program: GraphProgram) -> None:
    """Let a graph return what no valid graph may hold, in place of the last value it returned."""
    end = program.graph.output_node()
    *others, last = end.args[0]
    with program.graph.inserting_before(end):
        node = program.graph.call_method("relu", (last,))
    node.meta["val"] = last.meta["val"]
    end.args = ((*others, node),)


def row_inputs(program: GraphProgram, *, seed: int = 0, seq_len: int | None = None) -> tuple[Tensor, ...]:
    """Values for every input of a graph: random rows, and step inputs that train.

    Args:
        program: Graph to call.
        seed: Seed of the rows.
        seq_len: T of the call; the largest by default.
    """
    generator = torch.Generator().manual_seed(seed)
    length = seq_len or program.max_seq_len()
    return tuple(_value(str(node.target), node.meta["val"], length, generator) for node in program.placeholders())


def seq_lens(program: GraphProgram) -> Sequence[int]:
    """Lengths to run a graph at: one where T is fixed, else the shortest, one in between and the longest."""
    tokens = program.placeholders()[0].meta["val"]
    longest = program.max_seq_len()
    return (longest,) if isinstance(tokens.shape[1], int) else (2, longest // 2 + 1, longest)


def _fake_tokens(mode: FakeTensorMode, num_rows: int, seq_len: int, dynamic: bool) -> FakeTensor:
    if not dynamic:
        return mode.from_tensor(torch.zeros(num_rows, seq_len, dtype=torch.int64), static_shapes=True)
    bounds = StrictMinMaxConstraint(vr=ValueRanges(2, seq_len), warn_only=False)
    context = StatelessSymbolicContext(
        dynamic_sizes=[DimDynamic.STATIC, DimDynamic.DYNAMIC], constraint_sizes=[None, bounds]
    )
    traced = torch.zeros(num_rows, traced_seq_len(seq_len), dtype=torch.int64)
    return mode.from_tensor(traced, symbolic_context=context)


def _value(name: str, like: Tensor, length: int, generator: torch.Generator) -> Tensor:
    if name in {"tokens", "label_pos", "targets"}:
        limit = {"tokens": 16, "label_pos": length, "targets": 4}[name]
        return torch.randint(limit, (like.shape[0], length if name == "tokens" else like.shape[1]), generator=generator)
    scalars = {"lr": 0.1, "eps": 0.05, "seed": 7, "step": 3}
    if name in scalars:
        return torch.tensor(scalars[name])
    return torch.randn(tuple(like.shape), generator=generator)
