"""Steps that must not be taken, or not at full length: `step_scale` says so, and every update reads it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.runtime_ops.test_kernels import assert_same_bits
from tests.runtime_ops.test_optimizers import LOSSES, RULES, SHAPES, Sites, gradients_of

GOOD, NOTHING = torch.tensor([0.5, 2.0]), [0.0, float("inf"), 1.0, 1.0]


class WithLosses(Sites):
    """A step with given losses."""

    def forward(self, lr: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
        *gradients, losses = inputs
        factors = self._factors(lr, losses, gradients)
        for site, each in enumerate(gradients):
            self._update(site, each, lr, factors)
        return factors, *(value.clone() for value in self._state())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("rule", RULES)
def test_a_loss_that_is_not_finite_changes_nothing(rule: str, value: float) -> None:
    module = WithLosses(rule, clip=1.0, decay=0.1)
    module(torch.tensor(0.1), *gradients_of(1), GOOD)
    held = [buffer.clone() for buffer in module.buffers()]
    factors = module(torch.tensor(0.1), *gradients_of(2), torch.tensor([1.0, value]))[0]
    assert factors.tolist() == NOTHING
    assert all(map(torch.equal, module.buffers(), held))


@pytest.mark.parametrize("rule", RULES)
def test_finite_losses_change_nothing_about_a_step(rule: str) -> None:
    told, untold = WithLosses(rule, clip=0.7, decay=0.1), Sites(rule, clip=0.7, decay=0.1)
    for step in range(1, 4):
        first = told(torch.tensor(0.1), *gradients_of(step), GOOD * 1e30)[0]
        assert_same_bits(first, untold(torch.tensor(0.1), *gradients_of(step))[0])
    assert all(map(torch.equal, told.buffers(), untold.buffers()))


@pytest.mark.parametrize("rule", RULES)
def test_a_mean_square_without_a_place_is_as_if_it_had_not_been(rule: str) -> None:
    """A finite length, whose square is not: kept, it would make every later scale 0."""
    huge = [each * 1e24 for each in gradients_of(2)]
    found = []
    for gradients in ([], [huge]):
        module = Sites(rule)
        module(torch.tensor(0.1), *gradients_of(1))
        for each in gradients:
            assert torch.cat([one.flatten() for one in each]).double().norm() < 1e38
            assert module(torch.tensor(0.1), *each)[0].tolist() == NOTHING
        assert module(torch.tensor(0.1), *gradients_of(3))[0][0] > 0
        found.append([buffer.clone() for buffer in module.buffers()])
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize("rule", RULES)
def test_kernels_equal_eager(compiled: Any, rule: str) -> None:
    """Steps with losses and gradients that are good, bad, and good again."""
    module = WithLosses(rule, SHAPES[:3], decay=0.1)
    steps = [
        (1.0, GOOD),
        (1.0, GOOD * float("nan")),
        (1e24, GOOD),
        (1.0, torch.tensor([float("inf"), 1.0])),
        (1.0, GOOD),
    ]
    execute = compiled(module, (torch.tensor(0.0), *gradients_of(0, SHAPES[:3]), GOOD))
    scales = []
    for step, (scale, losses) in enumerate(steps):
        args = torch.tensor(0.1), *(each * scale for each in gradients_of(step, SHAPES[:3])), losses
        ours, theirs = execute(*args), module(*args)
        for first, second in zip(ours, theirs, strict=True):
            assert_same_bits(first, second)
        scales.append(float(ours[0][0]))
    assert [scale > 0 for scale in scales] == [True, False, False, False, True]


@pytest.mark.parametrize("rule", ["norm", "momentum"])
@pytest.mark.parametrize("polyak", [0.5, 2.0])
def test_a_step_aims_at_no_more_than_its_share_of_the_loss(rule: str, polyak: float) -> None:
    """Along the gradient, to first order; what is shorter anyway stays as it is."""
    shapes = SHAPES[:3]
    bounded, free = (Sites(rule, shapes, clip=0.7, polyak=share) for share in (polyak, 0.0))
    bounds = []
    for step, lr in enumerate((1e-4, 1.0, 10.0, 1e-4), 1):
        gradients = gradients_of(step, shapes)
        found, scale = (float(each(torch.tensor(lr), *gradients)[0][0]) for each in (bounded, free))
        square = sum(float(each.double().square().sum()) for each in gradients)
        most = polyak * float(LOSSES.double().mean()) / (lr * square)
        assert found == pytest.approx(min(scale, most), rel=1e-6)
        bounds.append(most < scale)
    assert bounds == [False, True, True, False]


def test_a_step_of_adamw_aims_at_no_more_than_one_of_its_length_could() -> None:
    """Along a mean that is lowered; what it divides by, and the scale it does not follow, stay as they are."""
    shapes, polyak = SHAPES[:3], 0.5
    bounded, free = (Sites("adamw", shapes, clip=0.7, polyak=share) for share in (polyak, 0.0))
    bounds = []
    for step, lr in enumerate((1e-4, 1.0, 10.0, 1e-4), 1):
        gradients = [each.double() for each in gradients_of(step, shapes)]
        found, whole = (each(torch.tensor(lr), *gradients_of(step, shapes))[0] for each in (bounded, free))
        # The step along the sign of the gradient of equal elements, than which none of its length aims at more.
        length = lr * sum(each.numel() for each in gradients) ** 0.5
        norm = float(torch.cat([each.flatten() for each in gradients]).norm())
        shorter = min(1.0, polyak * float(LOSSES.double().mean()) / (length * norm))
        assert_same_bits(found[[0, 1, 3]], whole[[0, 1, 3]])
        assert float(found[2]) == pytest.approx(shorter * float(whole[2]), rel=1e-6)
        bounds.append(shorter < 1.0)
    assert bounds == [False, True, True, False]


def test_a_loss_of_nothing_bounds_nothing() -> None:
    """Mean losses of zero come from rows without targets, whose gradient is zero too; negative ones from no model."""
    scales = []
    for losses in (torch.zeros(2), -GOOD, torch.full((2,), 1e30)):
        module = WithLosses("norm", polyak=1.0)
        scales.append(float(module(torch.tensor(0.1), *gradients_of(1), losses)[0][0]))
    assert len(set(scales)) == 1 and scales[0] > 0


@pytest.mark.parametrize("rule", RULES)
def test_kernels_bound_steps_as_eager_mode_does(compiled: Any, rule: str) -> None:
    module = WithLosses(rule, SHAPES[:3], polyak=0.3)
    execute = compiled(module, (torch.tensor(0.0), *gradients_of(0, SHAPES[:3]), GOOD))
    for step, lr in enumerate((1e-4, 0.1, 1e3, 0.0), 1):
        args = torch.tensor(lr), *gradients_of(step, SHAPES[:3]), GOOD / step
        for first, second in zip(execute(*args), module(*args), strict=True):
            assert_same_bits(first, second)
