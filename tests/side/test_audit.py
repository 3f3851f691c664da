"""Attacks recover what they must on data made for them, and no more than chance where there is nothing."""

from __future__ import annotations

import numpy as np
import pytest

from prgec.errors import UsageError
from prgec.serve.side.audit import attacks
from prgec.serve.side.targets import difference, keep_probability, randomised

N, D, C = 3000, 16, 3
KEY = bytes(32)


def _rates(epsilon: float | None = None, *, is_secret: bool = False, says: float = 0.0) -> dict[str, float]:
    """`says`: how much the activations reveal of the label by themselves."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, C, N)
    acts = rng.normal(size=(N, D)).astype(np.float32)
    acts[:, :C] += says * np.eye(C, dtype=np.float32)[truth]
    scores = rng.normal(size=(N, C)).astype(np.float32) * 3
    told = truth.tolist()
    if epsilon is not None:
        told = randomised(told, [n.to_bytes(16, "big") for n in range(N)], C, epsilon, KEY)
    secret = rng.normal(size=(N, C)).astype(np.float32) * 3
    dy = difference(secret if is_secret else scores, told)
    return {each.name: each.recovered for each in attacks(dy, acts, scores, truth.tolist(), 50)}


def test_whoever_has_the_head_has_every_label() -> None:
    found = _rates()
    assert found["known head"] == 1.0
    assert found["sign"] > found["chance"] + 0.05
    assert abs(found["texts alone"] - 1 / C) < 0.05 and 0.3 < found["chance"] < 0.4


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_label_dp_bounds_them(epsilon: float) -> None:
    found = _rates(epsilon)
    assert abs(found["known head"] - keep_probability(C, epsilon)) < 0.03
    assert max(found["sign"], found["regression"]) < keep_probability(C, epsilon) + 0.03


def test_a_secret_head_takes_the_known_one_its_use() -> None:
    assert _rates(is_secret=True)["known head"] < 0.8


def test_activations_may_say_it_without_any_dy() -> None:
    assert _rates(says=6.0)["texts alone"] > 0.8


@pytest.mark.parametrize("known", [0, N, -1])
def test_how_many_labels_may_be_known(known: int) -> None:
    zeros = np.zeros((N, C), dtype=np.float32)
    with pytest.raises(UsageError, match="--known is"):
        attacks(zeros, np.zeros((N, D), dtype=np.float32), zeros, [0] * N, known)
