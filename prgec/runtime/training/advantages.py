"""Objectives of rewards: how much better an answer is than the others to its prompt, and what its labels count.

In the first step after answers were written, the ratio of probabilities that these objectives have is 1. Later steps on
the same answers multiply their weights by it, within bounds.

Letters: P prompts, G answers to each, n = PG rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from prgec.core.contract.arrays import Float64Array

# Added to a spread that divides, as TRL does.
_LEAST_SPREAD = 1e-4


@dataclass(frozen=True)
class Advantage:
    """One row of the table.

    Attributes:
        name: Name on the command line.
        label_weights: Returns what every label of a row counts, f64[n], from the rewards f64[P, G], the number of
            labels of each row f64[n], and the most tokens of an answer. A program differentiates the mean over n rows
            of the weighted mean over a row's labels.
        is_of_whole: Whether the ratio of later steps is that of the whole answer; else its geometric mean over tokens.
    """

    name: str
    label_weights: Callable[[Float64Array, Float64Array, int], Float64Array]
    is_of_whole: bool = False


def grpo(rewards_PG: Float64Array, num_labels: Float64Array, max_tokens: int) -> Float64Array:
    """Group relative policy optimisation: distances from the group's mean, divided by its spread.

    Shao et al., "DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models" (2024), equation 3
    and section 4.1.2.
    """
    centred = _centred(rewards_PG)
    spread = np.sqrt(_sums(centred**2) / (rewards_PG.shape[1] - 1))
    scaled: Float64Array = centred / (spread + _LEAST_SPREAD)
    return scaled.reshape(-1)


def dr_grpo(rewards_PG: Float64Array, num_labels: Float64Array, max_tokens: int) -> Float64Array:
    """The same without the two divisions that favour long wrong answers and easy prompts.

    Liu et al., "Understanding R1-Zero-Like Training: A Critical Perspective" (2025), section 3.2; tokens are divided by
    the most that an answer may have.
    """
    weights: Float64Array = _centred(rewards_PG).reshape(-1) * num_labels / max_tokens
    return weights


def rloo(rewards_PG: Float64Array, num_labels: Float64Array, max_tokens: int) -> Float64Array:
    """REINFORCE leave-one-out: distances from the mean of the other answers, over whole answers.

    Ahmadian et al., "Back to Basics: Revisiting REINFORCE Style Optimization for Learning from Human Feedback in LLMs"
    (2024), equation 8.
    """
    count = rewards_PG.shape[1]
    weights: Float64Array = _centred(rewards_PG).reshape(-1) * (count / (count - 1)) * num_labels
    return weights


def weights_of(
    advantage: Advantage, rewards: Float64Array, num_labels: Float64Array, *, group: int, max_tokens: int
) -> Float64Array:
    """Return what every label of a row counts, f64[n]; 0 for all answers of a prompt of which one has no reward.

    Args:
        advantage: Row of the table.
        rewards: Rewards of the rows, f64[n]; NaN where there is none.
        num_labels: Number of labels of each row, f64[n].
        group: G.
        max_tokens: Most tokens of an answer.
    """
    rewards_PG = rewards.reshape(-1, group)
    is_whole = np.isfinite(rewards_PG).all(axis=1, keepdims=True)
    return advantage.label_weights(np.where(is_whole, rewards_PG, 0.0), num_labels, max_tokens)


def within_ratio(weights: Float64Array, log_ratios: Float64Array, clip: float) -> tuple[Float64Array, Float64Array]:
    """Return the weights of a later step on the same answers, f64[n], and 1 for each that counts no more, f64[n].

    An answer that is already as much likelier, or less likely, as the step wanted it is left out: the gradient of
    min(ratio A, clamp(ratio, 1 - clip, 1 + clip) A). Zheng et al., "Group Sequence Policy Optimization" (2025),
    equation 5; Schulman et al., "Proximal Policy Optimization Algorithms" (2017), equation 7.

    Args:
        weights: Weights of the first step, f64[n].
        log_ratios: Logarithms of the ratios, f64[n].
        clip: Distance from 1 that a ratio may have.
    """
    ratios = np.exp(log_ratios)
    is_out = ((weights > 0) & (ratios > 1 + clip)) | ((weights < 0) & (ratios < 1 - clip))
    return np.where(is_out, 0.0, ratios * weights), is_out.astype(np.float64)


def _centred(rewards_PG: Float64Array) -> Float64Array:
    centred: Float64Array = rewards_PG - _sums(rewards_PG) / rewards_PG.shape[1]
    return centred


def _sums(numbers_PG: Float64Array) -> Float64Array:
    """Sum each row from left to right, as the C++ driver does: numpy's own sum has another order."""
    sums: Float64Array = numbers_PG.cumsum(axis=1)[:, -1:]
    return sums


ADVANTAGES: Mapping[str, Advantage] = {
    each.name: each
    for each in (Advantage("grpo", grpo), Advantage("dr-grpo", dr_grpo), Advantage("rloo", rloo, is_of_whole=True))
}
