from __future__ import annotations

import operator

import pytest
import torch
from torch.fx import Node

from prgec.errors import PassError
from prgec.passes.program import GraphProgram
from prgec.passes.quantize_embedding import QuantizeEmbedding
from prgec.passes.share_prefix import CUT_META, SharePrefix
from tests.passes.builder import GraphBuilder, row_inputs
from tests.passes.golden import expect, run_pass, transcript
from tests.passes.parity import assert_parity

aten = torch.ops.aten
PASS = SharePrefix(q=2)


def example(*, dynamic: bool = True) -> GraphProgram:
    """Eight rows are 2 queries, 2 signs, 2 examples; a frozen layer comes before the site."""
    b = GraphBuilder(num_rows=8, dynamic=dynamic)
    return trained(b, frozen_block(b, b.hidden()))


def frozen_block(b: GraphBuilder, hidden: Node) -> Node:
    """A linear layer with a residual connection."""
    return b.call(aten.add.Tensor, hidden, b.call(aten.linear.default, hidden, b.weight("layers.0.weight", 4, 4)))


def trained(b: GraphBuilder, hidden: Node) -> GraphProgram:
    """A site with a residual connection; B is not zero, so that the branch counts."""
    program = b.done(b.call(aten.add.Tensor, hidden, b.injected_site(hidden, "layers.1", rank=2, out=4)))
    program.module.get_buffer("layers.1.lora_B").copy_(torch.arange(8.0).reshape(2, 4))
    return program


