"""The source of a compilation: the checkpoint with its tokenizer and the hash of its weights, and its model."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import torch

from prgec.compiler.frontend.checkpoint import Checkpoint, find_checkpoint
from prgec.compiler.frontend.classifier import Head, with_classes
from prgec.compiler.frontend.model import load_model, weights_sha256
from prgec.compiler.frontend.tokenizer import pack_tokenizer
from prgec.compiler.options import CompileOptions
from prgec.compiler.rounded_twice import warn_of_rounding
from prgec.core.contract.tokenizer import Tokenizer
from prgec.errors import CheckpointError, UsageError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Source:
    """The contents of a checkpoint, but for the model."""

    checkpoint: Checkpoint
    tokenizer: bytes
    base_sha256: str
    vocab_size: int
    max_positions: int | None
    head: Head | None = None


def load_source(options: CompileOptions) -> tuple[Source, torch.nn.Module]:
    """Read and check a checkpoint; return it and its model, which the caller drops once it is traced.

    Raises:
        CheckpointError: If it is incomplete or its parts do not fit together.
        UsageError: If rows may be longer than the model's positions.
    """
    checkpoint = find_checkpoint(options.model)
    packed = pack_tokenizer(checkpoint.path)
    model = load_model(checkpoint)
    warn_of_rounding(checkpoint, model, options)
    tokenizer, head = with_classes(checkpoint, model, packed)
    if head is not None:
        _check_options(options, head)
    config: Any = model.config.get_text_config()  # type: ignore[operator, union-attr]
    longest = getattr(config, "max_position_embeddings", None)
    longest = longest - (head.first_position if head else 0) if isinstance(longest, int) else None
    if longest is not None and options.seq_len > longest:
        raise UsageError(f"--seq-len is {options.seq_len}, but the model supports {longest} positions")
    if longest is not None and options.context > longest:
        raise UsageError(f"--context is {options.context}, but the model supports {longest} positions")
    vocab_size = int(config.vocab_size)
    _check_vocabulary(Tokenizer.unpack(tokenizer), vocab_size, checkpoint)
    source = Source(
        checkpoint=checkpoint,
        tokenizer=tokenizer,
        base_sha256=weights_sha256(model),
        vocab_size=vocab_size,
        max_positions=longest,
        head=head,
    )
    return source, model


def _check_options(options: CompileOptions, head: Head) -> None:
    if options.num_labels > 1 or (not options.num_labels and not options.data):
        raise UsageError("a classifier has one answer a row", hint="--label-tokens 1")
    if options.generate:
        raise UsageError("--generate is for language models; a classifier writes nothing")
    if len(head.classes) == 1 and options.method in ("exact", "shortcut"):
        raise UsageError(
            f"--method {options.method} differentiates a choice between classes; this model gives a score",
            hint="--method prge or side",
        )


def _check_vocabulary(tokenizer: Tokenizer, vocab_size: int, checkpoint: Checkpoint) -> None:
    """Refuse a tokenizer of another model; tokens added beyond the table (Gemma 3 has one) are only warned of."""
    base, whole = (tokenizer.backend.get_vocab_size(with_added_tokens=added) for added in (False, True))
    if base > vocab_size:
        raise CheckpointError(
            f"the tokenizer has {base} tokens, the checkpoint's vocabulary {vocab_size}",
            where=checkpoint.path,
            hint="the tokenizer may belong to another model",
        )
    if whole > vocab_size:
        logger.warning(
            "%d added tokens lie beyond the checkpoint's vocabulary of %d: rows must not use them",
            whole - vocab_size,
            vocab_size,
        )
