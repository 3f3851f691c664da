"""Turn items into rows: token ids, label positions and targets, cut to the compiled lengths.

Letters: T tokens, K label positions.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from prgec.contract.manifest import Manifest
from prgec.data.classes import target_of, texts_of
from prgec.data.task import Conversation, Document, Example, Item
from prgec.errors import DataError

logger = logging.getLogger(__name__)

# One object for every id seen; as many as the vocabulary has.
_ID_OBJECTS: dict[int, int] = {}


class Encoder(Protocol):
    """The part of a tokenizer that encoding needs."""

    @property
    def bos_id(self) -> int | None:
        """Id of the token every text starts with, or None."""

    @property
    def eos_id(self) -> int | None:
        """Id of the token that ends a text, or None."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of a classifier's answers; none of a language model, whose answers are tokens."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of a text."""

    def encode_texts(self, texts: Sequence[str]) -> list[int]:
        """Return the ids of one text or two, with what belongs around them."""

    def encode_chat(self, messages: Sequence[dict[str, Any]]) -> tuple[list[int], list[bool]]:
        """Return the ids of a conversation and which of them the assistant says."""


class Sizes(Protocol):
    """The part of a program's manifest that rows are cut to."""

    @property
    def seq_len(self) -> int:
        """T, the most tokens."""

    @property
    def num_labels(self) -> int:
        """K, the most label positions."""

    @property
    def vocab_size(self) -> int:
        """Every token is smaller."""


@dataclass(frozen=True)
class RowSizes:
    """Sizes of a program that is not compiled yet."""

    seq_len: int
    num_labels: int
    vocab_size: int


@dataclass(frozen=True, slots=True)
class Row:
    """One unpadded input row.

    Attributes:
        tokens: Ids the model reads; at most T.
        label_pos: Position in `tokens` whose logits predict each target; at most K.
        targets: Id to predict at each label position.
        truncated: Whether the prompt lost tokens on its left.
    """

    tokens: tuple[int, ...]
    label_pos: tuple[int, ...]
    targets: tuple[int, ...]
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class Encoded:
    """A row before it is cut to a program.

    Attributes:
        row: All of it, however long.
        where: `file, line n`, for messages.
        has_bos: Whether the first token must survive a cut.
        is_text: Whether it may become several rows.
        is_classified: Whether it is read whole, by a classifier: it is cut at its end, and the last token stays.
    """

    row: Row
    where: str
    has_bos: bool
    is_text: bool = False
    is_classified: bool = False


def encode_rows(pairs: Iterable[tuple[Example, str]], tokenizer: Encoder, manifest: Manifest) -> list[Row]:
    """Encode (example, completion) pairs; one warning tells how many prompts were cut.

    Raises:
        DataError: If a completion is empty, or longer than the program's K label positions.
    """
    return fit([encode_pair(example, completion, tokenizer) for example, completion in pairs], manifest)


def encode_items(items: Iterable[Item], tokenizer: Encoder, manifest: Manifest) -> list[Row]:
    """Encode labelled items with their right answers; a document may become several rows.

    Raises:
        DataError: If an item has nothing to learn, or more than the program's K label positions.
    """
    return fit([encode_item(item, tokenizer) for item in items], manifest)


def encode_row(example: Example, completion: str, tokenizer: Encoder, manifest: Manifest) -> Row:
    """Encode one prompt with one completion.

    Raises:
        DataError: If the completion has no tokens, more than K tokens, or nothing in front of it.
    """
    return encode_rows([(example, completion)], tokenizer, manifest)[0]


def encode_item(item: Item, tokenizer: Encoder) -> Encoded:
    """Encode one item with its right answer, uncut."""
    if isinstance(item, Conversation):
        return _encode_chat(item, tokenizer)
    if isinstance(item, Document):
        return _encode_text(item, tokenizer)
    assert item.completion is not None, "only labelled examples are learned"
    return encode_pair(item, item.completion, tokenizer)


def encode_pair(example: Example, completion: str, tokenizer: Encoder) -> Encoded:
    """Encode one prompt with one completion, uncut.

    The completion's tokens are those of `prompt + completion` behind what it has in common with `prompt`, so a token
    that straddles the border counts as completion, and so does EOS where the example ends. The last token is only
    predicted, never read.

    A classifier reads the texts of the example alone, and its target is the class.

    Raises:
        DataError: If the completion has no tokens, nothing in front of it, or is no class.
    """
    if tokenizer.classes:
        tokens = _shared(tokenizer.encode_texts(texts_of(example)))
        target = target_of(example, completion, tokenizer.classes)
        return Encoded(Row(tuple(tokens), (0,), (target,)), example.where, has_bos=True, is_classified=True)
    ids = tokenizer.encode(example.prompt + completion)
    start = _common_prefix(ids, tokenizer.encode(example.prompt))
    if start == len(ids):
        raise DataError("the completion has no tokens", where=example.where)
    full = _shared(_ended(ids, tokenizer) if example.ends else ids)
    if start == 0:
        raise DataError(
            "the prompt is empty and the tokenizer has no BOS: nothing predicts the first token", where=example.where
        )
    row = Row(tuple(full[:-1]), tuple(range(start - 1, len(full) - 1)), tuple(full[start:]))
    return Encoded(row, example.where, has_bos=full[0] == tokenizer.bos_id)