def parity(program: GraphProgram, each: SharePrefix) -> None:
    """Parity where the pass promises it: on rows that repeat B examples for every query and sign."""
    copies = 2 * each.q

    def repeated(program: GraphProgram, *, seed: int, seq_len: int) -> tuple[torch.Tensor, ...]:
        inputs = row_inputs(program, seed=seed, seq_len=seq_len)
        return tuple(rows[: len(rows) // copies].repeat(copies, 1) for rows in inputs)

    assert_parity(program, each, inputs_of=repeated)


def test_hit() -> None:
    expect(
        transcript(example(), PASS),
        """\
graph(tokens: i64[8, T], label_pos: i64[8, 2], targets: i64[8, 2]):
  %0: f32[8, T, 4] = aten.embedding(@embed.weight, tokens)
  %1: f32[8, T, 4] = aten.linear(%0, @layers.0.weight)
  %2: f32[8, T, 4] = aten.add(%0, %1)
  %3: f32[8, T, 2] = aten.linear(%2, @layers.1.lora_A)
  %4: f32[8, T, 4] = aten.matmul(%3, @layers.1.lora_B)
  %5: f32[8, T, 4] = aten.add(%2, %4)
  return %5
--- share-prefix: 1 hits
graph(tokens: i64[8, T], label_pos: i64[8, 2], targets: i64[8, 2]):
  %0: i64[2, T] = aten.slice(tokens, 0, 0, 2)
  %1: f32[2, T, 4] = aten.embedding(@embed.weight, %0)
  %2: f32[2, T, 4] = aten.linear(%1, @layers.0.weight)
  %3: f32[2, T, 4] = aten.add(%1, %2)
  %4: f32[1, 2, T, 4] = aten.view(%3, [1, 2, -1, 4])
  %5: f32[4, 2, T, 4] = aten.add(%4, @folded.c0)
  %6: f32[8, T, 4] = aten.view(%5, [8, -1, 4])
  %7: f32[8, T, 2] = aten.linear(%6, @layers.1.lora_A)
  %8: f32[8, T, 4] = aten.matmul(%7, @layers.1.lora_B)
  %9: f32[8, T, 4] = aten.add(%6, %8)
  return %9
""",
    )


def test_hit_fixed_t_with_tables_and_heads() -> None:
    """A table that is repeated for every row, and views that name the number of rows, are cut to B rows too."""
    b = GraphBuilder(num_rows=8, seq_len=4)
    table = b.call(aten.expand.default, b.weight("positions", 1, 4, 4), [8, -1, -1])
    hidden = frozen_block(b, b.call(aten.add.Tensor, b.hidden(), table))
    heads = b.call(aten.view.default, hidden, [8, 4, 2, 2])
    joined = b.call(aten.reshape.default, b.call(aten.neg.default, heads), [8, 4, 4])
    expect(
        transcript(trained(b, joined), PASS),
        """\
graph(tokens: i64[8, 4], label_pos: i64[8, 2], targets: i64[8, 2]):
  %0: f32[8, 4, 4] = aten.expand(@positions, [8, -1, -1])
  %1: f32[8, 4, 4] = aten.embedding(@embed.weight, tokens)
  %2: f32[8, 4, 4] = aten.add(%1, %0)
  %3: f32[8, 4, 4] = aten.linear(%2, @layers.0.weight)
  %4: f32[8, 4, 4] = aten.add(%2, %3)
  %5: f32[8, 4, 2, 2] = aten.view(%4, [8, 4, 2, 2])
  %6: f32[8, 4, 2, 2] = aten.neg(%5)
  %7: f32[8, 4, 4] = aten.reshape(%6, [8, 4, 4])
  %8: f32[8, 4, 2] = aten.linear(%7, @layers.1.lora_A)
  %9: f32[8, 4, 4] = aten.matmul(%8, @layers.1.lora_B)
  %10: f32[8, 4, 4] = aten.add(%7, %9)
  return %10
--- share-prefix: 1 hits
graph(tokens: i64[8, 4], label_pos: i64[8, 2], targets: i64[8, 2]):
  %0: i64[2, 4] = aten.slice(tokens, 0, 0, 2)
  %1: f32[2, 4, 4] = aten.embedding(@embed.weight, %0)
  %2: f32[2, 4, 4] = aten.expand(@positions, [2, -1, -1])
  %3: f32[2, 4, 4] = aten.add(%1, %2)
  %4: f32[2, 4, 4] = aten.linear(%3, @layers.0.weight)
  %5: f32[2, 4, 4] = aten.add(%3, %4)
  %6: f32[2, 4, 2, 2] = aten.view(%5, [2, 4, 2, 2])
  %7: f32[2, 4, 2, 2] = aten.neg(%6)
  %8: f32[2, 4, 4] = aten.reshape(%7, [2, 4, 4])
  %9: f32[1, 2, 4, 4] = aten.view(%8, [1, 2, -1, 4])
  %10: f32[4, 2, 4, 4] = aten.add(%9, @folded.c0)
  %11: f32[8, 4, 4] = aten.view(%10, [8, -1, 4])
  %12: f32[8, 4, 2] = aten.linear(%11, @layers.1.lora_A)
  %13: f32[8, 4, 4] = aten.matmul(%12, @layers.1.lora_B)
  %14: f32[8, 4, 4] = aten.add(%11, %13)
  return %14
""",
    )


def test_miss_nothing_before_the_site() -> None:
    b = GraphBuilder(num_rows=8)
    expect(
        transcript(trained(b, b.call(aten.mul.Tensor, b.hidden(), 2.0)), PASS),
        """\
graph(tokens: i64[8, 8], label_pos: i64[8, 2], targets: i64[8, 2]):
  %0: f32[8, 8, 4] = aten.embedding(@embed.weight, tokens)
  %1: f32[8, 8, 4] = aten.mul(%0, 2.0)
  %2: f32[8, 8, 2] = aten.linear(%1, @layers.1.lora_A)
  %3: f32[8, 8, 4] = aten.matmul(%2, @layers.1.lora_B)
  %4: f32[8, 8, 4] = aten.add(%1, %3)
  return %4
--- share-prefix: 0 hits
refused prefix: no block comes before the first trained layer
(same)
""",
    )


def test_miss_two_values_cross() -> None:
    """Both blocks read the tokens themselves, so that no one value carries the rows."""
    b = GraphBuilder(num_rows=8)
    other = b.call(aten.embedding.default, b.weight("other", 16, 4), b.tokens)
    hidden = frozen_block(b, b.hidden())
    site = b.injected_site(hidden, "layers.1", rank=2, out=4)
    expect(
        transcript(b.done(b.call(aten.add.Tensor, other, site)), PASS),
        """\
graph(tokens: i64[8, 8], label_pos: i64[8, 2], targets: i64[8, 2]):
  %0: f32[8, 8, 4] = aten.embedding(@other, tokens)
  %1: f32[8, 8, 4] = aten.embedding(@embed.weight, tokens)
  %2: f32[8, 8, 4] = aten.linear(%1, @layers.0.weight)
  %3: f32[8, 8, 4] = aten.add(%1, %2)
  %4: f32[8, 8, 2] = aten.linear(%3, @layers.1.lora_A)
  %5: f32[8, 8, 4] = aten.matmul(%4, @layers.1.lora_B)
  %6: f32[8, 8, 4] = aten.add(%0, %5)
  return %6
--- share-prefix: 0 hits
refused prefix: no block comes before the first trained layer
(same)
""",
    )


def test_miss_rows_are_not_outermost() -> None:
    b = GraphBuilder(num_rows=8, seq_len=6)
    turned = b.call(aten.transpose.int, b.hidden(), 0, 1)
    back = b.call(aten.transpose.int, frozen_block(b, turned), 0, 1)
    expect(
        transcript(trained(b, back), PASS),
        """\
graph(tokens: i64[8, 6], label_pos: i64[8, 2], targets: i64[8, 2]):
  %0: f32[8, 6, 4] = aten.embedding(@embed.weight, tokens)
  %1: f32[6, 8, 4] = aten.transpose.int(%0, 0, 1)
  %2: f32[6, 8, 4] = aten.linear(%1, @layers.0.weight)
  %3: f32[6, 8, 4] = aten.add(%1, %2)
  %4: f32[8, 6, 4] = aten.transpose.int(%3, 0, 1)
  %5: f32[8, 6, 2] = aten.linear(%4, @layers.1.lora_A)
  %6: f32[8, 6, 4] = aten.matmul(%5, @layers.1.lora_B)
  %7: f32[8, 6, 4] = aten.add(%4, %6)
  return %7
--- share-prefix: 0 hits
refused prefix: no block comes before the first trained layer
(same)
""",
    )


def test_miss_once_it_is_shared() -> None:
    program = example()
    assert run_pass(program, PASS).changed
    again = run_pass(program, PASS)
    assert not again.changed
    assert [str(refusal) for refusal in again.refusals] == ["prefix: no block comes before the first trained layer"]


@pytest.mark.parametrize("q", [3, -1])
def test_failure_rows_do_not_divide(q: int) -> None:
    with pytest.raises(PassError) as error:
        SharePrefix(q=q)(example())
    assert str(error.value) == f"share-prefix: cannot run: 8 rows are not a multiple of 2q = {2 * q}"


def test_failure_a_constant_of_n_rows() -> None:
    """With B = 1 it would broadcast, and N rows would pass for one."""
    b = GraphBuilder(num_rows=8)
    hidden = frozen_block(b, b.call(aten.add.Tensor, b.hidden(), b.weight("noise", 8, 1, 4)))
    with pytest.raises(PassError) as error:
        SharePrefix(q=4)(trained(b, hidden))
    assert str(error.value) == (
        "share-prefix: %add_tensor_1 aten.add.Tensor keeps 8 rows; expected 1. "
        "Hint: leave out share-prefix, or compile with --prefix none"
    )


@pytest.mark.parametrize("q", [1, 2, 4])
@pytest.mark.parametrize("dynamic", [False, True])
def test_parity(q: int, dynamic: bool) -> None:
    parity(example(dynamic=dynamic), SharePrefix(q=q))


@pytest.mark.parametrize("dynamic", [False, True])
def test_parity_of_attention_with_masks_over_rows(dynamic: bool) -> None:
    b = GraphBuilder(num_rows=8, dynamic=dynamic)
    table = b.weight("mask", 9 if dynamic else 8, 9 if dynamic else 8)
    if dynamic:
        length = b.length()
        table = b.call(aten.slice.Tensor, b.call(aten.slice.Tensor, table, 0, 0, length), 1, 0, length)
    mask = b.call(
        aten.expand.default, b.call(aten.unsqueeze.default, b.call(aten.unsqueeze.default, table, 0), 0), [8, 1, -1, -1]
    )
    hidden = b.hidden()
    heads = b.call(aten.transpose.int, b.call(aten.view.default, hidden, [8, -1, 2, 2]), 1, 2)
    attended = b.call(aten.scaled_dot_product_attention.default, heads, heads, heads, mask)
    joined = b.call(aten.reshape.default, b.call(aten.transpose.int, attended, 1, 2), [8, -1, 4])
    parity(trained(b, frozen_block(b, b.call(aten.add.Tensor, hidden, joined))), PASS)


def test_parity_of_a_fused_layer() -> None:
    """A split has several results; the cut comes after the node that joins them."""
    b = GraphBuilder(num_rows=8, dynamic=True)
    fused = b.call(aten.linear.default, b.hidden(), b.weight("fused.weight", 8, 4))
    parts = b.call(aten.split.Tensor, fused, 4, -1)
    joined = b.call(aten.mul.Tensor, *(b.call(operator.getitem, parts, index) for index in range(2)))
    program = trained(b, frozen_block(b, joined))
    parity(program, PASS)
    (cut,) = [node for node in program.graph.nodes if node.meta.get(CUT_META)]
    assert "layers.0.weight" in str(cut.args[0].args[1].args[1].target)


def test_a_shared_embedding_can_be_quantised() -> None:
    program = example()
    run_pass(program, PASS)
    assert run_pass(program, QuantizeEmbedding(bits=8, group=4)).hits == 1


def test_parity_where_only_the_head_is_trained() -> None:
    """The cut stays before the label gather, whose index has N rows."""
    b = GraphBuilder(num_rows=8, dynamic=True)
    rows = b.call(aten.gather.default, frozen_block(b, b.hidden()), 1, b.label_index(4))
    program = b.done(b.injected_site(rows, "lm_head", rank=2, out=6))
    program.module.get_buffer("lm_head.lora_B").fill_(0.5)
    parity(program, PASS)
