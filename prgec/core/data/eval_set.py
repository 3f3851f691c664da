"""Rows to score a program by: every example with each of its candidates."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from prgec.core.contract.engine import GeneratingProgram
from prgec.core.contract.manifest import Manifest
from prgec.core.data.dataset import Dataset
from prgec.core.data.encode import Encoder, encode_items, encode_rows, prompt_ids
from prgec.core.data.rows_file import RowSet
from prgec.core.data.task import OF_TEXT, SPAN_F1, Example
from prgec.errors import DataError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class EvalSet(RowSet):
    """Rows that still know the text they came from.

    Attributes:
        examples: Examples that the rows came from, if any.
        choices: Texts of each example's candidates.
        questions: Prompts to generate answers for; empty unless answers are compared as text.
        metric: Metric of the comparison.
    """

    examples: tuple[Example, ...] = ()
    choices: tuple[tuple[str, ...], ...] = ()
    questions: tuple[tuple[int, ...], ...] = ()
    metric: str = SPAN_F1


def encode_eval_set(dataset: Dataset, program: GeneratingProgram) -> EvalSet:
    """Encode every example with every candidate for a program that is open.

    Raises:
        DataError: If an example cannot be encoded for this program.
    """
    eval_set = encode_row_set(dataset, program.tokenizer, program.manifest)
    if dataset.task.metric in OF_TEXT and not eval_set.questions:
        name = "F1" if dataset.task.metric == SPAN_F1 else "ROUGE"
        logger.warning("no %s: the program cannot generate answers; compile it with --generate", name)
    return eval_set


def encode_row_set(dataset: Dataset, tokenizer: Encoder, manifest: Manifest) -> EvalSet:
    """Encode every example with every candidate, and everything else with what is right.

    Raises:
        DataError: If an example cannot be encoded for this program.
    """
    dataset = dataset.choosing_from(manifest.answers)
    examples = tuple(each for each in dataset.examples if isinstance(each, Example))
    if len(examples) < len(dataset.examples):
        rows = encode_items(dataset.examples, tokenizer, manifest)
        return EvalSet(tuple(rows), 1, (0,) * len(rows))
    candidates = dataset.candidates()
    choices = tuple(example.candidates or candidates or (str(example.completion),) for example in examples)
    answers = tuple(_index(options, example) for options, example in zip(choices, examples, strict=True))
    pairs = [(example, choice) for example, options in zip(examples, choices, strict=True) for choice in options]
    rows = encode_rows(pairs, tokenizer, manifest)
    is_asked = dataset.task.metric in OF_TEXT and manifest.generate
    questions = tuple(tuple(prompt_ids(example, tokenizer)) for example in examples) if is_asked else ()
    return EvalSet(tuple(rows), len(choices[0]), answers, examples, choices, questions, dataset.task.metric)


def _index(choices: Sequence[str], example: Example) -> int:
    if example.completion in choices:
        return choices.index(example.completion)
    raise DataError(f"the answer {example.completion!r} is not one of the candidates", where=example.where)