def fit(encoded: Sequence[Encoded], manifest: Sizes) -> list[Row]:
    """Cut rows to a program: prompts from their left, documents into several rows.

    Raises:
        DataError: If rows have more targets than K, or targets alone are longer than T; says how many, and the longest.
    """
    _check_targets(encoded, manifest)
    _check_ids(encoded, manifest)
    rows = [row for each in encoded for row in _fitted(each, manifest)]
    lengths = [len(each.row.tokens) for each in encoded if not each.is_text]
    too_long = [length for length in lengths if length > manifest.seq_len]
    if too_long:
        logger.warning(
            "%d of %d rows are longer than %d tokens, the longest has %d: cut from the %s",
            len(too_long),
            len(encoded),
            manifest.seq_len,
            max(too_long),
            "right of the texts" if any(each.is_classified for each in encoded) else "left of the prompt",
        )
    return rows


def _check_targets(encoded: Sequence[Encoded], manifest: Sizes) -> None:
    for limit, what, flag in (
        (manifest.num_labels, "K = {} label positions", "--label-tokens"),
        (manifest.seq_len, "T = {} tokens", "--seq-len"),
    ):
        over = [each for each in encoded if not each.is_text and len(each.row.targets) > limit]
        if over:
            longest = max(over, key=lambda each: len(each.row.targets))
            count = len(longest.row.targets)
            raise DataError(
                f"{len(over)} of {len(encoded)} completions have more tokens than the program's "
                f"{what.format(limit)}; the longest has {count}",
                where=longest.where,
                hint=f"compile with {flag} {count}, or with --data",
            )


def _check_ids(encoded: Sequence[Encoded], manifest: Sizes) -> None:
    for each in encoded:
        largest = max(max(each.row.tokens), max(each.row.targets))
        if largest >= manifest.vocab_size:
            raise DataError(
                f"token {largest} lies beyond the model's vocabulary of {manifest.vocab_size}",
                where=each.where,
                hint="the text uses a token the model has no embedding for",
            )


def _fitted(encoded: Encoded, manifest: Sizes) -> list[Row]:
    if encoded.is_text:
        return _windows(encoded.row, manifest)
    row = encoded.row
    num_cut = max(0, len(row.tokens) - manifest.seq_len)
    if num_cut == 0:
        return [row]
    if encoded.is_classified:
        return [replace(row, tokens=row.tokens[: manifest.seq_len - 1] + row.tokens[-1:], truncated=True)]
    head = row.tokens[:1] if encoded.has_bos else ()
    tokens = head + row.tokens[len(head) + num_cut :]
    # Targets of early turns may lie in what was cut; a label needs its own position and the token in front of it.
    kept = [(p - num_cut, target) for p, target in zip(row.label_pos, row.targets, strict=True) if p >= num_cut]
    positions, targets = zip(*kept, strict=True)
    return [Row(tokens, positions, targets, truncated=True)]


def _windows(row: Row, manifest: Sizes) -> list[Row]:
    """Split a document so that every token is predicted once, with as much text before it as T and K allow."""
    rows = []
    stride = min(manifest.num_labels, manifest.seq_len)
    for first in range(0, len(row.targets), stride):
        end = min(first + stride, len(row.targets))
        start = max(0, end - manifest.seq_len)
        positions = tuple(range(first - start, end - start))
        rows.append(Row(row.tokens[start:end], positions, row.targets[first:end]))
    return rows


def _encode_chat(item: Conversation, tokenizer: Encoder) -> Encoded:
    try:
        ids, is_said = tokenizer.encode_chat(item.messages)
    except DataError as error:
        raise DataError(error.what, where=item.where, hint=error.hint) from error
    at = [index for index in range(1, len(ids)) if is_said[index]]
    if not at:
        raise DataError("the assistant's turns have no tokens", where=item.where)
    # Nothing behind the last target is read, so the row ends in front of it.
    row = Row(tuple(ids[: at[-1]]), tuple(index - 1 for index in at), tuple(ids[index] for index in at))
    return Encoded(row, item.where, has_bos=ids[0] == tokenizer.bos_id)


def _encode_text(item: Document, tokenizer: Encoder) -> Encoded:
    ids = _shared(tokenizer.encode(item.text))
    if len(ids) < 2:
        raise DataError("the text is a single token: nothing is predicted", where=item.where)
    row = Row(tuple(ids[:-1]), tuple(range(len(ids) - 1)), tuple(ids[1:]))
    return Encoded(row, item.where, has_bos=ids[0] == tokenizer.bos_id, is_text=True)


def _ended(ids: list[int], tokenizer: Encoder) -> list[int]:
    """Return the ids with EOS at their end, once."""
    return ids if tokenizer.eos_id is None or ids[-1] == tokenizer.eos_id else [*ids, tokenizer.eos_id]


def _shared(ids: list[int]) -> list[int]:
    """Return equal ids as one object: of a large data set, numbers would take three quarters of the memory."""
    return [_ID_OBJECTS.setdefault(token, token) for token in ids]


def _common_prefix(left: list[int], right: list[int]) -> int:
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return min(len(left), len(right))
