"""The packed tokenizer gives the ids of transformers' own, for every kind of file and the texts that break others.

The kinds: sentencepiece's model alone, and with the fast file beside it; byte-level BPE as GPT-2 and Qwen have it; a
post-processor that adds BOS as Llama 3's does; Unigram.
"""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, LlamaTokenizer

from prgec.compiler.frontend.tokenizer import pack_tokenizer
from prgec.core.contract.tokenizer import Tokenizer

AWKWARD = [
    "",
    " ",
    "  two  blanks  ",
    "\t\r\n\v\f",
    "line\nline\r\nline",
    "a\u00a0b\u2003c\u3000d",
    "\U0001f389\U0001f468\u200d\U0001f469\u200d\U0001f467\U0001f1e9\U0001f1ea\U0001f44d\U0001f3fd",
    "☃️ emoji: 🙂🙃",
    "日本語のテキスト、句読点。",
    "中文没有空格",
    "한국어 문장입니다",
    "ไม่มีช่องว่าง",
    "हिन्दी में वाक्य",
    "שלום עולם",
    "مرحبا بالعالم",
    "abc \u202eright-to-left\u202c def",
    "e\u0301 \u00e9 \ufb01 ½ ①",
    "\ufeffbom",
    "x" * 5000,
    "great" * 400,
    "Donaudampfschifffahrtsgesellschaftskapitän" * 20,
    "null\x00byte",
    "\x00",
    "\x01\x02\x7f",
    "0123456789 3.14159 1e-9",
    "<s>",
    "</s> <s> <unk>",
    "<pad>",
    "<|im_start|>user\nhi<|im_end|>",
    "<0x0A>",
    "\u2581",
    "▁▁ under",
    "''\"\"“”",
    "C++/C#; a->b {x: [1, 2]}",
    "http://example.org/?q=a%20b",
    "\U0010fffd \ud7ff",
    "a" + "\u0301" * 60,
]
WORDS = "the film was great terrible awful lovely movie plot acting boring 日本 שלום é ½ 🙂 a an it is in".split()


def _lines(count: int = 500) -> list[str]:
    rng = random.Random(0)
    return [" ".join(rng.choices(WORDS, k=rng.randint(3, 12))) for _ in range(count)]


def _sentencepiece(kind: str, **more: Any) -> bytes:
    buffer = io.BytesIO()
    options = {
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "vocab_size": 340,
        "pad_id": -1,
        "character_coverage": 1.0,
        **more,
    }
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(_lines()), model_writer=buffer, model_type=kind, minloglevel=2, **options
    )
    return buffer.getvalue()


def _write(folder: Path, settings: dict[str, Any] | None, **files: bytes) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    for name, data in files.items():
        (folder / name.replace("_", ".")).write_bytes(data)
    if settings is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def _llama_2(folder: Path) -> None:
    _write(folder, {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True}, tokenizer_model=_sentencepiece("bpe"))


def _llama_2_no_bos(folder: Path) -> None:
    settings = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": False, "pad_token": "</s>"}
    _write(folder, settings, tokenizer_model=_sentencepiece("bpe"))


def _llama_2_with_eos(folder: Path) -> None:
    settings = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "add_eos_token": True}
    _write(folder, settings, tokenizer_model=_sentencepiece("bpe"))


def _llama_2_fast(folder: Path) -> None:
    """Both files, as most checkpoints ship them."""
    _llama_2(folder)
    LlamaTokenizer.from_pretrained(folder).save_pretrained(folder)


def _llama_2_without_dummy_prefix(folder: Path) -> None:
    model = _sentencepiece("bpe", add_dummy_prefix=False)
    settings = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "legacy": False, "add_prefix_space": False}
    _write(folder, settings, tokenizer_model=model)


def _byte_level(folder: Path, post: Any = None, normalizer: Any = None, prefix: bool = False) -> None:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    backend.decoder = decoders.ByteLevel()
    backend.normalizer = normalizer
    special = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=360,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(_lines(), trainer)
    if post is not None:
        backend.post_processor = post
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    _write(folder, settings, tokenizer_json=backend.to_str().encode())


def _gpt_2(folder: Path) -> None:
    _byte_level(folder)


def _qwen(folder: Path) -> None:
    _byte_level(folder, normalizer=normalizers.NFC())


def _llama_3(folder: Path) -> None:
    _byte_level(folder, post=processors.TemplateProcessing("<s> $A", "<s> $A <s> $B", [("<s>", 1)]), prefix=True)


def _unigram(folder: Path) -> None:
    backend = Backend(models.Unigram())
    backend.normalizer = normalizers.NFKC()
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=120, special_tokens=["<unk>", "<s>", "</s>"], unk_token="<unk>", show_progress=False
    )
    backend.train_from_iterator(_lines(), trainer)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>", "eos_token": "</s>"}
    _write(folder, settings, tokenizer_json=backend.to_str().encode())


KINDS: dict[str, Callable[[Path], None]] = {
    "llama-2": _llama_2,
    "llama-2-no-bos": _llama_2_no_bos,
    "llama-2-with-eos": _llama_2_with_eos,
    "llama-2-fast": _llama_2_fast,
    "llama-2-without-dummy-prefix": _llama_2_without_dummy_prefix,
    "gpt-2": _gpt_2,
    "qwen": _qwen,
    "llama-3": _llama_3,
    "unigram": _unigram,
}


@pytest.fixture(scope="module", params=KINDS)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Any]:
    folder = tmp_path_factory.mktemp("tokenizers") / request.param
    KINDS[request.param](folder)
    return Tokenizer.unpack(pack_tokenizer(folder)), AutoTokenizer.from_pretrained(folder)


def test_ids_are_those_of_transformers(both: tuple[Tokenizer, Any]) -> None:
    ours, theirs = both
    for text in AWKWARD:
        assert ours.encode(text) == theirs(text)["input_ids"], repr(text[:40])
        bare = theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.encode(text, add_special_tokens=False) == bare, repr(text[:40])


def test_text_is_that_of_transformers(both: tuple[Tokenizer, Any]) -> None:
    ours, theirs = both
    for text in AWKWARD:
        ids = theirs(text)["input_ids"]
        for skip in (True, False):
            expected = theirs.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
            assert ours.decode(ids, skip_special_tokens=skip) == expected, repr(text[:40])


def test_special_ids_are_those_of_transformers(both: tuple[Tokenizer, Any]) -> None:
    ours, theirs = both
    assert (ours.bos_id, ours.eos_id) == (theirs.bos_token_id, theirs.eos_token_id)
    assert ours.add_bos == (theirs("a")["input_ids"][0] == theirs.bos_token_id)


@pytest.mark.parametrize("kind", ["llama-2", "llama-2-without-dummy-prefix"])
def test_ids_are_those_of_sentencepiece(kind: str, tmp_path: Path) -> None:
    """transformers rebuilds sentencepiece's rules; this compares with the original."""
    KINDS[kind](tmp_path)
    ours = Tokenizer.unpack(pack_tokenizer(tmp_path))
    original = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "tokenizer.model"))
    # sentencepiece has no special tokens in text and ends a text at a null byte; transformers puts no blank before a
    # text that begins with one.
    texts = [text for text in AWKWARD if not any(mark in text for mark in ("<s>", "</s>", "<unk>", "\x00"))]
    texts = [text for text in texts if not text.startswith((" ", "\u2581"))]
    for text in texts:
        assert ours.encode(text, add_special_tokens=False) == original.encode(text), repr(text[:40])
