"""Tiny random encoders with a head of their own, and what transformers says of them.

Letters: N rows, L blocks, T tokens, D width, C classes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.architectures import randomise
from tests.hooks import blocks_of, first_of

VOCAB_SIZE = 2000
_WORDS = "the film was great terrible awful lovely movie plot acting boring bright dull a an it is in of and".split()
_SPECIAL = {
    "bert": {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"},
    "roberta": {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"},
}
_OF_ROBERTA = ("data2vec-text", "mpnet", "roberta", "roberta-prelayernorm", "xlm-roberta-xl")
_SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4}
_DISTILLED = {"distilbert": {"dim": 32, "hidden_dim": 48, "n_heads": 4}}


@dataclass(frozen=True)
class Encoder:
    """One encoder.

    Attributes:
        model_type: As transformers calls it.
        num_classes: C; 1 for a score.
        num_layers: L.
        more: Further fields of its configuration.
    """

    model_type: str
    num_classes: int = 2
    num_layers: int = 2
    more: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def is_bert(self) -> bool:
        """Whether its tokens are BERT's, or RoBERTa's."""
        return self.model_type not in _OF_ROBERTA

    def build(self, seed: int = 0) -> torch.nn.Module:
        """Return the model, f32, in evaluation mode, with random values in every parameter."""
        from transformers import AutoConfig, AutoModelForSequenceClassification

        config = AutoConfig.for_model(
            self.model_type,
            **{
                **_DISTILLED.get(self.model_type, _SIZES),
                "vocab_size": VOCAB_SIZE,
                "max_position_embeddings": 40,
                "pad_token_id": 0 if self.is_bert else 1,
                "bos_token_id": None if self.is_bert else 0,
                "eos_token_id": None if self.is_bert else 2,
                "type_vocab_size": 2 if self.is_bert else 1,
                "num_labels": self.num_classes,
                "n_layers" if self.model_type in _DISTILLED else "num_hidden_layers": self.num_layers,
                **self.more,
            },
        )
        model: torch.nn.Module = AutoModelForSequenceClassification.from_config(config).eval()
        randomise(model, seed)
        return model

    def write(self, folder: Path) -> Path:
        """Write a checkpoint with a tokenizer of words into `folder`; return it."""
        self.build().save_pretrained(folder)  # type: ignore[operator]
        kind = "bert" if self.is_bert else "roberta"
        special = _SPECIAL[kind]
        (folder / "tokenizer.json").write_text(_tokenizer(kind, list(special.values())), encoding="utf-8")
        config = {"tokenizer_class": "PreTrainedTokenizerFast", **special}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        return folder


ENCODERS = (Encoder("bert"), Encoder("roberta"), Encoder("bert", 1), Encoder("roberta", 3))
_WINDOW = {"local_attention": 8, "cls_token_id": 2, "sep_token_id": 3}
_DISENTANGLED = {"relative_attention": True, "position_buckets": 8, "pos_att_type": ["p2c", "c2p"]}
# One of each kind, with what distinguishes it from BERT.
KINDS = (
    Encoder("bert"),
    Encoder("roberta"),
    Encoder("distilbert"),
    Encoder("electra", more={"embedding_size": 16}),
    Encoder("ernie"),
    Encoder("nomic_bert"),
    Encoder("roformer"),
    Encoder("roberta-prelayernorm"),
    Encoder("xlm-roberta-xl"),
    Encoder("data2vec-text"),
    Encoder("mpnet"),
    Encoder("megatron-bert"),
    Encoder("rembert", more={"input_embedding_size": 16, "output_embedding_size": 16}),
    Encoder("modernbert", num_layers=4, more={**_WINDOW, "classifier_pooling": "cls"}),
    Encoder("modernbert", num_layers=4, more={**_WINDOW, "classifier_pooling": "mean"}),
    Encoder("eurobert"),
    Encoder("deberta-v2", more={**_DISENTANGLED, "share_att_key": True, "norm_rel_ebd": "layer_norm"}),
)


def said_by_transformers(
    model: Any, rows: Sequence[Sequence[int]], types: Sequence[Sequence[int]]
) -> tuple[Tensor, Tensor]:
    """Run an untouched classifier over unpadded rows, one at a time.

    Returns:
        The blocks' outputs at the first token f32[N, L, D], and the logits f32[N, C].
    """
    acts, logits = [], []
    for row, type_ids in zip(rows, types, strict=True):
        first, said = _said(model, torch.tensor([row]), torch.tensor([type_ids]))
        acts.append(first)
        logits.append(said)
    return torch.stack(acts), torch.stack(logits)


def _said(model: Any, tokens: Tensor, types: Tensor) -> tuple[Tensor, Tensor]:
    caught: list[Tensor] = []
    hooks = [b.register_forward_hook(lambda m, i, o: caught.append(first_of(o)[0, 0])) for b in blocks_of(model)]
    with torch.no_grad():
        logits: Tensor = model(tokens, token_type_ids=types).logits[0]
    for hook in hooks:
        hook.remove()
    return torch.stack(caught), logits


def _tokenizer(model_type: str, special: list[str]) -> str:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    order = [special[0], special[1], *special[2:]]
    vocabulary = {word: index for index, word in enumerate([*order, *_WORDS])}
    unknown = "[UNK]" if model_type == "bert" else "<unk>"
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(order)
    if model_type == "bert":
        single, pair, ends = "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", ("[CLS]", "[SEP]")
    else:
        single, pair, ends = "<s> $A </s>", "<s> $A </s> </s> $B </s>", ("<s>", "</s>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=[(each, vocabulary[each]) for each in ends]
    )
    text: str = tokenizer.to_str()
    return text
