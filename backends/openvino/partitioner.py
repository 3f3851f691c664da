"""Puts the part of a program that OpenVINO's PyTorch frontend supports into one delegate."""

from __future__ import annotations

import operator
from functools import partial
from typing import Any

from executorch.exir.backend.compile_spec_schema import CompileSpec
from torch.fx import Node

from prgec.backends.forward_partitioner import ForwardPartitioner
from prgec.backends.openvino.libraries import import_module
from prgec.backends.openvino.preprocess import DEVICE, OpenvinoBackend


def partitioner() -> ForwardPartitioner:
    """A partitioner by the frontend's list of ops."""
    support = import_module("openvino.frontend.pytorch.torchdynamo.op_support").OperatorSupport([])
    specs = [CompileSpec("device", DEVICE.encode())]
    return ForwardPartitioner(OpenvinoBackend.__name__, specs, partial(_takes, support._support_dict))


def _takes(known: dict[str, Any], node: Node) -> bool:
    return node.target is operator.getitem or f"torch.ops.{getattr(node.target, '__name__', '')}" in known
