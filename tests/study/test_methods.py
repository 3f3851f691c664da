"""Baselines compute what their papers say, by dense arithmetic that shares nothing with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from prgec.compiler.frontend.checkpoint import find_checkpoint
from prgec.compiler.frontend.model import load_model
from prgec.core.contract.calls import Batch
from prgec.core.data.batches import training_batch
from prgec.core.data.encode import Row
from prgec.errors import NumericsError, UsageError
from prgec.lab.study.conmezo import ConMezo, warm_beta
from prgec.lab.study.eager import EagerProgram
from prgec.lab.study.first_order import FirstOrder
from prgec.lab.study.method import build_method
from prgec.lab.study.mezo import Mezo
from prgec.lab.study.prge import Prge
from prgec.lab.study.side import Side
from prgec.lab.study.spaces import SPACES, Settings
from tests.hooks import hooked
from tests.models import TinyLlama

SETTINGS = Settings(rank=4, alpha=8.0, vera_rank=24)
ROWS = [Row((1, 5, 9, 30), (3,), (40,)), Row((1, 7, 8), (1, 2), (11, 12))]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    model = TinyLlama(has_bias=True)
    return str(model.write(tmp_path_factory.mktemp("study") / "checkpoint", tokenizer="json"))


def _batch(program: Any) -> Batch:
    return training_batch(ROWS, np.arange(2), program.manifest)


def _program(checkpoint: str, space: str) -> EagerProgram:
    return EagerProgram(checkpoint, space=space, seed=3, batch_size=2, seq_len=16, num_labels=2, settings=SETTINGS)


def _oracle_losses(model: torch.nn.Module) -> list[float]:
    """Mean negative log-likelihood of each row, token by token, without padding."""
    losses = []
    for row in ROWS:
        logits = model(input_ids=torch.tensor([row.tokens])).logits[0].double()
        terms = [-logits[p].log_softmax(-1)[t] for p, t in zip(row.label_pos, row.targets, strict=True)]
        losses.append(float(torch.stack(terms).mean()))
    return losses


@pytest.mark.parametrize("space", SPACES)
def test_a_fresh_space_changes_nothing(checkpoint: str, space: str) -> None:
    program = _program(checkpoint, space)
    with torch.no_grad():
        found = program.losses(_batch(program)).tolist()
        assert found == pytest.approx(_oracle_losses(load_model(find_checkpoint(checkpoint))), rel=1e-5)


def test_sizes_of_the_spaces(checkpoint: str) -> None:
    model = load_model(find_checkpoint(checkpoint))
    layers = [
        each
        for name, each in model.named_modules()
        if name.startswith("model.layers") and hasattr(each, "bias") and isinstance(each, torch.nn.Linear)
    ]
    wide = [(each.in_features, each.out_features) for each in layers]
    sizes = {space: sum(each.numel() for each in _program(checkpoint, space).trained) for space in SPACES}
    assert sizes == {
        "full": sum(each.numel() for each in model.parameters()),
        "lora": sum(4 * (d + o) for d, o in wide),
        "lora-fa": sum(4 * o for _, o in wide),
        "dora": sum(4 * (d + o) + o for d, o in wide),
        "vera": sum(24 + o for _, o in wide),
        "bitfit": sum(o for _, o in wide),
        "frozen": 0,
    }


def test_bitfit_trains_what_biases_are(checkpoint: str) -> None:
    """Its gradients are those of the model's own biases."""
    program, model = _program(checkpoint, "bitfit"), load_model(find_checkpoint(checkpoint))
    program.losses(_batch(program)).sum().backward()
    layers = [layer for layer in model.model.layers.modules() if isinstance(layer, torch.nn.Linear)]
    for layer in layers:
        layer.bias.requires_grad_(True)
    batch = _batch(program)
    for row in range(2):
        logits = model(input_ids=torch.from_numpy(batch.tokens_NT[row : row + 1])).logits[0]
        targets = torch.from_numpy(batch.targets_NK[row])
        torch.nn.functional.cross_entropy(logits[torch.from_numpy(batch.label_pos_NK[row])], targets).backward()
    for layer, trained in zip(layers, program.trained, strict=True):
        torch.testing.assert_close(trained.grad, layer.bias.grad, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("space", ["lora", "lora-fa", "dora"])
def test_a_branch_is_a_change_of_the_weights(checkpoint: str, space: str) -> None:
    """The model with W replaced by the dense formula has the same losses as the hooks give."""
    program = _program(checkpoint, space)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in program.trained:
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
        found = program.losses(_batch(program)).tolist()
        hooks = {name: each for name, each in program._loss.hf.named_modules() if each._forward_hooks}
        dense = load_model(find_checkpoint(checkpoint))
        for name, layer in hooks.items():
            (hook,) = layer._forward_hooks.values()
            branch = hook.__self__
            weight = layer.weight + 8.0 / 4 * branch.b_RO.T @ branch.a_RD
            if space == "dora":
                weight = branch.length_O[:, None] * weight / weight.norm(dim=1, keepdim=True)
            dense.get_submodule(name).weight.copy_(weight)
        expected = _oracle_losses(dense)
    assert found == pytest.approx(expected, rel=1e-5)
    assert found != pytest.approx(_oracle_losses(load_model(find_checkpoint(checkpoint))), rel=1e-3)


def test_vera_scales_shared_matrices(checkpoint: str) -> None:
    program = _program(checkpoint, "vera")
    with torch.no_grad():
        for parameter in program.trained:
            parameter.add_(0.3)
        found = program.losses(_batch(program)).tolist()
        dense = load_model(find_checkpoint(checkpoint))
        for name, layer in program._loss.hf.named_modules():
            for hook in layer._forward_hooks.values():
                branch = hook.__self__
                a, b = branch._a_RD[0], branch._b_RO[0]
                change = torch.diag(branch.b_O) @ b.T @ torch.diag(branch.d_R) @ a
                dense.get_submodule(name).weight.add_(change)
        assert found == pytest.approx(_oracle_losses(dense), rel=1e-4)


@pytest.mark.parametrize("space", ["full", "lora-fa"])
def test_mezo_moves_along_its_noise(checkpoint: str, space: str) -> None:
    method = Mezo(checkpoint, seed=2, space=space, eps=1e-2, q=2, batch_size=2, rank=4, alpha=8.0)
    start = [each.detach().clone() for each in method.program.trained]
    batch = _batch(method.program)
    noise, g = [], []
    for query in range(2):
        generator = torch.Generator().manual_seed(2 * 1_000_003 + query)
        noise.append([torch.randn(each.shape, generator=generator) for each in start])
        losses = []
        with torch.no_grad():
            for sign in (1, -1):
                for parameter, old, z in zip(method.program.trained, start, noise[-1], strict=True):
                    parameter.copy_(old + sign * 1e-2 * z)
                losses.append(float(method.program.losses(batch).mean()))
        g.append((losses[0] - losses[1]) / 2e-2)
    with torch.no_grad():
        for parameter, old in zip(method.program.trained, start, strict=True):
            parameter.copy_(old)
    method.step(batch, lr=1e-2)
    for index, (old, new) in enumerate(zip(start, method.program.trained, strict=True)):
        expected = old - 1e-2 / 2 * (g[0] * noise[0][index] + g[1] * noise[1][index])
        torch.testing.assert_close(new.detach(), expected, rtol=1e-4, atol=2e-5)
    assert (
        max(float((new - old).detach().abs().max()) for old, new in zip(start, method.program.trained, strict=True))
        > 1e-3
    )


def test_conmezo_moves_on_a_cone_around_its_mean(checkpoint: str) -> None:
    """Three steps against the formulas over one flat vector."""
    options = {"theta": 1.2, "beta": 0.8, "warmup": 0, "eps": 1e-2, "batch_size": 2, "rank": 4, "alpha": 8.0}
    method = build_method(checkpoint, {"kind": "conmezo", **options, "lr": 0.01}, 2, Path("study.toml"))
    assert isinstance(method, ConMezo)
    batch, trained = _batch(method.program), method.program.trained
    other = ConMezo(checkpoint, seed=2, **options)
    parts, shapes = [each.numel() for each in trained], [each.shape for each in trained]

    def normal(seed: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.cat([torch.randn(shape, generator=generator).flatten() for shape in shapes])

    @torch.no_grad()
    def loss(weights: torch.Tensor) -> float:
        for parameter, value in zip(other.program.trained, weights.split(parts), strict=True):
            parameter.copy_(value.view_as(parameter))
        return float(other.program.losses(batch).mean())

    mean, weights = normal(2 * 1_000_003), torch.zeros(sum(parts))
    for step in range(1, 4):
        z = np.cos(1.2) * np.sqrt(len(mean)) * mean / mean.norm() + np.sin(1.2) * normal(2 * 1_000_003 + step)
        g = (loss(weights + 1e-2 * z) - loss(weights - 1e-2 * z)) / 2e-2
        weights, mean = weights - 0.01 * g * z, 0.8 * mean + 0.2 * g * z
        method.step(batch, lr=0.01)
    found = torch.cat([each.detach().flatten() for each in trained])
    assert float(weights.abs().max()) > 1e-3
    torch.testing.assert_close(found, weights.to(found.dtype), rtol=1e-3, atol=5e-5)


def test_conmezo_with_a_right_angle_is_mezo(checkpoint: str) -> None:
    options: dict[str, Any] = {"space": "lora-fa", "eps": 1e-2, "batch_size": 2, "rank": 4}
    plain, cone = Mezo(checkpoint, seed=2, **options), ConMezo(checkpoint, seed=2, theta=np.pi / 2, **options)
    plain._next_seed += 1  # the cone's first draw is its mean
    for _ in range(2):
        losses = [each.step(_batch(each.program), 0.05).loss for each in (plain, cone)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_beta_warms_up() -> None:
    assert [warm_beta(0.99, steps, 60) for steps in (0, 6, 60, 500)] == [0.1, 0.1, 0.99, 0.99]
    # Steps 200 to 2000 of the authors' schedule, at 1100: p = 0.5^1.8.
    assert warm_beta(0.99, 1100, 2000) == pytest.approx(0.99 - 0.89 / (1 + 8 * 0.5**1.8) ** 3)


@pytest.mark.parametrize(("optimizer", "lr"), [("sgd", 0.1), ("adam", 0.01)])
def test_first_order_goes_down(checkpoint: str, optimizer: str, lr: float) -> None:
    method = FirstOrder(checkpoint, seed=0, space="lora-fa", optimizer=optimizer, batch_size=2, rank=4)
    losses = [method.step(_batch(method.program), lr).loss for _ in range(12)]
    assert losses[-1] < 0.8 * losses[0]
    assert method.rows_per_step == 6


def test_sgd_is_a_step_down_the_gradient(checkpoint: str) -> None:
    method = FirstOrder(checkpoint, seed=0, space="full", optimizer="sgd", batch_size=2)
    name_of = dict(load_model(find_checkpoint(checkpoint)).named_parameters())
    old = [each.detach().clone() for each in method.program.trained]
    method.step(_batch(method.program), lr=1.0)
    index = list(name_of).index("lm_head.weight")
    gradient = old[index] - method.program.trained[index].detach()
    spot = divmod(int(gradient.abs().argmax()), gradient.shape[1])
    losses = []
    for sign in (1, -1):
        model = load_model(find_checkpoint(checkpoint))
        with torch.no_grad():
            model.get_parameter("lm_head.weight")[spot] += sign * 1e-3
            losses.append(np.mean(_oracle_losses(model)))
    assert float(gradient[spot]) == pytest.approx((losses[0] - losses[1]) / 2e-3, rel=1e-3)


def test_runs_of_prge_start_alike(checkpoint: str) -> None:
    """Programs are shared between runs; nothing of one is left for the next."""
    options = {"q": 2, "batch_size": 2, "num_labels": 2, "seq_len": 16, "rank": 4}
    losses = []
    for _ in range(2):
        method = Prge(checkpoint, seed=5, **options)
        losses.append([method.step(_batch(method.program), 0.1).loss for _ in range(4)])
        method.flush()
    assert losses[0] == losses[1]
    assert method.rows_per_step == 8
    assert any(array.any() for array in method.program.read_state().values())


def test_constants_of_the_estimator_are_options(checkpoint: str) -> None:
    options = {"q": 2, "batch_size": 2, "num_labels": 2, "seq_len": 16, "rank": 4, "estimator": "std"}
    states = []
    for constants in ({}, {"cap": 1e-3}):
        method = Prge(checkpoint, seed=5, **options, **constants)
        method.step(_batch(method.program), 0.1)
        method.flush()
        states.append(max(float(np.abs(array).max()) for array in method.program.read_state().values()))
    assert states[0] > 100 * states[1] > 0


def test_divergence_and_wrong_options(checkpoint: str) -> None:
    method = Mezo(checkpoint, seed=0, space="lora-fa", batch_size=2, rank=4)
    with torch.no_grad():
        method.program.trained[-1].fill_(float("nan"))
    with pytest.raises(NumericsError, match="not finite"):
        method.step(_batch(method.program), 0.1)
    where = Path("study.toml")
    for options, message in (
        ({"kind": "magic"}, "unknown kind 'magic'"),
        ({"kind": "mezo", "space": "hats"}, "unknown space 'hats'"),
        ({"kind": "fo", "optimizer": "lion"}, "unknown optimizer 'lion'"),
        ({"kind": "conmezo", "theta": 2.0}, "theta is 2.0 and beta 0.99"),
        ({"kind": "fo", "banana": 1}, "kind fo cannot be made"),
        ({"kind": "prge", "banana": 1}, "kind prge cannot be made"),
    ):
        with pytest.raises(UsageError, match=message):
            build_method(checkpoint, options, 0, where)


def test_side_learns_beside_a_model_that_stays_as_it_is(checkpoint: str) -> None:
    method = Side(checkpoint, seed=0, batch_size=2, rank=4)
    program, model = method.program, load_model(find_checkpoint(checkpoint))
    batch = _batch(program)
    tokens, label_pos = batch.tokens_NT[:2], batch.label_pos_NK[:2]
    rows = Batch(tokens, label_pos, batch.targets_NK[:2])
    acts, logits = program.emitted(tokens, label_pos)
    expected_acts, expected_logits = hooked(model, torch.from_numpy(tokens), torch.from_numpy(label_pos[:, :1]))
    np.testing.assert_allclose(acts.numpy(), expected_acts.numpy(), rtol=1e-4, atol=1e-5)
    before = program.evaluate(rows)
    z = expected_logits[:, 0][:, [40, 11]]
    np.testing.assert_allclose(np.sort(before), np.sort(-torch.log_softmax(z, -1)[[0, 1], [0, 1]].numpy()), rtol=1e-4)
    losses = [method.step(batch, 1e-2).loss for _ in range(40)]
    assert losses[-1] < 0.1 * losses[0]
    assert program.evaluate(rows).mean() < before.mean()
    np.testing.assert_array_equal(program.emitted(tokens, label_pos)[1], logits)
