"""A rounding: `prgec compile --quantize 8da4w --rounding clipped`."""

from __future__ import annotations

import torch

from prgec.passes.roundings import Rounding
from prgec.passes.weights import Scheme

# Share of the largest weight of a group that its scale reaches.
_REACH = 0.8


def clip(
    weight_OD: torch.Tensor, inputs_nD: torch.Tensor | None, scheme: Scheme, group: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return values i8[O, D] and scales f32[O, D / G] whose largest weights are clipped, so that others are finer.

    Args:
        weight_OD: Weights f32[O, D].
        inputs_nD: Inputs of the layer over some prompts, f32[n, D]; they are not looked at.
        scheme: Range of the values.
        group: G, inputs that share a scale.
    """
    groups = weight_OD.detach().reshape(len(weight_OD), -1, group)
    scales = (groups.abs().amax(-1, keepdim=True) * _REACH / scheme.maximum).clamp_min(1e-12)
    # A delegate holds the scales of groups in bf16.
    scales = scales.to(torch.bfloat16).to(torch.float32)
    values = (groups / scales).round().clamp(scheme.minimum, scheme.maximum)
    return values.reshape(weight_OD.shape).to(torch.int8), scales.squeeze(-1)


CLIPPED = Rounding("clipped", clip)
