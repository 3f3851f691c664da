"""Choose A from what each trained layer reads: the directions that hold most of its inputs over a few prompts.

Letters: r rank, D width of a layer's input, n tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.fx import Node

from prgec.compiler.principal import principal_directions
from prgec.compiler.readings import inputs_over
from prgec.core.contract.arrays import State
from prgec.errors import UsageError
from prgec.passes.program import GraphProgram
from prgec.passes.sites import is_a

# A layer's Gram matrix has at most this many rows, over all prompts together.
MAX_TOKENS = 1024
# The length of a direction that rounding alone made, relative to the longest.
_MIN_RELATIVE_EIGENVALUE = 1e-10


def calibrated_a(program: GraphProgram, prompts: Sequence[Sequence[int]], rank: int) -> State:
    """Return A of every site, f32[r, D] by `<site>.lora_A`: the r principal directions of its inputs, longest first.

    Rows are orthonormal. A drawn A has rows of length 1 in root mean square too, so that alpha, learning rates and eps
    mean what they mean there. Directions are those of the inputs as they are, not of what is left without their mean:
    the gradient of B is a sum over inputs as they are.

    Args:
        program: Graph with sites, before anything is quantised.
        prompts: Token ids of each.
        rank: r.

    Raises:
        UsageError: If prompts have too few tokens to span r directions.
    """
    sources: dict[str, Node] = {}
    for node in program.calls(torch.ops.aten.linear.default):
        source, weight = node.args[:2]
        if is_a(weight) and isinstance(source, Node):
            sources[str(weight.target)] = source
    directions: dict[Node, Tensor] = {}
    found: State = {}
    for name, inputs_nD in inputs_over(program, sources, prompts, MAX_TOKENS).items():
        source = sources[name]
        if source not in directions:
            directions[source] = _principal(inputs_nD, rank, name)
        found[name] = directions[source].numpy()
    return found


def _principal(inputs_nD: Tensor, rank: int, name: str) -> Tensor:
    """Return the first r principal directions, f32[r, D], each with its largest element positive: one of two signs."""
    squares_r, rows_rD = principal_directions(inputs_nD, rank)
    count = int((squares_r > _MIN_RELATIVE_EIGENVALUE * squares_r[0]).sum())
    if count < rank:
        raise UsageError(
            f"the prompts of --data span {count} directions of what {name.rpartition('.')[0]} reads; --rank is {rank}",
            hint="name data with more prompts, or lower --rank",
        )
    largest = rows_rD.gather(1, rows_rD.abs().argmax(1, keepdim=True))
    directions: Tensor = (rows_rD * largest.sign()).to(torch.float32)
    return directions.contiguous()
