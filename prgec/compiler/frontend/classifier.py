"""Encoders with a head of their own, as BERT: what their forward is given besides the tokens, and their loss.

Everything else a forward reads follows from the tokens, inside the graph: which of them are padding, that nobody
attends to, and which belong to the second text. docs/decisions/017-encoders.md.

Letters: N rows, T tokens, C classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from prgec.compiler.frontend.checkpoint import Checkpoint
from prgec.compiler.frontend.tokenizer import pack_tokenizer
from prgec.core.contract.names import IGNORE_TARGET, SCORE_UNIT
from prgec.core.contract.tokenizer import Tokenizer
from prgec.errors import CheckpointError
from prgec.passes.attention import MASKED

# Encoders whose tokenizers count the texts, so that the second one has a type of its own.
_WITH_TYPES = ("bert", "electra", "ernie", "megatron-bert", "nomic_bert", "rembert", "roformer")
# Encoders whose positions count from the one after the padding's.
_FROM_PADDING = (
    "camembert",
    "data2vec-text",
    "mpnet",
    "roberta",
    "roberta-prelayernorm",
    "xlm-roberta",
    "xlm-roberta-xl",
)
# Encoders that mask by themselves, and take which tokens are padding.
_OWN_MASK = ("deberta-v2",)
MODEL_TYPES = (*_WITH_TYPES, *_FROM_PADDING, *_OWN_MASK, "distilbert", "eurobert", "modernbert")
_SUFFIX = "ForSequenceClassification"


def is_classifier(checkpoint: Checkpoint) -> bool:
    """Whether config.json names an encoder with a classification head."""
    return checkpoint.architecture.endswith(_SUFFIX) and checkpoint.config.get("model_type") in MODEL_TYPES


def with_classes(checkpoint: Checkpoint, model: nn.Module, packed: bytes) -> tuple[bytes, Head | None]:
    """Name a classifier's answers in its tokenizer.

    Args:
        checkpoint: Where both are from.
        model: Model from `load_model`.
        packed: Its tokenizer from `pack_tokenizer`.

    Returns:
        The tokenizer with the names of the classes, and the head; of a causal language model `packed` and None.

    Raises:
        CheckpointError: If tokenizer and model do not fit together.
    """
    if not is_classifier(checkpoint):
        return packed, None
    head = head_of(checkpoint, model, Tokenizer.unpack(packed))
    return pack_tokenizer(checkpoint.path, head.classes), head


@dataclass(frozen=True, kw_only=True)
class Head:
    """How a classifier reads its tokens.

    Attributes:
        classes: Names of its answers by index; a single one is a score.
        pad_id: Token that nobody attends to.
        separator_id: Token after which the second text begins; None where the model does not distinguish texts.
        first_position: Index of the first token's position.
        window: Farthest distance that layers of local attention look; 0 where all layers look everywhere.
        masks_itself: Whether the model makes its mask of which tokens are padding.
    """

    classes: tuple[str, ...]
    pad_id: int
    separator_id: int | None
    first_position: int
    window: int = 0
    masks_itself: bool = False


def head_of(checkpoint: Checkpoint, model: nn.Module, tokenizer: Tokenizer) -> Head:
    """Describe the head of a classifier.

    Raises:
        CheckpointError: If the tokenizer pads with another token than the model was made for, or ends no text.
    """
    config: Any = model.config
    if tokenizer.pad_id != config.pad_token_id:
        raise CheckpointError(
            f"the tokenizer pads with token {tokenizer.pad_id}, the model with {config.pad_token_id}",
            where=checkpoint.path,
            hint="an encoder attends to every other token, padding included",
        )
    separator = None
    if config.model_type in _WITH_TYPES and config.type_vocab_size > 1:
        separator = tokenizer.backend.token_to_id(tokenizer.special_tokens.get("sep_token", ""))
        if separator is None:
            raise CheckpointError("the tokenizer has no sep_token between two texts", where=checkpoint.path)
    return Head(
        classes=tuple(str(config.id2label[index]) for index in range(config.num_labels)),
        pad_id=int(config.pad_token_id),
        separator_id=separator,
        first_position=config.pad_token_id + 1 if config.model_type in _FROM_PADDING else 0,
        window=config.sliding_window if config.model_type == "modernbert" else 0,
        masks_itself=config.model_type in _OWN_MASK,
    )


class ClassifierLoss(nn.Module):
    """Loss of every row of an unmodified classifier: as of a language model, or the squared error of a score.

    Args:
        model: Encoder whose forward returns `.logits` f32[N, C].
        head: How it reads tokens.
    """

    def __init__(self, model: nn.Module, head: Head) -> None:
        super().__init__()
        self.hf = model
        self.head = head

    def forward(self, tokens: Tensor, label_pos: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each row.

        Args:
            tokens: i64[N, T], right-padded.
            label_pos: i64[N, 1], the first token: 0.
            targets: i64[N, 1], the class, or the score in units of `SCORE_UNIT`; -100 to ignore.

        Returns:
            f32[N].
        """
        logits_NKC = self._logits(tokens).unsqueeze(1).to(torch.float32)
        counts = targets != IGNORE_TARGET
        safe = torch.where(counts, targets, 0)
        if len(self.head.classes) == 1:
            missing_NKC = logits_NKC - (safe.to(torch.float32) * SCORE_UNIT).unsqueeze(-1)
            losses_NK = (missing_NKC * missing_NKC).squeeze(-1)
        else:
            losses_NK = -torch.gather(torch.log_softmax(logits_NKC, -1), 2, safe.unsqueeze(-1)).squeeze(-1)
        return torch.where(counts, losses_NK, 0.0).sum(1)

    def _logits(self, tokens: Tensor) -> Tensor:
        """Run the model; its head reads which tokens count, and its blocks a mask to add."""
        given = self._inputs(tokens)
        if self.head.masks_itself:
            whole: Tensor = self.hf(**given).logits
            return whole
        base: nn.Module = getattr(self.hf, str(self.hf.base_model_prefix))
        masked = base.register_forward_pre_hook(
            lambda _, args, kwargs: (args, {**kwargs, "attention_mask": self._mask(tokens)}), with_kwargs=True
        )
        try:
            logits: Tensor = self.hf(**given).logits
        finally:
            masked.remove()
        return logits

    def _mask(self, tokens: Tensor) -> Tensor | dict[str, Tensor]:
        # A product would not do: a delegate would take it, without the nodes before it.
        mask = torch.where(tokens == self.head.pad_id, MASKED, 0.0)[:, None, None, :]
        if not self.head.window:
            return mask
        places = torch.arange(tokens.shape[1])
        distance = (places[:, None] - places[None, :]).abs()
        is_far = torch.where(distance > self.head.window, MASKED, 0.0)
        return {"full_attention": mask, "sliding_attention": mask + is_far}

    def _inputs(self, tokens: Tensor) -> dict[str, Tensor]:
        head = self.head
        counts = (tokens != head.pad_id).to(torch.float32)
        positions = torch.arange(tokens.shape[1]) + head.first_position
        given = {"input_ids": tokens, "attention_mask": counts, "position_ids": positions.unsqueeze(0)}
        if head.separator_id is None:
            return given
        ends = (tokens == head.separator_id).to(torch.int64)
        # The second text starts after the separator. Padding counts as such too, but is masked.
        return {**given, "token_type_ids": (torch.cumsum(ends, 1) > ends).to(torch.int64)}
