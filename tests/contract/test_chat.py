"""Conversations are written as transformers writes them, and only what the assistant says is learned."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from prgec.compiler.frontend.tokenizer import pack_tokenizer
from prgec.core.contract.tokenizer import Tokenizer
from prgec.core.data.dataset import load_dataset
from prgec.core.data.encode import encode_item, encode_items, prompt_ids
from prgec.core.data.task import Conversation, Document, Example
from prgec.errors import DataError
from tests.models import write_tokenizer
from tests.tiny_program import MANIFEST

# ChatML as Qwen and SmolLM use it, with and without transformers' own marks of what is generated.
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' }}"
    "{% if m['role'] == 'assistant' %}{GEN}{{ m['content'] + '<|im_end|>' }}{END}{% else %}"
    "{{ m['content'] + '<|im_end|>' }}{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
# Llama 2: no generation prompt of its own, BOS and EOS around every exchange.
LLAMA_2 = (
    "{% for m in messages %}{% if m['role'] == 'user' %}{{ bos_token + '[INST] ' + m['content'] + ' [/INST]' }}"
    "{% elif m['role'] == 'assistant' %}{GEN}{{ ' ' + m['content'] + ' ' + eos_token }}{END}{% endif %}{% endfor %}"
)
TEMPLATES = {"chatml": CHATML, "llama-2": LLAMA_2}
TURNS = [
    {"role": "user", "content": "the film was"},
    {"role": "assistant", "content": "great \U0001f389 and 日本"},
    {"role": "user", "content": "and the plot?"},
    {"role": "assistant", "content": "dull, dull"},
]


def _marked(template: str, *, marked: bool) -> str:
    tags = ("{% generation %}", "{% endgeneration %}") if marked else ("", "")
    return template.replace("{GEN}", tags[0]).replace("{END}", tags[1])


def _checkpoint(folder: Path, template: str | None) -> Path:
    """A byte-level BPE whose special tokens are those of the templates."""
    folder.mkdir(parents=True)
    write_tokenizer(folder, "json")
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    settings["additional_special_tokens"] = ["<|im_start|>", "<|im_end|>"]
    if template is not None:
        settings["chat_template"] = template
    path.write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return folder


def _both(folder: Path, template: str) -> tuple[Tokenizer, Any]:
    checkpoint = _checkpoint(folder, template)
    return Tokenizer.unpack(pack_tokenizer(checkpoint)), AutoTokenizer.from_pretrained(checkpoint)


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("marked", [True, False], ids=["marked", "plain"])
def test_mask_is_that_of_transformers(name: str, marked: bool, tmp_path: Path) -> None:
    ours, _ = _both(tmp_path / "ours", _marked(TEMPLATES[name], marked=marked))
    # The oracle always has the marks: without them transformers has no mask at all.
    _, theirs = _both(tmp_path / "theirs", _marked(TEMPLATES[name], marked=True))
    expected = theirs.apply_chat_template(TURNS, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
    ((ids, is_said, num_messages),) = ours.encode_chat(TURNS)
    # Nothing after the last learned token is of use.
    mask = [bool(x) for x in expected["assistant_masks"]]
    assert ids == expected["input_ids"][: len(ids)] and num_messages == len(TURNS)
    assert is_said == mask[: len(ids)] and not any(mask[len(ids) :])
    assert 0 < sum(is_said) < len(ids)


@pytest.mark.parametrize("name", TEMPLATES)
def test_prompt_is_that_of_transformers(name: str, tmp_path: Path) -> None:
    ours, theirs = _both(tmp_path / "c", _marked(TEMPLATES[name], marked=False))
    expected = theirs.apply_chat_template(TURNS[:3], tokenize=True, add_generation_prompt=True)["input_ids"]
    assert ours.encode_chat_prompt(TURNS[:3]) == expected


def test_loss_is_on_the_assistants_turns_only(tmp_path: Path) -> None:
    tokenizer, _ = _both(tmp_path / "c", _marked(CHATML, marked=False))
    (encoded,) = encode_item(Conversation(tuple(TURNS), "w"), tokenizer)
    row = encoded.row
    # Each target is predicted one position before it, and the end of a turn is learned.
    ((ids, _, _),) = tokenizer.encode_chat(TURNS)
    assert all(ids[p + 1] == t for p, t in zip(row.label_pos, row.targets, strict=True))
    learned = tokenizer.decode(row.targets, skip_special_tokens=False)
    assert learned == "great \U0001f389 and 日本<|im_end|>dull, dull<|im_end|>"
    assert len(row.tokens) == row.label_pos[-1] + 1


def _rows(tokenizer: Tokenizer, turns: list[dict[str, Any]], seq_len: int) -> list[str]:
    """Rows of a conversation as text, cut to T."""
    manifest = replace(MANIFEST, seq_len=seq_len, num_labels=512)
    rows = encode_items([Conversation(tuple(turns), "rows, line 1")], tokenizer, manifest)
    return [tokenizer.decode([*row.tokens, row.targets[-1]], skip_special_tokens=False) for row in rows]


def _length(tokenizer: Tokenizer, turns: list[dict[str, Any]]) -> int:
    (encoded,) = encode_item(Conversation(tuple(turns), "w"), tokenizer)
    return len(encoded.row.tokens)


SYSTEM = {"role": "system", "content": "be brief"}


def test_long_conversations_lose_their_oldest_turns_and_then_the_systems(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer, _ = _both(tmp_path / "c", _marked(CHATML, marked=False))
    whole = [SYSTEM, *TURNS]
    last, with_system = _length(tokenizer, TURNS[2:]), _length(tokenizer, [SYSTEM, *TURNS[2:]])
    all_of_it = _length(tokenizer, whole)
    assert "be brief" in _rows(tokenizer, whole, all_of_it)[0]
    assert caplog.messages == []
    (short,) = _rows(tokenizer, whole, all_of_it - 1)
    assert short == _rows(tokenizer, [SYSTEM, *TURNS[2:]], with_system)[0]
    assert caplog.messages == [
        f"1 of 1 rows are longer than T = {all_of_it - 1}, the longest has {all_of_it} tokens: cut from the left of "
        "the prompt. The first is rows, line 1, which lost 2 of its 5 turns"
    ]
    (shorter,) = _rows(tokenizer, whole, with_system - 1)
    assert shorter == _rows(tokenizer, TURNS[2:], last)[0]


def test_a_last_turn_that_is_too_long_keeps_its_end_and_the_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer, _ = _both(tmp_path / "c", _marked(CHATML, marked=False))
    turns = [{"role": "system", "content": "x " * 400}, {"role": "user", "content": "y " * 300}, TURNS[1]]
    (row,) = encode_items([Conversation(tuple(turns), "w")], tokenizer, replace(MANIFEST, seq_len=64, num_labels=64))
    assert tokenizer.decode(row.targets) == TURNS[1]["content"]
    assert "x" not in tokenizer.decode(row.tokens) and "y y" in tokenizer.decode(row.tokens)
    assert len(row.tokens) == 64 and row.truncated
    assert "which lost 1 of its 3 turns and" in caplog.messages[0] and "tokens at the left of" in caplog.messages[0]


REWRITING = (
    "{% for m in messages %}{% if not loop.last and m.role == 'assistant' %}-{% else %}{{ '<' + m.content + '>' }}"
    "{% endif %}{% endfor %}"
)


def test_template_that_rewrites_history(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each turn of the assistant is a row, after the earlier turns as the template writes them then."""
    tokenizer, _ = _both(tmp_path / "c", REWRITING)
    first, second = encode_items(
        [Conversation(tuple(TURNS), "w")], tokenizer, replace(MANIFEST, seq_len=64, num_labels=64)
    )
    assert tokenizer.decode(first.targets) == "<great \U0001f389 and 日本>"
    assert (
        tokenizer.decode([*second.tokens, second.targets[-1]]).strip() == "<the film was>-<and the plot?><dull, dull>"
    )
    assert tokenizer.decode(second.targets) == "<dull, dull>"
    assert caplog.messages == [
        "1 conversations became 2 rows, one for each turn of the assistant: the chat template writes earlier turns "
        "differently once later ones follow"
    ]


