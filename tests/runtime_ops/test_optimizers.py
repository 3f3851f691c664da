"""The optimiser operators: their meaning against textbooks, their kernels bit for bit against the reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from prgec.runtime_ops import library as _registers_prge_ops  # noqa: F401 - torch.ops.prge exists only after it
from tests.runtime_ops.test_kernels import assert_same_bits

prge = torch.ops.prge
RULES = ("norm", "momentum", "adamw")
BETA1, BETA2, EPS = 0.9, 0.99, 1e-8
LOSSES = torch.tensor([0.5, 2.0])
# One element, both sides of the eight lanes, and both sides of what one thread takes.
SHAPES = ((1, 1), (1, 7), (2, 4), (3, 3), (5, 3277))


class Sites(torch.nn.Module):
    """A step of several sites; returns its factors, the largest changes, and the state afterwards."""

    def __init__(
        self, rule: str, shapes: Any = SHAPES, *, clip: float = 0.0, decay: float = 0.0, polyak: float = 0.0
    ) -> None:
        super().__init__()
        self.rule, self.clip, self.decay, self.polyak, self.count = rule, clip, decay, polyak, len(shapes)
        self.register_buffer("running", torch.zeros(4))
        self.register_buffer("losses", LOSSES)
        for site, shape in enumerate(shapes):
            for name in ("master", "mean", "square"):
                self.register_buffer(f"{name}{site}", torch.zeros(shape))

    def forward(self, lr: Tensor, *gradients: Tensor) -> tuple[Tensor, ...]:
        factors = self._factors(lr, self.losses, gradients)
        largest = [self._update(site, each, lr, factors) for site, each in enumerate(gradients)]
        return factors, *largest, *(value.clone() for value in self._state())

    def _factors(self, lr: Tensor, losses: Tensor, gradients: Sequence[Tensor]) -> Tensor:
        normalise = self.rule != "adamw"
        return prge.step_scale(
            self.running, list(gradients), losses, lr, self.clip, BETA1, BETA2, normalise, self.polyak
        )

    def _update(self, site: int, gradient: Tensor, lr: Tensor, factors: Tensor) -> Tensor:
        master, mean, square = (getattr(self, f"{name}{site}") for name in ("master", "mean", "square"))
        if self.rule == "norm":
            return prge.sgd_update(master, gradient, lr, factors, self.decay)
        if self.rule == "momentum":
            return prge.momentum_update(master, mean, gradient, lr, factors, BETA1, self.decay)
        return prge.adamw_update(master, mean, square, gradient, lr, factors, BETA1, BETA2, EPS, self.decay)

    def _state(self) -> list[Tensor]:
        """The state of the rule alone: a buffer that nobody writes is not part of a program's state."""
        names = {"norm": ("master",), "momentum": ("master", "mean"), "adamw": ("master", "mean", "square")}
        return [self.running, *(getattr(self, f"{n}{site}") for site in range(self.count) for n in names[self.rule])]


def gradients_of(step: int, shapes: Any = SHAPES) -> list[Tensor]:
    generator = torch.Generator().manual_seed(step)
    return [torch.randn(shape, generator=generator) * 10.0 ** (site - 2) for site, shape in enumerate(shapes)]


@pytest.mark.parametrize(("clip", "decay"), [(0.0, 0.0), (0.7, 0.1)], ids=["plain", "clip and decay"])
@pytest.mark.parametrize("rule", RULES)
def test_kernels_equal_eager(compiled: Any, rule: str, clip: float, decay: float) -> None:
    """Steps at several rates, with some that change nothing in between, and one that ruins everything."""
    module = Sites(rule, clip=clip, decay=decay)
    execute = compiled(module, (torch.tensor(0.0), *gradients_of(0)))
    rates = (0.1, 0.03, 0.0, 0.2, 1e-3, float("inf"), 0.1)
    for step, lr in enumerate(rates, 1):
        gradients = gradients_of(step)
        if step == 2:
            gradients[3][2, 2] = float("nan")
        if step == 5:
            gradients = [torch.zeros_like(each) for each in gradients]
        args = torch.tensor(lr), *gradients
        for ours, theirs in zip(execute(*args), module(*args), strict=True):
            # NaN has many bit patterns.
            assert_same_bits(*(torch.where(each.isnan(), torch.nan, each) for each in (ours, theirs)))
        assert bool(module.master4.any()) and bool(module.master4.isfinite().all()) == (step < 6)


