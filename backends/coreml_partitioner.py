"""Puts the part of a program that Core ML supports into its delegate."""

from __future__ import annotations

import coremltools
import torch
from executorch.backends.apple.coreml.compiler import CoreMLBackend
from executorch.backends.apple.coreml.partition.coreml_partitioner import (
    CoreMLPartitioner,
    _OperatorsSupportedForCoreMLBackend,
)
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.fx import Node

from prgec.backends.forward_partitioner import ForwardPartitioner


def partitioner() -> ForwardPartitioner:
    """A partitioner by ExecuTorch's list of ops."""
    specs = CoreMLBackend.generate_compile_specs(
        compute_precision=coremltools.precision.FLOAT32, minimum_deployment_target=coremltools.target.iOS18
    )
    support = _OperatorsSupportedForCoreMLBackend()
    theirs = CoreMLPartitioner()

    def takes(node: Node) -> bool:
        return bool(support.is_node_supported({}, node))

    def whole(program: ExportedProgram) -> list[OpOverload]:
        # ExecuTorch expects ops that are kept whole to end up in a delegate, and a constant alone does not justify one.
        return [op for op in theirs.ops_to_not_decompose(program)[0] if op is not torch.ops.aten.scalar_tensor.default]

    return ForwardPartitioner(CoreMLBackend.__name__, specs, takes, whole)
