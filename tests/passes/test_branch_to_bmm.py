from __future__ import annotations

import torch

from prgec.passes.branch_to_bmm import BranchToBmm
from prgec.passes.program import GraphProgram
from tests.passes.builder import GraphBuilder
from tests.passes.golden import expect, transcript
from tests.passes.parity import assert_parity

aten = torch.ops.aten
PASS = BranchToBmm()


def example(*, dynamic: bool = True) -> GraphProgram:
    """B is not zero, so that the branch counts."""
    b = GraphBuilder(num_rows=3, dynamic=dynamic)
    program = b.done(b.injected_site(b.hidden(), "q_proj", rank=2, out=3))
    program.module.get_buffer("q_proj.lora_B").copy_(torch.arange(6.0).reshape(2, 3))
    return program


def test_hit() -> None:
    expect(
        transcript(example(), PASS),
        """\
graph(tokens: i64[3, T], label_pos: i64[3, 2], targets: i64[3, 2]):
  %0: f32[3, T, 4] = aten.embedding(@embed.weight, tokens)
  %1: f32[3, T, 2] = aten.linear(%0, @q_proj.lora_A)
  %2: f32[3, T, 3] = aten.matmul(%1, @q_proj.lora_B)
  return %2
--- branch-to-bmm: 1 hits
graph(tokens: i64[3, T], label_pos: i64[3, 2], targets: i64[3, 2]):
  %0: f32[3, T, 4] = aten.embedding(@embed.weight, tokens)
  %1: f32[3, T, 2] = aten.linear(%0, @q_proj.lora_A)
  %2: f32[1, 2, 3] = aten.view(@q_proj.lora_B, [1, 2, 3])
  %3: f32[1, 3*T, 2] = aten.reshape(%1, [1, -1, 2])
  %4: f32[1, 3*T, 3] = aten.bmm(%3, %2)
  %5: f32[1, 3, T, 3] = aten.view(%4, [1, 3, -1, 3])
  %6: f32[3, T, 3] = aten.view(%5, [3, -1, 3])
  return %6
""",
    )


def test_hit_fixed_t() -> None:
    expect(
        transcript(example(dynamic=False), PASS),
        """\
graph(tokens: i64[3, 8], label_pos: i64[3, 2], targets: i64[3, 2]):
  %0: f32[3, 8, 4] = aten.embedding(@embed.weight, tokens)
  %1: f32[3, 8, 2] = aten.linear(%0, @q_proj.lora_A)
  %2: f32[3, 8, 3] = aten.matmul(%1, @q_proj.lora_B)
  return %2
--- branch-to-bmm: 1 hits
graph(tokens: i64[3, 8], label_pos: i64[3, 2], targets: i64[3, 2]):
  %0: f32[3, 8, 4] = aten.embedding(@embed.weight, tokens)
  %1: f32[3, 8, 2] = aten.linear(%0, @q_proj.lora_A)
  %2: f32[1, 2, 3] = aten.view(@q_proj.lora_B, [1, 2, 3])
  %3: f32[1, 24, 2] = aten.reshape(%1, [1, -1, 2])
  %4: f32[1, 24, 3] = aten.bmm(%3, %2)
  %5: f32[3, 8, 3] = aten.view(%4, [3, 8, 3])
  return %5
""",
    )


def test_miss_matmul_with_something_else() -> None:
    b = GraphBuilder(num_rows=3)
    hidden = b.hidden()
    computed = b.call(aten.neg.default, b.weight("q.lora_B", 4, 4))
    program = b.done(*[b.call(aten.matmul.default, hidden, weight) for weight in (b.weight("w", 4, 4), computed)])
    expect(
        transcript(program, PASS),
        """\
graph(tokens: i64[3, 8], label_pos: i64[3, 2], targets: i64[3, 2]):
  %0: f32[3, 8, 4] = aten.embedding(@embed.weight, tokens)
  %1: f32[4, 4] = aten.neg(@q.lora_B)
  %2: f32[3, 8, 4] = aten.matmul(%0, @w)
  %3: f32[3, 8, 4] = aten.matmul(%0, %1)
  return %2, %3
--- branch-to-bmm: 0 hits
(same)
""",
    )


def test_parity_fixed_t() -> None:
    assert_parity(example(dynamic=False), PASS)


def test_parity_of_a_site_after_the_label_gather() -> None:
    """The LM head as a site: N rows of K labels, and no T in its shape."""
    b = GraphBuilder(num_rows=4, dynamic=True)
    rows = b.call(aten.gather.default, b.hidden(), 1, b.label_index(4))
    program = b.done(b.injected_site(rows, "lm_head", rank=2, out=6))
    program.module.get_buffer("lm_head.lora_B").fill_(0.5)
    assert_parity(program, PASS)
