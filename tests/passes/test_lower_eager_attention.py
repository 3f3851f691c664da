from __future__ import annotations

import pytest
import torch
from torch.fx import Node

from prgec.passes.lower_eager_attention import LowerEagerAttention
from prgec.passes.program import GraphProgram
from tests.passes.builder import GraphBuilder
from tests.passes.golden import expect, run_pass, transcript
from tests.passes.parity import assert_parity

aten = torch.ops.aten
PASS = LowerEagerAttention()
WIDTH = 2


def example(*, dynamic: bool = True, heads: int = 4, kv_heads: int = 2, cap: bool = True) -> GraphProgram:
    """Gemma 2's attention: scaled, soft-capped, masked."""
    b = GraphBuilder(num_rows=2, dynamic=dynamic)
    return b.done(_attention(b, heads, kv_heads, cap, _mask(b)))


def _attention(b: GraphBuilder, heads: int, kv_heads: int, cap: bool, mask: Node | None, names: str = "qkv") -> Node:
    q, k, v = (b.heads(each, WIDTH, name) for each, name in zip((heads, kv_heads, kv_heads), names, strict=True))
    k, v = _repeated(b, k, heads // kv_heads), _repeated(b, v, heads // kv_heads)
    scores = b.call(aten.mul.Tensor, b.call(aten.matmul.default, q, b.call(aten.transpose.int, k, 2, 3)), 0.75)
    if cap:
        scores = b.call(aten.tanh.default, b.call(aten.div.Tensor, scores, 2.0))
        scores = b.call(aten.mul.Tensor, scores, 2.0)
    if mask is not None:
        scores = b.call(aten.add.Tensor, scores, mask)
    return b.call(aten.matmul.default, b.call(aten.softmax.int, scores, -1, torch.float32), v)


def _repeated(b: GraphBuilder, value: Node, group: int) -> Node:
    """The result of repeat_kv of transformers: one copy of every key head for each of its query heads."""
    if group == 1:
        return value
    num_rows, num_kv, _, width = value.meta["val"].shape
    wide = b.call(aten.expand.default, b.call(aten.unsqueeze.default, value, 2), [-1, -1, group, -1, -1])
    return b.call(aten.reshape.default, wide, [num_rows, num_kv * group, -1, width])


def _mask(b: GraphBuilder) -> Node:
    """The additive mask of transformers' own attention, folded, and cut to T where T varies."""
    dynamic = not isinstance(b.tokens.meta["val"].shape[1], int)
    size = 9 if dynamic else 8
    table = torch.full((size, size), torch.finfo(torch.float32).min).triu(1)
    node = b.tensor("mask.table", table[None, None])
    for dim in (2, 3) if dynamic else ():
        node = b.call(aten.slice.Tensor, node, dim, 0, b.length())
    return b.call(aten.expand.default, node, [2, -1, -1, -1])


def test_hit() -> None:
    expect(
        transcript(example(), PASS),
        """\
graph(tokens: i64[2, T], label_pos: i64[2, 2], targets: i64[2, 2]):
  %0: size = aten.sym_size.int(tokens, 1)
  %1: f32[1, 1, T, 9] = aten.slice(@mask.table, 2, 0, %0)
  %2: size = aten.sym_size.int(tokens, 1)
  %3: f32[1, 1, T, T] = aten.slice(%1, 3, 0, %2)
  %4: f32[2, 1, T, T] = aten.expand(%3, [2, -1, -1, -1])
  %5: f32[2, T, 8] = aten.embedding(@q, tokens)
  %6: f32[2, T, 4, 2] = aten.view(%5, [2, -1, 4, 2])
  %7: f32[2, 4, T, 2] = aten.transpose.int(%6, 1, 2)
  %8: f32[2, T, 4] = aten.embedding(@k, tokens)
  %9: f32[2, T, 2, 2] = aten.view(%8, [2, -1, 2, 2])
  %10: f32[2, 2, T, 2] = aten.transpose.int(%9, 1, 2)
  %11: f32[2, T, 4] = aten.embedding(@v, tokens)
  %12: f32[2, T, 2, 2] = aten.view(%11, [2, -1, 2, 2])
  %13: f32[2, 2, T, 2] = aten.transpose.int(%12, 1, 2)
  %14: f32[2, 2, 1, T, 2] = aten.unsqueeze(%10, 2)
  %15: f32[2, 2, 2, T, 2] = aten.expand(%14, [-1, -1, 2, -1, -1])
  %16: f32[2, 4, T, 2] = aten.reshape(%15, [2, 4, -1, 2])
  %17: f32[2, 2, 1, T, 2] = aten.unsqueeze(%13, 2)
  %18: f32[2, 2, 2, T, 2] = aten.expand(%17, [-1, -1, 2, -1, -1])
  %19: f32[2, 4, T, 2] = aten.reshape(%18, [2, 4, -1, 2])
  %20: f32[2, 4, 2, T] = aten.transpose.int(%16, 2, 3)
  %21: f32[2, 4, T, T] = aten.matmul(%7, %20)
  %22: f32[2, 4, T, T] = aten.mul(%21, 0.75)
  %23: f32[2, 4, T, T] = aten.div(%22, 2.0)
  %24: f32[2, 4, T, T] = aten.tanh(%23)
  %25: f32[2, 4, T, T] = aten.mul(%24, 2.0)
  %26: f32[2, 4, T, T] = aten.add(%25, %4)
  %27: f32[2, 4, T, T] = aten.softmax.int(%26, -1, f32)
  %28: f32[2, 4, T, 2] = aten.matmul(%27, %19)
  return %28
--- lower-eager-attention: 1 hits
graph(tokens: i64[2, T], label_pos: i64[2, 2], targets: i64[2, 2]):
  %0: size = aten.sym_size.int(tokens, 1)
  %1: f32[1, T, 9] = aten.slice(@folded.c0, 1, 0, %0)
  %2: f32[1, T, T] = aten.slice(%1, 2, 0, %0)
  %3: f32[1, 2*T, T] = aten.cat([%2, %2], 1)
  %4: f32[2, T, 8] = aten.embedding(@q, tokens)
  %5: f32[2, T, 4, 2] = aten.view(%4, [2, -1, 4, 2])
  %6: f32[2, 4, T, 2] = aten.transpose.int(%5, 1, 2)
  %7: f32[2, T, 4] = aten.embedding(@k, tokens)
  %8: f32[2, T, 2, 2] = aten.view(%7, [2, -1, 2, 2])
  %9: f32[2, 2, T, 2] = aten.transpose.int(%8, 1, 2)
  %10: f32[2, T, 4] = aten.embedding(@v, tokens)
  %11: f32[2, T, 2, 2] = aten.view(%10, [2, -1, 2, 2])
  %12: f32[2, 2, T, 2] = aten.transpose.int(%11, 1, 2)
  %13: f32[2, 2, T, 2] = aten.mul(%9, 0.375)
  %14: f32[4, T, 2] = aten.reshape(%13, [4, -1, 2])
  %15: f32[4, T, 2] = aten.reshape(%12, [4, -1, 2])
  %16: f32[4, 2*T, 2] = aten.reshape(%6, [4, -1, 2])
  %17: f32[4, 2, T] = aten.transpose.int(%14, 1, 2)
  %18: f32[4, 2*T, T] = aten.bmm(%16, %17)
  %19: f32[4, 2*T, T] = aten.tanh(%18)
  %20: f32[4, 2*T, T] = aten.mul(%19, 2.0)
  %21: f32[4, 2*T, T] = aten.add(%20, %3)
  %22: f32[4, 2*T, T] = aten.softmax.int(%21, -1)
  %23: f32[4, 2*T, 2] = aten.bmm(%22, %15)
  %24: f32[4, 2, T, 2] = aten.view(%23, [4, 2, -1, 2])
  %25: f32[2, 4, T, 2] = aten.view(%24, [2, 4, -1, 2])
  return %25
""",
    )


def test_hit_layers_share_their_mask() -> None:
    b = GraphBuilder(num_rows=2, dynamic=True)
    mask = _mask(b)
    program = b.done(_attention(b, 4, 2, True, mask), _attention(b, 4, 2, False, mask, names="rst"))
    assert run_pass(program, PASS).hits == 2
    assert len(list(program.calls(aten.cat.default))) == 1


@pytest.mark.parametrize("spoil", ["mask", "softmax", "readers", "keys", "scores", "rank"])
def test_miss(spoil: str) -> None:
    b = GraphBuilder(num_rows=2)
    q, k, v = (b.heads(2, WIDTH, name) for name in "qkv")
    is_turned = spoil != "keys"
    turned = b.call(aten.transpose.int, k, 2, 3) if is_turned else b.call(aten.reshape.default, k, [2, 2, WIDTH, 8])
    product = b.call(aten.matmul.default, q, turned)
    scores = b.call(aten.relu.default, product) if spoil == "scores" else b.call(aten.tanh.default, product)
    if spoil == "mask":
        scores = b.call(aten.add.Tensor, scores, product)
    if spoil == "rank":
        scores, v = (b.call(aten.reshape.default, each, [4, 8, -1]) for each in (scores, v))
    softmax = b.call(aten.softmax.int, scores, 2 if spoil == "softmax" else -1)
    out = b.call(aten.matmul.default, softmax, v)
    result = run_pass(b.done(out, *([scores] if spoil == "readers" else [])), PASS)
    assert not result.changed
    reasons = {
        "mask": "its mask is not a constant [T, T]",
        "softmax": "its softmax runs over dimension 2",
        "readers": "its scores have other readers",
        "keys": "its scores are not a product with transposed keys [N, H, T, d]",
        "scores": "its scores come from %relu_default aten.relu.default",
        "rank": "it is not shaped [N, H, T, d]",
    }
    assert [refusal.reason for refusal in result.refusals] == [reasons[spoil]]


@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("cap", [True, False])
def test_parity(dynamic: bool, kv_heads: int, cap: bool) -> None:
    assert_parity(example(dynamic=dynamic, kv_heads=kv_heads, cap=cap), PASS)


def test_parity_without_mask() -> None:
    b = GraphBuilder(num_rows=2, dynamic=True)
    assert_parity(b.done(_attention(b, 4, 2, True, None)), PASS)
