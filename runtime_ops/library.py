"""Registers the `prge` operators with torch; importing this module is all it takes.

Both overloads of each operator run the eager reference on any device. Fake kernels give shapes and dtypes to
`torch.export`. Importing twice, or under two names, registers once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from prgec.runtime_ops import accumulation, optimizers, reference
from prgec.runtime_ops.schemas import (
    ACCUMULATE,
    ADAMW_UPDATE,
    DUAL_UPDATE,
    MOMENTUM_UPDATE,
    NAMESPACE,
    PERTURBATION,
    RANDN,
    SCHEMAS,
    SGD_UPDATE,
    STEP_SCALE,
)


def _randn_out(seed: Tensor, step: Tensor, site: int, q: int, shape: Sequence[int], *, out: Tensor) -> Tensor:
    return _write("randn", out, reference.randn(seed, step, site, q, shape))


def _dual_update_out(
    master: Tensor, g: Tensor, lr: Tensor, eps: Tensor, seed: Tensor, step: Tensor, site: int, *, out: Tensor
) -> Tensor:
    return _write("dual_update", out, reference.dual_update(master, g, lr, eps, seed, step, site))


def _perturbation_out(
    master: Tensor, g: Tensor, lr: Tensor, eps: Tensor, seed: Tensor, step: Tensor, site: int, *, out: Tensor
) -> Tensor:
    return _write("perturbation", out, reference.perturbation(master, g, lr, eps, seed, step, site))


def _randn_fake(seed: Tensor, step: Tensor, site: int, q: int, shape: Sequence[int]) -> Tensor:
    reference.check_randn(seed, step, site, q, shape)
    return seed.new_empty((q, *shape), dtype=torch.float32)


def _dual_update_fake(
    master: Tensor, g: Tensor, lr: Tensor, eps: Tensor, seed: Tensor, step: Tensor, site: int
) -> Tensor:
    reference.check_dual_update(master, g, lr, eps, seed, step, site)
    return master.new_empty((2 * g.shape[0], *master.shape))


def _perturbation_fake(
    master: Tensor, g: Tensor, lr: Tensor, eps: Tensor, seed: Tensor, step: Tensor, site: int
) -> Tensor:
    reference.check_dual_update(master, g, lr, eps, seed, step, site, "perturbation")
    return master.new_empty((g.shape[0], 1, *master.shape))


def _randn_out_fake(seed: Tensor, step: Tensor, site: int, q: int, shape: Sequence[int], *, out: Tensor) -> Tensor:
    return out


def _dual_update_out_fake(
    master: Tensor, g: Tensor, lr: Tensor, eps: Tensor, seed: Tensor, step: Tensor, site: int, *, out: Tensor
) -> Tensor:
    return out


def _optimizer(op: str, kernel: Callable[..., Tensor], size: int | None) -> dict[str, tuple[Any, Any]]:
    """Both overloads of an operator that updates its first arguments and returns f32[size], or what is like it."""

    def fake(first: Tensor, *args: Any) -> Tensor:
        return torch.empty_like(first) if size is None else first.new_empty((size,))

    def out_kernel(*args: Any, out: Tensor) -> Tensor:
        return _write(op, out, kernel(*args))

    def out_fake(*args: Any, out: Tensor) -> Tensor:
        return out

    return {f"{NAMESPACE}::{op}": (kernel, fake), f"{NAMESPACE}::{op}.out": (out_kernel, out_fake)}


def _write(op: str, out: Tensor, value: Tensor) -> Tensor:
    if out.dtype != value.dtype or out.shape != value.shape:
        found, expected = f"{out.dtype}{list(out.shape)}", f"{value.dtype}{list(value.shape)}"
        raise ValueError(f"prge::{op}: out is {found}; expected {expected}".replace("torch.", ""))
    return out.copy_(value)


_KERNELS: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    RANDN.qualified_name: (reference.randn, _randn_fake),
    f"{RANDN.qualified_name}.out": (_randn_out, _randn_out_fake),
    DUAL_UPDATE.qualified_name: (reference.dual_update, _dual_update_fake),
    f"{DUAL_UPDATE.qualified_name}.out": (_dual_update_out, _dual_update_out_fake),
    PERTURBATION.qualified_name: (reference.perturbation, _perturbation_fake),
    f"{PERTURBATION.qualified_name}.out": (_perturbation_out, _dual_update_out_fake),
    **_optimizer(STEP_SCALE.name, optimizers.step_scale, 4),
    **_optimizer(SGD_UPDATE.name, optimizers.sgd_update, 1),
    **_optimizer(MOMENTUM_UPDATE.name, optimizers.momentum_update, 1),
    **_optimizer(ADAMW_UPDATE.name, optimizers.adamw_update, 1),
    **_optimizer(ACCUMULATE.name, accumulation.accumulate, None),
}


def _register() -> torch.library.Library:
    library = torch.library.Library(NAMESPACE, "FRAGMENT")
    for schema in SCHEMAS:
        library.define(schema.functional)
        library.define(schema.out)
    for name, (kernel, fake) in _KERNELS.items():
        library.impl(name.removeprefix(f"{NAMESPACE}::"), kernel, "CompositeExplicitAutograd")
        torch.library.register_fake(name, fake, lib=library)
    return library


if not hasattr(torch.ops.prge, RANDN.name):
    # torch drops the operators together with this object, so the module keeps it alive.
    LIBRARY = _register()
