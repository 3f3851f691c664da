"""Adapters as PEFT reads and writes them: `adapter_config.json` and `adapter_model.safetensors` in a folder.

PEFT names tensors `base_model.model.<site>.lora_A.weight` f32[r, D] and `...lora_B.weight` f32[O, r], and adds
`lora_alpha / r * B A x`. A LoRA-FA adapter is such an adapter whose A was never trained.

Letters: r rank, D and O widths of a layer's input and output.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from prgec.core.contract.arrays import FloatArray
from prgec.core.contract.names import FROZEN_SUFFIX, STATE_SUFFIX
from prgec.core.machine.files import write_atomic
from prgec.errors import ProgramError

CONFIG_NAME = "adapter_config.json"
WEIGHTS_NAME = "adapter_model.safetensors"
_TENSOR = re.compile(r"base_model\.model\.(.+)\.lora_(A|B)\.weight")
# Variants of LoRA that compute something else; each must be off.
_OTHER_METHODS = (
    "use_dora",
    "use_rslora",
    "use_qalora",
    "rank_pattern",
    "alpha_pattern",
    "layer_replication",
    "trainable_token_indices",
    "modules_to_save",
    "lora_bias",
    "alora_invocation_tokens",
)


@dataclass(frozen=True)
class PeftAdapter:
    """A LoRA adapter.

    Attributes:
        rank: r.
        alpha: The branch is scaled by alpha / r.
        tensors: `<site>.lora_A` f32[r, D] and `<site>.lora_B` f32[r, O] (ours, the transpose of PEFT's).
        metadata: Text values of the file; an adapter we wrote says there what it belongs to.
    """

    rank: int
    alpha: float
    tensors: dict[str, FloatArray]
    metadata: Mapping[str, str]

    @property
    def sites(self) -> tuple[str, ...]:
        """Module paths of the layers, in order of name."""
        return tuple(sorted(name.removesuffix(STATE_SUFFIX) for name in self.tensors if name.endswith(STATE_SUFFIX)))


def is_peft_folder(path: Path) -> bool:
    """Return whether a path is the folder of a PEFT adapter."""
    return (path / CONFIG_NAME).is_file()


def write_peft(folder: Path, adapter: PeftAdapter, base: str) -> None:
    """Write an adapter for `peft.PeftModel.from_pretrained`.

    Args:
        folder: Made if missing.
        adapter: Adapter to write.
        base: Folder or hub id of the model it belongs to.
    """
    from safetensors.numpy import save

    tensors = {}
    for site in adapter.sites:
        prefix = f"base_model.model.{site}"
        tensors[f"{prefix}.lora_A.weight"] = adapter.tensors[site + FROZEN_SUFFIX]
        tensors[f"{prefix}.lora_B.weight"] = np.ascontiguousarray(adapter.tensors[site + STATE_SUFFIX].T)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": adapter.rank,
        "lora_alpha": adapter.alpha,
        "target_modules": list(adapter.sites),
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
        "fan_in_fan_out": False,
        "init_lora_weights": True,
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / WEIGHTS_NAME, save(tensors, metadata={**adapter.metadata, "format": "pt"}))
    write_atomic(folder / CONFIG_NAME, (json.dumps(config, indent=2, sort_keys=True) + "\n").encode())


def read_peft(folder: Path) -> PeftAdapter:
    """Read a PEFT folder.

    Raises:
        ProgramError: If it is damaged, or not a plain LoRA adapter.
    """
    config = _read_config(folder)
    tensors, metadata = _read_tensors(folder)
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if not isinstance(rank, int) or rank < 1 or not isinstance(alpha, int | float):
        raise ProgramError(f"the PEFT adapter has r = {rank!r} and lora_alpha = {alpha!r}", where=folder)
    found: dict[str, FloatArray] = {}
    for name, array in tensors.items():
        match = _TENSOR.fullmatch(name)
        if match is None:
            raise ProgramError(f"the PEFT adapter holds {name}, which is not a LoRA matrix", where=folder)
        site, kind = match[1], match[2]
        array = array.astype(np.float32)
        if array.ndim != 2 or array.shape[0 if kind == "A" else 1] != rank:
            raise ProgramError(f"the PEFT adapter's {name} is {list(array.shape)}, its r is {rank}", where=folder)
        found[site + (FROZEN_SUFFIX if kind == "A" else STATE_SUFFIX)] = array if kind == "A" else array.T.copy()
    adapter = PeftAdapter(rank, float(alpha), found, metadata)
    unpaired = [
        name
        for name in found
        if name.replace(FROZEN_SUFFIX, STATE_SUFFIX) not in found
        or name.replace(STATE_SUFFIX, FROZEN_SUFFIX) not in found
    ]
    if unpaired or not found:
        raise ProgramError(
            f"the PEFT adapter lacks the other half of {unpaired[0]}" if unpaired else "the PEFT adapter is empty",
            where=folder,
        )
    return adapter


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / CONFIG_NAME).read_bytes())
    except (OSError, ValueError) as error:
        raise ProgramError(f"cannot read {CONFIG_NAME}: {error}", where=folder) from error
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        raise ProgramError("not a LoRA adapter of PEFT", where=folder, hint="peft_type must be LORA")
    for name in _OTHER_METHODS:
        if config.get(name):
            raise ProgramError(f"the PEFT adapter uses {name}, which is not plain LoRA", where=folder)
    if config.get("bias", "none") != "none":
        raise ProgramError("the PEFT adapter trains biases", where=folder)
    return config


def _read_tensors(folder: Path) -> tuple[dict[str, FloatArray], dict[str, str]]:
    # torch reads bfloat16, which numpy has not.
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(folder / WEIGHTS_NAME, framework="pt") as file:
            opened: Any = file
            tensors = {name: opened.get_tensor(name).float().numpy() for name in opened.keys()}  # noqa: SIM118
            return tensors, opened.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise ProgramError(f"cannot read {WEIGHTS_NAME}: {error}", where=folder) from error
