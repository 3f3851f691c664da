"""Objectives beside the papers' formulas, written with torch's own functions, and their derivatives by autograd."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from prgec.runtime.training.objectives import OBJECTIVES, Answers, Numbers, row_weights

NUMBERS = Numbers(beta=0.7, gamma=0.4, desirable=1.3, undesirable=0.6)
IS_GOOD = np.array([True, False] * 3)


def _dpo(logp: Tensor, lengths: Tensor, reference: Tensor, drift: Tensor) -> Tensor:
    ratios = logp - reference
    return -F.logsigmoid(NUMBERS.beta * (ratios[::2] - ratios[1::2])).mean()


def _simpo(logp: Tensor, lengths: Tensor, reference: Tensor, drift: Tensor) -> Tensor:
    means = logp / lengths
    return -F.logsigmoid(NUMBERS.beta * means[::2] - NUMBERS.beta * means[1::2] - NUMBERS.gamma).mean()


def _orpo(logp: Tensor, lengths: Tensor, reference: Tensor, drift: Tensor) -> Tensor:
    likelihood = (logp / lengths).exp()
    odds = likelihood / (1 - likelihood)
    ratio = -torch.log(torch.sigmoid(torch.log(odds[::2] / odds[1::2])))
    return (-(logp / lengths)[::2] + NUMBERS.beta * ratio).mean()


def _kto(logp: Tensor, lengths: Tensor, reference: Tensor, drift: Tensor) -> Tensor:
    z0 = drift.mean().clamp(min=0)
    ratios, total = logp - reference, torch.zeros((), dtype=torch.float64)
    for ratio, good in zip(ratios, IS_GOOD, strict=True):
        value = torch.sigmoid(NUMBERS.beta * (ratio - z0 if good else z0 - ratio))
        weight = NUMBERS.desirable if good else NUMBERS.undesirable
        total = total + weight * (1 - value)
    return total / len(ratios)


FORMULAS: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {
    "dpo": _dpo,
    "kto": _kto,
    "orpo": _orpo,
    "simpo": _simpo,
}


def _answers(seed: int, shift: float = 0.0) -> Answers:
    random = np.random.default_rng(seed)
    lengths = random.integers(1, 9, 6).astype(np.float64)
    logp = -random.uniform(0.05, 3.0, 6) * lengths
    return Answers(logp, lengths, logp + random.normal(size=6), IS_GOOD, random.normal(size=6) + shift)


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("shift", [-3.0, 3.0])
def test_loss_and_slope_are_those_of_the_paper(name: str, shift: float) -> None:
    answers = _answers(1, shift)
    inputs = [torch.from_numpy(each) for each in (answers.logp, answers.num_labels, answers.reference, answers.drift)]
    logp = inputs[0].clone().requires_grad_()
    expected = FORMULAS[name](logp, *inputs[1:])
    (slope,) = torch.autograd.grad(expected, logp)
    judged = OBJECTIVES[name].judge(answers, NUMBERS)
    assert judged.loss == pytest.approx(float(expected.detach()), rel=1e-12)
    np.testing.assert_allclose(judged.slope, slope.numpy(), rtol=1e-9)
    # The loss that the program differentiates with these weights has that derivative.
    weights = torch.from_numpy(row_weights(judged, answers.num_labels))
    told = (weights * (-logp / inputs[1])).mean()
    np.testing.assert_allclose(torch.autograd.grad(told, logp)[0].numpy(), slope.numpy(), rtol=1e-9)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_good_answers_gain_and_bad_ones_lose(name: str) -> None:
    slope = OBJECTIVES[name].judge(_answers(2), NUMBERS).slope
    assert (slope[IS_GOOD] < 0).all() and (slope[~IS_GOOD] > 0).all()


@pytest.mark.parametrize("name", OBJECTIVES)
def test_certain_answers_leave_finite_numbers(name: str) -> None:
    for logp in (0.0, -5000.0):
        answers = Answers(np.array([logp, -5000.0 - logp]), np.ones(2), np.zeros(2), IS_GOOD[:2], np.zeros(2))
        judged = OBJECTIVES[name].judge(answers, NUMBERS)
        assert math.isfinite(judged.loss) and np.isfinite(judged.slope).all()


def test_defaults_are_those_that_users_know() -> None:
    """DPO, KTO and ORPO: those of TRL's configurations. SimPO: those of docs/feedback.md."""
    assert {name: each.beta for name, each in OBJECTIVES.items()} == {"dpo": 0.1, "kto": 0.1, "orpo": 0.1, "simpo": 2.0}
    assert Numbers(beta=1.0) == Numbers(beta=1.0, gamma=1.0, desirable=1.0, undesirable=1.0)
    assert {name for name, each in OBJECTIVES.items() if each.needs_reference} == {"dpo", "kto"}
    assert {name for name, each in OBJECTIVES.items() if each.needs_drift} == {"kto"}


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("num_right", [0, 1, 2, 3])
def test_accuracy_counts_answers_on_the_right_side(name: str, num_right: int) -> None:
    gains = np.array([1.0, -1.0] * num_right + [-1.0, 1.0] * (3 - num_right))
    judged = OBJECTIVES[name].judge(Answers(gains - 3.0, np.ones(6), np.full(6, -3.0), IS_GOOD, np.zeros(1)), NUMBERS)
    assert judged.accuracy == pytest.approx(num_right / 3)
    assert np.sign(judged.margin) == np.sign(num_right - 1.5)


def test_margin_and_accuracy() -> None:
    answers = Answers(np.array([-1.0, -2.0, -4.0, -3.0]), np.ones(4), np.zeros(4), IS_GOOD[:4], np.zeros(4))
    for name in ("dpo", "simpo"):
        judged = OBJECTIVES[name].judge(answers, Numbers(beta=2.0))
        assert judged.accuracy == 0.5 and judged.margin == pytest.approx(0.0)
    judged = OBJECTIVES["kto"].judge(answers, Numbers(beta=2.0))
    # Every log-likelihood fell: the good answers are on the wrong side, the bad ones on the right one.
    assert judged.accuracy == 0.5 and judged.margin == pytest.approx(0.0) and judged.kl == 0.0
    only_good = Answers(answers.logp[:1], answers.num_labels[:1], answers.reference[:1], IS_GOOD[:1], np.ones(1))
    judged = OBJECTIVES["kto"].judge(only_good, Numbers(beta=2.0))
    assert math.isnan(judged.margin) and judged.kl == 1.0
