"""Products of activations with constant matrices, each of which is in the program once."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch
from torch.fx import Node

from prgec.passes.rewrite import Rewriter

aten = torch.ops.aten


class SharedMatrices:
    """Replaces nodes by `linear(source, matrix)`.

    Args:
        rewriter: Rewriter of the pass that replaces them.
    """

    def __init__(self, rewriter: Rewriter) -> None:
        self._rewriter = rewriter
        self._names: dict[Hashable, str] = {}

    def replace(self, node: Node, source: Node, key: Hashable, make: Callable[[], torch.Tensor]) -> None:
        """Replace `node` by the product of `source` with the matrix of a key, made where the key is new."""
        with self._rewriter.before(node):
            if key in self._names:
                matrix = self._rewriter.read(self._names[key])
            else:
                matrix = self._rewriter.folded(make())
                self._names[key] = str(matrix.target)
            product = self._rewriter.call(aten.linear.default, source, matrix)
        self._rewriter.replace(node, product)
