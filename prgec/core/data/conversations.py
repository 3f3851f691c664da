"""Turn conversations into rows, and into shorter ones where a row is too long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

from prgec.core.contract.tokenizer import ChatIds
from prgec.core.data.row import Encoded, Encoder, Row, Shortened
from prgec.core.data.task import Conversation
from prgec.errors import DataError

Messages: TypeAlias = tuple[dict[str, Any], ...]
Result = TypeVar("Result")
# Roles that instruct the model; these turns are the last that a row loses.
SYSTEM_ROLES = ("system", "developer")
_USER = "user"


def encode_conversation(item: Conversation, tokenizer: Encoder) -> list[Encoded]:
    """Encode a conversation, uncut: one row, or one for each of the assistant's turns.

    Raises:
        DataError: If the chat template refuses it, or the assistant says nothing.
    """
    parts = located(item, lambda: tokenizer.encode_chat(item.messages, item.tools))
    rows = [_row_of(part) for part in parts]
    if not any(row is not None for row in rows):
        raise DataError("the assistant's turns have no tokens", where=item.where)
    encoded = []
    for part, row in zip(parts, rows, strict=True):
        if row is not None:
            is_whole = part.num_messages == len(item.messages)
            of_part = item if is_whole else replace(item, messages=item.messages[: part.num_messages])
            shorter = Shorter(of_part, tokenizer, len(parts) > 1)
            encoded.append(Encoded(row=row, where=item.where, has_bos=part.ids[0] == tokenizer.bos_id, shorter=shorter))
    return encoded


def located(item: Conversation, work: Callable[[], Result]) -> Result:
    """Return what some work on a conversation gives; an error says where the conversation is."""
    try:
        return work()
    except DataError as error:
        raise DataError(error.what, where=item.where, hint=error.hint) from error


def _row_of(part: ChatIds) -> Row | None:
    """Return the row of a text; None where nothing in it is learned."""
    ids = part.ids
    at = [index for index in range(1, len(ids)) if part.is_said[index]]
    if not at:
        return None
    # Nothing after the last target is read, so the row ends before it.
    return Row(tuple(ids[: at[-1]]), tuple(index - 1 for index in at), tuple(ids[index] for index in at))


@dataclass(frozen=True)
class Shorter:
    """Makes a conversation again with fewer turns.

    Attributes:
        item: All of it.
        tokenizer: The one that encodes it.
        only_last: Whether its last turn alone is learned.
    """

    item: Conversation
    tokenizer: Encoder
    only_last: bool

    def __call__(self, seq_len: int) -> Shortened:
        """Return the longest end that fits T, or the last exchange alone where none does.

        The oldest turns go first and the system's last. The last turn of a user stays.
        """
        return _shortened(self.item, self.tokenizer, self.only_last, seq_len)


def _shortened(item: Conversation, tokenizer: Encoder, only_last: bool, seq_len: int) -> Shortened:
    row = None
    for messages in _ends_of(item.messages):
        parts = located(item, lambda kept=messages: tokenizer.encode_chat(kept, item.tools, only_last=only_last))  # type: ignore[misc]
        found = _row_of(parts[-1]) if parts else None
        if found is not None:
            row, num_kept = found, len(messages)
            if len(row.tokens) <= seq_len:
                break
    if row is None:
        raise DataError("the assistant's last turn has no tokens", where=item.where)
    num_turns, num_over = len(item.messages), len(row.tokens) - seq_len
    turns = [f"{num_turns - num_kept} of its {num_turns} turns"] if num_kept < num_turns else []
    tokens = [f"{num_over} tokens at the left of what remains"] if num_over > 0 else []
    return Shortened(replace(row, truncated=True), f"lost {' and '.join(turns + tokens)}")


def _ends_of(messages: Messages) -> Iterator[Messages]:
    """Yield ends of a conversation that begin with a user: longer ones first, those without the system's turns last."""
    num_system = next((n for n, each in enumerate(messages) if each["role"] not in SYSTEM_ROLES), len(messages))
    users = [n for n, each in enumerate(messages) if each["role"] == _USER and n >= num_system]
    for start in users:
        if start > num_system:
            yield messages[:num_system] + messages[start:]
    if num_system:
        for start in users:
            yield messages[start:]
    if not users or messages == messages[users[-1] :]:
        yield messages
