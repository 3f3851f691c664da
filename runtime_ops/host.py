"""The arithmetic of the operators on NumPy arrays: what a host does that keeps the state itself.

It is the kernels' own code (csrc/host.cpp), so a state kept here and one kept in a program are equal bit for bit. The
meaning is that of `reference`, `optimizers` and `accumulation`.

Letters: q queries, r rank, O outputs of a site.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from prgec.errors import BackendError
from prgec.runtime_ops.native import kernel_library, load_kernels
from prgec.runtime_ops.philox import FROZEN_QUERY

FloatArray: TypeAlias = npt.NDArray[np.float32]

_FLOATS, _INT, _FLOAT = ctypes.POINTER(ctypes.c_float), ctypes.c_int64, ctypes.c_float


@dataclass(frozen=True)
class SiteState:
    """The state of one site, each f32[r, O] and contiguous.

    Attributes:
        master: B itself.
        mean: Running mean of gradients, where the rule has one.
        square: Running mean of their squares, where the rule has one.
    """

    master: FloatArray
    mean: FloatArray | None = None
    square: FloatArray | None = None


class _Rule(ctypes.Structure):
    _fields_ = [
        ("clip", ctypes.c_double),
        ("beta1", ctypes.c_double),
        ("beta2", ctypes.c_double),
        ("normalise", ctypes.c_bool),
        ("polyak", ctypes.c_double),
        ("eps", ctypes.c_double),
        ("decay", ctypes.c_double),
    ]


class _Site(ctypes.Structure):
    _fields_ = [("master", _FLOATS), ("mean", _FLOATS), ("square", _FLOATS), ("gradient", _FLOATS), ("size", _INT)]


def dual_update(
    master: FloatArray,
    g: FloatArray,
    lr: float,
    eps: float,
    seed: int,
    step: int,
    site: int,
    copies: FloatArray | None = None,
) -> None:
    """Apply the update of the step before to `master`, and write the 2q perturbed copies.

    Args:
        master: f32[r, O], updated in place.
        g: f32[q].
        lr: Learning rate of the update.
        eps: Perturbation scale of the copies.
        seed: Key of the noise.
        step: The current step.
        site: Number of the site.
        copies: f32[2q, r, O]; None for the update alone.
    """
    _check(
        _library().prgec_dual_update(
            _pointer(master),
            master.size,
            _pointer(np.ascontiguousarray(g, dtype=np.float32)),
            len(g),
            lr,
            eps,
            seed,
            step,
            site,
            None if copies is None else _pointer(copies),
        )
    )


def take_step(
    running: FloatArray,
    sites: Sequence[SiteState],
    gradients: Sequence[FloatArray],
    losses: FloatArray,
    lr: float,
    rule: str,
    numbers: Mapping[str, float],
) -> FloatArray:
    """Move every site along its gradient.

    Args:
        running: f32[4], what all sites share of an optimiser's state; updated in place.
        sites: State of each site; updated in place.
        gradients: f32[r, O] of each.
        losses: f32[B], whose mean they are the gradients of.
        lr: Learning rate.
        rule: `norm`, `momentum` or `adamw`.
        numbers: The rule's own, as a manifest has them.

    Returns:
        Effect of the gradient, f32[4]: scale, norm, and the corrections of running means.
    """
    library, how = _library(), _Rule(normalise=rule != "adamw", **numbers)
    contiguous = [np.ascontiguousarray(each, dtype=np.float32) for each in gradients]
    total = 0.0
    for each in contiguous:
        total += library.prgec_sum_of_squares(_pointer(each), each.size)
    count, factors = sum(each.size for each in contiguous), np.empty(4, dtype=np.float32)
    library.prgec_step_scale(
        _pointer(running), total, count, _pointer(losses), losses.size, lr, ctypes.byref(how), _pointer(factors)
    )
    for site, gradient in zip(sites, contiguous, strict=True):
        kept = [None if each is None else _pointer(each) for each in (site.master, site.mean, site.square)]
        state = _Site(*kept, _pointer(gradient), site.master.size)
        _check(library.prgec_update(ctypes.byref(state), lr, _pointer(factors), ctypes.byref(how)))
    return factors


def accumulate(total: FloatArray, value: FloatArray, before: int, is_last: bool) -> None:
    """Add `value` to `total` after `before` calls of a step; in its last call, make it their mean."""
    means = _pointer(total) if is_last else None
    _check(_library().prgec_accumulate(_pointer(total), _pointer(value), total.size, before, is_last, means))


def frozen_a(seed: int, site: int, rank: int, in_features: int) -> FloatArray:
    """Return the frozen A of one site, f32[r, in_features]: the same bits as `lora.lora_a`, without torch.

    Args:
        seed: Seed of all A matrices of a program.
        site: Number of the site.
        rank: r.
        in_features: Width of the layer's input.
    """
    a = np.empty((rank, in_features), dtype=np.float32)
    _library().prgec_normals(seed, 0, site, FROZEN_QUERY, a.size, _pointer(a))
    return a * np.float32(1.0 / math.sqrt(in_features))


_RULE, _SITE = ctypes.POINTER(_Rule), ctypes.POINTER(_Site)
_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "prgec_dual_update": (ctypes.c_int, [_FLOATS, _INT, _FLOATS, _INT, _FLOAT, _FLOAT, _INT, _INT, _INT, _FLOATS]),
    "prgec_normals": (None, [_INT, _INT, _INT, _INT, _INT, _FLOATS]),
    "prgec_sum_of_squares": (ctypes.c_double, [_FLOATS, _INT]),
    "prgec_step_scale": (None, [_FLOATS, ctypes.c_double, _INT, _FLOATS, _INT, _FLOAT, _RULE, _FLOATS]),
    "prgec_update": (ctypes.c_int, [_SITE, _FLOAT, _FLOATS, _RULE]),
    "prgec_accumulate": (ctypes.c_int, [_FLOATS, _FLOATS, _INT, _INT, ctypes.c_int, _FLOATS]),
}


@cache
def _library() -> ctypes.CDLL:
    load_kernels()
    library = ctypes.CDLL(str(kernel_library()))
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def _pointer(array: FloatArray) -> ctypes._Pointer[ctypes.c_float]:
    return array.ctypes.data_as(_FLOATS)


def _check(failed: int) -> None:
    if failed:
        raise BackendError("the thread pool of ExecuTorch failed")