def test_kernel_of_the_scale_equals_eager_for_every_tail(compiled: Any) -> None:
    """Each length by itself, where longer sites cannot hide a lost element."""
    scales = torch.nn.ModuleList(Sites("norm", [shape]) for shape in SHAPES)

    class Scales(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scales = scales

        def forward(self, lr: Tensor, *gradients: Tensor) -> tuple[Tensor, ...]:
            found = [scale(lr, each) for scale, each in zip(self.scales, gradients, strict=True)]
            return tuple(value for values in found for value in values)

    module = Scales()
    execute = compiled(module, (torch.tensor(0.0), *gradients_of(0)))
    for step in range(1, 4):
        args = torch.tensor(0.1), *gradients_of(step)
        for ours, theirs in zip(execute(*args), module(*args), strict=True):
            assert_same_bits(ours, theirs)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 3e38])
@pytest.mark.parametrize("rule", RULES)
def test_a_gradient_that_is_not_finite_changes_nothing(rule: str, value: float) -> None:
    """Nor one whose length has no place in f32."""
    module = Sites(rule, clip=1.0, decay=0.1)
    module(torch.tensor(0.1), *gradients_of(1))
    held = [buffer.clone() for buffer in module.buffers()]
    gradients = gradients_of(2)
    gradients[1][0, :2] = value
    factors, *largest = module(torch.tensor(0.1), *gradients)[: 1 + len(SHAPES)]
    assert factors[0] == 0 and not factors[1].isfinite() and factors[2:].tolist() == [1.0, 1.0]
    assert not any(each.any() for each in largest)
    assert all(map(torch.equal, module.buffers(), held))


@pytest.mark.parametrize("rule", RULES)
def test_kernels_leave_their_state_alone_where_the_gradient_is_not_finite(compiled: Any, rule: str) -> None:
    module = Sites(rule, SHAPES[:3], clip=1.0, decay=0.1)
    execute = compiled(module, (torch.tensor(0.0), *gradients_of(0, SHAPES[:3])))
    held = execute(torch.tensor(0.1), *gradients_of(1, SHAPES[:3]))[4:]
    for value in (float("nan"), float("inf"), 3e38):
        gradients = gradients_of(2, SHAPES[:3])
        gradients[2][0, :2] = value
        factors, *rest = (each.clone() for each in execute(torch.tensor(0.1), *gradients))
        assert factors[0] == 0 and not factors[1].isfinite()
        for ours, theirs in zip(rest[3:], held, strict=True):
            assert_same_bits(ours, theirs)


@pytest.mark.parametrize("clip", [0.0, 0.7])
@pytest.mark.parametrize("rule", RULES)
def test_fifty_steps_follow_the_textbook(rule: str, clip: float) -> None:
    """Two sites that share one length of the gradient, in f64 beside f32."""
    shapes, decay = SHAPES[2:4], 0.05
    module, textbook = Sites(rule, shapes, clip=clip, decay=decay), Textbook(rule, clip, decay, 17)
    for step in range(1, 51):
        gradients = gradients_of(step, shapes)
        lr = 0.1 / step
        textbook.step(np.concatenate([each.double().numpy().ravel() for each in gradients]), lr)
        factors = module(torch.tensor(lr), *gradients)[0]
        assert float(factors[1]) == pytest.approx(textbook.length, rel=1e-6)
        found = torch.cat([module.master0.flatten(), module.master1.flatten()]).double().numpy()
        assert np.abs(found - textbook.weights).max() < 1e-5 * np.abs(textbook.weights).max()


