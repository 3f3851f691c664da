"""Frozen weights in 8 or 4 bits, spelt so that OpenVINO keeps them narrow in memory and multiplies in f32."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.fx import GraphModule, Node

from prgec.backends.openvino.libraries import import_module

aten = torch.ops.aten
_DEQUANTIZE = "dequantize_per_channel"
# The part of [-8, 7] that 4-bit schemes use; 8-bit weights reach 127 by their scale.
_LARGEST_NIBBLE = 7


def spell_out_scales(module: GraphModule) -> None:
    """Write every dequantisation as a cast and a product, which OpenVINO's frontend would take for nothing otherwise.

    Args:
        module: Graph of a delegate; changed.
    """
    graph = module.graph
    for node in [each for each in graph.nodes if _DEQUANTIZE in str(each.target)]:
        codes, scale = node.args[0], node.args[1]
        assert isinstance(codes, Node) and isinstance(scale, Node)
        with graph.inserting_before(node):
            wide = graph.call_function(aten._to_copy.default, (codes,), {"dtype": torch.float32})
            column = graph.call_function(aten.unsqueeze.default, (scale, 1))
            product = graph.call_function(aten.mul.Tensor, (wide, column))
        for each in (wide, product):
            each.meta["val"] = node.meta["val"]
        column.meta["val"] = scale.meta["val"].unsqueeze(1)
        node.replace_all_uses_with(product)
        graph.erase_node(node)
    module.recompile()


def pack_nibbles(model: Any) -> None:
    """Store weights that fit 4 bits in 4 bits.

    Args:
        model: OpenVINO's model; changed.
    """
    openvino, opset = import_module("openvino"), import_module("openvino.opset13")
    for node in model.get_ops():
        source = node.input_value(0).get_node() if node.get_type_name() == "Convert" else None
        if source is None or source.get_type_name() != "Constant" or source.get_element_type() != openvino.Type.i8:
            continue
        values = source.data
        if np.abs(values).max() <= _LARGEST_NIBBLE:
            node.input(0).replace_source_output(opset.constant(values, openvino.Type.i4).output(0))
