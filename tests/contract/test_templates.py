"""Tokens learned of a conversation under the chat templates of published models, read by people and written here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prgec.core.contract.tokenizer import Tokenizer
from prgec.core.data.encode import encode_item, prompt_ids
from prgec.core.data.task import Conversation
from tests.chat_tokenizer import byte_tokenizer

FOLDER = Path(__file__).resolve().parents[1] / "templates"
ASKED = [
    {"role": "user", "content": "2 + 2?"},
    {"role": "assistant", "content": "It is 4."},
    {"role": "user", "content": "And 3 + 3?"},
    {"role": "assistant", "content": "6, then."},
]
SYSTEM = {"role": "system", "content": "Be brief."}
CALL = {"name": "clock", "arguments": {"zone": "UTC"}}
TOOLS = ({"type": "function", "function": {"name": "clock", "description": "Tell the time.", "parameters": {}}},)
CALLED: list[dict[str, Any]] = [
    {"role": "user", "content": "What time is it?"},
    {"role": "assistant", "content": "", "tool_calls": [{"id": "abcdefghi", "type": "function", "function": CALL}]},
    {"role": "tool", "name": "clock", "tool_call_id": "abcdefghi", "content": "noon"},
    {"role": "assistant", "content": "Noon."},
]
THOUGHT = [ASKED[0], {**ASKED[1], "reasoning_content": "Two and two."}]

# Rows, and what is learned of each: two turns are one row, or a row each where the template rewrites the first.
LEARNED = {
    "llama-3.2": [["It is 4.<|eot_id|>", "6, then.<|eot_id|>"]],
    "qwen-2.5": [["It is 4.<|im_end|>", "6, then.<|im_end|>"]],
    "qwen-3": [["It is 4.<|im_end|>"], ["6, then.<|im_end|>"]],
    "gemma-3": [["It is 4.<end_of_turn>", "6, then.<end_of_turn>"]],
    "mistral-nemo": [["It is 4.</s>"], ["6, then.</s>"]],
    "mistral-small-3.2": [["It is 4.</s>", "6, then.</s>"]],
    "phi-3.5": [["It is 4.<|end|>", "6, then.<|end|>"]],
    "smollm-3": [["It is 4.<|im_end|>", "6, then.<|im_end|>"]],
    "gpt-oss": [["<|channel|>final<|message|>It is 4.<|return|>"], ["<|channel|>final<|message|>6, then.<|return|>"]],
}
ENDS = {
    "llama-3.2": "<|eot_id|>",
    "qwen-2.5": "<|im_end|>",
    "qwen-3": "<|im_end|>",
    "gemma-3": "<end_of_turn>",
    "mistral-nemo": "</s>",
    "mistral-small-3.2": "</s>",
    "phi-3.5": "<|end|>",
    "smollm-3": "<|im_end|>",
    "gpt-oss": "<|return|>",
}


def _tokenizer(name: str) -> Tokenizer:
    return byte_tokenizer((FOLDER / f"{name}.jinja").read_text(encoding="utf-8"))


def _learned(
    tokenizer: Tokenizer, turns: list[dict[str, Any]], tools: tuple[dict[str, Any], ...] = ()
) -> list[list[str]]:
    """Runs of learned tokens of each row, as text."""
    rows = []
    for encoded in encode_item(Conversation(tuple(turns), "w", tools), tokenizer):
        runs: list[list[int]] = []
        for n, (place, target) in enumerate(zip(encoded.row.label_pos, encoded.row.targets, strict=True)):
            if n == 0 or place != encoded.row.label_pos[n - 1] + 1:
                runs.append([])
            runs[-1].append(target)
        rows.append([tokenizer.decode(run, skip_special_tokens=False) for run in runs])
    return rows


def test_every_template_has_its_golden_mask() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.jinja")) == sorted(LEARNED) == sorted(ENDS)


@pytest.mark.parametrize("name", LEARNED)
@pytest.mark.parametrize("system", [True, False], ids=["system", "no-system"])
def test_exactly_the_answers_and_their_ends_are_learned(name: str, system: bool) -> None:
    turns = [SYSTEM, *ASKED] if system else ASKED
    found = _learned(_tokenizer(name), turns)
    if name == "mistral-nemo" and not system:
        # It moves the turn of the system alone.
        assert found == [["It is 4.</s>", "6, then.</s>"]]
    else:
        assert found == LEARNED[name]


@pytest.mark.parametrize("name", LEARNED)
def test_a_row_begins_with_what_the_model_is_asked_with(name: str) -> None:
    """For each answer of each row: the tokens before it are those of the prompt that asks for it."""
    tokenizer, turns = _tokenizer(name), [SYSTEM, *ASKED]
    answers = [index for index, turn in enumerate(turns) if turn["role"] == "assistant"]
    starts = [
        encoded.row.tokens[: place + 1]
        for encoded in encode_item(Conversation(tuple(turns), "w"), tokenizer)
        for n, place in enumerate(encoded.row.label_pos)
        if n == 0 or place != encoded.row.label_pos[n - 1] + 1
    ]
    asked = [prompt_ids(Conversation(tuple(turns[:index]), "w"), tokenizer) for index in answers]
    assert [list(start) for start in starts] == asked
    assert all("Be brief." in tokenizer.decode(prompt) for prompt in asked[-1:])
    assert all(prompt[:2].count(tokenizer.bos_id or -1) <= 1 for prompt in asked)


@pytest.mark.parametrize("name", ENDS)
def test_an_answer_ends_where_its_turn_does(name: str) -> None:
    tokenizer = _tokenizer(name)
    assert tokenizer.end_ids == {tokenizer.eos_id, tokenizer.backend.token_to_id(ENDS[name])}


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("llama-3.2", '{"name": "clock", "parameters": {"zone": "UTC"}}<|eot_id|>'),
        ("qwen-2.5", '<tool_call>\n{"name": "clock", "arguments": {"zone": "UTC"}}\n</tool_call><|im_end|>'),
        ("qwen-3", '<tool_call>\n{"name": "clock", "arguments": {"zone": "UTC"}}\n</tool_call><|im_end|>'),
        ("mistral-nemo", '[TOOL_CALLS][{"name": "clock", "arguments": {"zone": "UTC"}, "id": "abcdefghi"}]</s>'),
        ("gpt-oss", ' to=functions.clock<|channel|>commentary json<|message|>{"zone": "UTC"}<|call|>'),
    ],
)
def test_calls_of_functions_are_learned_and_results_are_not(name: str, call: str) -> None:
    (first, *_), *_ = rows = _learned(_tokenizer(name), CALLED, TOOLS)
    assert first == call
    (last,) = [learned for row in rows for learned in row][1:]
    assert last.endswith("Noon." + ENDS[name]) and "noon" not in last


@pytest.mark.parametrize("name", ["gemma-3", "phi-3.5"])
def test_templates_without_tools_say_so(name: str) -> None:
    with pytest.raises(Exception, match="the chat template writes no tools"):
        _learned(_tokenizer(name), [CALLED[0], CALLED[3]], TOOLS)


def test_thoughts_are_learned_where_there_are_any() -> None:
    assert _learned(_tokenizer("qwen-3"), THOUGHT) == [["<think>\nTwo and two.\n</think>\n\nIt is 4.<|im_end|>"]]
    written = [ASKED[0], {"role": "assistant", "content": "<think>\nTwo and two.\n</think>\n\nIt is 4."}]
    assert _learned(_tokenizer("qwen-3"), written) == _learned(_tokenizer("qwen-3"), THOUGHT)
    # The prompt of a model that is to think has no empty thoughts in it.
    tokenizer = _tokenizer("qwen-3")
    thinking, silent = (
        prompt_ids(Conversation((ASKED[0],), "w"), tokenizer, thinks=thinks) for thinks in (True, False)
    )
    assert tokenizer.decode(silent[len(thinking) :]) == "<think>\n\n</think>\n\n"


def test_an_answer_that_nothing_ends_is_ended_by_eos() -> None:
    tokenizer = byte_tokenizer("{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}")
    assert _learned(tokenizer, ASKED[:2]) == [["assistant: It is 4.</s>"]]
