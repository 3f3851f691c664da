"""A sentencepiece tokenizer with Llama's special tokens, saved the way a Llama checkpoint ships it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import sentencepiece
from transformers import AutoTokenizer

VOCAB_SIZE = 1280


def train_tokenizer(texts: Iterable[str], folder: Path, vocab_size: int = VOCAB_SIZE) -> None:
    """Train BPE with byte fallback on `texts` and write tokenizer.model, tokenizer.json and their configuration."""
    with (folder / "tokenizer.model").open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_writer=file,
            model_type="bpe",
            vocab_size=vocab_size,
            byte_fallback=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            unk_id=0,
            bos_id=1,
            eos_id=2,
            pad_id=-1,
            num_threads=1,
            minloglevel=2,
        )
    config = {
        "tokenizer_class": "LlamaTokenizer",
        "add_bos_token": True,
        "add_eos_token": False,
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "pad_token": "</s>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 128,
    }
    text = json.dumps(config, indent=2) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="ascii")
    AutoTokenizer.from_pretrained(folder, local_files_only=True).save_pretrained(folder)
    # save_pretrained adds keys about how the tokenizer was loaded here: put the plain file back.
    (folder / "tokenizer_config.json").write_text(text, encoding="ascii")
