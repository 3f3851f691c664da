"""Rows begin with the tokens of the prompt that is given at inference, whatever the tokenizer makes of its end."""

from __future__ import annotations

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

from prgec.core.contract.tokenizer import Tokenizer
from prgec.core.data.encode import encode_pair, prompt_ids
from prgec.core.data.task import Example

# Two line breaks end the header of a turn, as in Llama 3's template and in Qwen3's after empty thoughts.
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n\n{{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n\n{% endif %}"
)
PLAIN = TEMPLATE.replace("<|im_start|>", "## ").replace("<|im_end|>", "\n")
TURNS = [
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "two three"},
    {"role": "user", "content": "four"},
    {"role": "assistant", "content": "five"},
]


def _tokenizer(template: str) -> Tokenizer:
    """Return one that splits as GPT-2's does: line breaks are one token unless a word follows."""
    special = ["</s>", "<|im_start|>", "<|im_end|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*special, *alphabet, "ĊĊ", "Ġt"])}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, [("Ċ", "Ċ"), ("Ġ", "t")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(special)
    return Tokenizer(backend=backend, bos_id=None, eos_id=0, pad_id=0, add_bos=False, chat_template=template)


@pytest.mark.parametrize("template", [TEMPLATE, PLAIN], ids=["tokens of its own", "plain text"])
def test_a_row_begins_with_its_prompt(template: str) -> None:
    """Otherwise a model learns to answer after tokens that it is never given."""
    tokenizer = _tokenizer(template)
    prompt = tokenizer.encode_chat_prompt(TURNS[:1])
    (row,) = tokenizer.encode_chat(TURNS[:2])
    assert row.ids[: len(prompt)] == prompt
    assert row.is_said.index(True) == len(prompt) and all(row.is_said[len(prompt) :])
    assert len(row.ids) == len(row.is_said)
    whole = tokenizer.backend.encode(tokenizer.decode(row.ids, skip_special_tokens=False), add_special_tokens=False)
    assert whole.ids != row.ids, "the tokenizer splits the whole text otherwise"


def test_a_row_of_prompt_and_completion_begins_with_its_prompt() -> None:
    """Alpaca's own form ends its prompts with line breaks, and so do many others."""
    tokenizer = _tokenizer(TEMPLATE)
    example = Example("### Input:\n\n", "two three", "rows.jsonl, line 1", ends=False)
    prompt = prompt_ids(example, tokenizer)
    row = encode_pair(example, example.completion, tokenizer).row
    assert list(row.tokens[: len(prompt)]) == prompt == tokenizer.encode("### Input:\n\n")
    assert row.label_pos[0] == len(prompt) - 1
    assert tokenizer.decode(row.targets) == "two three"
    whole = tokenizer.encode("### Input:\n\ntwo three")
    assert [*row.tokens, row.targets[-1]] != whole, "the tokenizer splits the whole text otherwise"


@pytest.mark.parametrize("trims", [True, False], ids=["offsets without spaces", "offsets with spaces"])
def test_a_token_over_the_border_stays_whole(trims: bool) -> None:
    """A space belongs to the word after it, whatever the tokenizer reports as the word's place."""
    tokenizer = _tokenizer(PLAIN.replace("\n\n", ": "))
    tokenizer.backend.post_processor = processors.ByteLevel(trim_offsets=trims)
    (row,) = tokenizer.encode_chat(TURNS[:2])
    assert tokenizer.decode(row.ids).count("assistant: two") == 1
    example = Example("Answer: ", "two", "rows.jsonl, line 1")
    assert tokenizer.decode(encode_pair(example, "two", tokenizer).row.tokens).startswith("Answer: tw")


def test_every_answer_follows_the_end_of_its_prompt() -> None:
    """In a conversation of several turns, too; what is learned stays what the assistant says."""
    tokenizer = _tokenizer(TEMPLATE)
    (row,) = tokenizer.encode_chat(TURNS)
    breaks = tokenizer.backend.token_to_id("ĊĊ")
    starts = [n for n, said in enumerate(row.is_said) if said and not row.is_said[n - 1]]
    assert [row.ids[n - 1] for n in starts] == [breaks, breaks]
    learned = tokenizer.decode([token for token, said in zip(row.ids, row.is_said, strict=True) if said])
    assert learned == "two threefive"
