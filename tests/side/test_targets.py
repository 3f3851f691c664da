"""Differences, randomised response and secret heads."""

from __future__ import annotations

import math

import numpy as np
import pytest

from prgec.errors import UsageError
from prgec.serve.side.targets import difference, keep_probability, randomised, secret_scores

KEY = bytes(range(32))
IDS = [number.to_bytes(16, "big") for number in range(4000)]


def test_difference_is_what_is_missing() -> None:
    """By hand: two answers, scores 3 and 1, so z less its mean is 1 and -1."""
    found = difference(np.array([[3.0, 1.0], [3.0, 1.0]], dtype=np.float32), [0, 1])
    np.testing.assert_allclose(found, [[1 - 0.5 - 1, -0.5 + 1], [-0.5 - 1, 1 - 0.5 + 1]])
    assert found.dtype == np.float32


def test_added_to_the_scores_it_gives_the_answers() -> None:
    rng = np.random.default_rng(0)
    scores, answers = rng.normal(size=(50, 5)).astype(np.float32) * 9, rng.integers(0, 5, 50).tolist()
    assert (scores + difference(scores, answers)).argmax(1).tolist() == answers


def test_a_shift_of_all_scores_changes_nothing() -> None:
    scores = np.array([[0.25, 0.5, 2.0]], dtype=np.float32)
    np.testing.assert_allclose(difference(scores + 8, [2]), difference(scores, [2]), atol=1e-6)


@pytest.mark.parametrize(("num_classes", "epsilon"), [(2, 0.5), (2, 2.0), (5, 1.0)])
def test_labels_are_kept_as_often_as_epsilon_says(num_classes: int, epsilon: float) -> None:
    answers = [number % num_classes for number in range(len(IDS))]
    found = randomised(answers, IDS, num_classes, epsilon, KEY)
    kept = sum(a == b for a, b in zip(answers, found, strict=True)) / len(IDS)
    expected = math.exp(epsilon) / (math.exp(epsilon) + num_classes - 1)
    assert keep_probability(num_classes, epsilon) == pytest.approx(expected)
    assert abs(kept - expected) < 4 * math.sqrt(expected * (1 - expected) / len(IDS))
    others = [b for a, b in zip(answers, found, strict=True) if a != b]
    shares = np.bincount(others, minlength=num_classes) / len(others)
    assert np.abs(shares - 1 / num_classes).max() < 0.06


def test_what_becomes_of_a_row_follows_from_key_and_row() -> None:
    answers = [0] * len(IDS)
    first = randomised(answers, IDS, 2, 1.0, KEY)
    assert randomised(answers[::-1], IDS[::-1], 2, 1.0, KEY) == first[::-1]
    assert randomised(answers, IDS, 2, 1.0, bytes(32)) != first


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf])
def test_impossible_epsilon(epsilon: float) -> None:
    with pytest.raises(UsageError, match="^--label-dp is"):
        randomised([0], IDS[:1], 2, epsilon, KEY)


def test_secret_scores_follow_from_the_key_and_not_from_the_scale() -> None:
    acts = np.random.default_rng(0).normal(size=(200, 64)).astype(np.float32)
    found = secret_scores(acts, 3, KEY)
    np.testing.assert_allclose(secret_scores(acts * 16, 3, KEY), found, rtol=1e-4, atol=1e-5)
    assert found.shape == (200, 3) and 0.5 < found.std() < 2
    assert abs(np.corrcoef(found[:, 0], secret_scores(acts, 3, bytes(32))[:, 0])[0, 1]) < 0.5
