"""The rewards of a run: its prompts, what judges answers, and the answers that were judged before."""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from prgec.core.contract.arrays import Float64Array
from prgec.core.contract.engine import Engine
from prgec.core.contract.listener import CallListener
from prgec.core.data.prompts import Prompt
from prgec.core.data.row import Row
from prgec.core.data.rows_file import LazyRows, RowSet
from prgec.core.formats.answers_file import AnswersFile
from prgec.core.formats.run_folder import ANSWERS_NAME, RunFolder
from prgec.errors import DataError, NumericsError
from prgec.runtime.rewards.judge import Judge
from prgec.runtime.training.advantages import ADVANTAGES, Advantage
from prgec.runtime.training.evaluate import Evaluation
from prgec.runtime.training.rollouts import Collected, Rollouts, WrittenAnswer, training_row
from prgec.runtime.training.sampling import Sampling


class PromptRows(LazyRows):
    """Prompts as rows of a training loop: each as often as it gets answers, which take its place in a step.

    Args:
        prompts: The prompts.
        group: Answers to each.
    """

    def __init__(self, prompts: Sequence[Prompt], group: int) -> None:
        self._rows = [Row(each.ids, (len(each.ids) - 1,), (0,)) for each in prompts]
        self._group = group

    def __len__(self) -> int:
        return len(self._rows) * self._group

    def _row(self, index: int) -> Row:
        return self._rows[index // self._group]


@dataclass(frozen=True, kw_only=True)
class RunRewards:
    """The needs of a run by rewards, besides its program.

    Attributes:
        train: Prompts to learn from.
        test: Prompts of evaluations; None to evaluate nothing.
        judge: Computes rewards.
        objective: Its name.
        beta: Cost of a unit of the distance to the start.
        group: Answers to each prompt.
        max_tokens: Most tokens of an answer.
        sampling: How tokens are drawn.
        iterations: Steps on each batch of answers.
        clip: Distance from 1 that the ratio of probabilities may have in later ones.
        skips: Whether the run goes on where an answer has no reward.
        answers: The answers judged so far; None where no folder keeps them.
        name: Everything that decides which answers and rewards there are, for the journal.
    """

    train: list[Prompt]
    test: list[Prompt] | None
    judge: Judge
    objective: str
    beta: float
    group: int
    max_tokens: int
    sampling: Sampling
    iterations: int
    clip: float
    skips: bool
    name: str
    answers: AnswersFile | None = None

    @property
    def advantage(self) -> Advantage | None:
        """The weights of answers; None for evolution strategies, which compare copies of the program."""
        return ADVANTAGES.get(self.objective)

    @property
    def rows(self) -> PromptRows:
        """The prompts as rows of the training loop."""
        return PromptRows(self.train, self.group)

    @property
    def crc(self) -> int:
        """A name of the prompts and the settings."""
        ids = repr([each.ids for each in self.train]) + repr([each.record for each in self.train])
        return zlib.crc32(ids.encode(), zlib.crc32(self.name.encode()))

    @property
    def test_set(self) -> RowSet | None:
        """The prompts of evaluations as a run counts them."""
        if self.test is None:
            return None
        return RowSet(PromptRows(self.test, 1), 1, (0,) * len(self.test))

    def kept_in(self, folder: RunFolder, *, resume: bool) -> RunRewards:
        """Return the same with the answers that the folder keeps; those of another run are removed.

        Raises:
            DataError: If they cannot be read, or a reward cannot be loaded.
        """
        self.judge.start()
        return replace(self, answers=AnswersFile(folder.path / ANSWERS_NAME, resume=resume))

    def rollouts(self, program: Engine) -> Rollouts:
        """Return the writer of answers of a program."""
        return Rollouts(
            program=program,
            prompts=self.train,
            scorer=self.score,
            group=self.group,
            max_tokens=self.max_tokens,
            sampling=self.sampling,
            iterations=self.iterations,
            clip=self.clip,
            recall=self._recall,
        )

    def _recall(self, step: int, call: int) -> Collected:
        """Return the answers of a call as the folder keeps them.

        Raises:
            DataError: If they are gone.
        """
        kept = self.answers.answers(step, call) if self.answers is not None else None
        if kept is None or not all(math.isfinite(each["loss"]) and each["prompt"] < len(self.train) for each in kept):
            raise DataError(
                f"the answers of step {step} are not in the run folder", hint="begin again without --resume"
            )
        rows = [training_row(self.train[each["prompt"]].ids, each["ids"]) for each in kept]
        rewards, losses = (np.array([each[name] for each in kept]) for name in ("reward", "loss"))
        return Collected(rows, rewards, losses)

    def score(self, step: int, call: int, answers: Sequence[WrittenAnswer]) -> Float64Array:
        """Return the reward of each answer of a call, f64[n]: as it was, if the call was made before.

        Raises:
            NumericsError: If an answer has none, and the run does not skip it.
        """
        ids = [each.ids for each in answers]
        known = self.answers.rewards(step, call, ids) if self.answers is not None else None
        if known is not None:
            return np.array(known)
        rewards = [self._reward(self.train[each.prompt], each.text) for each in answers]
        if self.answers is not None:
            self.answers.append(step, call, list(map(_line, answers, rewards)))
        return np.array(rewards)

    def evaluate(self, program: Engine, on_call: CallListener) -> Evaluation:
        """Return the mean reward of the most likely answers to the prompts of evaluations.

        Raises:
            NumericsError: If an answer has none, and the run does not skip it.
        """
        assert self.test is not None, "there is something to evaluate"
        rollouts = replace(self.rollouts(program), prompts=self.test)
        return judge_most_likely(rollouts, self._reward, on_call)

    def _reward(self, prompt: Prompt, text: str) -> float:
        try:
            return self.judge.score(prompt.shown, text, prompt.record)
        except NumericsError:
            if self.skips:
                return math.nan
            raise


def judge_most_likely(rollouts: Rollouts, reward: Callable[[Prompt, str], float], on_call: CallListener) -> Evaluation:
    """Return the mean reward of the most likely answers to prompts, under the present state.

    Args:
        rollouts: The writer of answers, with the prompts.
        reward: Returns the reward of an answer; NaN where it has none and others go on.
        on_call: Called with (prompts answered, all prompts) after every call; it may raise to end the rest.

    Raises:
        NumericsError: If no answer has a reward.
    """
    start = time.monotonic()
    texts = [each.text for each in rollouts.most_likely(on_call)]
    rewards = list(map(reward, rollouts.prompts, texts))
    known = [each for each in rewards if math.isfinite(each)]
    if not known:
        raise NumericsError("no answer has a reward", hint="correct the reward")
    mean = float(np.mean(known))
    seconds = time.monotonic() - start
    return Evaluation(
        loss=-mean,
        accuracy=None,
        num_examples=len(known),
        num_calls=len(rewards),
        seconds=seconds,
        answers=tuple(texts),
        reward=mean,
    )


def _line(answer: WrittenAnswer, reward: float) -> dict[str, Any]:
    """Return an answer as its file has it."""
    return {
        "prompt": answer.prompt,
        "ids": list(answer.ids),
        "text": answer.text,
        "reward": reward if math.isfinite(reward) else None,
        **({} if answer.loss is None else {"loss": answer.loss}),
    }
