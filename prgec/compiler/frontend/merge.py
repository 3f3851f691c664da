"""A LoRA adapter merged into its base model, by PEFT: any layers, ranks and variants that it knows."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from prgec.core.machine.extras import extra_hint
from prgec.errors import BackendError, CheckpointError


def merged(model: nn.Module, adapter: Path) -> nn.Module:
    """Return a model with an adapter in its weights.

    Args:
        model: The base, f32; it is changed.
        adapter: Folder with adapter_config.json and adapter_model.safetensors.

    Raises:
        BackendError: If the package peft is missing.
        CheckpointError: If the adapter is damaged, of another model, or cannot be merged.
    """
    try:
        from peft import PeftModel
    except ImportError as error:
        raise BackendError("merging an adapter needs the package peft", hint=extra_hint("peft")) from error
    before = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    try:
        with_adapter = PeftModel.from_pretrained(model, str(adapter), local_files_only=True)
        whole: nn.Module = with_adapter.merge_and_unload(safe_merge=True)
    except Exception as error:  # PEFT raises KeyError, ValueError, RuntimeError, TypeError and safetensors' own
        reason = " ".join(str(error).split()) or type(error).__name__
        raise CheckpointError(f"the adapter cannot be merged: {reason[:200]}", where=adapter) from error
    if {name: tuple(tensor.shape) for name, tensor in whole.state_dict().items()} != before:
        raise CheckpointError(
            "the adapter adds to the model and cannot be merged into its weights",
            where=adapter,
            hint="merge it with PEFT and save the model",
        )
    return whole
