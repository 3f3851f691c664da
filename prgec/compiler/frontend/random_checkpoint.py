"""Writes checkpoints with random weights, for measurements that need a model's shapes and nothing it knows."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prgec.errors import CheckpointError

# Fields of a configuration that describe how weights are stored: these weights are stored as they are.
_STORAGE = ("quantization_config", "architectures", "torch_dtype", "dtype")
# The tokenizer has no part in a measurement; a program has one all the same.
_TOKENIZER = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json")


def write_random_checkpoint(folder: Path, config: Mapping[str, Any]) -> None:
    """Write configuration, random weights in 16 bits, and the tokenizer of the bundled model.

    Args:
        folder: Created if missing.
        config: As config.json has it, `model_type` among it.

    Raises:
        CheckpointError: If transformers knows no causal language model of this configuration.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from prgec.demo import checkpoint_dir

    fields = {key: value for key, value in config.items() if key not in (*_STORAGE, "model_type")}
    try:
        known = AutoConfig.for_model(str(config["model_type"]), **fields)
        model = AutoModelForCausalLM.from_config(known, dtype=torch.bfloat16)
    except Exception as error:  # transformers raises KeyError, ValueError, TypeError and its own
        reason = " ".join(str(error).split()) or type(error).__name__
        raise CheckpointError(f"transformers cannot make a model of the configuration: {reason[:200]}") from error
    model.save_pretrained(folder)
    for name in _TOKENIZER:
        shutil.copy(checkpoint_dir() / name, folder / name)