def test_what_a_template_asks_with_is_not_learned(tmp_path: Path) -> None:
    """Where its question is not a prefix of what it writes, the tokens both begin with are the prompt."""
    template = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + ': ' + m.content + '<|im_end|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant: <|im_end|>' }}{% endif %}"
    )
    tokenizer, _ = _both(tmp_path / "c", template)
    (encoded,) = encode_item(Conversation(tuple(TURNS[:2]), "w"), tokenizer)
    learned = tokenizer.decode(encoded.row.targets, skip_special_tokens=False)
    assert learned.strip() == "great \U0001f389 and 日本<|im_end|>"


def test_a_turn_of_weight_0_is_read_and_not_learned(tmp_path: Path) -> None:
    tokenizer, _ = _both(tmp_path / "c", _marked(CHATML, marked=False))
    turns = [TURNS[0], {**TURNS[1], "weight": 0}, TURNS[2], {**TURNS[3], "weight": 1}]
    (encoded,) = encode_item(Conversation(tuple(turns), "w"), tokenizer)
    assert tokenizer.decode(encoded.row.targets) == "dull, dull"
    assert "great" in tokenizer.decode(encoded.row.tokens)


def test_tools_are_written_or_refused(tmp_path: Path) -> None:
    template = "{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}" + _marked(CHATML, marked=False)
    tokenizer, _ = _both(tmp_path / "c", template)
    tools = ({"type": "function", "function": {"name": "weather"}},)
    (encoded,) = encode_item(Conversation(tuple(TURNS), "w", tools), tokenizer)
    assert tokenizer.decode(encoded.row.tokens).lstrip().startswith("weather ")
    assert (
        tokenizer.decode(prompt_ids(Conversation(tuple(TURNS[:1]), "w", tools), tokenizer))
        .lstrip()
        .startswith("weather ")
    )
    tokenizer, _ = _both(tmp_path / "d", _marked(CHATML, marked=False))
    with pytest.raises(DataError, match=r"the chat template writes no tools.*\(w\)"):
        encode_item(Conversation(tuple(TURNS), "w", tools), tokenizer)


