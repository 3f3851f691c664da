"""Round weights so that what a layer computes over given inputs changes least.

Letters: O outputs, D inputs of a layer, n tokens, G inputs that share a scale.

E. Frantar, S. Ashkboos, T. Hoefler and D. Alistarh, "GPTQ: Accurate Post-Training Quantization for Generative
Pre-trained Transformers", Algorithm 1: columns are rounded one after the other, and what each one's rounding does to
the outputs is made up for by the columns that are still to come.
"""

from __future__ import annotations

import math

import torch

from prgec.passes.fixed_point import gram, product
from prgec.passes.triangular import inverse_factor
from prgec.passes.weights import FRACTIONS, Scheme, ordered_sum, strips

# Columns whose corrections reach all later columns in one product.
_BLOCK = 128
# Added to the diagonal of the Gram matrix, as a share of its mean; the paper's.
_DAMPING = 0.01


def correction_of(inputs_nD: torch.Tensor) -> torch.Tensor:
    """Return the upper Cholesky factor of the inverse of the damped Gram matrix of the inputs, f64[D, D].

    Row d says how later columns make up for the rounding of column d; its square on the diagonal is the inverse of what
    that rounding still costs then.
    """
    return inverse_factor(_damped_gram(inputs_nD))


def _damped_gram(inputs_nD: torch.Tensor) -> torch.Tensor:
    gram_DD = gram(inputs_nD)
    mean = math.fsum(gram_DD.diagonal().tolist()) / len(gram_DD)
    # Inputs that are all zero say nothing: every rounding is as good, and each column is rounded for itself.
    gram_DD.diagonal().add_(_DAMPING * mean if mean > 0 else 1.0)
    return gram_DD


def rounded_for(
    weight_OD: torch.Tensor, correction_DD: torch.Tensor, scheme: Scheme, group: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return values i8[O, D] and scales f32[O, D / G].

    Scales of groups are those a delegate holds: bf16.

    Args:
        weight_OD: Weights.
        correction_DD: From `correction_of`.
        scheme: Range of the values.
        group: G; D for one scale an output.
    """
    upper_DD = correction_DD.to(torch.float32)
    values, scales = zip(*(_rounded(rows, upper_DD, scheme, group) for rows in strips(weight_OD)), strict=True)
    return torch.cat(values), torch.cat(scales)


def _rounded(
    weight_OD: torch.Tensor, upper_DD: torch.Tensor, scheme: Scheme, group: int
) -> tuple[torch.Tensor, torch.Tensor]:
    # Rounding and correction go by column. With inputs as the first dimension, each column is contiguous.
    left_DO = weight_OD.to(torch.float32).t().contiguous()
    values_DO = torch.empty_like(left_DO, dtype=torch.int8)
    scales = []
    width = len(left_DO)
    for first in range(0, width, _BLOCK):
        last = min(first + _BLOCK, width)
        errors_EO = torch.empty_like(left_DO[first:last])
        for d in range(first, last):
            if d % group == 0:
                # If a group extends past this block, its later columns are not corrected yet when the scale is chosen.
                scales.append(_scale(left_DO[d : d + group], upper_DD.diagonal()[d : d + group], scheme))
            value_O = (left_DO[d] / scales[-1]).round_().clamp_(scheme.minimum, scheme.maximum)
            error_O = torch.div(left_DO[d] - value_O * scales[-1], upper_DD[d, d], out=errors_EO[d - first])
            # Not addr_, which rounds once or twice as the processor has it.
            left_DO[d:last].sub_(torch.outer(upper_DD[d, d:last], error_O))
            values_DO[d] = value_O
        if last < width:
            left_DO[last:].sub_(product(upper_DD[first:last, last:].t(), errors_EO.t()).to(torch.float32))
    return values_DO.t().contiguous(), torch.stack(scales, dim=1)


def _scale(weight_GO: torch.Tensor, diagonal_G: torch.Tensor, scheme: Scheme) -> torch.Tensor:
    """The scale of least squared error, f32[O], an error in a column counting by what it costs; nearest rounding."""
    cost_G = diagonal_G.square().reciprocal()
    lowest_O, highest_O = weight_GO.amin(dim=0) / scheme.minimum, weight_GO.amax(dim=0) / scheme.maximum
    # A row of zeros has no scale of its own; any serves.
    widest_O = torch.maximum(lowest_O, highest_O).clamp_min(1e-30)
    best_O, scale_O = torch.full_like(widest_O, torch.inf), widest_O
    for fraction in FRACTIONS if scheme.bits < 8 else (1.0,):
        tried_O = (
            (widest_O * fraction).to(torch.bfloat16).to(torch.float32) if scheme.is_grouped else widest_O * fraction
        )
        values_GO = (weight_GO / tried_O).round_().clamp_(scheme.minimum, scheme.maximum)
        error_O = ordered_sum(values_GO.mul_(tried_O).sub_(weight_GO).square_().mul_(cost_G.unsqueeze(1)))
        is_better = error_O < best_O
        best_O, scale_O = torch.where(is_better, error_O, best_O), torch.where(is_better, tried_O, scale_O)
    return scale_O
