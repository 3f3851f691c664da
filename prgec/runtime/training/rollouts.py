"""Answers that a program writes to prompts, and their rewards: the rows of a step that nobody wrote down before.

Letters: T tokens, K label positions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from prgec.core.contract.arrays import Float64Array
from prgec.core.contract.engine import GeneratingProgram
from prgec.core.contract.listener import CallListener, ignore
from prgec.core.data.prompts import Prompt
from prgec.core.data.row import Row
from prgec.runtime.training.evaluate import row_losses
from prgec.runtime.training.generate import answer_writer, text_of
from prgec.runtime.training.sampling import Sampler, Sampling
from prgec.runtime.training.writing import OpenText
from prgec.runtime_ops.philox import MASK, philox4x32

# Counters that no noise, no order of rows and no draw of a token uses.
_ANSWER_QUERY = 0xFFFFFFFC


@dataclass(frozen=True)
class WrittenAnswer:
    """An answer.

    Attributes:
        prompt: Number of its prompt.
        ids: Its tokens, with the one that ends it.
        text: The same as text, without that one.
        loss: Mean negative log-likelihood of its tokens when it was written; None where nobody needs it.
    """

    prompt: int
    ids: tuple[int, ...]
    text: str
    loss: float | None = None


class Scorer(Protocol):
    """The source of rewards."""

    def __call__(self, step: int, call: int, answers: Sequence[WrittenAnswer]) -> Float64Array:
        """Return the reward of each answer of a call, f64[n]; NaN where there is none and the run goes on.

        Raises:
            NumericsError: If there is none and the run stops.
        """


@dataclass(frozen=True)
class Collected:
    """The rows of a call.

    Attributes:
        rows: Prompts with their answers, answers to one prompt following each other.
        rewards: Their rewards, f64[n].
        losses: Their mean negative log-likelihoods when they were written, f64[n]; None for steps that are the only
            ones on their answers.
    """

    rows: list[Row]
    rewards: Float64Array
    losses: Float64Array | None = None

    @property
    def num_labels(self) -> Float64Array:
        """The number of labels of each row, f64[n]."""
        return np.array([len(row.targets) for row in self.rows], dtype=np.float64)


@dataclass(frozen=True, kw_only=True)
class Rollouts:
    """Writes answers with a program's cache.

    Attributes:
        program: A program compiled with a cache.
        prompts: The prompts.
        scorer: The source of rewards.
        group: Answers to each prompt.
        max_tokens: Most tokens of an answer.
        sampling: How tokens are drawn; its seed is the run's.
        iterations: Steps on each batch of answers.
        clip: Distance from 1 that the ratio of probabilities may have in later ones.
        recall: Returns the answers of a call of a step as they were kept, for a run that goes on in the middle.
    """

    program: GeneratingProgram
    prompts: Sequence[Prompt]
    scorer: Scorer
    group: int
    max_tokens: int
    sampling: Sampling
    iterations: int = 1
    clip: float = 0.2
    recall: Callable[[int, int], Collected] | None = None

    def collect(self, numbers: Sequence[int], step: int, call: int = 0, *, draws: int | None = None) -> Collected:
        """Write `group` answers to each of some prompts under the present state, and ask for their rewards.

        The tokens follow from the state and (seed, step, draws): a step that is taken again gets the same ones.

        Args:
            numbers: The prompts, by number.
            step: Number of the step.
            call: Number of the call in it, by which rewards are kept.
            draws: Number of the draws; calls with the same one draw the same numbers. None for the call's.

        Raises:
            NumericsError: If an answer has no reward, and the run stops for that.
        """
        texts, draws = [], call if draws is None else draws
        for place, number in enumerate(numbers):
            for copy in range(self.group):
                seed = answer_seed(self.sampling.seed, step, draws, place * self.group + copy)
                texts.append(OpenText(self.prompts[number].ids, Sampler(replace(self.sampling, seed=seed))))
        written = self._written([number for number in numbers for _ in range(self.group)], texts)
        rows = [training_row(self.prompts[each.prompt].ids, each.ids) for each in written]
        if self.iterations == 1:
            return Collected(rows, self.scorer(step, call, written))
        losses = row_losses(self.program, rows)
        kept = [replace(answer, loss=loss) for answer, loss in zip(written, losses.tolist(), strict=True)]
        return Collected(rows, self.scorer(step, call, kept), losses)

    def most_likely(self, on_call: CallListener) -> list[WrittenAnswer]:
        """Return the most likely answer to every prompt.

        Args:
            on_call: Called with (prompts answered, all prompts) after every call; it may raise to end the rest.
        """
        texts = [OpenText(prompt.ids, Sampler(Sampling())) for prompt in self.prompts]
        return self._written(range(len(texts)), texts, on_call)

    def _written(
        self, numbers: Sequence[int], texts: Sequence[OpenText], on_call: CallListener = ignore
    ) -> list[WrittenAnswer]:
        """Write the texts, and return them with the numbers of their prompts."""
        # One of its own: the state has changed since the last call.
        answer_writer(self.program, max_tokens=self.max_tokens).write(texts, on_call)
        return [
            WrittenAnswer(number, tuple(text.ids), text_of(self.program, text.ids))
            for number, text in zip(numbers, texts, strict=True)
        ]


def training_row(prompt: Sequence[int], answer: Sequence[int]) -> Row:
    """Return the row that learns an answer: its last token is predicted, and never read."""
    start = len(prompt) - 1
    return Row((*prompt, *answer[:-1]), tuple(range(start, start + len(answer))), tuple(answer))


def answer_seed(seed: int, step: int, call: int, number: int) -> int:
    """Return the seed of the draws of one answer: 63 bits from the generator of the noise."""
    counter = (number, _ANSWER_QUERY, call, (seed >> 32) & MASK)
    words = (np.array([word], dtype=np.int64) for word in (*counter, seed & MASK, step & MASK))
    c0, c1, c2, c3, k0, k1 = words
    x0, x1, _, _ = philox4x32((c0, c1, c2, c3), (k0, k1))
    return (int(x1[0]) << 32 | int(x0[0])) >> 1
