"""The paper's Table 4 on a task: what is learnt without the additive network, the token selector, or the shortcut.

Letters: n rows, C candidates.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from prgec.core.data.first_tokens import FirstTokens
from prgec.serve.side.answers import Assisted
from prgec.serve.side.build import build
from prgec.serve.side.cache import Cache
from prgec.serve.side.fit import fit
from prgec.serve.side.fit_options import FitOptions
from prgec.serve.side.side_program import open_side
from prgec.serve.side.targets import difference


def without_additive(
    alone: Assisted, train: FirstTokens, test: FirstTokens, cache: Cache, order: list[int], seeds: int, work: Path
) -> list[float]:
    """Learn the labels themselves, which the server then has, and answer by the network alone: accuracies by seed.

    Args:
        alone: The backbone without a network.
        train: Rows of `cache`.
        test: Rows to answer.
        cache: The emitted rows.
        order: Place in the cache of each row of `train`.
        seeds: Networks to learn.
        work: Folder for them.
    """
    labels = difference(np.zeros((len(train.rows), len(train.choices)), dtype=np.float32), train.answers)
    dy = np.empty_like(cache.dy)
    dy[order] = labels[:, None]
    plain = replace(cache, dy=dy)
    found = []
    for seed in range(seeds):
        done = fit(plain, work / f"plain-{seed}", FitOptions(seed=seed))
        build(done.network, work / f"plain-{seed}.pte")
        assisted = Assisted(alone.program, open_side(work / f"plain-{seed}.pte"), b"")
        scores = assisted.scores(test)
        assert scores is not None
        before, after = scores
        said = after - (before - before.mean(-1, keepdims=True))
        found.append(float((said.argmax(1) == np.array(test.answers)).mean()))
    return found


def without_selector(train: FirstTokens, blocks: int, width: int) -> float:
    """Bytes a row if all its tokens were sent.

    The network acts on each token alone, so that choosing tokens first or last gives the same answers.
    """
    return float(np.mean([len(row.tokens) for row in train.rows])) * blocks * width * 2
