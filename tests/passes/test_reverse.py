"""The walk backwards: what it visits, and where it refuses to go."""

from __future__ import annotations

import operator

import pytest
import torch
from torch.fx import Node

from prgec.errors import PassError
from prgec.passes.derivatives import RULES
from prgec.passes.reverse import gradients
from prgec.passes.rewrite import Rewriter
from tests.passes.leaves import RULE, Leaves, MakeNode, binary, differentiate, program_of, scores, unary

aten = torch.ops.aten


def test_what_the_result_does_not_depend_on_has_no_gradient() -> None:
    b = Leaves()
    used, unused = b.leaf(2, 3), b.leaf(2, 3)
    result = b.call(aten.neg.default, used)
    assert list(_gradients(b, result, [used, unused])) == [used]


def test_nothing_is_computed_for_what_is_frozen() -> None:
    """Neither the frozen factor nor the later op without a rule gets a gradient."""
    b = Leaves()
    x = b.leaf(2, 3)
    frozen = b.call(aten.sin.default, b.constant(2, 3))
    found = _gradients(b, b.call(aten.mul.Tensor, x, frozen), [x])
    assert found[x].target is aten.mul.Tensor and found[x].args[1] is frozen


def test_the_walk_ends_at_what_is_requested() -> None:
    b = Leaves()
    x = b.leaf(2, 3)
    middle = b.call(aten.sin.default, x)
    assert list(_gradients(b, b.call(aten.neg.default, middle), [middle])) == [middle]


def test_no_gradient_passes_whole_numbers() -> None:
    """Which values are largest decides what is multiplied; that decision has no derivative."""
    b = Leaves()
    x = b.leaf(2, 4)
    largest = b.call(aten.topk.default, x, 1)
    values, chosen = (b.call(operator.getitem, largest, index) for index in range(2))
    factor = b.call(aten.to.dtype, chosen, torch.float32)
    assert list(_gradients(b, b.call(aten.mul.Tensor, values, factor), [x])) == [x]


def test_products_wait_for_all_others() -> None:
    """The derivative of an activation comes before the products with layers on either side of it."""
    b = Leaves()
    x = b.leaf(2, 4)
    gate = b.call(aten.linear.default, x, b.constant(4, 4))
    bent = b.call(aten.silu.default, gate)
    up = b.call(aten.linear.default, x, b.constant(4, 4))
    _gradients(b, b.call(aten.mul.Tensor, bent, up), [x])
    late = [node.target for node in b.program.graph.nodes][list(b.program.graph.nodes).index(up) + 2 :]
    first = late.index(aten.linear.default)
    assert aten.sigmoid.default in late[:first]
    assert late.count(aten.linear.default) == 2 and set(late[first:]) <= {
        aten.linear.default,
        aten.add.Tensor,
        "output",
    } | {node.target for node in b.program.graph.nodes if node.op == "get_attr"}


