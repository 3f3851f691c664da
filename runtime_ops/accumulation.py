"""Eager meaning of `prge::accumulate`: the oracle the compiled kernel equals bit for bit.

Where a step consists of several calls, each call adds what it measured to a total, and the last one hands on the mean.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def accumulate(total: Tensor, value: Tensor, call: Tensor) -> Tensor:
    """Add `value` to `total`; return the mean over all calls of the step in its last call, and infinity in the others.

    The first call of a step overwrites the total, so that the remains of an unfinished step are never part of another.
    `step_scale` takes infinite losses for a reason to change nothing: that makes a call that is not the last one leave
    weights and optimiser alone.

    Args:
        total: f32 of any shape, updated in place.
        value: f32 of the same shape.
        call: i64[2]: how many calls of this step came before, and 1 in its last call, 0 in others.

    Raises:
        ValueError: If an argument has the wrong dtype or shape.
    """
    check_accumulate(total, value, call)
    before, is_last = call.tolist()
    total.copy_(value if before == 0 else total + value)
    return total / float(before + 1) if is_last else torch.full_like(total, math.inf)


def check_accumulate(total: Tensor, value: Tensor, call: Tensor) -> None:
    """Refuse arguments `accumulate` has no meaning for.

    Raises:
        ValueError: Naming the first argument at fault.
    """
    expected = ("float32", list(total.shape))
    for name, tensor, wanted in (
        ("total", total, expected),
        ("value", value, expected),
        ("call", call, ("int64", [2])),
    ):
        found = (str(tensor.dtype).removeprefix("torch."), list(tensor.shape))
        if found != wanted:
            raise ValueError(f"prge::accumulate: {name} is {found[0]}{found[1]}; expected {wanted[0]}{wanted[1]}")
