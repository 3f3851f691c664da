"""Attacks on the labels by someone who has the shards, tried on the user's own rows.

Letters: n rows, C candidates, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from prgec.core.contract.arrays import Float64Array, FloatArray, IntArray
from prgec.errors import UsageError
from prgec.serve.side.targets import centred

# Strength of the ridge: enough that fewer rows than features have one answer.
_RIDGE = 1.0


@dataclass(frozen=True)
class Attack:
    """The result of one way to guess labels.

    Attributes:
        name: Name of the attack.
        knows: Knowledge of the attacker besides the shards.
        recovered: Share of labels guessed right.
        num_rows: Labels guessed.
    """

    name: str
    knows: str
    recovered: float
    num_rows: int


def attacks(
    dy: FloatArray, last_acts: FloatArray, scores: FloatArray, answers: Sequence[int], num_known: int, seed: int = 0
) -> tuple[Attack, ...]:
    """Guess labels in every way known here.

    Args:
        dy: f32[n, C], as sent.
        last_acts: f32[n, D], outputs of the last block, as sent.
        scores: f32[n, C], scores of the candidates by the public model.
        answers: The true labels.
        num_known: Labels the attacker of the last two has already.
        seed: Which those are.

    Raises:
        UsageError: If as many labels as there are rows, or none, are known.
    """
    truth = np.array(answers)
    if not 1 <= num_known < len(truth):
        raise UsageError(f"--known is {num_known}; expected 1 to {len(truth) - 1}")
    chance = float(np.bincount(truth, minlength=dy.shape[-1]).max() / len(truth))
    order = np.argsort(np.random.PCG64(seed).random_raw(len(truth)), kind="stable")
    known, rest = order[:num_known], order[num_known:]
    unit = last_acts / np.sqrt(np.square(last_acts).mean(-1, keepdims=True, dtype=np.float64) + 1e-12)
    both = np.concatenate([_standard(dy), unit], 1)
    return (
        Attack("chance", "which answer is most frequent", chance, len(truth)),
        _rate("known head", "the public checkpoint and the answers", (dy + centred(scores)).argmax(1), truth),
        _rate("sign", "nothing", dy.argmax(1), truth),
        _rate("regression", f"{num_known} labels", _guessed(both, truth, known, rest), truth[rest]),
        _rate("texts alone", f"{num_known} labels, and no dy", _guessed(unit, truth, known, rest), truth[rest]),
    )


def _rate(name: str, knows: str, guessed: IntArray, truth: IntArray) -> Attack:
    return Attack(name, knows, float((guessed == truth).mean()), len(truth))


def _guessed(features: Float64Array, truth: IntArray, known: IntArray, rest: IntArray) -> IntArray:
    """Ridge regression of the one-hot labels on features, and what it says of the other rows."""
    centre = features[known].mean(0)
    wanted = np.eye(truth.max() + 1)[truth[known]]
    x = features[known] - centre
    # In the rows' own space: there are fewer of them than features.
    weights = x.T @ np.linalg.solve(x @ x.T + _RIDGE * np.eye(len(known)), wanted - wanted.mean(0))
    guessed: IntArray = ((features[rest] - centre) @ weights + wanted.mean(0)).argmax(1)
    return guessed


def _standard(values: FloatArray) -> Float64Array:
    """Columns of mean 0 and deviation 1, as heavy together as one activation each."""
    wide = values.astype(np.float64)
    result: Float64Array = (wide - wide.mean(0)) / (wide.std(0) + 1e-12)
    return result
