"""Small graphs with a loss and trained layers, as `differentiate` finds them, and what it appends."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.fx import Node

from prgec.core.contract.names import IGNORE_TARGET, STATE_SUFFIX
from prgec.passes.branch_to_bmm import BranchToBmm
from prgec.passes.differentiate import Differentiate
from prgec.passes.printer import print_program
from prgec.passes.program import GraphProgram
from prgec.passes.rotate_half_to_linear import rotation
from tests.passes.builder import GraphBuilder, row_inputs
from tests.passes.golden import run_pass

aten = torch.ops.aten
WIDTH, VOCAB, RANK = 4, 5, 2


def one_layer() -> GraphProgram:
    """One trained layer, its label positions, a head, and the loss."""
    b = GraphBuilder(num_rows=2, dynamic=True)
    return done(b, layer(b, b.hidden(), "layers.0.proj"))


def two_blocks(trained: Sequence[int] = (0, 1)) -> GraphProgram:
    """A stream that two blocks write to, with the trained ones among them."""
    b = GraphBuilder(num_rows=2, dynamic=True)
    stream = b.hidden()
    for block in range(2):
        written = layer(b, stream, f"layers.{block}.o_proj", is_trained=block in trained)
        stream = b.call(aten.add.Tensor, stream, written)
    return done(b, stream)


def attention(num_blocks: int, *, has_stream: bool = False) -> GraphProgram:
    """Attention of a trained layer's queries over frozen keys with an activation after it, so many times.

    With a stream, each block adds what it makes to it.
    """
    b = GraphBuilder(num_rows=2, dynamic=True)
    hidden = b.hidden()
    for block in range(num_blocks):
        k = b.hidden()
        scores = b.call(aten.bmm.default, layer(b, hidden, f"layers.{block}.proj"), b.call(aten.transpose.int, k, 1, 2))
        mixed = b.call(aten.bmm.default, b.call(aten.softmax.int, scores, -1), k)
        written = b.call(aten.silu.default, mixed)
        hidden = b.call(aten.add.Tensor, hidden, written) if has_stream else written
    return done(b, hidden)


def normed_writes(num_blocks: int) -> GraphProgram:
    """A stream whose writes end in what derivatives read, as norms after layers do: all sums follow from the first."""
    b = GraphBuilder(num_rows=2, dynamic=True)
    stream = b.hidden()
    for block in range(num_blocks):
        made = layer(b, b.call(aten.silu.default, stream), f"layers.{block}.o_proj")
        stream = b.call(aten.add.Tensor, stream, b.call(aten.silu.default, made))
    return done(b, stream)


def gated(*, is_other_bent: bool = False) -> GraphProgram:
    """Two layers of the same rows, one of them bent nearly as GELU's approximation is, times the other.

    Args:
        is_other_bent: Whether the other one goes through an activation, too.
    """
    b = GraphBuilder(num_rows=2, dynamic=True)
    x = b.hidden()
    gate = layer(b, x, "layers.0.gate_proj")
    bent = b.call(aten.add.Tensor, b.call(aten.tanh.default, b.call(aten.mul.Tensor, gate, gate)), 1.0)
    activation = b.call(aten.mul.Tensor, b.call(aten.mul.Tensor, gate, 0.5), bent)
    other = layer(b, x, "layers.0.up_proj")
    return done(b, b.call(aten.mul.Tensor, activation, b.call(aten.silu.default, other) if is_other_bent else other))


def turned_heads() -> GraphProgram:
    """Scores of rows among themselves, of a trained layer after values that a derivative reads and RoPE's halves."""
    b = GraphBuilder(num_rows=2, dynamic=True)
    normed = b.call(aten.silu.default, layer(b, b.hidden(), "layers.0.proj"))
    halves = b.call(aten.linear.default, normed, b.tensor("halves", rotation(WIDTH)))
    turned = b.call(aten.add.Tensor, normed, halves)
    scores = b.call(aten.bmm.default, turned, b.call(aten.transpose.int, turned, 1, 2))
    return done(b, b.call(aten.bmm.default, b.call(aten.softmax.int, scores, -1), turned))


def layer(b: GraphBuilder, x: Node, name: str, *, out: int = WIDTH, is_trained: bool = True) -> Node:
    """A frozen layer, with its branch where it is trained."""
    weight = torch.randn(out, WIDTH, generator=torch.Generator().manual_seed(len(name)))
    # Small, so that no softmax is all but certain.
    frozen = b.call(aten.linear.default, x, b.tensor(f"{name}.weight", 0.3 * weight))
    if not is_trained:
        return frozen
    return b.call(aten.add.Tensor, frozen, b.injected_site(x, name, rank=RANK, out=out))


def done(b: GraphBuilder, hidden: Node, *, head_is_trained: bool = False) -> GraphProgram:
    """Add label positions, head and loss; bring branches into the form the pass reads, and give every B values."""
    table = b.call(aten.slice.Tensor, b.tensor("positions", torch.arange(8)), 0, 0, b.length())
    chosen = b.call(aten.eq.Tensor, b.call(aten.unsqueeze.default, b.label_pos, -1), table)
    rows = b.call(aten.bmm.default, b.call(aten.to.dtype, chosen, torch.float32), hidden)
    logits = layer(b, rows, "lm_head", out=VOCAB, is_trained=head_is_trained)
    return finished(b.done(loss(b, logits)))


def loss(b: GraphBuilder, logits: Node) -> Node:
    """Mean negative log-likelihood by row, spelled as the tracer spells it."""
    log_probs = b.call(aten.log_softmax.int, logits, -1)
    counts = b.call(aten.ne.Scalar, b.targets, IGNORE_TARGET)
    safe = b.call(aten.where.ScalarOther, counts, b.targets, 0)
    picked = b.call(aten.gather.default, log_probs, 2, b.call(aten.unsqueeze.default, safe, -1))
    nll = b.call(aten.where.ScalarOther, counts, b.call(aten.squeeze.dim, picked, -1), 0.0)
    num_counted = b.call(aten.clamp.default, b.call(aten.sum.dim_IntList, counts, [1]), 1)
    return b.call(aten.div.Tensor, b.call(aten.neg.default, b.call(aten.sum.dim_IntList, nll, [1])), num_counted)


def finished(program: GraphProgram) -> GraphProgram:
    """The result of branch-to-bmm on a graph, with values in every B."""
    run_pass(program, BranchToBmm())
    for name, buffer in program.module.named_buffers():
        if name.endswith(STATE_SUFFIX):
            buffer.copy_(torch.linspace(-0.3, 0.3, buffer.numel()).reshape(buffer.shape))
    return program


def appended(program: GraphProgram, each: Differentiate) -> str:
    """The lines a pass appends to a graph, whose own lines stay as they were."""
    before = print_program(program).splitlines()[:-1]
    run_pass(program, each)
    after = print_program(program).splitlines()
    assert after[: len(before)] == before
    return "".join(f"{line}\n" for line in after[len(before) :])


def rows(program: GraphProgram, length: int) -> tuple[Tensor, ...]:
    """Inputs of a call where the first row ignores one label, and the second both."""
    tokens, label_pos, targets = row_inputs(program, seed=length, seq_len=length)
    targets[0, 1] = targets[1, 0] = targets[1, 1] = IGNORE_TARGET
    return tokens, label_pos, targets
