"""Choose the most likely of the candidate continuations for each prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prgec.core.contract.engine import GeneratingProgram
from prgec.core.contract.listener import CallListener, ignore
from prgec.core.data.classes import texts_of
from prgec.core.data.encode import encode_rows
from prgec.core.data.task import Example
from prgec.errors import UsageError
from prgec.runtime.training.evaluate import row_losses


@dataclass(frozen=True)
class Prediction:
    """The answer to one prompt.

    Attributes:
        prompt: Text the model was given; an encoder's texts.
        completion: The candidate with the lowest loss.
        losses: Mean negative log-likelihood of every candidate.
    """

    prompt: str
    completion: str
    losses: dict[str, float]


def predict(
    program: GeneratingProgram, examples: Sequence[Example], candidates: Sequence[str], on_batch: CallListener = ignore
) -> list[Prediction]:
    """Score every candidate after every prompt, N rows a call.

    Without candidates, each example's own are scored. `on_batch` is called with (rows done, all rows) after every call.

    Raises:
        UsageError: If there are fewer than two different candidates.
        DataError: If a row cannot be encoded for this program.
    """
    choices = [tuple(candidates) or example.candidates for example in examples]
    if any(len(set(each)) < 2 for each in choices):
        raise UsageError(
            "prediction chooses between candidates and needs at least two",
            hint="name them with --candidate TEXT, once for each, or use --generate",
        )
    pairs = [(example, choice) for example, each in zip(examples, choices, strict=True) for choice in each]
    rows = encode_rows(pairs, program.tokenizer, program.manifest)
    losses = row_losses(program, rows, on_batch)
    return [
        Prediction(_read(example, program), each[int(row.argmin())], dict(zip(each, row.tolist(), strict=True)))
        for example, each, row in zip(examples, choices, losses.reshape(len(examples), -1), strict=True)
    ]


def _read(example: Example, program: GeneratingProgram) -> str:
    return "  ".join(texts_of(example)) if program.tokenizer.classes else example.prompt
