"""Turn items into rows: token ids, label positions and targets, cut to the compiled lengths.

These functions make all ids there are: of statistics, training, evaluation, answers, chats and rows for devices.

Letters: T tokens, K label positions.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import takewhile

from prgec.core.contract.manifest import Manifest
from prgec.core.contract.tokenizer import one_bos
from prgec.core.data.classes import target_of, texts_of
from prgec.core.data.conversations import encode_conversation, located
from prgec.core.data.cut import fit
from prgec.core.data.row import Encoded as Encoded
from prgec.core.data.row import Encoder as Encoder
from prgec.core.data.row import Row as Row
from prgec.core.data.row import RowSizes as RowSizes
from prgec.core.data.row import Sizes as Sizes
from prgec.core.data.task import Conversation, Document, Example, Item
from prgec.core.data.threads import map_in_threads
from prgec.errors import DataError

logger = logging.getLogger(__name__)


def encode_rows(pairs: Iterable[tuple[Example, str]], tokenizer: Encoder, manifest: Sizes) -> Sequence[Row]:
    """Encode (example, completion) pairs; one warning counts the prompts that were cut.

    Raises:
        DataError: If a completion is empty, or longer than the program's K label positions.
    """
    return fit(encode_pairs(pairs, tokenizer), manifest)


def encode_items(items: Iterable[Item], tokenizer: Encoder, manifest: Sizes) -> Sequence[Row]:
    """Encode labelled items with their right answers; a document may become several rows.

    Raises:
        DataError: If an item has nothing to learn, or more than the program's K label positions.
    """
    return fit(encode_each(items, tokenizer), manifest)


def encode_row(example: Example, completion: str, tokenizer: Encoder, manifest: Manifest) -> Row:
    """Encode one prompt with one completion.

    Raises:
        DataError: If the completion has no tokens, more than K tokens, or nothing before it.
    """
    return encode_rows([(example, completion)], tokenizer, manifest)[0]


def encode_each(items: Iterable[Item], tokenizer: Encoder) -> Iterator[Encoded]:
    """Encode labelled items with their right answers, uncut, one after the other.

    A conversation whose template writes earlier turns differently once later ones follow becomes a row for each of
    the assistant's turns; one log line counts them.
    """
    num_split = num_parts = 0
    for parts in map_in_threads(lambda item: encode_item(item, tokenizer), items):
        yield from parts
        if len(parts) > 1:
            num_split, num_parts = num_split + 1, num_parts + len(parts)
    if num_split:
        logger.warning(
            "%d conversations became %d rows, one for each turn of the assistant: the chat template writes earlier "
            "turns differently once later ones follow",
            num_split,
            num_parts,
        )


def encode_pairs(pairs: Iterable[tuple[Example, str]], tokenizer: Encoder) -> Iterator[Encoded]:
    """Encode (example, completion) pairs, uncut, one after the other."""
    return map_in_threads(lambda pair: encode_pair(*pair, tokenizer), pairs)


def encode_item(item: Item, tokenizer: Encoder) -> list[Encoded]:
    """Encode one item with its right answer, uncut: one row, or several of a conversation.

    Raises:
        DataError: If there is nothing to learn, or the chat template refuses a conversation.
    """
    plain = _plain_if_needed(item, tokenizer)
    if isinstance(plain, Conversation):
        encoded = encode_conversation(plain, tokenizer)
    elif isinstance(plain, Document):
        encoded = [_encode_text(plain, tokenizer)]
    else:
        assert plain.completion is not None, "only labelled examples are learned"
        encoded = [encode_pair(plain, plain.completion, tokenizer)]
    return encoded if item.weight == 1.0 else [replace(each, weight=item.weight) for each in encoded]


def prompt_ids(item: Item, tokenizer: Encoder, *, thinks: bool = False) -> list[int]:
    """Return the ids of what comes before an answer: those that a row of the item begins with.

    Args:
        item: An example or a conversation; a document is its own prompt.
        tokenizer: The program's.
        thinks: Whether a model that can reason first shall do so.

    Raises:
        DataError: If a conversation has no chat template.
    """
    item = _plain_if_needed(item, tokenizer)
    if isinstance(item, Conversation):
        return located(item, lambda: tokenizer.encode_chat_prompt(item.messages, item.tools, thinks=thinks))
    return _plain_ids(item.text if isinstance(item, Document) else item.prompt, tokenizer)


def encode_pair(example: Example, completion: str, tokenizer: Encoder) -> Encoded:
    """Encode one prompt with one completion, uncut.

    The row begins with the tokens of the prompt, as an answer does at inference. A token that straddles the border
    counts as completion, and so does EOS where the example ends. The last token is only predicted, never read.

    A classifier reads the texts of the example alone, and its target is the class.

    Raises:
        DataError: If the completion has no tokens, nothing before it, or is not a class.
    """
    if tokenizer.classes:
        tokens = tokenizer.encode_texts(texts_of(example))
        target = target_of(example, completion, tokenizer.classes)
        row = Row(tuple(tokens), (0,), (target,))
        return Encoded(row=row, where=example.where, has_bos=True, is_classified=True, weight=example.weight)
    ids, start = _completed(example.prompt, completion, tokenizer)
    if start == len(ids):
        raise DataError("the completion has no tokens", where=example.where)
    full = _ended(ids, tokenizer) if example.ends else ids
    if start == 0:
        raise DataError(
            "the prompt is empty and the tokenizer has no BOS: nothing predicts the first token", where=example.where
        )
    row = Row(tuple(full[:-1]), tuple(range(start - 1, len(full) - 1)), tuple(full[start:]))
    return Encoded(row=row, where=example.where, has_bos=full[0] == tokenizer.bos_id, weight=example.weight)


def _encode_text(item: Document, tokenizer: Encoder) -> Encoded:
    ids = _plain_ids(item.text, tokenizer)
    if len(ids) < 2:
        raise DataError("the text is a single token: nothing is predicted", where=item.where)
    row = Row(tuple(ids[:-1]), tuple(range(len(ids) - 1)), tuple(ids[1:]))
    return Encoded(row=row, where=item.where, has_bos=ids[0] == tokenizer.bos_id, is_text=True)


def _plain_if_needed(item: Item, tokenizer: Encoder) -> Item:
    """Return the plain form of a conversation where the model has no chat template."""
    has_plain = isinstance(item, Conversation) and item.plain is not None
    return item.plain if has_plain and tokenizer.chat_template is None else item  # type: ignore[union-attr, return-value]


def _plain_ids(text: str, tokenizer: Encoder) -> list[int]:
    return one_bos(tokenizer.encode(text), tokenizer.bos_id)


def _completed(prompt: str, completion: str, tokenizer: Encoder) -> tuple[list[int], int]:
    """Return the ids of a prompt with its completion, and how many of them are before the completion.

    Byte-level tokenizers split white space by what follows it: two line breaks are one token at the end of a prompt,
    and two before a word. A model that learned to go on from two would be given one.
    """
    ids, before = _plain_ids(prompt + completion, tokenizer), _plain_ids(prompt, tokenizer)
    start = _common_prefix(ids, before)
    if start == len(before):
        return ids, start
    _, ends = tokenizer.encode_spans(prompt)
    whole, spans = tokenizer.encode_spans(prompt + completion)
    border = next((n for n, span in enumerate(spans) if span[0] == len(prompt)), 0)
    if border == 0 or spans[border - 1][1] != len(prompt):
        return ids, start
    # The tokenizer may end a text with a token of its own.
    before = before[: len(before) - sum(1 for _ in takewhile(lambda span: span == (0, 0), reversed(ends)))]
    return before + whole[border:], len(before)


def _ended(ids: list[int], tokenizer: Encoder) -> list[int]:
    """Return the ids with EOS at their end, once."""
    return ids if tokenizer.eos_id is None or ids[-1] == tokenizer.eos_id else [*ids, tokenizer.eos_id]


def _common_prefix(left: list[int], right: list[int]) -> int:
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return min(len(left), len(right))
