"""Every rule of a valid graph, broken once."""

from __future__ import annotations

import operator

import pytest
import torch
from torch.fx import Node

from prgec.passes.program import GraphProgram
from prgec.passes.verify import verify
from prgec.runtime_ops import library as _registers_prge_ops  # noqa: F401 - torch.ops.prge exists only after it
from tests.passes.builder import GraphBuilder

aten = torch.ops.aten


def _no_value(b: GraphBuilder) -> Node:
    node = b.hidden()
    del node.meta["val"]
    return node


def _method(b: GraphBuilder) -> Node:
    return b.broken(b.hidden())


def _python_function(b: GraphBuilder) -> Node:
    return b.call(torch.neg, b.hidden())


def _foreign_op(b: GraphBuilder) -> Node:
    node = b.call(aten.neg.default, b.hidden())
    node.target = torch.ops.prims.neg.default
    return node


def _missing_attribute(b: GraphBuilder) -> Node:
    node = b.weight("w", 4)
    node.target = "gone"
    return node


def _attribute_without_tensor(b: GraphBuilder) -> Node:
    node = b.weight("layer.w", 4)
    node.target = "layer"
    return node


def _writes_a_value(b: GraphBuilder) -> Node:
    hidden = b.hidden()
    return b.call(aten.copy_.default, hidden, b.weight("w", 4))


def _writes_an_input(b: GraphBuilder) -> Node:
    return b.call(aten.zero_.default, b.tokens)


def _writes_in_place(b: GraphBuilder) -> Node:
    return b.call(aten.mul_.Scalar, b.weight("state", 4), 0.5)


def _writes_f16(b: GraphBuilder) -> Node:
    state = b.tensor("state", torch.zeros(4, dtype=torch.float16))
    return b.call(aten.copy_.default, state, b.weight("w", 4))


def _writes_f16_second(b: GraphBuilder) -> Node:
    master, gradient, factors = (b.weight(name, 4) for name in ("master", "gradient", "factors"))
    mean, lr = b.tensor("mean", torch.zeros(4, dtype=torch.float16)), b.input("lr", torch.zeros(()))
    return b.call(torch.ops.prge.momentum_update.default, master, mean, gradient, lr, factors, 0.9, 0.0)


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (_no_value, "%embedding_default has no value"),
        (_method, "%relu is a call_method; only functions are allowed"),
        (_python_function, "calls <built-in method neg of type object"),
        (
            _foreign_op,
            "%neg_default calls prims.neg.default, outside the namespaces "
            "['aten', 'prge', 'quantized_decomposed', 'torchao']",
        ),
        (_missing_attribute, "reads gone, which does not exist"),
        (_attribute_without_tensor, "reads layer, which does not exist"),
        (_writes_a_value, "%copy__default writes to something that is not state"),
        (_writes_an_input, "%zero__default writes to something that is not state"),
        (_writes_in_place, "%mul__scalar writes state with aten.mul_.Scalar; expected copy_ or a prge op"),
        (_writes_f16, "%copy__default writes state, which is not f32"),
        (_writes_f16_second, "%momentum_update_default writes mean, which is not f32"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_broken_rule(spoil: object, text: str) -> None:
    b = GraphBuilder()
    spoil(b)  # type: ignore[operator]
    broken = verify(b.program)
    assert len(broken) == 1 and text in broken[0]


def test_all_broken_rules_are_listed() -> None:
    b = GraphBuilder()
    _no_value(b)
    _writes_in_place(b)
    assert len(verify(b.program)) == 2


def test_valid_graph() -> None:
    assert verify(_valid()) == []


def _valid() -> GraphProgram:
    b = GraphBuilder(dynamic=True)
    length = b.call(operator.sub, b.length(), 1)
    short = b.call(aten.slice.Tensor, b.hidden(), 1, 0, length)
    scalars = {
        "g": torch.zeros(1),
        "lr": torch.zeros(()),
        "eps": torch.zeros(()),
        "seed": torch.zeros((), dtype=torch.int64),
        "step": torch.zeros((), dtype=torch.int64),
    }
    inputs = [b.input(name, value) for name, value in scalars.items()]
    copies = b.call(torch.ops.prge.dual_update.default, b.tensor("site.lora_B", torch.zeros(2, 3)), *inputs, 0)
    b.call(aten.copy_.default, b.weight("state", 1), inputs[0])
    return b.done(short, copies)
