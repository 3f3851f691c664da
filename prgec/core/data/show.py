"""Rows as text, with what is learned between marks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prgec.core.contract.chat import is_learned
from prgec.core.data.row import Row, answer_starts
from prgec.core.data.task import Conversation, Document, Item

# Brackets that hardly any text has.
BEGIN, END = "\u27e6", "\u27e7"


def marked_row(row: Row, decode: Callable[[Sequence[int]], str]) -> str:
    """Return a row as text, each learned run of tokens between marks.

    Args:
        row: Cut or not.
        decode: Ids to text, special tokens included.
    """
    ids = [*row.tokens, row.targets[-1]]
    starts = answer_starts(row)
    spans = [
        (row.label_pos[first] + 1, row.label_pos[end - 1] + 2)
        for first, end in zip(starts, [*starts[1:], len(row.label_pos)], strict=True)
    ]
    parts, place, before = [], 0, ""
    for first, end in spans:
        for stop, begin_mark, end_mark in ((first, "", ""), (end, BEGIN, END)):
            # The whole text is decoded, not its parts: some tokenizers drop white space where a text begins.
            text = decode(ids[:stop])
            part = text[len(before) :] if text.startswith(before) else decode(ids[place:stop])
            parts.append(f"{begin_mark}{part}{end_mark}")
            place, before = stop, text
    return "".join(parts)


def marked_item(item: Item) -> str:
    """Return an item as its file says it, without a model: what is learned between marks."""
    if isinstance(item, Document):
        return f"{BEGIN}{item.text}{END}"
    if isinstance(item, Conversation):
        lines = ((turn["role"], turn["content"], is_learned(turn)) for turn in item.messages)
        return "\n".join(
            f"{role}: {BEGIN}{text}{END}" if learned else f"{role}: {text}" for role, text, learned in lines
        )
    return item.prompt if item.completion is None else f"{item.prompt}{BEGIN}{item.completion}{END}"
