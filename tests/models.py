"""Tiny random checkpoints in the real Hugging Face layout, written by transformers itself.

Letters: V vocabulary.
"""

from __future__ import annotations

import functools
import io
import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from prgec.passes.weights import Scheme, quantized, rounded

VOCAB_SIZE = 320
_WORDS = "the film was great terrible awful lovely movie plot acting boring bright dull a an it is in of and It".split()
_BOS, _EOS = 1, 2


@dataclass(frozen=True)
class TinyLlama:
    """A random Llama with grouped queries: every projection has out != in but o_proj, whose widths are equal.

    Attributes:
        seed: Seed of all weights.
        num_layers: Decoder layers.
        hidden_size: Model width.
        has_bias: Whether all seven projections carry a bias.
        is_tied: Whether the head shares the embedding's weight.
        max_positions: Longest row the model knows.
    """

    seed: int = 0
    num_layers: int = 1
    hidden_size: int = 32
    has_bias: bool = False
    is_tied: bool = False
    max_positions: int = 64

    def write(self, folder: Path, *, max_shard_size: str = "5GB", tokenizer: str = "sentencepiece") -> Path:
        """Write config.json, safetensors and tokenizer files.

        Args:
            folder: Created if missing.
            max_shard_size: As `save_pretrained` takes it; small values shard the weights.
            tokenizer: `sentencepiece` (tokenizer.model alone), `json` (tokenizer.json) or `none`.

        Returns:
            `folder`.
        """
        self.build().save_pretrained(folder, max_shard_size=max_shard_size)
        if tokenizer != "none":
            write_tokenizer(folder, tokenizer)
        return folder

    def build(self) -> torch.nn.Module:
        """Return the model, f32, in evaluation mode."""
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            vocab_size=VOCAB_SIZE,
            hidden_size=self.hidden_size,
            intermediate_size=self.hidden_size * 3 // 2,
            num_hidden_layers=self.num_layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=self.max_positions,
            attention_bias=self.has_bias,
            mlp_bias=self.has_bias,
            tie_word_embeddings=self.is_tied,
            bos_token_id=_BOS,
            eos_token_id=_EOS,
        )
        model = LlamaForCausalLM(config).eval()
        _randomise(model, self.seed)
        return model


def write_tokenizer(folder: Path, kind: str) -> None:
    """Write a tokenizer trained on a few sentences: `sentencepiece` or `json`."""
    if kind == "sentencepiece":
        (folder / "tokenizer.model").write_bytes(_sentencepiece_model())
        return
    assert kind == "json", kind
    (folder / "tokenizer.json").write_text(_bpe_json(), encoding="utf-8")
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def _randomise(model: torch.nn.Module, seed: int) -> None:
    """Give every parameter a value that matters.

    Transformers' own initialisation leaves biases at zero and norms at one, so that a lost bias would go unnoticed,
    and logits so flat that no perturbation moves the loss.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 2:
                parameter.copy_(noise / math.sqrt(parameter.shape[1]))
            else:
                parameter.copy_(0.2 * noise + (1.0 if "norm" in name else 0.0))


def _sentences() -> Iterator[str]:
    rng = random.Random(0)
    return (" ".join(rng.choices(_WORDS, k=rng.randint(3, 12))) for _ in range(400))


@functools.cache
def _sentencepiece_model() -> bytes:
    import sentencepiece

    buffer = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=_sentences(),
        model_writer=buffer,
        vocab_size=VOCAB_SIZE,
        model_type="bpe",
        byte_fallback=True,
        pad_id=-1,
        normalization_rule_name="identity",
        num_threads=1,
        minloglevel=2,
    )
    return buffer.getvalue()


@functools.cache
def _bpe_json() -> str:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=["<unk>", "<s>", "</s>"],
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(_sentences(), trainer)
    text: str = tokenizer.to_str()
    return text


def rounded_checkpoint(checkpoint: Path, folder: Path, scheme: Scheme, *, group: int = 32) -> Path:
    """Write a copy of a checkpoint whose linear layers hold what the weights become in a scheme."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.weight = torch.nn.Parameter(_rounded(module.weight, scheme, group))
    model.save_pretrained(folder)
    return folder


def _rounded(weight: torch.Tensor, scheme: Scheme, group: int) -> torch.Tensor:
    """One scale an output, or one for every group of inputs where they come out even; f32 where they do not."""
    if not scheme.quantizes_input:
        qdata, scale, _ = rounded(weight, scheme)
        return qdata * scale[:, None]
    width = weight.shape[1]
    group = group if scheme.is_grouped else width
    if width % group:
        return weight.detach()
    qdata, scale, _ = quantized(weight, scheme, [1, group])
    return (qdata.reshape(-1, group) * scale.reshape(-1, 1)).reshape(weight.shape)
