from __future__ import annotations

import pytest
import torch
from torch.fx import Node

from prgec.errors import PassError
from prgec.passes.dependence import downstream, upstream
from prgec.passes.differentiate import Differentiate, outputs_of
from prgec.passes.printer import print_program
from prgec.passes.program import GraphProgram
from prgec.passes.rematerialize import Rematerialize
from prgec.passes.residual import residual_writes
from prgec.passes.rotate_half_to_linear import turns_halves
from prgec.passes.shapes import shape_of
from prgec.passes.sites import is_b
from tests.passes.golden import expect, run_pass
from tests.passes.gradient_graphs import attention, gated, normed_writes, one_layer, turned_heads
from tests.passes.parity import assert_parity

aten = torch.ops.aten
PASS = Rematerialize()
LAYERS = Rematerialize(layers=True)


def example() -> GraphProgram:
    return differentiated(attention(num_blocks=1))


def differentiated(program: GraphProgram) -> GraphProgram:
    run_pass(program, Differentiate())
    return program


def test_hit() -> None:
    """Keys turned, scores, weights, their mix and the activation come again where the backward first reads them."""
    program = example()
    before = print_program(program).splitlines()
    assert run_pass(program, PASS).hits == 5
    after = print_program(program).splitlines()
    first = next(n for n, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1])
    forward = [line for line in before if "aten.softmax" in line or "aten.bmm" in line or "aten.silu" in line]
    expect(
        "\n".join([*forward[:5], "---", *after[first:], ""]),
        """\
  %6: f32[1, 2*T, 4] = aten.bmm(%5, %4)
  %11: f32[2, T, T] = aten.bmm(%9, %10)
  %12: f32[2, T, T] = aten.softmax.int(%11, -1)
  %13: f32[2, T, 4] = aten.bmm(%12, %1)
  %14: f32[2, T, 4] = aten.silu(%13)
---
  %50: f32[2, 4, T] = aten.transpose.int(%1, 1, 2)
  %51: f32[2, T, T] = aten.bmm(%9, %50)
  %52: f32[2, T, T] = aten.softmax.int(%51, -1)
  %53: f32[2, T, 4] = aten.bmm(%52, %1)
  %54: f32[2, T, 4] = aten.sigmoid(%53)
  %55: f32[2, T, 4] = aten.silu(%53)
  %56: f32[2, T, 4] = aten.mul(%55, %54)
  %57: f32[2, T, 4] = aten.sub(%55, %56)
  %58: f32[2, T, 4] = aten.add(%54, %57)
  %59: f32[2, T, 4] = aten.mul(%49, %58)
  %60: f32[2, 4, T] = aten.transpose.int(%1, 1, 2)
  %61: f32[2, T, T] = aten.bmm(%59, %60)
  %62: f32[2, T, 4] = aten.mul(%59, %53)
  %63: f32[2, T, 1] = aten.linear(%62, @folded.c1)
  %64: f32[2, T, T] = aten.sub(%61, %63)
  %65: f32[2, T, T] = aten.mul(%52, %64)
  %66: f32[2, T, 4] = aten.bmm(%65, %1)
  %67: f32[1, 2, T, 4] = aten.reshape(%66, [1, 2, -1, 4])
  %68: f32[1, 2*T, 4] = aten.reshape(%67, [1, -1, 4])
  %69: f32[1, 2, 2*T] = aten.transpose.int(%5, 1, 2)
  %70: f32[1, 2, 4] = aten.bmm(%69, %68)
  %71: f32[2, 4] = aten.reshape(%70, [2, 4])
  return %33, %71
""",
    )


def test_miss_where_every_source_is_as_large() -> None:
    """One layer keeps what its A makes of the rows: nothing cheap leads there."""
    assert not run_pass(differentiated(one_layer()), PASS).changed


def test_hit_of_one_copy() -> None:
    result = run_pass(differentiated(normed_writes(num_blocks=1)), PASS)
    assert (result.changed, result.hits) == (True, 1)


def test_copies_of_a_block_are_made_when_the_backward_comes_to_it() -> None:
    """After the gradients of the block above, so that only one block's copies are alive at a time."""
    program = differentiated(attention(num_blocks=2))
    run_pass(program, PASS)
    nodes = list(program.graph.nodes)
    forward = upstream(outputs_of(program)[:1])
    of_first, of_last = (nodes.index(each) for each in outputs_of(program)[1:])
    weights = [n for n, node in enumerate(nodes) if is_attention(node) and node not in forward]
    assert weights[0] < of_last < weights[1] < of_first


def test_hit_adds_no_product_with_a_layer() -> None:
    program = differentiated(attention(num_blocks=2))
    before = len(list(program.calls(aten.linear.default)))
    assert run_pass(program, PASS).hits == 11
    assert len(list(program.calls(aten.linear.default))) == before


def test_hit_on_turned_halves() -> None:
    """Heads that were turned are made again, with the product that turns them, from what a derivative reads anyway."""
    program = differentiated(turned_heads())
    halves = [node for node in program.calls(aten.linear.default) if turns_halves(program, node)]
    run_pass(program, PASS)
    again = [node for node in program.calls(aten.linear.default) if turns_halves(program, node)]
    forward = upstream(outputs_of(program)[:1])
    assert [node in forward for node in again] == [True, False], "one product of the forward, and one again"
    sums = [node for node in program.calls(aten.add.Tensor) if halves[0] in node.all_input_nodes]
    assert all(reader in forward for reader in sums[0].users)


