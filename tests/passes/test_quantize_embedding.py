from __future__ import annotations

import pytest
import torch

from prgec.errors import PassError
from prgec.passes.program import GraphProgram
from prgec.passes.quantize_base import QuantizeBase
from prgec.passes.quantize_embedding import QuantizeEmbedding
from tests.passes.builder import GraphBuilder, row_inputs
from tests.passes.golden import expect, run_pass, transcript
from tests.passes.parity import run

aten = torch.ops.aten
PASS = QuantizeEmbedding(bits=4, group=2)


def example() -> GraphProgram:
    b = GraphBuilder(dynamic=True)
    return b.done(b.hidden(8))


def test_hit() -> None:
    expect(
        transcript(example(), PASS),
        """\
graph(tokens: i64[4, T], label_pos: i64[4, 2], targets: i64[4, 2]):
  %0: f32[4, T, 8] = aten.embedding(@embed.weight, tokens)
  return %0
--- quantize-embedding: 1 hits
graph(tokens: i64[4, T], label_pos: i64[4, 2], targets: i64[4, 2]):
  %0: f32[4, T, 8] = quantized_decomposed.embedding_4bit(@embed.weight_rows, @embed.weight_rows_scale, None, -8, 7, tokens)
  return %0
""",  # noqa: E501 - a golden line is as long as it is
    )


def test_hit_8_bits() -> None:
    expect(
        transcript(example(), QuantizeEmbedding(bits=8, group=4)),
        """\
graph(tokens: i64[4, T], label_pos: i64[4, 2], targets: i64[4, 2]):
  %0: f32[4, T, 8] = aten.embedding(@embed.weight, tokens)
  return %0
--- quantize-embedding: 1 hits
graph(tokens: i64[4, T], label_pos: i64[4, 2], targets: i64[4, 2]):
  %0: f32[4, T, 8] = quantized_decomposed.embedding_byte(@embed.weight_rows, @embed.weight_rows_scale, None, -128, 127, tokens)
  return %0
""",  # noqa: E501 - a golden line is as long as it is
    )


def test_miss() -> None:
    """Positions instead of tokens, a computed table, no whole number of groups."""
    b = GraphBuilder()
    table = b.weight("positions.weight", 16, 4)
    outputs = [b.call(aten.embedding.default, table, b.label_pos)]
    outputs.append(b.call(aten.embedding.default, b.call(aten.neg.default, table), b.tokens))
    outputs.append(b.call(aten.embedding.default, b.weight("odd.weight", 16, 3), b.tokens))
    expect(
        transcript(b.done(*outputs), PASS),
        """\
graph(tokens: i64[4, 8], label_pos: i64[4, 2], targets: i64[4, 2]):
  %0: f32[4, 2, 4] = aten.embedding(@positions.weight, label_pos)
  %1: f32[16, 4] = aten.neg(@positions.weight)
  %2: f32[4, 8, 4] = aten.embedding(%1, tokens)
  %3: f32[4, 8, 3] = aten.embedding(@odd.weight, tokens)
  return %0, %2, %3
--- quantize-embedding: 0 hits
refused %embedding_default aten.embedding.default: it does not look up token ids
refused %embedding_default_1 aten.embedding.default: it does not look up token ids
refused %embedding_default_2 aten.embedding.default: its width 3 is not a multiple of group=2
(same)
""",
    )


def test_miss_by_default() -> None:
    assert not run_pass(example(), QuantizeEmbedding()).changed


def test_failure_number_of_bits() -> None:
    with pytest.raises(PassError) as error:
        QuantizeEmbedding(bits=2)(example())
    assert str(error.value) == "quantize-embedding: cannot run: bits is 2; expected 0, 4 or 8"


@pytest.mark.parametrize(("bits", "steps"), [(8, 255), (4, 15)])
def test_parity_within_half_a_step_of_every_group(bits: int, steps: int) -> None:
    """The tier is CHANGES; how much follows from the bits: each value moves by half a step of its group at most."""
    program = example()
    rows = row_inputs(program)
    exact = run(program, rows)[0]
    run_pass(program, QuantizeEmbedding(bits=bits, group=2))
    groups = exact.unflatten(-1, (-1, 2))
    step = 2 * groups.abs().amax(-1, keepdim=True) / steps
    error = (run(program, rows)[0].unflatten(-1, (-1, 2)) - groups).abs()
    assert bool((error <= 0.5001 * step).all()) and float(error.max()) > 0


def test_parity_of_a_table_tied_to_a_head_of_other_bits() -> None:
    """The head's values and scales are stored under the table's name as well: neither may take the other's."""

    def tied() -> GraphProgram:
        b = GraphBuilder(dynamic=True)
        rows = b.hidden(8)
        return b.done(rows, b.call(aten.linear.default, b.weight("x", 2, 8), b.read("embed.weight")))

    rows = row_inputs(tied())
    passes = {"table": QuantizeEmbedding(bits=8, group=2), "head": QuantizeBase(scheme="8da4w", group=2)}
    alone = {}
    for name, each in passes.items():
        program = tied()
        assert run_pass(program, each).hits == 1
        alone[name] = run(program, rows)
    both = tied()
    for each in (passes["head"], passes["table"]):
        run_pass(both, each)
    table, head = run(both, rows)
    assert torch.equal(table, alone["table"][0]) and torch.equal(head, alone["head"][1])
