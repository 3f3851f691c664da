from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.fx import Node

from prgec.passes.lower_sdpa import LowerSdpa
from prgec.passes.program import GraphProgram
from tests.passes.builder import GraphBuilder
from tests.passes.golden import expect, run_pass, transcript
from tests.passes.parity import assert_parity

aten = torch.ops.aten
PASS = LowerSdpa()
WIDTH = 2


def example(
    *, dynamic: bool = True, heads: int = 4, kv_heads: int = 2, mask: str = "bool", **kwargs: Any
) -> GraphProgram:
    b = GraphBuilder(num_rows=2, dynamic=dynamic)
    q = b.heads(heads, WIDTH, "q")
    k, v = (_repeated(b, b.heads(kv_heads, WIDTH, name), heads // kv_heads) for name in ("k", "v"))
    return b.done(b.call(aten.scaled_dot_product_attention.default, q, k, v, _mask(b, mask), **kwargs))


def _repeated(b: GraphBuilder, value: Node, group: int) -> Node:
    """The result of repeat_kv of transformers: one copy of every key head for each of its query heads."""
    if group == 1:
        return value
    num_rows, num_kv, _, width = value.meta["val"].shape
    wide = b.call(aten.expand.default, b.call(aten.unsqueeze.default, value, 2), [-1, -1, group, -1, -1])
    return b.call(aten.reshape.default, wide, [num_rows, num_kv * group, -1, width])


def _mask(b: GraphBuilder, kind: str, offset: int = 0) -> Node | None:
    """A mask as fold-constants leaves it: the table for every position (and a spare one where T varies), cut to T."""
    dynamic = not isinstance(b.tokens.meta["val"].shape[1], int)
    size = 9 if dynamic else 8
    lower = torch.ones(size, size, dtype=torch.bool).tril()
    tables = {
        "bool": lower,
        "f32": torch.zeros(size, size).masked_fill(~lower, float("-inf")),
        "window": lower & ~torch.ones(size, size, dtype=torch.bool).tril(-3),
    }
    if kind == "none":
        return None
    node = b.tensor("mask.table", tables[kind][None, None])
    for dim in (2, 3) if dynamic else ():
        node = b.call(aten.slice.Tensor, node, dim, offset, b.length() if not offset else 9223372036854775807)
    return b.call(aten.expand.default, node, [2, -1, -1, -1])


def test_hit() -> None:
    expect(
        transcript(example(), PASS),
        """\
graph(tokens: i64[2, T], label_pos: i64[2, 2], targets: i64[2, 2]):
  %0: f32[2, T, 8] = aten.embedding(@q, tokens)
  %1: f32[2, T, 4, 2] = aten.view(%0, [2, -1, 4, 2])
  %2: f32[2, 4, T, 2] = aten.transpose.int(%1, 1, 2)
  %3: f32[2, T, 4] = aten.embedding(@k, tokens)
  %4: f32[2, T, 2, 2] = aten.view(%3, [2, -1, 2, 2])
  %5: f32[2, 2, T, 2] = aten.transpose.int(%4, 1, 2)
  %6: f32[2, 2, 1, T, 2] = aten.unsqueeze(%5, 2)
  %7: f32[2, 2, 2, T, 2] = aten.expand(%6, [-1, -1, 2, -1, -1])
  %8: f32[2, 4, T, 2] = aten.reshape(%7, [2, 4, -1, 2])
  %9: f32[2, T, 4] = aten.embedding(@v, tokens)
  %10: f32[2, T, 2, 2] = aten.view(%9, [2, -1, 2, 2])
  %11: f32[2, 2, T, 2] = aten.transpose.int(%10, 1, 2)
  %12: f32[2, 2, 1, T, 2] = aten.unsqueeze(%11, 2)
  %13: f32[2, 2, 2, T, 2] = aten.expand(%12, [-1, -1, 2, -1, -1])
  %14: f32[2, 4, T, 2] = aten.reshape(%13, [2, 4, -1, 2])
  %15: size = aten.sym_size.int(tokens, 1)
  %16: bool[1, 1, T, 9] = aten.slice(@mask.table, 2, 0, %15)
  %17: size = aten.sym_size.int(tokens, 1)
  %18: bool[1, 1, T, T] = aten.slice(%16, 3, 0, %17)
  %19: bool[2, 1, T, T] = aten.expand(%18, [2, -1, -1, -1])
  %20: f32[2, 4, T, 2] = aten.scaled_dot_product_attention(%2, %8, %14, %19)
  return %20
--- lower-sdpa: 1 hits
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
  %13: f32[2, 2, T, 2] = aten.mul(%9, 0.7071067811865475)
  %14: f32[4, T, 2] = aten.reshape(%13, [4, -1, 2])
  %15: f32[4, T, 2] = aten.reshape(%12, [4, -1, 2])
  %16: f32[4, 2*T, 2] = aten.reshape(%6, [4, -1, 2])
  %17: f32[4, 2, T] = aten.transpose.int(%14, 1, 2)
  %18: f32[4, 2*T, T] = aten.bmm(%16, %17)
  %19: f32[4, 2*T, T] = aten.add(%18, %3)
  %20: f32[4, 2*T, T] = aten.softmax.int(%19, -1)
  %21: f32[4, 2*T, 2] = aten.bmm(%20, %15)
  %22: f32[4, 2, T, 2] = aten.view(%21, [4, 2, -1, 2])
  %23: f32[2, 4, T, 2] = aten.view(%22, [2, 4, -1, 2])
  return %23
""",
    )


def test_hit_fixed_t() -> None:
    expect(
        transcript(example(dynamic=False, mask="none", is_causal=True), PASS),
        """\
graph(tokens: i64[2, 8], label_pos: i64[2, 2], targets: i64[2, 2]):
  %0: f32[2, 8, 8] = aten.embedding(@q, tokens)
  %1: f32[2, 8, 4, 2] = aten.view(%0, [2, -1, 4, 2])
  %2: f32[2, 4, 8, 2] = aten.transpose.int(%1, 1, 2)
  %3: f32[2, 8, 4] = aten.embedding(@k, tokens)
  %4: f32[2, 8, 2, 2] = aten.view(%3, [2, -1, 2, 2])
  %5: f32[2, 2, 8, 2] = aten.transpose.int(%4, 1, 2)
  %6: f32[2, 2, 1, 8, 2] = aten.unsqueeze(%5, 2)
  %7: f32[2, 2, 2, 8, 2] = aten.expand(%6, [-1, -1, 2, -1, -1])
  %8: f32[2, 4, 8, 2] = aten.reshape(%7, [2, 4, -1, 2])
  %9: f32[2, 8, 4] = aten.embedding(@v, tokens)
  %10: f32[2, 8, 2, 2] = aten.view(%9, [2, -1, 2, 2])
  %11: f32[2, 2, 8, 2] = aten.transpose.int(%10, 1, 2)
  %12: f32[2, 2, 1, 8, 2] = aten.unsqueeze(%11, 2)
  %13: f32[2, 2, 2, 8, 2] = aten.expand(%12, [-1, -1, 2, -1, -1])
  %14: f32[2, 4, 8, 2] = aten.reshape(%13, [2, 4, -1, 2])
  %15: f32[2, 4, 8, 2] = aten.scaled_dot_product_attention(%2, %8, %14, None, is_causal=True)
  return %15
--- lower-sdpa: 1 hits
graph(tokens: i64[2, 8], label_pos: i64[2, 2], targets: i64[2, 2]):
  %0: f32[2, 8, 8] = aten.embedding(@q, tokens)
  %1: f32[2, 8, 4, 2] = aten.view(%0, [2, -1, 4, 2])
  %2: f32[2, 4, 8, 2] = aten.transpose.int(%1, 1, 2)
  %3: f32[2, 8, 4] = aten.embedding(@k, tokens)
  %4: f32[2, 8, 2, 2] = aten.view(%3, [2, -1, 2, 2])
  %5: f32[2, 2, 8, 2] = aten.transpose.int(%4, 1, 2)
  %6: f32[2, 8, 4] = aten.embedding(@v, tokens)
  %7: f32[2, 8, 2, 2] = aten.view(%6, [2, -1, 2, 2])
  %8: f32[2, 2, 8, 2] = aten.transpose.int(%7, 1, 2)
  %9: f32[2, 2, 8, 2] = aten.mul(%5, 0.7071067811865475)
  %10: f32[4, 8, 2] = aten.reshape(%9, [4, -1, 2])
  %11: f32[4, 8, 2] = aten.reshape(%8, [4, -1, 2])
  %12: f32[4, 16, 2] = aten.reshape(%2, [4, -1, 2])
  %13: f32[4, 2, 8] = aten.transpose.int(%10, 1, 2)
  %14: f32[4, 16, 8] = aten.bmm(%12, %13)
  %15: f32[4, 16, 8] = aten.add(%14, @folded.c1)
  %16: f32[4, 16, 8] = aten.softmax.int(%15, -1)
  %17: f32[4, 16, 2] = aten.bmm(%16, %11)
  %18: f32[2, 4, 8, 2] = aten.view(%17, [2, 4, -1, 2])
  return %18
""",
    )


def test_hit_masks_are_finite() -> None:
    """-inf overflows f16, and ExecuTorch guards softmax against rows that are masked whole."""
    program = example(mask="f32")
    run_pass(program, PASS)
    table = program.module.get_buffer("folded.c0")
    assert sorted(set(table.flatten().tolist())) == [-1e4, 0.0]


def test_hit_layers_share_one_mask() -> None:
    b = GraphBuilder(num_rows=2, dynamic=True)
    mask = _mask(b, "bool")
    q, k, v = b.heads(4, WIDTH, "q"), *[_repeated(b, b.heads(2, WIDTH, name), 2) for name in "kv"]
    first = b.call(aten.scaled_dot_product_attention.default, q, k, v, mask)
    second = b.call(aten.scaled_dot_product_attention.default, first, k, v, mask)
    program = b.done(second)
    assert run_pass(program, PASS).hits == 2
    assert [name for name, _ in program.module.named_buffers() if name.startswith("folded")] == ["folded.c0"]
    assert len(list(program.calls(aten.cat.default))) == 1


def test_miss_mask_that_depends_on_rows() -> None:
    b = GraphBuilder(num_rows=2, dynamic=True)
    q, k, v = (b.heads(2, WIDTH, name) for name in "qkv")
    is_token = b.call(aten.unsqueeze.default, b.call(aten.unsqueeze.default, b.call(aten.ne.Scalar, b.tokens, 0), 1), 1)
    mask = b.call(aten.expand.default, is_token, [-1, -1, b.length(), -1])
    expect(
        transcript(b.done(b.call(aten.scaled_dot_product_attention.default, q, k, v, mask)), PASS),
        """\
graph(tokens: i64[2, T], label_pos: i64[2, 2], targets: i64[2, 2]):
  %0: f32[2, T, 4] = aten.embedding(@q, tokens)
  %1: f32[2, T, 2, 2] = aten.view(%0, [2, -1, 2, 2])
  %2: f32[2, 2, T, 2] = aten.transpose.int(%1, 1, 2)
  %3: f32[2, T, 4] = aten.embedding(@k, tokens)
  %4: f32[2, T, 2, 2] = aten.view(%3, [2, -1, 2, 2])
  %5: f32[2, 2, T, 2] = aten.transpose.int(%4, 1, 2)
  %6: f32[2, T, 4] = aten.embedding(@v, tokens)
  %7: f32[2, T, 2, 2] = aten.view(%6, [2, -1, 2, 2])
  %8: f32[2, 2, T, 2] = aten.transpose.int(%7, 1, 2)
  %9: bool[2, T] = aten.ne.Scalar(tokens, 0)
  %10: bool[2, 1, T] = aten.unsqueeze(%9, 1)
  %11: bool[2, 1, 1, T] = aten.unsqueeze(%10, 1)
  %12: size = aten.sym_size.int(tokens, 1)
  %13: bool[2, 1, T, T] = aten.expand(%11, [-1, -1, %12, -1])
  %14: f32[2, 2, T, 2] = aten.scaled_dot_product_attention(%2, %5, %8, %13)
  return %14
--- lower-sdpa: 0 hits
refused %scaled_dot_product_attention_default aten.scaled_dot_product_attention.default: its mask is neither a constant [T, T] nor one [N, 1, 1, T] of rows
(same)
""",  # noqa: E501 - a golden line is as long as it is
    )


def test_miss_dropout() -> None:
    result = run_pass(example(dropout_p=0.1), PASS)
    assert not result.changed
    assert [r.reason for r in result.refusals] == ["it drops out"]


def test_miss_three_dimensional_attention() -> None:
    b = GraphBuilder(num_rows=2)
    q, k, v = (b.hidden(4, name) for name in "qkv")
    result = run_pass(b.done(b.call(aten.scaled_dot_product_attention.default, q, k, v)), PASS)
    assert [r.reason for r in result.refusals] == ["its query has rank 3; expected [N, H, T, d]"]


@pytest.mark.parametrize("spoil", ["short", "offset", "computed"])
def test_miss_mask_of_another_form(spoil: str) -> None:
    b = GraphBuilder(num_rows=2)
    q, k, v = (b.heads(2, WIDTH, name) for name in "qkv")
    table = torch.ones(9, 9, dtype=torch.bool).tril()
    if spoil == "short":
        mask = b.tensor("mask", torch.ones(1, 8, dtype=torch.bool))
    elif spoil == "offset":
        mask = b.tensor("mask", table)
        for dim in (0, 1):
            mask = b.call(aten.slice.Tensor, mask, dim, 1, 9)
    else:
        mask = b.call(aten.logical_not.default, b.tensor("mask", table[:8, :8].contiguous()))
    result = run_pass(b.done(b.call(aten.scaled_dot_product_attention.default, q, k, v, mask)), PASS)
    assert not result.changed
    assert [r.reason for r in result.refusals] == ["its mask is neither a constant [T, T] nor one [N, 1, 1, T] of rows"]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"heads": 2},
        {"heads": 6, "kv_heads": 1},
        {"mask": "f32"},
        {"mask": "window"},
        {"mask": "none"},
        {"mask": "none", "is_causal": True},
        {"scale": 0.25},
    ],
    ids=str,
)
def test_parity(options: dict[str, Any], dynamic: bool) -> None:
    assert_parity(example(dynamic=dynamic, **options), PASS)


def test_parity_when_only_keys_are_repeated() -> None:
    b = GraphBuilder(num_rows=2, dynamic=True)
    q, k, v = b.heads(4, WIDTH, "q"), _repeated(b, b.heads(2, WIDTH, "k"), 2), b.heads(4, WIDTH, "v")
    assert_parity(b.done(b.call(aten.scaled_dot_product_attention.default, q, k, v, is_causal=True)), PASS)


def test_parity_of_grouped_attention_by_flag() -> None:
    b = GraphBuilder(num_rows=2, dynamic=True)
    q, k, v = b.heads(4, WIDTH, "q"), b.heads(2, WIDTH, "k"), b.heads(2, WIDTH, "v")
    attention = b.call(aten.scaled_dot_product_attention.default, q, k, v, is_causal=True, enable_gqa=True)
    assert_parity(b.done(attention), PASS)
