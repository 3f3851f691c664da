"""A file of judged answers, a row each, as TRL has them: what `--objective kto` learns from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prgec.errors import UsageError


def note_answer(path: Path, messages: Sequence[Mapping[str, str]], *, is_good: bool, is_chat: bool) -> None:
    """Append the last message of a conversation, which answers those before it.

    Args:
        path: The file.
        messages: The conversation.
        is_good: Whether the answer is.
        is_chat: Whether the conversation is one of turns; otherwise the last two messages are a text and what follows.

    Raises:
        UsageError: If the file cannot be written.
    """
    *before, last = messages
    prompt: Any = list(before) if is_chat else before[-1]["content"]
    completion: Any = [dict(last)] if is_chat else last["content"]
    row = {"prompt": prompt, "completion": completion, "label": is_good}
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    except OSError as error:
        raise UsageError(f"cannot write the feedback: {error.strerror}", where=path) from error


def better_answer(text: str, *, is_chat: bool) -> dict[str, str]:
    """Return the message that takes the place of an answer; plain texts go on with a new word."""
    return {"role": "assistant", "content": text if is_chat else f" {text}"}
