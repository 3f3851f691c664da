"""Rows that end where an answer begins, and the token each candidate begins with: what a choice is made by there.

Rows of a classifier are whole texts; what it says there are its classes, or a score.

Letters: E examples, C candidates, T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from prgec.core.contract.arrays import IntArray
from prgec.core.contract.manifest import Manifest
from prgec.core.contract.names import SCORE_UNIT
from prgec.core.data.classes import texts_of
from prgec.core.data.cut import fit
from prgec.core.data.dataset import Dataset
from prgec.core.data.encode import encode_pair
from prgec.core.data.row import Encoded, Encoder, Row
from prgec.core.data.rows_file import RowSet
from prgec.core.data.task import Example, Item
from prgec.errors import DataError


@dataclass(frozen=True, kw_only=True)
class FirstTokens:
    """Prompts as rows, and what they are answered with.

    Attributes:
        rows: One for each example; its only label position is its last token.
        prompts: Texts of the examples.
        choices: Texts of the C candidates, in the order of the tokens they begin with.
        first_tokens: i64[C], those tokens, rising: their order depends on nothing but what they are.
        answers: Index of the right candidate of each example; -1 where it is not known.
        scores: The right score of each example, of a classifier that gives one; else empty.
    """

    rows: tuple[Row, ...]
    prompts: tuple[str, ...]
    choices: tuple[str, ...]
    first_tokens: IntArray
    answers: tuple[int, ...]
    scores: tuple[float, ...] = ()

    @property
    def wanted(self) -> tuple[float, ...]:
        """The right answers: scores, or indices of candidates."""
        return self.scores or self.answers

    def row_set(self) -> RowSet:
        """Return what a device needs of it: each example once for every candidate, whose token is the target.

        Raises:
            DataError: If an answer is not known.
        """
        if -1 in self.answers:
            raise DataError("a row has no label")
        if self.scores:
            return RowSet(self.rows, 1, self.answers)
        rows = [replace(row, targets=(token,)) for row in self.rows for token in self.first_tokens.tolist()]
        return RowSet(rows, len(self.choices), self.answers)


def encode_dataset(dataset: Dataset, tokenizer: Encoder, manifest: Manifest) -> FirstTokens:
    """Encode a data set whose answers are the same for every row.

    Raises:
        DataError: If the answers are free text or a row's own, or a row has a weight or cannot be encoded for this
            program.
    """
    weighed = next((each for each in dataset.examples if each.weight != 1.0), None)
    if weighed is not None:
        raise DataError(
            f"the row has weight {weighed.weight:g}, and side networks learn without weights",
            where=weighed.where,
            hint="leave the field out",
        )
    candidates = dataset.choosing_from(manifest.answers).candidates()
    if not candidates and not tokenizer.classes:
        raise DataError(
            f"task {dataset.task.name} has no answers that are the same for every row",
            where=dataset.path,
            hint="a side network chooses between 2 or more fixed answers",
        )
    return encode_first_tokens(dataset.examples, candidates, tokenizer, manifest)


def encode_first_tokens(
    items: Sequence[Item], candidates: Sequence[str], tokenizer: Encoder, manifest: Manifest
) -> FirstTokens:
    """Encode prompts up to where their answers begin.

    Raises:
        DataError: If there are fewer than two candidates, two begin with the same token, or a prompt ends in another
            place for each.
    """
    if tokenizer.classes:
        return _encode_classified(items, tokenizer, manifest)
    if len(set(candidates)) < 2:
        raise DataError("a side network chooses between 2 or more answers", hint="name them with --candidate TEXT")
    examples = [item for item in items if isinstance(item, Example)]
    if len(examples) < len(items):
        raise DataError("conversations and plain text have no answers to choose from")
    if not examples:
        raise DataError("there are no rows")
    # The token after a prompt may depend on how the prompt ends; a set that differs by row has no columns.
    columns = first_tokens_of(examples[0], candidates, tokenizer)
    rows = [_encoded(example, columns, tokenizer) for example in examples]
    fitted = fit(rows, manifest)
    order = sorted(columns, key=lambda text: columns[text])
    answers = tuple(-1 if each.completion is None else _index(order, each) for each in examples)
    tokens = np.array([columns[text] for text in order], dtype=np.int64)
    return FirstTokens(
        rows=tuple(fitted),
        prompts=tuple(each.prompt for each in examples),
        choices=tuple(order),
        first_tokens=tokens,
        answers=answers,
    )


def _encode_classified(items: Sequence[Item], tokenizer: Encoder, manifest: Manifest) -> FirstTokens:
    """Encode whole texts; the model's classes stand for candidates."""
    examples = [item for item in items if isinstance(item, Example)]
    if not examples or len(examples) < len(items):
        raise DataError("a classifier reads rows with one text or two; there are none, or others")
    classes = tokenizer.classes
    is_score = len(classes) == 1
    named = examples[0].classes
    choices = named if len(named) == len(classes) else classes
    stand_in = "0" if is_score else choices[0]
    rows = fit([encode_pair(each, each.completion or stand_in, tokenizer) for each in examples], manifest)
    targets = [row.targets[0] if each.completion is not None else -1 for each, row in zip(examples, rows, strict=True)]
    scores = tuple(target * SCORE_UNIT for target in targets) if is_score and -1 not in targets else ()
    answers = tuple(min(target, 0) for target in targets) if is_score else tuple(targets)
    prompts = tuple(" / ".join(texts_of(each)) for each in examples)
    return FirstTokens(
        rows=tuple(rows),
        prompts=prompts,
        choices=choices,
        first_tokens=np.arange(len(classes)),
        answers=answers,
        scores=scores,
    )


def first_tokens_of(example: Example, candidates: Sequence[str], tokenizer: Encoder) -> dict[str, int]:
    """Return the token each candidate begins with after an example's prompt.

    Raises:
        DataError: If two begin with the same token.
    """
    found: dict[str, int] = {}
    for text in dict.fromkeys(candidates):
        token = encode_pair(example, text, tokenizer).row.targets[0]
        same = next((other for other, known in found.items() if known == token), None)
        if same is not None:
            raise DataError(
                f"the answers {same!r} and {text!r} begin with the same token; a side network cannot distinguish them",
                where=example.where,
                hint="spell them so that their first tokens differ",
            )
        found[text] = token
    return found


def up_to_first(encoded: Encoded) -> Encoded:
    """Return a row up to its first label position."""
    if encoded.is_classified:
        return encoded
    row = encoded.row
    end = row.label_pos[0]
    return replace(encoded, row=Row(row.tokens[: end + 1], row.label_pos[:1], row.targets[:1], row.truncated))


def _encoded(example: Example, columns: dict[str, int], tokenizer: Encoder) -> Encoded:
    rows = {text: up_to_first(encode_pair(example, text, tokenizer)) for text in columns}
    first, *others = rows.values()
    if any(each.row.tokens != first.row.tokens for each in others) or any(
        rows[text].row.targets[0] != token for text, token in columns.items()
    ):
        raise DataError(
            "the border between prompt and answer lies elsewhere for each answer, or moves from row to row",
            where=example.where,
            hint="begin every answer with a space, or end the prompt with a line break",
        )
    return first


def _index(order: Sequence[str], example: Example) -> int:
    if example.completion in order:
        return order.index(str(example.completion))
    raise DataError(f"the answer {example.completion!r} is not one of the candidates", where=example.where)