def test_turned_halves_change_no_bit() -> None:
    assert_parity(differentiated(turned_heads()), PASS)


def test_hit_on_reshaped_b() -> None:
    """No copy of a B stays from the forward to the backward."""
    program = differentiated(attention(num_blocks=2))
    assert copies_of_b_read_late(program)
    run_pass(program, PASS)
    assert not copies_of_b_read_late(program)


def copies_of_b_read_late(program: GraphProgram) -> list[Node]:
    forward = upstream(outputs_of(program)[:1])
    copies = [node for node in program.calls(aten.reshape.default, aten.view.default) if is_b(node.args[0])]
    return [node for node in copies if node in forward and not forward.issuperset(node.users)]


def is_attention(node: Node) -> bool:
    return node.target is aten.softmax.int and not isinstance(shape_of(node)[-1], int)


def test_one_in_a_few_sums_is_kept_where_all_follow_from_the_first() -> None:
    """Every fourth of sixteen is kept; the sums after one are made when the backward is through with those above.

    The first is kept for what nothing else needs: what it is made of.
    """
    program = differentiated(normed_writes(num_blocks=16))
    sums = [write.total for write in residual_writes(outputs_of(program)[0])]
    run_pass(program, PASS)
    forward = upstream(outputs_of(program)[:1])
    assert [n for n, each in enumerate(sums) if not forward.issuperset(each.users)] == [0, 3, 7, 11]
    nodes = list(program.graph.nodes)
    copies = [n for n, node in enumerate(nodes) if node not in forward and is_write(node)]
    gradients = [nodes.index(each) for each in outputs_of(program)[1:17]]
    assert len(copies) == 11
    assert [sum(copy < gradients[block] for copy in copies) for block in (12, 8, 4, 0)] == [3, 6, 9, 11]


def is_write(node: Node) -> bool:
    """Whether it adds what a block of `normed_writes` writes."""
    return node.target is aten.add.Tensor and any(
        isinstance(each, Node) and each.target is aten.silu.default for each in node.args
    )


def test_sums_made_again_change_no_bit() -> None:
    assert_parity(differentiated(normed_writes(num_blocks=9)), PASS)


@pytest.mark.parametrize("is_other_bent", [False, True])
def test_each_reader_makes_what_is_one_step_from_a_kept_value(is_other_bent: bool) -> None:
    """Half of the gate, for an activation and for its derivative, with the gate there until then; tanh is made once.

    The copy that is made first may be of something that is not arithmetic.
    """
    program = differentiated(gated(is_other_bent=is_other_bent))
    run_pass(program, PASS)
    forward = upstream(outputs_of(program)[:1])
    late = [node for node in program.graph.nodes if node not in forward]
    gate = next(node for node in program.calls(aten.tanh.default)).all_input_nodes[0].args[0]
    halves = [node for node in late if node.target is aten.mul.Tensor and node.args == (gate, 0.5)]
    assert [len(node.users) for node in halves] == [1, 1]
    assert sum(node.target is aten.tanh.default for node in late) == 1


def test_copies_of_their_own_change_no_bit() -> None:
    assert_parity(differentiated(gated()), PASS)


def test_hit_on_layers_leaves_the_stream_alone() -> None:
    """From the blocks the backward reads the stream after each, and keys, which no layer makes here."""
    program = differentiated(attention(num_blocks=3, has_stream=True))
    before, products = read_of_blocks(program), len(list(program.calls(aten.linear.default)))
    assert run_pass(program, LAYERS).changed
    stream = {node for write in residual_writes(outputs_of(program)[0]) for node in (write.stream, write.total)}
    assert read_of_blocks(program) <= stream
    assert not before <= stream
    assert len(list(program.calls(aten.linear.default))) == products + 2 * 3, "a weight and an A of each block"
    assert not run_pass(program, LAYERS).changed


def read_of_blocks(program: GraphProgram) -> set[Node]:
    """Values made of rows before the stream's end, and read by the backward."""
    forward = upstream(outputs_of(program)[:1])
    of_blocks = upstream([residual_writes(outputs_of(program)[0])[-1].total]) & downstream(program.placeholders())
    made = {node for node in of_blocks if node.op == "call_function" and node.target is not aten.embedding.default}
    late = [node for node in program.graph.nodes if node.op == "call_function" and node not in forward]
    return {source for node in late for source in node.all_input_nodes if source in made}


def test_layers_again_change_no_bit() -> None:
    assert_parity(differentiated(attention(num_blocks=3, has_stream=True)), LAYERS)


def test_failure_of_layers_without_a_stream() -> None:
    with pytest.raises(PassError, match="layers are computed again from a residual stream, and the graph has none"):
        LAYERS(example())


def test_failure_without_gradients() -> None:
    with pytest.raises(PassError, match="rematerialize: cannot run: the graph returns no gradients"):
        PASS(one_layer())
