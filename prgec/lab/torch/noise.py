"""The noise of the contract at full speed on a server: compiled kernels where they are, and no step drawn twice."""

from __future__ import annotations

import ctypes
import functools
import logging
from collections.abc import Callable, Sequence
from math import prod

import torch
from torch import Tensor

from prgec.errors import BackendError
from prgec.runtime_ops import noise, reference
from prgec.runtime_ops.native import kernel_library, load_kernels

_log = logging.getLogger(__name__)

# How many steps of noise are kept: the update needs that of the step before.
_KEPT_STEPS = 2


class NoiseSource:
    """Draws what `noise.randn` draws, bit for bit, and keeps the last two steps of every site.

    Memory: 2q copies of B. An ExecuTorch program draws again instead.

    Args:
        device: Where the noise is needed.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._fill = _compiled_fill() if device.type == "cpu" else None
        self._kept: dict[int, dict[tuple[int, int], Tensor]] = {}

    def draw(self, seed: Tensor, step: Tensor, site: int, q: int, shape: Sequence[int]) -> Tensor:
        """Return the noise of one site: f32[q, *shape]; the caller must not change it.

        Args:
            seed: i64[] on the CPU.
            step: i64[] on the CPU.
            site: Number of the LoRA site.
            q: Number of queries.
            shape: Shape of one query's noise.
        """
        key = int(seed), int(step)
        kept = self._kept.setdefault(site, {})
        if key not in kept:
            kept[key] = self._drawn(*key, site, q, shape)
            while len(kept) > _KEPT_STEPS:
                del kept[next(iter(kept))]
        return kept[key]

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def randn(self, seed: Tensor, step: Tensor, site: int, q: int, shape: Sequence[int]) -> Tensor:
        """Stand in for `prge::randn`."""
        reference.check_randn(seed, step, site, q, shape)
        return self.draw(seed, step, site, q, shape)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def dual_update(
        self, master: Tensor, g: Tensor, lr: Tensor, eps: Tensor, seed: Tensor, step: Tensor, site: int
    ) -> Tensor:
        """Stand in for `prge::dual_update`."""
        reference.check_dual_update(master, g, lr, eps, seed, step, site)
        return reference.dual_update_from(self.draw, master, g, lr, eps, seed, step, site)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def perturbation(
        self, master: Tensor, g: Tensor, lr: Tensor, eps: Tensor, seed: Tensor, step: Tensor, site: int
    ) -> Tensor:
        """Stand in for `prge::perturbation`."""
        reference.check_dual_update(master, g, lr, eps, seed, step, site, "perturbation")
        return reference.perturbation_from(self.draw, master, g, lr, eps, seed, step, site)

    def _drawn(self, seed: int, step: int, site: int, q: int, shape: Sequence[int]) -> Tensor:
        if self._fill is None:
            key = torch.tensor((seed, step), dtype=torch.int64, device=self._device)
            return noise.randn(key[0], key[1], site, q, shape)
        values = torch.empty((q, *shape), dtype=torch.float32)
        self._fill(seed, step, site, q, prod(shape), values.data_ptr())
        return values


@functools.cache
def _compiled_fill() -> Callable[[int, int, int, int, int, int], None] | None:
    """The kernels' own generator; None where they cannot be loaded: the eager one gives the same bits, slowly."""
    try:
        load_kernels()
    except BackendError as error:
        _log.warning("noise is drawn without the compiled kernels, which is slow: %s", error)
        return None
    fill = ctypes.CDLL(str(kernel_library())).prgec_randn
    fill.argtypes = [ctypes.c_int64] * 5 + [ctypes.c_void_p]
    fill.restype = None
    return fill
