"""Round weights so that what a layer computes over given inputs changes least.

Letters: O outputs, D inputs of a layer, n tokens, G inputs that share a scale.

E. Frantar, S. Ashkboos, T. Hoefler and D. Alistarh, "GPTQ: Accurate Post-Training Quantization for Generative
Pre-trained Transformers", Algorithm 1: columns are rounded one after the other, and what each one's rounding does to
the outputs is made up for by the columns that are still to come.
"""

from __future__ import annotations

import torch

from prgec.passes.weights import FRACTIONS, Scheme

# Columns whose corrections reach the columns behind them in one product.
_BLOCK = 128
# Added to the diagonal of the Gram matrix, as a share of its mean; the paper's.
_DAMPING = 0.01


def correction_of(inputs_nD: torch.Tensor) -> torch.Tensor:
    """Return the upper Cholesky factor of the inverse of the damped Gram matrix of the inputs, f64[D, D].

    Row d says how later columns make up for the rounding of column d; its square on the diagonal is the inverse of what
    that rounding still costs then.
    """
    x = inputs_nD.to(torch.float64)
    gram_DD = x.T @ x
    mean = gram_DD.diagonal().mean()
    # Inputs that are all zero say nothing: every rounding is as good, and each column is rounded for itself.
    gram_DD.diagonal().add_(_DAMPING * mean if mean > 0 else 1.0)
    inverse_DD = torch.cholesky_inverse(torch.linalg.cholesky(gram_DD))
    factor_DD: torch.Tensor = torch.linalg.cholesky(inverse_DD, upper=True)
    return factor_DD


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
    left_OD = weight_OD.detach().to(torch.float32).clone()
    upper_DD = correction_DD.to(torch.float32)
    values_OD = torch.empty_like(left_OD)
    scales = []
    width = left_OD.shape[1]
    for first in range(0, width, _BLOCK):
        last = min(first + _BLOCK, width)
        errors_OE = torch.empty_like(left_OD[:, first:last])
        for d in range(first, last):
            if d % group == 0:
                # Of a group that reaches beyond the block, the columns out there are seen before they are corrected.
                scales.append(_scale(left_OD[:, d : d + group], upper_DD.diagonal()[d : d + group], scheme))
            values_OD[:, d] = (left_OD[:, d] / scales[-1]).round_().clamp_(scheme.minimum, scheme.maximum)
            error_O = (left_OD[:, d] - values_OD[:, d] * scales[-1]) / upper_DD[d, d]
            left_OD[:, d:last] -= torch.outer(error_O, upper_DD[d, d:last])
            errors_OE[:, d - first] = error_O
        left_OD[:, last:] -= errors_OE @ upper_DD[first:last, last:]
    return values_OD.to(torch.int8), torch.stack(scales, dim=1)


def _scale(weight_OG: torch.Tensor, diagonal_G: torch.Tensor, scheme: Scheme) -> torch.Tensor:
    """The scale of least squared error, f32[O], an error in a column counting by what it costs; nearest rounding."""
    cost_G = diagonal_G.square().reciprocal()
    lowest_O, highest_O = weight_OG.amin(dim=1) / scheme.minimum, weight_OG.amax(dim=1) / scheme.maximum
    # A row of zeros has no scale of its own; any serves.
    widest_O = torch.maximum(lowest_O, highest_O).clamp_min(1e-30)
    best_O, scale_O = torch.full_like(widest_O, torch.inf), widest_O
    for fraction in FRACTIONS if scheme.bits < 8 else (1.0,):
        tried_O = (
            (widest_O * fraction).to(torch.bfloat16).to(torch.float32) if scheme.is_grouped else widest_O * fraction
        )
        values_OG = (weight_OG / tried_O[:, None]).round_().clamp_(scheme.minimum, scheme.maximum)
        error_O = (values_OG * tried_O[:, None] - weight_OG).square() @ cost_G
        is_better = error_O < best_O
        best_O, scale_O = torch.where(is_better, error_O, best_O), torch.where(is_better, tried_O, scale_O)
    return scale_O
