"""The residual stream in the shapes of blocks that models have."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.fx import Node

from prgec.passes.branch_to_bmm import BranchToBmm
from prgec.passes.residual import as_write, nearest_linears, nearest_states, residual_writes
from prgec.passes.shapes import shape_of
from prgec.passes.sites import site_of
from prgec.passes.weights import layer_name
from tests.passes.builder import GraphBuilder
from tests.passes.golden import run_pass

aten = torch.ops.aten
WIDTH = 4


class Blocks(GraphBuilder):
    """Builds blocks of layers on a stream; `sums` are the stream's own, first one first."""

    def __init__(self) -> None:
        super().__init__(dynamic=True)
        self.sums: list[Node] = []

    def layer(self, x: Node, name: str) -> Node:
        """A frozen layer with its branch."""
        frozen = self.call(aten.linear.default, x, self.weight(f"{name}.weight", WIDTH, WIDTH))
        return self.call(aten.add.Tensor, frozen, self.injected_site(x, name, rank=2, out=WIDTH))

    def norm(self, x: Node, name: str) -> Node:
        """RMSNorm, as legality passes leave it."""
        ones = self.tensor(f"{name}.ones", torch.full((1, WIDTH), 1 / WIDTH))
        square = self.call(aten.linear.default, self.call(aten.mul.Tensor, x, x), ones)
        scale = self.call(aten.rsqrt.default, self.call(aten.add.Tensor, square, 1e-6))
        return self.call(aten.mul.Tensor, self.call(aten.mul.Tensor, x, scale), self.weight(f"{name}.weight", WIDTH))

    def attention(self, x: Node, name: str) -> Node:
        q, k, v = (self.layer(x, f"{name}.{part}_proj") for part in "qkv")
        scores = self.call(aten.bmm.default, q, self.call(aten.transpose.int, k, 1, 2))
        context = self.call(aten.bmm.default, self.call(aten.softmax.int, scores, -1), v)
        return self.layer(context, f"{name}.o_proj")

    def mlp(self, x: Node, name: str) -> Node:
        gate, up = (self.layer(x, f"{name}.{part}_proj") for part in ("gate", "up"))
        product = self.call(aten.mul.Tensor, self.call(aten.silu.default, gate), up)
        return self.layer(product, f"{name}.down_proj")

    def sum(self, first: Node, second: Node) -> Node:
        self.sums.append(self.call(aten.add.Tensor, first, second))
        return self.sums[-1]


def llama(b: Blocks, stream: Node, name: str) -> Node:
    """Attention and MLP in turn, norms first."""
    stream = b.sum(stream, b.attention(b.norm(stream, f"{name}.norm1"), f"{name}.attn"))
    return b.sum(stream, b.mlp(b.norm(stream, f"{name}.norm2"), f"{name}.mlp"))


def gpt_neox(b: Blocks, stream: Node, name: str) -> Node:
    """Attention and MLP at once; the stream is the last operand."""
    mlp = b.mlp(b.norm(stream, f"{name}.norm2"), f"{name}.mlp")
    both = b.call(aten.add.Tensor, mlp, b.attention(b.norm(stream, f"{name}.norm1"), f"{name}.attn"))
    return b.sum(both, stream)


def gemma(b: Blocks, stream: Node, name: str) -> Node:
    """Norms after each half as well."""
    attention = b.attention(b.norm(stream, f"{name}.norm1"), f"{name}.attn")
    stream = b.sum(stream, b.norm(attention, f"{name}.norm2"))
    mlp = b.mlp(b.norm(stream, f"{name}.norm3"), f"{name}.mlp")
    return b.sum(stream, b.norm(mlp, f"{name}.norm4"))


def granite(b: Blocks, stream: Node, name: str) -> Node:
    """Writes are scaled by a number."""
    attention = b.attention(b.norm(stream, f"{name}.norm1"), f"{name}.attn")
    stream = b.sum(stream, b.call(aten.mul.Tensor, attention, 0.5))
    mlp = b.mlp(b.norm(stream, f"{name}.norm2"), f"{name}.mlp")
    return b.sum(stream, b.call(aten.mul.Tensor, mlp, 0.5))


def opt(b: Blocks, stream: Node, name: str) -> Node:
    """The MLP takes rows and tokens as one dimension."""
    stream = b.sum(stream, b.attention(b.norm(stream, f"{name}.norm1"), f"{name}.attn"))
    flat = b.call(aten.reshape.default, stream, [-1, WIDTH])
    total = b.sum(flat, b.mlp(b.norm(flat, f"{name}.norm2"), f"{name}.mlp"))
    return b.call(aten.view.default, total, [shape_of(stream)[0], -1, WIDTH])


