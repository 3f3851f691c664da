"""The ways to round the weights of a layer to few values. To add one, install a package with an entry point.

Letters: O outputs, D inputs of a layer, n tokens, G inputs that share a scale.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch

from prgec.core.contract.names import GPTQ, QUANTIZER_GROUP, ROUNDINGS
from prgec.core.contract.plugins import load_plugin, plugins_of
from prgec.errors import PassError
from prgec.passes.gptq import correction_of, rounded_for
from prgec.passes.weights import Scheme

Rounded: TypeAlias = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Rounding:
    """A way to round.

    Attributes:
        name: Name on the command line.
        round: Maps weights f32[O, D], the inputs f32[n, D] that the layer read over some prompts, or None where nobody
            looked, the scheme and G to values i8[O, D] within the scheme's range, and scales f32[O, D / G].
        reads_inputs: Whether it needs those inputs, and so prompts; layers without any go to the nearest value.
    """

    name: str
    round: Callable[[torch.Tensor, torch.Tensor | None, Scheme, int], Rounded]
    reads_inputs: bool = False


class _Gptq:
    """GPTQ, with the correction of the last inputs kept: layers that read one thing follow one another."""

    def __init__(self) -> None:
        self._last: tuple[torch.Tensor, torch.Tensor] | None = None

    def __call__(self, weight_OD: torch.Tensor, inputs_nD: torch.Tensor | None, scheme: Scheme, group: int) -> Rounded:
        assert inputs_nD is not None, "it reads inputs"
        if self._last is None or self._last[0] is not inputs_nD:
            self._last = inputs_nD, correction_of(inputs_nD)
        return rounded_for(weight_OD, self._last[1], scheme, group)


def find_rounding(name: str) -> Rounding | None:
    """Return a way to round; None for the nearest values, and for a name that there is not.

    Raises:
        UsageError: If it belongs to a package that cannot be imported.
    """
    if name == GPTQ:
        return Rounding(GPTQ, _Gptq(), reads_inputs=True)
    point = plugins_of(QUANTIZER_GROUP, ROUNDINGS).get(name)
    if point is None:
        return None
    found: Rounding = load_plugin(point, Rounding)
    return found


def reads_inputs(name: str) -> bool:
    """Whether a way to round needs what layers read over some prompts."""
    found = find_rounding(name)
    return found is not None and found.reads_inputs


def rounding_names() -> tuple[str, ...]:
    """Return the names on the command line; no package is imported."""
    return (*ROUNDINGS, *plugins_of(QUANTIZER_GROUP, ROUNDINGS))


def checked(rounding: Rounding, rounded: Rounded, weight_OD: torch.Tensor, scheme: Scheme, group: int) -> Rounded:
    """Return values and scales as they are.

    Raises:
        PassError: If they are not of the shapes and types that a program stores, or out of the scheme's range.
    """
    values, scales = rounded
    width = weight_OD.shape[1] // group
    is_fit = values.dtype == torch.int8 and values.shape == weight_OD.shape
    if not is_fit or scales.dtype != torch.float32 or scales.shape != (len(weight_OD), width):
        raise PassError(
            f"rounding {rounding.name} returned {values.dtype}{list(values.shape)} and {scales.dtype}"
            f"{list(scales.shape)}; expected int8{list(weight_OD.shape)} and float32{[len(weight_OD), width]}"
        )
    if int(values.min()) < scheme.minimum or int(values.max()) > scheme.maximum or not bool(scales.isfinite().all()):
        raise PassError(f"rounding {rounding.name} returned values outside {scheme.minimum} to {scheme.maximum}")
    return rounded
