"""Differential privacy of single rows in runs of `prge`: bounded shares, and noise on their sum.

A step of `prge` releases q numbers and nothing else of its rows. So it is enough to bound what one row adds to these
numbers, and to add noise to them: DP-ZO (Tang, Panda, Nasr, Mahloujifar and Mittal, "Private Fine-tuning of Large
Language Models with Zeroth-order Optimization", arXiv 2401.04343) and DPZero (Zhang, Li, Thekumparampil, Oh and He,
arXiv 2310.09639). With q queries the share of a row is a vector, whose length is bounded.

Letters: q queries, B examples a step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from prgec.core.contract.arrays import Float64Array
from prgec.core.contract.manifest import Manifest
from prgec.core.contract.sums import ordered_mean, ordered_sum
from prgec.core.data.batches import IntArray
from prgec.errors import UsageError

DEFAULT_DELTA = 1e-5
EPSILON_HELP = (
    "Hide single rows by noise, within this budget of differential privacy (method prge; docs/privacy.md); 0: do not."
)
DELTA_HELP = "The chance that the budget does not hold."
CLIP_HELP = "Largest length of a row's share of a step; 0: all shares have the same."

# Added to the length that a share is divided by: shares of rows without a gradient stay small (Bu, Wang, Zha and
# Karypis, "Automatic Clipping: Differentially Private Deep Learning Made Easier and Stronger", arXiv 2206.07136).
_FLOOR = 0.01


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """Bound of a row's share, and the noise that hides it.

    Attributes:
        noise_multiplier: Standard deviation of the noise, in bounds of a share.
        clip: Largest length of a row's share, its q projected gradients; 0 gives all shares length 1, nearly, so that
            no bound has to be found.
        noise: Source of the noise. The system's own randomness by default: noise from a known seed hides nothing.

    Example:
        >>> import numpy as np
        >>> from prgec.runtime.training.privacy import Privacy
        >>> losses = np.array([[[1.0, 5.0], [0.0, 1.0]]])  # q = 1, two signs, B = 2
        >>> hidden = Privacy(noise_multiplier=0.0, clip=1.0).hide(losses, np.array([0, 1]), eps=0.5)
        >>> hidden[:, 0] - hidden[:, 1]
        array([1.])
    """

    noise_multiplier: float
    clip: float = 0.0
    noise: np.random.Generator = field(default_factory=np.random.default_rng, compare=False)

    def hide(self, losses: Float64Array, indices: IntArray, eps: float) -> Float64Array:
        """Return the losses of each query and sign, with a difference that hides single rows: f64[q, 2].

        Their means are as measured, and not private. An estimator uses the difference alone.

        Args:
            losses: Losses of the rows, f64[q, 2, B].
            indices: The row of each example, i64[B]; one that is there twice has one share.
            eps: Perturbation scale.
        """
        q, _, num_rows = losses.shape
        share_Bq = ((losses[:, 0] - losses[:, 1]) / (2.0 * eps)).T
        length_B = np.sqrt(ordered_sum(share_Bq * share_Bq))
        factor_B = self.clip / np.maximum(length_B, self.clip) if self.clip else 1 / (length_B + _FLOOR)
        is_first_B = np.zeros(num_rows)
        is_first_B[np.unique(indices, return_index=True)[1]] = 1.0
        noise_q = self.noise.normal(0.0, self.noise_multiplier * (self.clip or 1.0), q)
        g_q = (ordered_sum(share_Bq.T * factor_B * is_first_B) + noise_q) / num_rows
        middle_q = ordered_mean(losses.reshape(q, -1))
        return np.stack([middle_q + eps * g_q, middle_q - eps * g_q], axis=1)


@dataclass(frozen=True, kw_only=True)
class PrivacyTerms:
    """The wishes of the owner of rows.

    Attributes:
        epsilon: Budget of differential privacy for each row, over the whole run.
        delta: The chance that it does not hold.
        clip: Largest length of a row's share of a step; 0 gives all shares the same.
    """

    epsilon: float
    delta: float
    clip: float = 0.0

    def check(self, manifest: Manifest, program: Path) -> None:
        """Refuse a program that cannot hide single rows.

        Raises:
            UsageError: Naming the option.
        """
        if manifest.has_gradients:
            raise UsageError(
                "--dp-epsilon needs a program that measures losses: a gradient is that of all rows of a call",
                where=program,
                hint="compile it with --method prge",
            )


def privacy_terms(epsilon: float, delta: float, clip: float) -> PrivacyTerms | None:
    """Return the terms that three options mean; None for an epsilon of 0, which hides nothing.

    Raises:
        UsageError: Naming the first option with an impossible value.
    """
    if not (math.isfinite(epsilon) and epsilon >= 0):
        raise UsageError(f"--dp-epsilon is {epsilon}; expected a finite number, 0 or more")
    if not 0 < delta < 1:
        raise UsageError(f"--dp-delta is {delta}; expected a number between 0 and 1")
    if not (math.isfinite(clip) and clip >= 0):
        raise UsageError(f"--dp-clip is {clip}; expected a finite number, 0 or more")
    if clip and not epsilon:
        raise UsageError("--dp-clip needs --dp-epsilon")
    return PrivacyTerms(epsilon=epsilon, delta=delta, clip=clip) if epsilon else None
