"""What a side network learns to add: the difference between the right answer and what the model says already.

Letters: n rows, C candidates, D width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from prgec.contract.arrays import FloatArray
from prgec.errors import UsageError
from prgec.side.row_ids import keyed

_WORD = 1 << 64


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

    Whoever has the public model can compute its scores, but not these.
    """
    seed = int.from_bytes(keyed(key, "secret-head", b"")[:8], "little")
    bits = np.random.PCG64(seed).random_raw(num_classes * last_acts.shape[-1])
    signs = np.where(bits & 1 == 1, 1.0, -1.0).astype(np.float32).reshape(num_classes, -1)
    rms = np.sqrt(np.square(last_acts).mean(-1, keepdims=True, dtype=np.float32)) + np.float32(1e-12)
    scale = np.float32(1.0 / math.sqrt(last_acts.shape[-1]))
    result: FloatArray = (last_acts / rms) @ signs.T * scale
    return result


def keep_probability(num_classes: int, epsilon: float) -> float:
    """Probability that randomised response keeps a label: e^eps / (e^eps + C - 1)."""
    return 1.0 / (1.0 + (num_classes - 1) * math.exp(-epsilon))


def randomised(answers: Sequence[int], ids: Sequence[bytes], num_classes: int, epsilon: float, key: bytes) -> list[int]:
    """Keep each label with the probability of label differential privacy, else take another one at random.

    What becomes of a row follows from the key and the row, so that sending it again tells nothing new.

    Raises:
        UsageError: If epsilon is not a finite number above 0, or answers are scores.
    """
    if num_classes == 1:
        raise UsageError("--label-dp is for a choice between answers; a score has no other one")
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