class Textbook:
    """SGD with steps of one length, the same along a running mean, and AdamW, in f64."""

    def __init__(self, rule: str, clip: float, decay: float, size: int) -> None:
        self.rule, self.clip, self.decay = rule, clip, decay
        self.weights, self.mean, self.square = np.zeros(size), np.zeros(size), np.zeros(size)
        self.mean_square, self.steps, self.length = 0.0, 0, 0.0

    def step(self, gradient: Any, lr: float) -> None:
        self.steps += 1
        self.length = float(np.linalg.norm(gradient))
        if self.clip and self.length > self.clip:
            gradient = gradient * self.clip / self.length
        self.mean_square = BETA2 * self.mean_square + (1 - BETA2) * float(np.mean(gradient**2))
        if self.rule != "adamw":
            gradient = gradient / np.sqrt(self.mean_square / (1 - BETA2**self.steps))
        self.mean = BETA1 * self.mean + (1 - BETA1) * gradient
        self.square = BETA2 * self.square + (1 - BETA2) * gradient**2
        mean = self.mean / (1 - BETA1**self.steps)
        adam = mean / (np.sqrt(self.square / (1 - BETA2**self.steps)) + EPS)
        direction = {"norm": gradient, "momentum": mean, "adamw": adam}[self.rule]
        self.weights = (1 - lr * self.decay) * self.weights - lr * direction


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adamw_is_that_of_pytorch(decay: float) -> None:
    module = Sites("adamw", SHAPES[3:4], decay=decay)
    theirs = torch.zeros(SHAPES[3], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.AdamW([theirs], lr=0.01, betas=(BETA1, BETA2), eps=EPS, weight_decay=decay)
    for step in range(1, 51):
        (gradient,) = gradients_of(step, SHAPES[3:4])
        theirs.grad = gradient.double()
        optimizer.step()
        module(torch.tensor(0.01), gradient)
        assert float((module.master0 - theirs).detach().abs().max() / theirs.detach().abs().max()) < 1e-5


def test_steps_of_norm_have_one_length() -> None:
    """For any length of the first gradient, lr is how far a weight moves in root mean square."""
    for scale in (1e-12, 1.0, 1e12):
        module = Sites("norm", SHAPES[4:])
        (gradient,) = gradients_of(1, SHAPES[4:])
        largest = module(torch.tensor(0.25), gradient * scale)[1]
        assert float(module.master0.square().mean().sqrt()) == pytest.approx(0.25, rel=1e-5)
        assert float(largest) == pytest.approx(float(module.master0.abs().max()), rel=1e-6)


def test_a_gradient_of_zeros_moves_nothing() -> None:
    for rule in RULES:
        module = Sites(rule, clip=1.0)
        module(torch.tensor(0.1), *(torch.zeros(shape) for shape in SHAPES))
        assert not any(getattr(module, f"master{site}").any() for site in range(len(SHAPES)))
        assert bool(module.running.isfinite().all())


def test_opcheck() -> None:
    factors, lr = torch.tensor([0.5, 2.0, 1.1, 1.2]), torch.tensor(0.1)
    master, mean, square, gradient = (torch.rand(3, 5) for _ in range(4))
    check = torch.library.opcheck
    check(
        prge.step_scale.default,
        (torch.zeros(4), [gradient, mean], LOSSES, torch.tensor(0.1), 1.0, BETA1, BETA2, True, 1.0),
    )
    check(prge.sgd_update.default, (master, gradient, lr, factors, 0.1))
    check(prge.momentum_update.default, (master, mean, gradient, lr, factors, BETA1, 0.1))
    check(prge.adamw_update.default, (master, mean, square, gradient, lr, factors, BETA1, BETA2, EPS, 0.1))


def test_fake_kernels_agree_with_real_shapes() -> None:
    with FakeTensorMode() as mode:
        module = Sites("adamw", SHAPES[:2])
        for name, buffer in module.named_buffers():
            setattr(module, name, mode.from_tensor(buffer))
        found = module(torch.tensor(0.1), *(torch.ones(shape) for shape in SHAPES[:2]))
    assert [tuple(each.shape) for each in found[:3]] == [(4,), (1,), (1,)]


@pytest.mark.parametrize(
    ("position", "value", "message"),
    [
        (1, torch.ones(2, 4).double(), "prge::step_scale: running and out must be float32[4], gradients float32"),
        (1, torch.ones(4, 2), "prge: an update takes float32[r, out] of one shape, lr float32[]"),
        (0, torch.ones(1), "prge::step_scale: running and out must be float32[4], gradients float32"),
    ],
)
@pytest.mark.parametrize("rule", RULES)
def test_kernels_refuse(compiled: Any, capfd: Any, rule: str, position: int, value: Tensor, message: str) -> None:
    """Fake kernels take anything, so that only the compiled ones are left to refuse."""
    args = [torch.tensor(0.1), torch.ones(2, 4)]
    args[position] = value
    execute = compiled(Sites(rule, SHAPES[2:3]), tuple(args))
    with pytest.raises(RuntimeError):
        execute(*args)
    assert message in "".join(capfd.readouterr())
