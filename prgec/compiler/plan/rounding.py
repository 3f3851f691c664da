"""Memory that rounding weights by data takes on the machine that compiles. Imports nothing heavy.

Letters: D inputs of a layer, n tokens.
"""

from __future__ import annotations

from prgec.compiler.plan.op import F32
from prgec.compiler.plan.shape import ModelShape

# Rows of all prompts together, for layers whose weights are rounded by them: the largest n.
MAX_TOKENS = 2048
# A process with torch, and a traced graph.
_BASE_BYTES = 1_000_000_000
# The checkpoint's weights, and what they were rounded to so far.
_BYTES_A_WEIGHT = F32 + 1
# The Gram matrix, turned into the factor in its place, and whole numbers of blocks of it: 3 matrices of f64.
_BYTES_OF_A_FACTOR = 24


def rounding_bytes(shape: ModelShape, num_weights: int) -> int:
    """Return the peak of a compilation while it rounds: inputs f32[n, D] of all layers are kept until the last one.

    Args:
        shape: Sizes of the model.
        num_weights: Parameters of the checkpoint.
    """
    widths = [shape.linear(name).inputs for name in ("q", "o", "up", "down")]
    readings = F32 * MAX_TOKENS * shape.layers * sum(widths)
    return _BASE_BYTES + _BYTES_A_WEIGHT * num_weights + readings + _BYTES_OF_A_FACTOR * max(widths) ** 2