# The writes of a block in turn: the layers that make up each.
BLOCKS = {
    llama: [["attn.o_proj"], ["mlp.down_proj"]],
    gpt_neox: [["attn.o_proj", "mlp.down_proj"]],
    gemma: [["attn.o_proj"], ["mlp.down_proj"]],
    granite: [["attn.o_proj"], ["mlp.down_proj"]],
    opt: [["attn.o_proj"], ["mlp.down_proj"]],
}


def model(block: Callable[[Blocks, Node, str], Node]) -> tuple[Blocks, Node, Node]:
    """Two blocks after an embedding, a norm and a head; the builder, the embedding and the logits."""
    b = Blocks()
    embedding = stream = b.hidden(WIDTH)
    for name in ("0", "1"):
        stream = block(b, stream, name)
    logits = b.call(aten.linear.default, b.norm(stream, "norm"), b.weight("lm_head.weight", 5, WIDTH))
    return b, embedding, logits


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.__name__)
def test_writes_of_two_blocks(block: Callable[[Blocks, Node, str], Node]) -> None:
    b, embedding, logits = model(block)
    found = residual_writes(logits)
    assert [write.total for write in found] == b.sums
    assert [_unviewed(write.stream) for write in found] == [embedding, *b.sums[:-1]]
    assert all({write.stream, write.written} == set(write.total.all_input_nodes) for write in found)


def _unviewed(node: Node) -> Node:
    is_view = node.target in (aten.view.default, aten.reshape.default)
    return _unviewed(node.all_input_nodes[0]) if is_view else node


@pytest.mark.parametrize("is_bmm", [False, True], ids=["matmul", "bmm"])
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.__name__)
def test_layers_of_a_write(block: Callable[[Blocks, Node, str], Node], is_bmm: bool) -> None:
    """Those that write, met first on the way back; not what they read. Branches may have either form."""
    b, _, logits = model(block)
    expected = [[f"{name}.{leaf}" for leaf in leaves] for name in "01" for leaves in BLOCKS[block]]
    program = b.done(logits)
    if is_bmm:
        run_pass(program, BranchToBmm())
    (logits,) = program.graph.output_node().all_input_nodes
    written = [write.written for write in residual_writes(logits)]
    layers = [sorted(filter(None, map(layer_name, nearest_linears(each)))) for each in written]
    assert layers == expected
    assert [sorted(map(site_of, nearest_states(each))) for each in written] == expected


def test_the_stream_begins_after_the_sum_of_embeddings() -> None:
    """Tokens and positions depend on nothing of each other: neither is a stream that the other is written to."""
    b = Blocks()
    positions = b.call(aten.neg.default, b.hidden(WIDTH, name="positions.weight"))
    embedded = b.call(aten.add.Tensor, b.hidden(WIDTH), positions)
    total = llama(b, embedded, "0")
    assert [write.stream for write in residual_writes(total)] == [embedded, b.sums[0]]


def test_a_graph_without_a_stream() -> None:
    b = Blocks()
    assert residual_writes(b.mlp(b.layer(b.hidden(WIDTH), "proj"), "mlp")) == []


def test_the_nearest_sum_counts_and_not_those_inside_a_block() -> None:
    """A tanh GELU is x + c x^3 inside: a sum like that of a stream, but further away."""
    b = Blocks()
    stream = b.hidden(WIDTH)
    inner = b.layer(stream, "up")
    cubed = b.call(aten.mul.Tensor, b.call(aten.mul.Tensor, inner, inner), inner)
    activated = b.call(aten.tanh.default, b.call(aten.add.Tensor, inner, cubed))
    total = b.sum(stream, b.layer(activated, "down"))
    assert [write.total for write in residual_writes(b.norm(total, "norm"))] == [total]


def test_sums_that_write_to_no_stream() -> None:
    b = Blocks()
    hidden = b.hidden(WIDTH)
    negative = b.call(aten.neg.default, hidden)
    mean = b.call(aten.mean.dim, hidden, [-1], True)
    others = {
        "a number": b.call(aten.add.Tensor, hidden, 1.0),
        "a repeated vector": b.call(aten.add.Tensor, hidden, b.weight("bias", WIDTH)),
        "a repeated sum": b.call(aten.add.Tensor, hidden, mean),
        "itself": b.call(aten.add.Tensor, hidden, hidden),
        "scaled": b.call(aten.add.Tensor, hidden, negative, alpha=2),
        "a difference": b.call(aten.sub.Tensor, hidden, negative),
        "two writes": b.call(aten.add.Tensor, negative, b.call(aten.exp.default, hidden)),
    }
    assert {what: as_write(node) for what, node in others.items()} == dict.fromkeys(others)
    assert as_write(b.call(aten.add.Tensor, hidden, negative)) is not None
