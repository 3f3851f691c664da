"""The target of a side network: the difference between the right answer and the model's own.

Letters: n rows, C candidates, D width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from prgec.core.contract.arrays import FloatArray
from prgec.errors import UsageError
from prgec.serve.side.row_ids import keyed

_WORD = 1 << 64
_DIGEST_BITS = 256
_SMALL = 1e-12


def centred(z: FloatArray) -> FloatArray:
    """Return scores of candidates less their mean: f32[..., C]; a single one as it is, compared with nothing."""
    if z.shape[-1] == 1:
        return z
    # Summed in order, as the C++ driver does.
    total = z[..., 0]
    for column in range(1, z.shape[-1]):
        total = total + z[..., column]
    result: FloatArray = z - (total / np.float32(z.shape[-1]))[..., None]
    return result


def difference(y_pre: FloatArray, answers: Sequence[float]) -> FloatArray:
    """Return `onehot - 1/C - (z - mean z)`, f32[n, C]: what is missing between the model's scores and the answers.

    Where there is a single score, answers are scores too, and the difference is theirs.
    """
    num_classes = y_pre.shape[-1]
    if num_classes == 1:
        missing: FloatArray = np.asarray(answers, dtype=np.float32)[:, None] - y_pre
        return missing
    onehot = np.eye(num_classes, dtype=np.float32)[np.asarray(answers)]
    result: FloatArray = onehot - np.float32(1.0 / num_classes) - centred(y_pre)
    return result


def secret_scores(last_acts: FloatArray, num_classes: int, key: bytes) -> FloatArray:
    """Return scores of a head that follows from the device's key alone: f32[n, C] of f32[n, D].

    The owner of the public model can compute its scores, but not these.
    """
    width = last_acts.shape[-1]
    wide = last_acts.astype(np.float64)
    rms = np.sqrt(_in_order(wide * wide) / width) + _SMALL
    totals = np.stack([_in_order(wide * signs) for signs in _signs(num_classes, width, key)], -1)
    result: FloatArray = (totals / (rms * math.sqrt(width))[:, None]).astype(np.float32)
    return result


def _signs(num_classes: int, width: int, key: bytes) -> NDArray[np.float64]:
    """Return 1 or -1 for each input of each score: f64[C, D]."""
    size = num_classes * width
    numbers = (number.to_bytes(8, "little") for number in range(-(-size // _DIGEST_BITS)))
    drawn = np.frombuffer(b"".join(keyed(key, "secret-head", number) for number in numbers), dtype=np.uint8)
    bits = np.unpackbits(drawn, bitorder="little")[:size].reshape(num_classes, width)
    return np.where(bits == 1, 1.0, -1.0)


def _in_order(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return sums of the last dimension, added one by one, as the C++ driver does."""
    result: NDArray[np.float64] = np.cumsum(values, axis=-1)[..., -1]
    return result


def keep_probability(num_classes: int, epsilon: float) -> float:
    """Probability that randomised response keeps a label: e^eps / (e^eps + C - 1)."""
    return 1.0 / (1.0 + (num_classes - 1) * math.exp(-epsilon))


def randomised(answers: Sequence[int], ids: Sequence[bytes], num_classes: int, epsilon: float, key: bytes) -> list[int]:
    """Keep each label with the probability of label differential privacy, else take another one at random.

    The outcome follows from the key and the row, so sending the row again reveals nothing new.

    Raises:
        UsageError: If epsilon is not a finite number above 0, or answers are scores.
    """
    if num_classes == 1:
        raise UsageError("--label-dp is for a choice between answers; a score has no alternatives")
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise UsageError(f"--label-dp is {epsilon}; expected a finite number above 0")
    keep = int(keep_probability(num_classes, epsilon) * _WORD)
    result = []
    for answer, row in zip(answers, ids, strict=True):
        drawn = keyed(key, f"label-dp {num_classes} {epsilon!r}", row)
        is_kept = int.from_bytes(drawn[:8], "little") < keep
        other = int.from_bytes(drawn[8:16], "little") % (num_classes - 1)
        result.append(answer if is_kept else other + (other >= answer))
    return result
