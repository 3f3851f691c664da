"""The bundled demo: a loadable checkpoint, splits that share no wording, data that regenerates byte for byte."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import pytest

from prgec.demo import SPLITS, checkpoint_dir, data_file

ROOT = Path(__file__).resolve().parent.parent
MAX_BYTES = 8_000_000
ROWS = {"train": 1000, "dev": 300, "test": 1000}
CHECKPOINT_FILES = {
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
}
# Words any two English sentences may share; everything else occurs in one split only.
FUNCTION_WORDS = set("a an and by even her his is it more my of one that their this was".split())


def rows(split: str) -> list[tuple[str, int]]:
    parsed = [json.loads(line) for line in data_file(split).read_text(encoding="ascii").splitlines()]
    return [(row["sentence"], row["label"]) for row in parsed]


def words(sentence: str) -> list[str]:
    return re.findall(r"[a-z]+", sentence.lower())


def n_grams(split: str, n: int) -> set[tuple[str, ...]]:
    def of_one(sentence: str) -> Iterator[tuple[str, ...]]:
        tokens = words(sentence)
        return (tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1))

    return {gram for sentence, _ in rows(split) for gram in of_one(sentence)}


def regenerate(out: Path, *options: str) -> None:
    command = [sys.executable, str(ROOT / "tools" / "make_demo_model.py"), "-o", str(out), *options]
    subprocess.run(command, check=True, capture_output=True, cwd=out)


def test_checkpoint_is_a_hugging_face_folder_within_the_size_limit():
    assert {path.name for path in checkpoint_dir().iterdir()} == CHECKPOINT_FILES
    files = [*checkpoint_dir().iterdir(), *(data_file(split) for split in SPLITS)]
    assert sum(path.stat().st_size for path in files) <= MAX_BYTES


def test_checkpoint_loads_offline_and_has_non_square_sites(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    from transformers import AutoModelForCausalLM

    model, report = AutoModelForCausalLM.from_pretrained(
        checkpoint_dir(), local_files_only=True, output_loading_info=True
    )
    assert not report["missing_keys"] and not report["unexpected_keys"]
    attention = model.model.layers[0].self_attn
    assert attention.k_proj.out_features < attention.k_proj.in_features
    assert model.config.num_key_value_heads < model.config.num_attention_heads
    assert 700_000 <= sum(parameter.numel() for parameter in model.parameters()) <= 1_500_000


def test_tokenizer_json_and_sentencepiece_model_agree():
    import sentencepiece
    from transformers import AutoTokenizer

    fast = AutoTokenizer.from_pretrained(checkpoint_dir(), local_files_only=True)
    piece = sentencepiece.SentencePieceProcessor(model_file=str(checkpoint_dir() / "tokenizer.model"))
    assert (fast.unk_token_id, fast.bos_token_id, fast.eos_token_id) == (0, 1, 2)
    assert len(fast) == piece.vocab_size()
    for text in [*(sentence for sentence, _ in rows("test")[:200]), "Zo\u00eb \u2603 said: caf\u00e9?"]:
        assert fast(text)["input_ids"] == [1, *piece.encode(text)]
        assert piece.decode(piece.encode(text)) == text


@pytest.mark.parametrize("word", ["great", "terrible"])
def test_label_word_is_one_token_after_the_prompt(word):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(checkpoint_dir(), local_files_only=True)
    prompt = tokenizer("The soup was cold. It was")["input_ids"]
    assert tokenizer(f"The soup was cold. It was {word}")["input_ids"][:-1] == prompt


@pytest.mark.parametrize("split", SPLITS)
def test_split_is_balanced_and_has_no_sentence_twice(split):
    sentences, labels = zip(*rows(split), strict=True)
    assert len(sentences) == ROWS[split] == len(set(sentences))
    assert sum(labels) == ROWS[split] // 2
    assert not any(word in words(sentence) for sentence in sentences for word in ("great", "terrible"))


@pytest.mark.parametrize(("one", "other"), combinations(SPLITS, 2))
def test_splits_share_nothing_but_single_function_words(one, other):
    assert {word for (word,) in n_grams(one, 1) & n_grams(other, 1)} <= FUNCTION_WORDS
    assert n_grams(one, 2) & n_grams(other, 2) == set()


def test_no_data_sentence_occurs_in_the_pretraining_text(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    from make_demo_model import pretraining_texts

    sentences = {sentence for text in pretraining_texts() for sentence in re.split(r"(?<=[.!?]) ", text)}
    assert len(sentences) > 50_000
    assert [sentence for split in SPLITS for sentence, _ in rows(split) if sentence in sentences] == []


def test_data_regenerates_byte_for_byte(tmp_path):
    regenerate(tmp_path, "--data-only")
    for split in SPLITS:
        assert (tmp_path / "data" / f"{split}.jsonl").read_bytes() == data_file(split).read_bytes()


@pytest.mark.parametrize("split", ["valid", "../train"])
def test_unknown_split_is_refused(split):
    with pytest.raises(ValueError, match="expected one of train, dev, test"):
        data_file(split)


@pytest.mark.slow
def test_checkpoint_regenerates(tmp_path, monkeypatch):
    """Tokenizer: the same bytes. Weights: the same quality; the same bytes only where sums are ordered alike."""
    regenerate(tmp_path)
    again = tmp_path / "checkpoint"
    for name in ("tokenizer.model", "tokenizer.json", "tokenizer_config.json"):
        assert (again / name).read_bytes() == (checkpoint_dir() / name).read_bytes()
    if sha256(again / "model.safetensors") == sha256(checkpoint_dir() / "model.safetensors"):
        return
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    from make_demo_model import pretraining_texts

    texts = pretraining_texts()[:200]
    assert nats_a_token(again, texts) == pytest.approx(nats_a_token(checkpoint_dir(), texts), abs=0.05)


def nats_a_token(folder: Path, texts: list[str]) -> float:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True).eval()
    rows = [torch.tensor([tokenizer(text)["input_ids"]]) for text in texts]
    with torch.no_grad():
        losses = [float(model(input_ids=row, labels=row).loss) for row in rows]
    return sum(losses) / len(losses)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
