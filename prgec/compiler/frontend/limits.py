"""The limits of rows for a model: its tokenizer, vocabulary and positions, without its weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from prgec.compiler.frontend.checkpoint import Checkpoint, find_checkpoint
from prgec.compiler.frontend.tokenizer import pack_tokenizer
from prgec.core.contract.tokenizer import Tokenizer
from prgec.errors import CheckpointError


@dataclass(frozen=True)
class RowLimits:
    """The limits that a checkpoint sets for rows.

    Attributes:
        tokenizer: As programs carry it.
        vocab_size: Tokens the model has an embedding for.
        max_positions: Most tokens a row may have; None for any number.
    """

    tokenizer: Tokenizer
    vocab_size: int
    max_positions: int | None


def read_limits(model: str) -> RowLimits:
    """Read what a checkpoint says about rows.

    Args:
        model: As `find_checkpoint` takes it.

    Raises:
        CheckpointError: If it is incomplete, or transformers does not know its configuration.
    """
    checkpoint = find_checkpoint(model)
    config = _config_of(checkpoint)
    classes, first = _head(checkpoint, config)
    longest = getattr(config, "max_position_embeddings", None)
    return RowLimits(
        Tokenizer.unpack(pack_tokenizer(checkpoint.path, classes)),
        int(config.vocab_size),
        longest - first if isinstance(longest, int) else None,
    )


def _config_of(checkpoint: Checkpoint) -> Any:
    from transformers import AutoConfig

    if checkpoint.is_gguf:
        return AutoConfig.for_model(**checkpoint.config)
    try:
        config = AutoConfig.from_pretrained(checkpoint.path, local_files_only=True, trust_remote_code=False)
        return config.get_text_config()
    except Exception as error:  # transformers raises many unrelated types here
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(f"transformers cannot read config.json: {reason}", where=checkpoint.path) from error


def _head(checkpoint: Checkpoint, config: Any) -> tuple[tuple[str, ...], int]:
    """Classes of a classifier, and the position its first token has."""
    # Imported here: it imports torch, which other tokenizers do without.
    from prgec.compiler.frontend.classifier import is_classifier

    if not is_classifier(checkpoint):
        return (), 0
    classes = tuple(str(config.id2label[index]) for index in range(config.num_labels))
    return classes, 0 if config.model_type == "bert" else int(config.pad_token_id) + 1
