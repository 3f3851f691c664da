"""Loss and accuracy of a program's present state, N different rows a call.

Letters: q queries, B examples a step, N = 2qB rows.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from prgec.contract import Manifest
from prgec.data.answers import exact_match, token_f1
from prgec.data.batches import evaluation_batches
from prgec.data.dataset import Dataset
from prgec.data.encode import Encoder, Row, encode_items, encode_rows
from prgec.data.rows_file import RowSet
from prgec.data.task import SPAN_F1, Example
from prgec.driver.generate import LINE_END, generate
from prgec.driver.program import GeneratingProgram
from prgec.driver.sums import ordered_mean
from prgec.driver.trainer import Float64Array
from prgec.errors import DataError, NumericsError

logger = logging.getLogger(__name__)

BatchListener = Callable[[int, int], None]


@dataclass(frozen=True)
class EvalSet(RowSet):
    """Rows that still know the text they came from.

    Attributes:
        examples: What the rows came from, where they are examples.
        choices: Texts of each example's candidates.
        questions: Prompts to generate answers for; empty unless answers are compared as text.
    """

    examples: tuple[Example, ...] = ()
    choices: tuple[tuple[str, ...], ...] = ()
    questions: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class Evaluation:
    """What a program scores on a data set.

    Attributes:
        loss: Mean over examples of the right completion's mean negative log-likelihood.
        accuracy: Share of examples whose right completion has the lowest of the candidates' losses; None when the
            task is open-ended.
        num_examples: Examples evaluated.
        num_calls: Forward calls it took.
        seconds: Wall time.
        f1: Mean token F1 of generated answers, where the task compares text and the program generates.
        exact_match: Share of generated answers that equal a reference.
        answers: What the program chose or generated for each example, as text; empty for open-ended tasks.
    """

    loss: float
    accuracy: float | None
    num_examples: int
    num_calls: int
    seconds: float
    f1: float | None = None
    exact_match: float | None = None
    answers: tuple[str, ...] = ()

    @property
    def score(self) -> float:
        """What early stopping maximises: accuracy or F1 where there is one, else the negative loss."""
        metric = self.accuracy if self.f1 is None else self.f1
        return -self.loss if metric is None else metric


def encode_eval_set(dataset: Dataset, program: GeneratingProgram) -> EvalSet:
    """Encode every example with every candidate for a program that is open.

    Raises:
        DataError: If an example cannot be encoded for this program.
    """
    eval_set = encode_row_set(dataset, program.tokenizer, program.manifest)
    if dataset.task.metric == SPAN_F1 and not eval_set.questions:
        logger.warning("no F1: the program cannot generate answers; compile it with --generate")
    return eval_set


def encode_row_set(dataset: Dataset, tokenizer: Encoder, manifest: Manifest) -> EvalSet:
    """Encode every example with every candidate, and everything else with what is right.

    Raises:
        DataError: If an example cannot be encoded for this program.
    """
    examples = tuple(each for each in dataset.examples if isinstance(each, Example))
    if len(examples) < len(dataset.examples):
        rows = encode_items(dataset.examples, tokenizer, manifest)
        return EvalSet(tuple(rows), 1, (0,) * len(rows))
    candidates = dataset.candidates()
    choices = tuple(example.candidates or candidates or (str(example.completion),) for example in examples)
    answers = tuple(_index(options, example) for options, example in zip(choices, examples, strict=True))
    pairs = [(example, choice) for example, options in zip(examples, choices, strict=True) for choice in options]
    rows = encode_rows(pairs, tokenizer, manifest)
    is_asked = dataset.task.metric == SPAN_F1 and manifest.generate
    questions = tuple(tuple(tokenizer.encode(example.prompt)) for example in examples) if is_asked else ()
    return EvalSet(tuple(rows), len(choices[0]), answers, examples, choices, questions)


def _index(choices: Sequence[str], example: Example) -> int:
    if example.completion in choices:
        return choices.index(example.completion)
    raise DataError(f"the answer {example.completion!r} is none of the candidates", where=example.where)


def evaluate(
    program: GeneratingProgram,
    eval_set: RowSet,
    on_batch: BatchListener = lambda done, total: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Evaluation | None:
    """Score the program's present state. Flush pending updates first: they are not part of the state.

    Args:
        program: The program.
        eval_set: Encoded examples.
        on_batch: Called with (rows done, all rows) after every call.
        should_stop: Asked before every call.

    Returns:
        The scores; None if it was stopped.

    Raises:
        NumericsError: If the mean loss is not finite.
    """
    start = time.monotonic()
    all_losses = row_losses(program, eval_set.rows, on_batch, should_stop)
    if all_losses is None:
        return None
    losses = all_losses.reshape(-1, eval_set.num_candidates)
    answers = np.array(eval_set.answers)
    loss = float(ordered_mean(losses[np.arange(len(answers)), answers]))
    if not np.isfinite(loss):
        raise NumericsError("the evaluation loss is not finite", hint="the state has diverged: lower --lr")
    num_calls = -(-len(eval_set.rows) // program.manifest.num_distinct_rows)
    best = losses.argmin(axis=1)
    is_choice = eval_set.num_candidates > 1
    accuracy = float((best == answers).mean()) if is_choice else None
    f1 = matched = None
    chosen: list[str] = []
    if isinstance(eval_set, EvalSet) and is_choice:
        chosen = [choices[i] for choices, i in zip(eval_set.choices, best.tolist(), strict=True)]
    if isinstance(eval_set, EvalSet) and eval_set.questions:
        generated = generate(program, eval_set.questions, max_tokens=program.manifest.num_labels, stop=LINE_END,
                             should_stop=should_stop)  # fmt: skip
        if generated is None:
            return None
        chosen = generated
        f1, matched = _compare(eval_set.examples, generated)
    seconds = time.monotonic() - start
    return Evaluation(loss, accuracy, len(answers), num_calls, seconds, f1, matched, tuple(chosen))


def _compare(examples: Sequence[Example], answers: Sequence[str]) -> tuple[float, float]:
    """Return the means of F1 and exact match."""
    pairs = list(zip(answers, (example.references for example in examples), strict=True))
    return (sum(token_f1(answer, right) for answer, right in pairs) / len(pairs),
            sum(exact_match(answer, right) for answer, right in pairs) / len(pairs))  # fmt: skip


def row_losses(
    program: GeneratingProgram, rows: Sequence[Row], on_batch: BatchListener, should_stop: Callable[[], bool]
) -> Float64Array | None:
    """Return the mean negative log-likelihood of every row under the present state: f64[len(rows)], None if stopped."""
    losses = np.empty(len(rows), dtype=np.float64)
    no_update = np.zeros(program.manifest.q, dtype=np.float32)
    done = 0
    for batch in evaluation_batches(rows, program.manifest):
        if should_stop():
            return None
        loss_N = program.forward(batch.tokens_NT, batch.label_pos_NK, batch.targets_NK, no_update,
                                 lr=0.0, eps=0.0, seed=0, step=1)  # fmt: skip
        losses[batch.indices] = loss_N[: len(batch.indices)]
        done += len(batch.indices)
        on_batch(done, len(rows))
    return losses
