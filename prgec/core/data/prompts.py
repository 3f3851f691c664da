"""Prompts that answers are written to, with everything else their records have: what rewards read.

Letters: T tokens, K label positions.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prgec.core.contract.chat import ASSISTANT
from prgec.core.data.columns import read_renamed
from prgec.core.data.cut import cut_prompt
from prgec.core.data.detect import detect
from prgec.core.data.encode import prompt_ids
from prgec.core.data.jsonl import Record
from prgec.core.data.row import Encoder
from prgec.core.data.task import Conversation, Document, Example, Item
from prgec.errors import DataError

logger = logging.getLogger(__name__)

_COMPLETION = "completion"


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One prompt.

    Attributes:
        ids: Its tokens.
        shown: The text, or the turns of a chat, as a reward reads it.
        record: The fields of its record.
        where: `file, line n`, for messages.
    """

    ids: tuple[int, ...]
    shown: str | list[dict[str, Any]]
    record: dict[str, Any]
    where: str


@dataclass(frozen=True, kw_only=True)
class PromptItem:
    """A prompt before it is encoded.

    Attributes:
        item: The example or the conversation; nothing of it is an answer.
        record: The fields of its record; the right answer of a chat is its `completion`.
    """

    item: Item
    record: dict[str, Any]


def load_prompts(path: Path, columns: Sequence[str] = ()) -> list[PromptItem]:
    """Read the prompts of a data file in any format; right answers, if there are any, stay with the record.

    Raises:
        UsageError: If a column is mapped wrongly.
        DataError: If the file or a record is bad, or records are texts without a question.
    """
    records, _ = read_renamed(path, columns)
    spelled, task, _ = detect(records, labelled=False)
    return [_prompt_of(task.item(record, labelled=False), record) for record in spelled]


def encode_prompts(items: Sequence[PromptItem], tokenizer: Encoder, *, room: int) -> list[Prompt]:
    """Encode prompts; those that leave no room for an answer lose tokens on their left.

    Args:
        items: The prompts.
        tokenizer: The program's.
        room: Most tokens of a prompt.

    Raises:
        DataError: If a prompt is empty, or a conversation has no chat template.
    """
    found, num_cut = [], 0
    for each in items:
        ids = prompt_ids(each.item, tokenizer)
        if not ids:
            raise DataError("the prompt is empty", where=each.item.where)
        num_cut += len(ids) > room
        ids = cut_prompt(ids, room, tokenizer.bos_id)
        shown = list(each.item.messages) if isinstance(each.item, Conversation) else _text(each.item)
        found.append(Prompt(ids=tuple(ids), shown=shown, record=each.record, where=each.item.where))
    if num_cut:
        logger.warning("%d of %d prompts have more than %d tokens: cut from the left", num_cut, len(items), room)
    return found


def _prompt_of(item: Item, record: Record) -> PromptItem:
    if isinstance(item, Document):
        raise DataError(
            "the record is a text, and answers are written to prompts",
            where=record.where,
            hint="give rows a field prompt, or --map prompt=THEIRS",
        )
    if isinstance(item, Conversation) and item.messages and item.messages[-1]["role"] == ASSISTANT:
        *before, last = item.messages
        return PromptItem(
            item=replace(item, messages=tuple(before)), record={_COMPLETION: last.get("content"), **record.fields}
        )
    return PromptItem(item=item, record=dict(record.fields))


def _text(item: Item) -> str:
    assert isinstance(item, Example), "a document is not a prompt"
    return item.prompt
