from __future__ import annotations

import torch

from prgec.passes.mean_to_linear import MeanToLinear
from prgec.passes.program import GraphProgram
from tests.passes.builder import GraphBuilder
from tests.passes.golden import expect, run_pass, transcript

aten = torch.ops.aten
PASS = MeanToLinear()


def example() -> GraphProgram:
    """Three means, two of one width: those share their weights."""
    b = GraphBuilder(dynamic=True)
    wide, narrow = b.hidden(6), b.hidden(4, "other")
    return b.done(
        *[b.call(aten.mean.dim, source, dims, True) for source, dims in ((wide, [-1]), (narrow, [2]), (wide, [2]))]
    )


def test_hit() -> None:
    expect(
        transcript(example(), PASS),
        """\
graph(tokens: i64[4, T], label_pos: i64[4, 2], targets: i64[4, 2]):
  %0: f32[4, T, 6] = aten.embedding(@embed.weight, tokens)
  %1: f32[4, T, 4] = aten.embedding(@other, tokens)
  %2: f32[4, T, 1] = aten.mean.dim(%0, [-1], True)
  %3: f32[4, T, 1] = aten.mean.dim(%1, [2], True)
  %4: f32[4, T, 1] = aten.mean.dim(%0, [2], True)
  return %2, %3, %4
--- mean-to-linear: 3 hits
graph(tokens: i64[4, T], label_pos: i64[4, 2], targets: i64[4, 2]):
  %0: f32[4, T, 6] = aten.embedding(@embed.weight, tokens)
  %1: f32[4, T, 4] = aten.embedding(@other, tokens)
  %2: f32[4, T, 1] = aten.linear(%0, @folded.c0)
  %3: f32[4, T, 1] = aten.linear(%1, @folded.c1)
  %4: f32[4, T, 1] = aten.linear(%0, @folded.c0)
  return %2, %3, %4
""",
    )


def test_miss() -> None:
    """Over tokens, without the kept dimension, over two dimensions, in f64: none is a mean over the width."""
    b = GraphBuilder(dynamic=True)
    hidden = b.hidden()
    means = [b.call(aten.mean.dim, hidden, dims, keep) for dims, keep in (([1], True), ([-1], False), ([1, 2], True))]
    means.append(b.call(aten.mean.dim, hidden, [-1], True, dtype=torch.float64))
    expect(
        transcript(b.done(*means), PASS),
        """\
graph(tokens: i64[4, T], label_pos: i64[4, 2], targets: i64[4, 2]):
  %0: f32[4, T, 4] = aten.embedding(@embed.weight, tokens)
  %1: f32[4, 1, 4] = aten.mean.dim(%0, [1], True)
  %2: f32[4, T] = aten.mean.dim(%0, [-1], False)
  %3: f32[4, 1, 1] = aten.mean.dim(%0, [1, 2], True)
  %4: f64[4, T, 1] = aten.mean.dim(%0, [-1], True, dtype=f64)
  return %1, %2, %3, %4
--- mean-to-linear: 0 hits
(same)
""",
    )


def test_miss_width_that_is_t() -> None:
    b = GraphBuilder(dynamic=True)
    last = b.call(aten.transpose.int, b.hidden(), 1, 2)
    result = run_pass(b.done(b.call(aten.mean.dim, last, [-1], True)), PASS)
    assert not result.changed
