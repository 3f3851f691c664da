"""Turns of a conversation in the spellings people bring, as chat templates read them.

OpenAI's `role` and `content`, ShareGPT's `from` and `value`, parts of text, calls of functions with their arguments as
text, and schemas of tools as objects or as text.
"""

from __future__ import annotations

import json
from typing import Any

from prgec.core.contract.chat import ASSISTANT, WEIGHT
from prgec.core.data.jsonl import Record, text_of
from prgec.errors import DataError

_ROLES = {
    "human": "user",
    "user": "user",
    "prompter": "user",
    "gpt": ASSISTANT,
    "assistant": ASSISTANT,
    "model": ASSISTANT,
    "bot": ASSISTANT,
    "chatgpt": ASSISTANT,
    "bing": ASSISTANT,
    "bard": ASSISTANT,
    "function_call": ASSISTANT,
    "system": "system",
    "developer": "developer",
    "tool": "tool",
    "observation": "tool",
    "function": "tool",
    "function_response": "tool",
    "ipython": "ipython",
}
_CALL_TAG = "function_call"
# Contents of a turn besides text, which no row can hold: (field, its name).
_NOT_TEXT = {"function_call": "an old call of a function", "audio": "sound", "images": "pictures", "videos": "pictures"}


def turns_of(value: Any, name: str, record: Record) -> tuple[dict[str, Any], ...]:
    """Return a list of turns as chat templates read them.

    Args:
        value: The list.
        name: Its field, for messages.
        record: Where it is.

    Raises:
        DataError: If it is not a list, or a turn has no role, an unknown one, no text, or something no row can hold.
    """
    if isinstance(value, str):
        value = _parsed(value)
    if not isinstance(value, list) or not value:
        raise DataError(f'field "{name}" is not a list of turns', where=record.where)
    return tuple(_turn(turn, f"{name}[{number}]", number, record) for number, turn in enumerate(value, start=1))


def system_turn(record: Record) -> tuple[dict[str, Any], ...]:
    """Return the turn that a field of its own, `system` or `system_prompt`, makes; none where it is empty."""
    text = record.fields.get("system") or record.fields.get("system_prompt")
    return ({"role": "system", "content": text_of(text, "system", record)},) if text else ()


def tools_of(record: Record) -> tuple[dict[str, Any], ...]:
    """Return the schemas of a row's tools: objects, or the text of a list of them.

    Raises:
        DataError: If they are something else.
    """
    value = record.fields.get("tools")
    if isinstance(value, str):
        value = _parsed(value) if value.strip() else None
    if not value:
        return ()
    if not isinstance(value, list) or any(not isinstance(tool, dict) for tool in value):
        raise DataError('field "tools" is not a list of JSON schemas', where=record.where)
    return tuple(value)


def _turn(turn: Any, name: str, number: int, record: Record) -> dict[str, Any]:
    if not isinstance(turn, dict):
        raise DataError(f"turn {number} is not an object but {type(turn).__name__}", where=record.where)
    role = turn.get("role", turn.get("from"))
    if not isinstance(role, str):
        raise DataError(f"turn {number} has no role", where=record.where)
    if role.lower() not in _ROLES:
        raise DataError(
            f"turn {number} has the role {role!r}", where=record.where, hint=f"known roles: {', '.join(_ROLES)}"
        )
    for field, what in _NOT_TEXT.items():
        if turn.get(field):
            raise DataError(f'turn {number} has "{field}", {what}: rows hold text', where=record.where)
    rest = {key: value for key, value in turn.items() if key not in ("role", "from", "content", "value")}
    content = turn.get("content", turn.get("value"))
    if role == _CALL_TAG:
        rest, content = {**rest, "tool_calls": _parsed(content) if isinstance(content, str) else content}, ""
    if rest.get("tool_calls"):
        rest["tool_calls"] = _calls(rest["tool_calls"], number, record)
    text = "" if content is None and rest.get("tool_calls") else _text(content, f"{name}.content", record)
    _check_weight(turn, number, record)
    return {**rest, "role": _ROLES[role.lower()], "content": text}


def _text(content: Any, name: str, record: Record) -> str:
    """Return the text of a turn, which may come in parts."""
    if not isinstance(content, list):
        return text_of(content, name, record)
    parts = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        if kind != "text":
            raise DataError(f'field "{name}" holds a part of type {kind}: rows hold text', where=record.where)
        parts.append(text_of(part.get("text"), name, record))
    return "".join(parts)


def _calls(calls: Any, number: int, record: Record) -> list[dict[str, Any]]:
    """Return calls of functions with arguments as objects: templates would write a text in quotes."""
    calls = [calls] if isinstance(calls, dict) else calls
    if not isinstance(calls, list) or any(not isinstance(call, dict) for call in calls):
        raise DataError(f"the calls of turn {number} are not a list of objects", where=record.where)
    made = []
    for call in calls:
        function = call.get("function", call)
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise DataError(f"a call of turn {number} names no function", where=record.where)
        arguments = function.get("arguments", {})
        if isinstance(arguments, str):
            arguments = _parsed(arguments) if arguments.strip() else {}
        known = {"id": call["id"]} if "id" in call else {}
        made.append({**known, "type": "function", "function": {"name": function["name"], "arguments": arguments}})
    return made


def _check_weight(turn: dict[str, Any], number: int, record: Record) -> None:
    weight = turn.get(WEIGHT)
    if weight is not None and weight not in (0, 1):
        raise DataError(
            f'turn {number} has "weight" {weight!r}: an assistant\'s turn is learned (1) or not (0)',
            where=record.where,
            hint="give 0 or 1, or leave the field out",
        )


def _parsed(text: str) -> Any:
    """Return JSON, or the text where it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