def test_thoughts_that_a_template_leaves_out_are_refused(tmp_path: Path) -> None:
    tokenizer, _ = _both(tmp_path / "c", _marked(CHATML, marked=False))
    turns = (TURNS[0], {**TURNS[1], "reasoning_content": "hm"})
    with pytest.raises(DataError, match='does not write the field "reasoning_content"'):
        encode_item(Conversation(turns, "w"), tokenizer)


def test_the_end_of_a_turn_ends_answers(tmp_path: Path) -> None:
    tokenizer, theirs = _both(tmp_path / "c", _marked(CHATML, marked=False))
    assert tokenizer.end_ids == {tokenizer.eos_id, theirs.convert_tokens_to_ids("<|im_end|>")}
    # A turn may end with a common token, which must not end answers.
    tokenizer, _ = _both(tmp_path / "d", "{% for m in messages %}{{ m.content }}{% endfor %}")
    assert tokenizer.end_ids == {tokenizer.eos_id}


def test_a_text_that_writes_bos_gets_no_second_one(tmp_path: Path) -> None:
    template = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
    tokenizer, _ = _both(tmp_path / "c", template)
    bos = tokenizer.bos_id
    assert bos is not None
    tokenizer.backend.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", bos)])
    assert tokenizer.encode("the film")[0] == bos
    text = tokenizer.special_tokens["bos_token"] + "the film"
    assert prompt_ids(Document(text, "w"), tokenizer) == tokenizer.encode("the film")
    (pair,) = encode_item(Example(text, " was great", "w"), tokenizer)
    assert list(pair.row.tokens[:4]) == tokenizer.encode("the film was great")[:4]
    turns = ({"role": "user", "content": text}, TURNS[1])
    (encoded,) = encode_item(Conversation(turns, "w"), tokenizer)
    assert encoded.row.tokens[:2].count(bos) == 1
    assert prompt_ids(Conversation(turns[:1], "w"), tokenizer) == list(
        encoded.row.tokens[: encoded.row.label_pos[0] + 1]
    )


def test_template_that_refuses(tmp_path: Path) -> None:
    tokenizer, _ = _both(tmp_path / "c", "{{ raise_exception('roles must alternate') }}")
    with pytest.raises(DataError, match="the chat template refuses the conversation: roles must alternate"):
        tokenizer.encode_chat(TURNS)


def test_checkpoint_without_a_template(tmp_path: Path) -> None:
    tokenizer = Tokenizer.unpack(pack_tokenizer(_checkpoint(tmp_path / "c", None)))
    with pytest.raises(DataError, match="the checkpoint has no chat template"):
        tokenizer.encode_chat(TURNS)


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "is not a list of turns"),
        ("hello", "is not a list of turns"),
        ([{"content": "x"}], "turn 1 has no role"),
        ([{"role": "user"}], r'field "messages\[1\].content" is NoneType'),
        ([{"role": "user", "content": "x"}], "no turn is the assistant's"),
    ],
)
def test_bad_conversations(tmp_path: Path, messages: Any, message: str) -> None:
    path = tmp_path / "chat.jsonl"
    path.write_text(json.dumps({"messages": messages}))
    with pytest.raises(DataError, match=message):
        load_dataset(path)


def test_file_of_conversations(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    path.write_text(json.dumps({"messages": TURNS}) + "\n" + json.dumps({"messages": TURNS[:2]}))
    dataset = load_dataset(path)
    assert dataset.task.name == "chat"
    assert dataset.candidates() == ()
