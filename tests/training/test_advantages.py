"""Later steps on the same answers: their weights are the gradient of the clipped objective."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from prgec.runtime.training.advantages import within_ratio


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
