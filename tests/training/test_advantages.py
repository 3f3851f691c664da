"""Weights of answers: the formulas of the papers, and the clipped gradient of later steps on the same answers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from prgec.runtime.training.advantages import ADVANTAGES, weights_of, within_ratio


@pytest.mark.parametrize("clip", [0.05, 0.2, 3.0])
def test_weights_are_the_gradient_of_the_clipped_objective(clip: float) -> None:
    random = np.random.default_rng(3)
    advantages, log_ratios = random.normal(size=200), random.normal(0, 0.3, 200)
    moved = torch.tensor(log_ratios, requires_grad=True)
    ratio, wanted = moved.exp(), torch.tensor(advantages)
    torch.minimum(ratio * wanted, ratio.clamp(1 - clip, 1 + clip) * wanted).sum().backward()
    weights, is_out = within_ratio(advantages, log_ratios, clip)
    assert moved.grad is not None
    np.testing.assert_allclose(weights, moved.grad.numpy(), rtol=1e-12)
    assert is_out.tolist() == (weights == 0).astype(float).tolist()
    assert is_out.any() == (clip < 1)


def test_nothing_moved_changes_nothing() -> None:
    advantages = np.array([1.0, -2.0, 0.0])
    weights, is_out = within_ratio(advantages, np.zeros(3), 0.2)
    assert weights.tolist() == advantages.tolist() and not is_out.any()


def test_weights_follow_the_formulas() -> None:
    rewards = np.array([1.0, 0.0, 0.0, 2.0, 5.0, 5.0])
    lengths = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    of = {name: weights_of(each, rewards, lengths, group=3, max_tokens=8).tolist() for name, each in ADVANTAGES.items()}
    spread = np.std([1, 0, 0], ddof=1) + 1e-4
    assert of["grpo"][:3] == pytest.approx([2 / 3 / spread, -1 / 3 / spread, -1 / 3 / spread])
    assert of["dr-grpo"][:3] == pytest.approx([2 / 3 / 8, -2 / 3 / 8, -3 / 3 / 8])
    # Each less the mean of the others, times its tokens.
    assert of["rloo"] == pytest.approx([1.0, -0.5 * 2, -0.5 * 3, -3.0 * 4, 1.5 * 5, 1.5 * 6])
    rewards[4] = np.nan
    assert not weights_of(ADVANTAGES["rloo"], rewards, lengths, group=3, max_tokens=8)[3:].any()
