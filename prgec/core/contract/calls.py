"""The arguments of a program's calls: rows, the numbers of a step, and the place of a call in its step.

Letters: q queries, B examples a step, N = 2qB rows (B where the program computes gradients), T tokens, K label
positions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from prgec.core.contract.arrays import FloatArray, IntArray
from prgec.core.contract.manifest import Manifest
from prgec.core.contract.names import LABEL_WEIGHTS_HINT
from prgec.errors import ProgramError


def _no_rows() -> IntArray:
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Batch:
    """Rows of one call, right-padded.

    Attributes:
        tokens_NT: i64[N, T].
        label_pos_NK: i64[N, K]; 0 in unused slots.
        targets_NK: i64[N, K]; -100 in unused slots.
        indices: Index into the caller's rows for each of the leading rows that count; the others are filling.
        weights_NK: f32[N, K], what each label counts in the loss that is differentiated; None where all count 1.
    """

    tokens_NT: IntArray
    label_pos_NK: IntArray
    targets_NK: IntArray
    indices: IntArray = field(default_factory=_no_rows)
    weights_NK: FloatArray | None = None


@dataclass(frozen=True, kw_only=True)
class StepInputs:
    """The numbers by which a step changes and perturbs the weights of a program that measures losses.

    Attributes:
        g_q: f32[q], projected gradients of the step before; zeros leave the state as it is.
        lr: Learning rate of the step before.
        eps: Perturbation scale, > 0; with 0 nothing is perturbed, and the rows are N different examples.
        seed: Key of the noise.
        step: Number of this step, from 1.
    """

    g_q: FloatArray
    lr: float
    eps: float = 0.0
    seed: int
    step: int

    @classmethod
    def none(cls, q: int) -> StepInputs:
        """Return those that change and perturb nothing."""
        return cls(g_q=np.zeros(q, dtype=np.float32), lr=0.0, seed=0, step=1)


class Call(NamedTuple):
    """Which call of its step a call is, where a step is several.

    Attributes:
        before: Calls of the step that came before.
        is_last: Whether the step is taken in this one; others only gather.
    """

    before: int
    is_last: bool


ONLY_CALL = Call(0, True)


def label_weights(manifest: Manifest, weights_BK: FloatArray | None) -> list[FloatArray]:
    """Return the input of a program that says what each label counts; nothing for a program without it.

    Args:
        manifest: The program's.
        weights_BK: f32[B, K]; None to count every label once.

    Raises:
        ProgramError: If there are weights, and the program takes none.
    """
    if manifest.label_weights:
        ones = np.ones((manifest.num_rows, manifest.num_labels), dtype=np.float32)
        return [ones if weights_BK is None else np.ascontiguousarray(weights_BK, dtype=np.float32)]
    if weights_BK is not None:
        raise ProgramError("the program takes no label weights", hint=LABEL_WEIGHTS_HINT)
    return []
