"""Objectives of preferences: from the log-likelihoods of answers to how much each answer's row counts.

Each is a loss of the log-likelihoods alone, so its gradient by the weights of a model is a sum over the rows of the
gradients of their log-likelihoods, each times a number. A program with label weights takes that number as the weight of
the row's labels. Pure NumPy, in f64; docs/feedback.md has the formulas and where they are from.

Letters: P pairs, n rows; rows of pairs come as chosen, rejected, chosen, rejected, ...
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from prgec.core.contract.arrays import Float64Array
from prgec.core.contract.plugins import load_plugin, plugins_of

# A likelihood this near to 1 has odds that are still a number.
_MOST_LOGP = -1e-9


@dataclass(frozen=True)
class Numbers:
    """Numbers of an objective that a user may set.

    Attributes:
        beta: Sharpness of the comparison of answers; in ORPO the weight of the odds ratio beside the likelihood.
        gamma: Margin that SimPO wants between both answers.
        desirable: Weight of KTO's good answers.
        undesirable: Weight of KTO's bad answers.
    """

    beta: float
    gamma: float = 1.0
    desirable: float = 1.0
    undesirable: float = 1.0


@dataclass(frozen=True)
class Answers:
    """Answers of one call, as the program and its reference see them.

    Attributes:
        logp: Log-likelihood of each row's labels, f64[n].
        num_labels: How many there are, f64[n].
        reference: The same log-likelihoods by the program before it learnt, f64[n]; zeros where nobody needs it.
        is_good: bool[n].
        drift: Gain of the log-likelihoods of answers to other prompts since then, for KTO, f64[n]; else empty.
    """

    logp: Float64Array
    num_labels: Float64Array
    reference: Float64Array
    is_good: npt.NDArray[np.bool_]
    drift: Float64Array = field(default_factory=lambda: np.zeros(0))


@dataclass(frozen=True, kw_only=True)
class Judged:
    """The verdict of an objective on the answers of one call.

    Attributes:
        loss: Its loss.
        slope: Derivative of the loss by the log-likelihood of each row, f64[n].
        margin: How much more good answers are rewarded than bad ones; NaN where one kind is missing.
        accuracy: Share of pairs whose good answer has the higher reward; of rows on the right side without pairs.
        kl: KTO's estimate of how far the program is from its reference; NaN for others.
    """

    loss: float
    slope: Float64Array
    margin: float
    accuracy: float
    kl: float = math.nan


@dataclass(frozen=True, kw_only=True)
class Objective:
    """One row of the table.

    Attributes:
        name: Name on the command line.
        judge: Computes it.
        beta: Default of that number.
        is_paired: Whether it compares two answers to one prompt.
        needs_reference: Whether it reads the log-likelihoods of the program before it learnt.
        needs_drift: Whether it reads those of answers to other prompts.
    """

    name: str
    judge: Callable[[Answers, Numbers], Judged]
    beta: float
    is_paired: bool = True
    needs_reference: bool = False
    needs_drift: bool = False


def row_weights(judged: Judged, num_labels: Float64Array) -> Float64Array:
    """Return what every label of a row counts, f64[n].

    A program differentiates the mean over its n rows of the mean over a row's labels, weighted; minus log-likelihood is
    the sum over them.
    """
    return -judged.slope * num_labels * len(num_labels)


def dpo(answers: Answers, numbers: Numbers) -> Judged:
    """Direct preference optimisation: the log of the odds that the chosen answer wins, against the reference."""
    return _paired(numbers.beta * (answers.logp - answers.reference), np.full(len(answers.logp), numbers.beta), 0.0)


def simpo(answers: Answers, numbers: Numbers) -> Judged:
    """The same without a reference: rewards are mean log-likelihoods of a label, and must differ by a margin."""
    scale = numbers.beta / answers.num_labels
    return _paired(scale * answers.logp, scale, numbers.gamma)


def orpo(answers: Answers, numbers: Numbers) -> Judged:
    """The likelihood of the chosen answer, and beside it the ratio of the odds of both."""
    mean = np.minimum(answers.logp / answers.num_labels, _MOST_LOGP)
    log_odds = mean - np.log(-np.expm1(mean))
    # The derivative of the log odds by the mean log-likelihood.
    steepness = -1.0 / np.expm1(mean)
    odds = _paired(log_odds, steepness / answers.num_labels, 0.0)
    num_pairs = len(mean) // 2
    likelihood = np.where(answers.is_good, -1.0 / (answers.num_labels * num_pairs), 0.0)
    good, bad = mean[0::2], mean[1::2]
    return Judged(
        loss=-float(good.mean()) + numbers.beta * odds.loss,
        slope=likelihood + numbers.beta * odds.slope,
        margin=numbers.beta * float((good - bad).mean()),
        accuracy=float((good > bad).mean()),
    )


def kto(answers: Answers, numbers: Numbers) -> Judged:
    """Kahneman-Tversky optimisation: single answers, good or bad, against where the program stands on average."""
    kl = max(0.0, float(answers.drift.mean()))
    reward = numbers.beta * (answers.logp - answers.reference)
    sign = np.where(answers.is_good, 1.0, -1.0)
    weight = np.where(answers.is_good, numbers.desirable, numbers.undesirable)
    value = _sigmoid(sign * (reward - numbers.beta * kl))
    slope = -weight * sign * numbers.beta * value * (1.0 - value) / len(reward)
    is_mixed = bool(answers.is_good.any() and not answers.is_good.all())
    margin = float(reward[answers.is_good].mean() - reward[~answers.is_good].mean()) if is_mixed else math.nan
    return Judged(
        loss=float((weight * (1.0 - value)).mean()),
        slope=slope,
        margin=margin,
        accuracy=float((value > 0.5).mean()),
        kl=kl,
    )


def _paired(reward: Float64Array, reward_slope: Float64Array, target: float) -> Judged:
    """Minus the log of the likelihood that chosen beats rejected by `target` (Bradley and Terry's model)."""
    margin = reward[0::2] - reward[1::2]
    short = target - margin
    share = _sigmoid(short) / len(margin)
    slope = np.empty_like(reward)
    slope[0::2], slope[1::2] = -share * reward_slope[0::2], share * reward_slope[1::2]
    return Judged(
        loss=float(np.logaddexp(0.0, short).mean()),
        slope=slope,
        margin=float(margin.mean()),
        accuracy=float((margin > 0.0).mean()),
    )


def _sigmoid(x: Float64Array) -> Float64Array:
    result: Float64Array = np.exp(-np.logaddexp(0.0, -x))
    return result


OBJECTIVES: dict[str, Objective] = {
    each.name: each
    for each in (
        Objective(name="dpo", judge=dpo, beta=0.1, needs_reference=True),
        Objective(name="kto", judge=kto, beta=0.1, is_paired=False, needs_reference=True, needs_drift=True),
        Objective(name="orpo", judge=orpo, beta=0.1),
        Objective(name="simpo", judge=simpo, beta=2.0),
    )
}
# Packages add objectives by entry points of this group: an Objective under its name.
ENTRY_POINTS = "prgec.objectives"
OBJECTIVES |= {name: load_plugin(point, Objective) for name, point in plugins_of(ENTRY_POINTS, OBJECTIVES).items()}
# The objective of runs that name none: the likelihood of right answers.
LIKELIHOOD = "likelihood"
