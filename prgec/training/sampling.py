"""Which token comes next: the most likely one, or one drawn from those that are likely.

Letters: V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from prgec.contract.arrays import FloatArray
from prgec.errors import UsageError


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn.

    Attributes:
        temperature: Divides the logits; 0 takes the most likely token always.
        top_k: Draw among this many most likely tokens; 0 for all.
        top_p: Draw among the fewest tokens whose probabilities add up to this.
        seed: Of the draws.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def check(self) -> None:
        """Check the numbers.

        Raises:
            UsageError: If one has no meaning.
        """
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise UsageError(f"--temperature is {self.temperature}; expected a finite number, 0 or more")
        if self.top_k < 0:
            raise UsageError(f"--top-k is {self.top_k}; expected 0 or more")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"--top-p is {self.top_p}; expected more than 0, at most 1")
        if self.seed < 0:
            raise UsageError(f"--seed is {self.seed}; expected 0 or more")


class Sampler:
    """Draws tokens, the same ones for the same seed and logits.

    Args:
        sampling: How.
    """

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._generator = np.random.Generator(np.random.Philox(sampling.seed))

    def choose(self, logits_V: FloatArray) -> int:
        """Return the next token."""
        if self._sampling.temperature == 0:
            return int(logits_V.argmax())
        order, probabilities = likely(logits_V, self._sampling)
        drawn = self._generator.random() * probabilities.sum()
        # Rounding may leave the draw behind the last sum.
        place = min(int(np.searchsorted(probabilities.cumsum(), drawn, side="right")), len(order) - 1)
        return int(order[place])


def likely(logits_V: FloatArray, sampling: Sampling) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens to draw among, the most likely first, and their probabilities before any was left out."""
    order = np.argsort(-logits_V, kind="stable")
    order = order[: sampling.top_k] if sampling.top_k else order
    scaled = logits_V[order].astype(np.float64) / sampling.temperature
    weights = np.exp(scaled - scaled[0])
    probabilities = weights / weights.sum()
    # The token that crosses the line still belongs.
    count = int(np.searchsorted(probabilities.cumsum(), sampling.top_p)) + 1
    return order[:count], probabilities[:count]
