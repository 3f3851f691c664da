"""Conversations are written as transformers writes them, and only what the assistant says is learned."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from prgec.contract.tokenizer import Tokenizer
from prgec.data.dataset import load_dataset
from prgec.data.encode import Row, encode_item, encode_items
from prgec.data.task import Conversation
from prgec.errors import DataError
from prgec.frontend.tokenizer import pack_tokenizer
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
    ids, is_said = ours.encode_chat(TURNS)
    assert ids == expected["input_ids"]
    mask = [bool(x) for x in expected["assistant_masks"]]
    assert is_said == mask
    assert 0 < sum(is_said) < len(ids)


@pytest.mark.parametrize("name", TEMPLATES)
def test_prompt_is_that_of_transformers(name: str, tmp_path: Path) -> None:
    ours, theirs = _both(tmp_path / "c", _marked(TEMPLATES[name], marked=False))
    expected = theirs.apply_chat_template(TURNS[:3], tokenize=True, add_generation_prompt=True)["input_ids"]
    assert ours.encode_chat_prompt(TURNS[:3]) == expected


def test_loss_is_on_the_assistants_turns_only(tmp_path: Path) -> None:
    tokenizer, _ = _both(tmp_path / "c", _marked(CHATML, marked=False))
    row = encode_item(Conversation(tuple(TURNS), "w"), tokenizer).row
    # Each target is predicted one position before it, and the end of a turn is learned.
    ids, _ = tokenizer.encode_chat(TURNS)
    assert all(ids[p + 1] == t for p, t in zip(row.label_pos, row.targets, strict=True))
    learned = tokenizer.decode(row.targets, skip_special_tokens=False)
    assert learned == "great \U0001f389 and 日本<|im_end|>dull, dull<|im_end|>"
    assert len(row.tokens) == row.label_pos[-1] + 1


def test_long_conversations_lose_their_first_turns(tmp_path: Path) -> None:
    tokenizer, _ = _both(tmp_path / "c", _marked(CHATML, marked=False))
    whole = encode_item(Conversation(tuple(TURNS), "w"), tokenizer).row
    length = len(whole.tokens) - whole.label_pos[3]
    (row,) = encode_items(
        [Conversation(tuple(TURNS), "w")], tokenizer, replace(MANIFEST, seq_len=length, num_labels=len(whole.targets))
    )
    # The first three targets were predicted from positions that are gone; a row starts with what predicts the fourth.
    assert row == Row(
        whole.tokens[-length:],
        tuple(p - whole.label_pos[3] for p in whole.label_pos[3:]),
        whole.targets[3:],
        truncated=True,
    )


def test_template_that_rewrites_history(tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}{% if not loop.last and m.role == 'assistant' %}-{% else %}{{ m.content }}"
        "{% endif %}{% endfor %}"
    )
    tokenizer, _ = _both(tmp_path / "c", template)
    with pytest.raises(DataError, match=r"writes earlier turns differently once later ones follow.*\(rows, line 1\)"):
        encode_item(Conversation(tuple(TURNS), "rows, line 1"), tokenizer)
    row = encode_item(Conversation(tuple(TURNS[:2]), "w"), tokenizer).row
    assert tokenizer.decode(row.targets) == TURNS[1]["content"]


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