def test_a_product_reads_the_view_that_another_reads() -> None:
    """A gradient that a layer and the branch beside it read is there once."""
    b = Leaves()
    x, low = b.leaf(2, 3, 4), b.leaf(1, 6, 2)
    branch = b.call(aten.reshape.default, b.call(aten.bmm.default, low, b.constant(1, 2, 5)), [2, 3, 5])
    y = b.call(aten.add.Tensor, b.call(aten.linear.default, x, b.constant(5, 4)), branch)
    found = _gradients(b, b.call(aten.neg.default, y), [x, low])
    (dy,) = [node for node in b.program.graph.nodes if node.target is aten.neg.default and node is not y][1:]
    (view,) = dy.users
    assert {node.target for node in view.users} == {aten.linear.default, aten.bmm.default}
    assert list(found[x].meta["val"].shape) == [2, 3, 4]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        pytest.param(
            lambda b: b.call(aten.linear.default, b.leaf(2, 4), b.leaf(3, 4)),
            "the weight of %linear_default aten.linear.default is trained; only branches are",
            id="trained weight",
        ),
        pytest.param(
            lambda b: b.call(aten.linear.default, b.leaf(2, 4), b.constant(3, 4), b.leaf(3)),
            "the weight of %linear_default aten.linear.default is trained; only branches are",
            id="trained bias",
        ),
        pytest.param(
            lambda b: b.call(aten.gather.default, b.leaf(3, 4), 0, b.tensor("i", torch.zeros(2, 4, dtype=torch.int64))),
            "%gather_default aten.gather.default is not over the last dimension",
            id="picked rows",
        ),
        pytest.param(
            lambda b: b.call(operator.getitem, b.call(aten.topk.default, b.leaf(3, 4), 2, 0), 0),
            "%getitem <built-in function getitem> is not over the last dimension",
            id="largest rows",
        ),
        pytest.param(
            unary(aten.sum.dim_IntList, [0]),
            "%sum_dim_int_list aten.sum.dim_IntList is not over the last dimension",
            id="summed rows",
        ),
        pytest.param(
            binary(aten.mul.Tensor, (4,)),
            "%mul_tensor aten.mul.Tensor repeats [4] to [2, 3, 4]; only dimensions of 1 may be repeated where a "
            "gradient flows, and not to a length that varies",
            id="repeated vector",
        ),
        pytest.param(
            lambda b: b.call(aten.add.Tensor, b.leaf(2, 3), b.leaf(2, 3), alpha=2),
            "%add_tensor aten.add.Tensor scales its second addend; it has no derivative",
            id="scaled sum",
        ),
        pytest.param(
            lambda b: b.call(aten.sub.Tensor, b.leaf(2, 3), b.leaf(2, 3), alpha=2),
            "%sub_tensor aten.sub.Tensor scales its second addend; it has no derivative",
            id="scaled difference",
        ),
        pytest.param(
            lambda b: b.call(aten.gelu.default, b.leaf(2, 3), approximate="tanh"),
            "%gelu_default aten.gelu.default is approximated; run lower-gelu-tanh first",
            id="approximated gelu",
        ),
        pytest.param(
            lambda b: b.call(aten.softmax.int, b.leaf(2, 3), 0),
            "%softmax_int aten.softmax.int is not over the last dimension",
            id="softmax over rows",
        ),
        pytest.param(
            lambda b: b.call(aten.cat.default, [b.leaf(2, 3), b.leaf(2, 3)]),
            "%cat_default aten.cat.default is not over the last dimension",
            id="cat of rows",
        ),
        pytest.param(
            unary(aten.sin.default),
            "there is no derivative of %sin_default aten.sin.default. Hint: train fewer layers, so that no gradient "
            "passes it, or use method prge",
            id="no rule",
        ),
        pytest.param(
            lambda b: b.call(aten.softmax.int, scores(b), -1),
            "%softmax_int aten.softmax.int runs over T and does not only weigh values; a derivative cannot sum over a "
            "length that varies. Hint: compile with a fixed length (--static)",
            id="softmax over T",
        ),
        pytest.param(
            lambda b: b.call(aten.unsqueeze.default, scores(b), 1),
            "%unsqueeze_default aten.unsqueeze.default reads a shape with two sizes that depend on T",
            id="two sizes",
        ),
    ],
)
def test_refusals(make: MakeNode, text: str) -> None:
    with pytest.raises(PassError) as error:
        differentiate(program_of(make))
    assert str(error.value) == f"{RULE}: {text}"


def test_refusal_of_a_vector_repeated_over_t() -> None:
    """A delegate sums over a length that varies by products alone."""
    with pytest.raises(PassError, match=r"repeats \[2, 1, 4\] to .* and not to a length that varies$"):
        differentiate(program_of(lambda b: b.call(aten.mul.Tensor, b.leaf(2, 1, 4), b.leaf_T())))


def _gradients(b: Leaves, result: Node, wrt: list[Node]) -> dict[Node, Node]:
    end = b.program.graph.output_node()
    rewriter = Rewriter(b.program, RULE)
    with rewriter.before(end):
        return gradients(rewriter, RULES, {result: b.weight("seed", *result.meta["val"].shape)}, wrt)
