from __future__ import annotations

import operator

import pytest
import torch
from torch.fx import Node

from prgec.passes.program import GraphProgram
from prgec.passes.split_fused_linear import SplitFusedLinear
from tests.passes.builder import GraphBuilder
from tests.passes.golden import expect, run_pass, transcript
from tests.passes.parity import assert_parity

aten = torch.ops.aten
PASS = SplitFusedLinear()
END = 9223372036854775807
NUM_ROWS, Q, RANK = 4, 1, 3


def example() -> GraphProgram:
    """Gate and up in one layer, with bias and LoRA branch."""
    b = GraphBuilder(num_rows=NUM_ROWS, dynamic=True)
    parts = b.call(aten.chunk.default, _fused(b, 6), 2, -1)
    gate, up = (b.call(operator.getitem, parts, i) for i in range(2))
    return b.done(b.call(aten.mul.Tensor, b.call(aten.silu.default, gate), up))


def _fused(b: GraphBuilder, out: int, *, name: str = "fused", has_branch: bool = True) -> Node:
    """A layer as dualize leaves it, with copies that are not zero."""
    source = b.hidden(name=f"{name}.embed")
    total = b.call(aten.linear.default, source, b.weight(f"{name}.weight", out, 4), b.weight(f"{name}.bias", out))
    if not has_branch:
        return total
    low_rank = b.call(aten.linear.default, source, b.weight(f"{name}.lora_A", RANK, 4))
    grouped = b.call(aten.view.default, low_rank, [2 * Q, -1, RANK])
    product = b.call(aten.bmm.default, grouped, b.weight(f"{name}.copies", 2 * Q, RANK, out))
    split = b.call(aten.view.default, product, [2 * Q, NUM_ROWS // (2 * Q), -1, out])
    return b.call(aten.add.Tensor, total, b.call(aten.view.default, split, [NUM_ROWS, -1, out]))


def _neox(b: GraphBuilder, *, has_branch: bool = True) -> tuple[Node, ...]:
    """Two heads of q, k and v, interleaved by head; q and k are cut again into a rotated and an untouched part."""
    split = b.call(aten.view.default, _fused(b, 24, has_branch=has_branch), [NUM_ROWS, -1, 2, 12])
    parts = b.call(aten.chunk.default, b.call(aten.transpose.int, split, 1, 2), 3, -1)
    q, k, v = (b.call(operator.getitem, parts, i) for i in range(3))
    cuts = [b.call(aten.slice.Tensor, each, 3, begin, end) for each in (q, k) for begin, end in ((0, 1), (1, END))]
    return (*cuts, b.call(aten.tanh.default, v))


def _phi(b: GraphBuilder) -> tuple[Node, ...]:
    """Four query heads and two of k and v side by side; the rotated part is cut after the split into heads."""
    fused = _fused(b, 16)
    q, k, v = (b.call(aten.slice.Tensor, fused, 2, begin, end) for begin, end in ((0, 8), (8, 12), (12, END)))
    heads = [b.call(aten.view.default, each, [NUM_ROWS, -1, count, 2]) for each, count in ((q, 4), (k, 2), (v, 2))]
    heads = [b.call(aten.transpose.int, each, 1, 2) for each in heads]
    cuts = [b.call(aten.slice.Tensor, each, 3, begin, end) for each in heads[:2] for begin, end in ((0, 1), (1, 2))]
    return (*cuts, heads[2])


def test_hit() -> None:
    expect(
        transcript(example(), PASS),
        """\
graph(tokens: i64[4, T], label_pos: i64[4, 2], targets: i64[4, 2]):
  %0: f32[4, T, 4] = aten.embedding(@fused.embed, tokens)
  %1: f32[4, T, 6] = aten.linear(%0, @fused.weight, @fused.bias)
  %2: f32[4, T, 3] = aten.linear(%0, @fused.lora_A)
  %3: f32[2, 2*T, 3] = aten.view(%2, [2, -1, 3])
  %4: f32[2, 2*T, 6] = aten.bmm(%3, @fused.copies)
  %5: f32[2, 2, T, 6] = aten.view(%4, [2, 2, -1, 6])
  %6: f32[4, T, 6] = aten.view(%5, [4, -1, 6])
  %7: f32[4, T, 6] = aten.add(%1, %6)
  %8: (f32[4, T, 3], f32[4, T, 3]) = aten.chunk(%7, 2, -1)
  %9: f32[4, T, 3] = getitem(%8, 0)
  %10: f32[4, T, 3] = getitem(%8, 1)
  %11: f32[4, T, 3] = aten.silu(%9)
  %12: f32[4, T, 3] = aten.mul(%11, %10)
  return %12
--- split-fused-linear: 1 hits
graph(tokens: i64[4, T], label_pos: i64[4, 2], targets: i64[4, 2]):
  %0: f32[4, T, 4] = aten.embedding(@fused.embed, tokens)
  %1: f32[4, T, 3] = aten.linear(%0, @fused.lora_A)
  %2: f32[2, 2*T, 3] = aten.view(%1, [2, -1, 3])
  %3: f32[4, T, 3] = aten.linear(%0, @fused.part0.weight, @fused.part0.bias)
  %4: f32[2, 3, 3] = aten.slice(@fused.copies, 2, 0, 3)
  %5: f32[2, 2*T, 3] = aten.bmm(%2, %4)
  %6: f32[2, 2, T, 3] = aten.view(%5, [2, 2, -1, 3])
  %7: f32[4, T, 3] = aten.view(%6, [4, -1, 3])
  %8: f32[4, T, 3] = aten.add(%3, %7)
  %9: f32[4, T, 3] = aten.linear(%0, @fused.part1.weight, @fused.part1.bias)
  %10: f32[2, 3, 3] = aten.slice(@fused.copies, 2, 3, 6)
  %11: f32[2, 2*T, 3] = aten.bmm(%2, %10)
  %12: f32[2, 2, T, 3] = aten.view(%11, [2, 2, -1, 3])
  %13: f32[4, T, 3] = aten.view(%12, [4, -1, 3])
  %14: f32[4, T, 3] = aten.add(%9, %13)
  %15: f32[4, T, 3] = aten.silu(%8)
  %16: f32[4, T, 3] = aten.mul(%15, %14)
  return %16
""",
    )


def test_hit_cut_by_head() -> None:
    b = GraphBuilder(num_rows=NUM_ROWS, dynamic=True)
    expect(
        transcript(b.done(*_neox(b)), PASS),
        """\
graph(tokens: i64[4, T], label_pos: i64[4, 2], targets: i64[4, 2]):
  %0: f32[4, T, 4] = aten.embedding(@fused.embed, tokens)
  %1: f32[4, T, 24] = aten.linear(%0, @fused.weight, @fused.bias)
  %2: f32[4, T, 3] = aten.linear(%0, @fused.lora_A)
  %3: f32[2, 2*T, 3] = aten.view(%2, [2, -1, 3])
  %4: f32[2, 2*T, 24] = aten.bmm(%3, @fused.copies)
  %5: f32[2, 2, T, 24] = aten.view(%4, [2, 2, -1, 24])
  %6: f32[4, T, 24] = aten.view(%5, [4, -1, 24])
  %7: f32[4, T, 24] = aten.add(%1, %6)
  %8: f32[4, T, 2, 12] = aten.view(%7, [4, -1, 2, 12])
  %9: f32[4, 2, T, 12] = aten.transpose.int(%8, 1, 2)
  %10: (f32[4, 2, T, 4], f32[4, 2, T, 4], f32[4, 2, T, 4]) = aten.chunk(%9, 3, -1)
  %11: f32[4, 2, T, 4] = getitem(%10, 0)
  %12: f32[4, 2, T, 4] = getitem(%10, 1)
  %13: f32[4, 2, T, 4] = getitem(%10, 2)
  %14: f32[4, 2, T, 1] = aten.slice(%11, 3, 0, 1)
  %15: f32[4, 2, T, 3] = aten.slice(%11, 3, 1, end)
  %16: f32[4, 2, T, 1] = aten.slice(%12, 3, 0, 1)
  %17: f32[4, 2, T, 3] = aten.slice(%12, 3, 1, end)
  %18: f32[4, 2, T, 4] = aten.tanh(%13)
  return %14, %15, %16, %17, %18
--- split-fused-linear: 1 hits
graph(tokens: i64[4, T], label_pos: i64[4, 2], targets: i64[4, 2]):
  %0: f32[4, T, 4] = aten.embedding(@fused.embed, tokens)
  %1: f32[4, T, 3] = aten.linear(%0, @fused.lora_A)
  %2: f32[2, 2*T, 3] = aten.view(%1, [2, -1, 3])
  %3: f32[4, T, 2] = aten.linear(%0, @fused.part0.weight, @fused.part0.bias)
  %4: f32[2, 3, 2, 12] = aten.reshape(@fused.copies, [2, 3, 2, 12])
  %5: f32[2, 3, 2, 1] = aten.slice(%4, 3, 0, 1)
  %6: f32[2, 3, 2] = aten.reshape(%5, [2, 3, 2])
  %7: f32[2, 2*T, 2] = aten.bmm(%2, %6)
  %8: f32[2, 2, T, 2] = aten.view(%7, [2, 2, -1, 2])
  %9: f32[4, T, 2] = aten.view(%8, [4, -1, 2])
  %10: f32[4, T, 2] = aten.add(%3, %9)
  %11: f32[4, T, 2, 1] = aten.view(%10, [4, -1, 2, 1])
  %12: f32[4, 2, T, 1] = aten.transpose.int(%11, 1, 2)
  %13: f32[4, T, 6] = aten.linear(%0, @fused.part1.weight, @fused.part1.bias)
  %14: f32[2, 3, 2, 3] = aten.slice(%4, 3, 1, 4)
  %15: f32[2, 3, 6] = aten.reshape(%14, [2, 3, 6])
  %16: f32[2, 2*T, 6] = aten.bmm(%2, %15)
  %17: f32[2, 2, T, 6] = aten.view(%16, [2, 2, -1, 6])
  %18: f32[4, T, 6] = aten.view(%17, [4, -1, 6])
  %19: f32[4, T, 6] = aten.add(%13, %18)
  %20: f32[4, T, 2, 3] = aten.view(%19, [4, -1, 2, 3])
  %21: f32[4, 2, T, 3] = aten.transpose.int(%20, 1, 2)
  %22: f32[4, T, 2] = aten.linear(%0, @fused.part2.weight, @fused.part2.bias)
  %23: f32[2, 3, 2, 1] = aten.slice(%4, 3, 4, 5)
  %24: f32[2, 3, 2] = aten.reshape(%23, [2, 3, 2])
  %25: f32[2, 2*T, 2] = aten.bmm(%2, %24)
  %26: f32[2, 2, T, 2] = aten.view(%25, [2, 2, -1, 2])
  %27: f32[4, T, 2] = aten.view(%26, [4, -1, 2])
  %28: f32[4, T, 2] = aten.add(%22, %27)
  %29: f32[4, T, 2, 1] = aten.view(%28, [4, -1, 2, 1])
  %30: f32[4, 2, T, 1] = aten.transpose.int(%29, 1, 2)
  %31: f32[4, T, 6] = aten.linear(%0, @fused.part3.weight, @fused.part3.bias)
  %32: f32[2, 3, 2, 3] = aten.slice(%4, 3, 5, 8)
  %33: f32[2, 3, 6] = aten.reshape(%32, [2, 3, 6])
  %34: f32[2, 2*T, 6] = aten.bmm(%2, %33)
  %35: f32[2, 2, T, 6] = aten.view(%34, [2, 2, -1, 6])
  %36: f32[4, T, 6] = aten.view(%35, [4, -1, 6])
  %37: f32[4, T, 6] = aten.add(%31, %36)
  %38: f32[4, T, 2, 3] = aten.view(%37, [4, -1, 2, 3])
  %39: f32[4, 2, T, 3] = aten.transpose.int(%38, 1, 2)
  %40: f32[4, T, 8] = aten.linear(%0, @fused.part4.weight, @fused.part4.bias)
  %41: f32[2, 3, 2, 4] = aten.slice(%4, 3, 8, 12)
  %42: f32[2, 3, 8] = aten.reshape(%41, [2, 3, 8])
  %43: f32[2, 2*T, 8] = aten.bmm(%2, %42)
  %44: f32[2, 2, T, 8] = aten.view(%43, [2, 2, -1, 8])
  %45: f32[4, T, 8] = aten.view(%44, [4, -1, 8])
  %46: f32[4, T, 8] = aten.add(%40, %45)
  %47: f32[4, T, 2, 4] = aten.view(%46, [4, -1, 2, 4])
  %48: f32[4, 2, T, 4] = aten.transpose.int(%47, 1, 2)
  %49: f32[4, 2, T, 4] = aten.tanh(%48)
  return %12, %21, %30, %39, %49
""",
    )


def test_hit_part_that_nobody_reads() -> None:
    b = GraphBuilder(num_rows=NUM_ROWS, dynamic=True)
    program = b.done(b.call(aten.slice.Tensor, _fused(b, 6), 2, 1, 4))
    assert run_pass(program, PASS).hits == 1
    assert program.module.get_buffer("fused.part0.weight").shape == (3, 4)


def test_hit_layer_called_twice() -> None:
    """Each call has its own cuts, and so its own parts; the fused weight is gone once the last call is."""
    b = GraphBuilder(num_rows=NUM_ROWS, dynamic=True)
    first = _fused(b, 6, has_branch=False)
    second = b.call(aten.linear.default, b.hidden(name="other"), *first.args[1:])
    cuts = [b.call(aten.slice.Tensor, each, 2, begin, 6) for each, begin in ((first, 3), (second, 1))]
    program = b.done(*cuts)
    assert_parity(program, PASS)
    names = {name for name, _ in program.module.named_buffers()}
    assert names >= {"fused.part0.weight", "fused.part1.weight"} and "fused.weight" not in names


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        ("also_whole", "fused: %tanh_default aten.tanh.default reads it uncut"),
        ("also_whole_in_heads", "fused: %view_default aten.view.default reads it uncut"),
        ("overlap", "fused: its cuts overlap; splitting it would compute the overlap twice"),
        ("other_axis", None),
        ("sum_of_two", "other: the value added to it is not a LoRA branch of its own"),
        ("shared_branch", "fused: the value added to it is not a LoRA branch of its own"),
        ("no_site", None),
    ],
)
def test_miss(spoil: str, reason: str | None) -> None:
    b = GraphBuilder(num_rows=NUM_ROWS, dynamic=True)
    fused = _fused(b, 6, has_branch=spoil in ("also_whole", "shared_branch"))
    outputs = [b.call(aten.slice.Tensor, fused, 2, 0, 4)]
    if spoil == "also_whole":
        outputs.append(b.call(aten.tanh.default, fused))
    elif spoil == "also_whole_in_heads":
        outputs.append(b.call(aten.view.default, fused, [NUM_ROWS, -1, 2, 3]))
    elif spoil == "overlap":
        outputs.append(b.call(aten.slice.Tensor, fused, 2, 3, 6))
    elif spoil == "other_axis":
        outputs = [b.call(aten.slice.Tensor, fused, 0, 0, 2)]
    elif spoil == "sum_of_two":
        total = b.call(aten.add.Tensor, _fused(b, 6, name="other", has_branch=False), b.hidden(6, "more"))
        outputs = [b.call(aten.slice.Tensor, total, 2, 0, 4)]
    elif spoil == "shared_branch":
        outputs.append(b.call(aten.tanh.default, fused.args[1]))
    else:
        linear = b.call(aten.linear.default, b.hidden(), b.weight("folded.c0", 6, 4))
        outputs = [b.call(aten.slice.Tensor, linear, 2, 0, 4)]
    result = run_pass(b.done(*outputs), PASS)
    assert not result.changed
    assert [str(refusal) for refusal in result.refusals] == ([reason] if reason else [])


def test_miss_where_t_is_fixed_needs_no_reason() -> None:
    """Cuts of fixed shapes are legal, so nothing is lost where a reader wants the whole."""
    b = GraphBuilder(num_rows=NUM_ROWS)
    fused = _fused(b, 6)
    result = run_pass(b.done(b.call(aten.slice.Tensor, fused, 2, 0, 4), b.call(aten.tanh.default, fused)), PASS)
    assert not result.changed and result.refusals == ()


@pytest.mark.parametrize("layout", ["gate_up", "neox", "neox_without_branch", "phi"])
def test_parity(layout: str) -> None:
    b = GraphBuilder(num_rows=NUM_ROWS, dynamic=True)
    programs = {
        "gate_up": lambda: example(),
        "neox": lambda: b.done(*_neox(b)),
        "neox_without_branch": lambda: b.done(*_neox(b, has_branch=False)),
        "phi": lambda: b.done(*_phi(b)),
    }
    program = programs[layout]()
    assert_parity(program, PASS)
    cuts = [node for node in program.calls(aten.slice.Tensor) if not isinstance(node.meta["val"].shape[-2], int)]
    assert not cuts and not list(program.calls(aten.chunk.default))
