"""Finds a checkpoint (folder, GGUF file, alias, hub id) and checks that it is whole before anything heavy is loaded."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prgec.compiler.frontend.gguf_config import config_of
from prgec.core.formats.gguf_file import SUFFIX, read_gguf
from prgec.errors import CheckpointError

# Short names for models people put on devices. `demo` is the model that comes with the package.
ALIASES: dict[str, str] = {
    "tinyllama": "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
    "smollm2-135m": "HuggingFaceTB/SmolLM2-135M",
    "smollm2-360m": "HuggingFaceTB/SmolLM2-360M",
    "smollm3": "HuggingFaceTB/SmolLM3-3B",
    "qwen2.5-0.5b": "Qwen/Qwen2.5-0.5B",
    "qwen3-0.6b": "Qwen/Qwen3-0.6B",
    "llama-3.2-1b": "meta-llama/Llama-3.2-1B",
    "gemma-3-270m": "google/gemma-3-270m",
    "opt-125m": "facebook/opt-125m",
}
DEMO = "demo"

# Key of config.json that says how weights are stored where they are narrow.
QUANTIZATION_CONFIG = "quantization_config"
# Files of a LoRA adapter, as PEFT names them.
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_CONFIG = "config.json"
_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
_DOWNLOADED = ["*.json", "*.safetensors", "tokenizer.model", "*.txt"]
# snapshot_download waits for ever on a hub that accepts the connection and never answers, so something small is
# requested from the hub first.
_HUB_TIMEOUT_S = 10.0
_PASS_A_FOLDER = "pass the folder of a checkpoint instead: prgec compile path/to/checkpoint"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A complete checkpoint on disk.

    Attributes:
        path: Folder with config.json, safetensors and tokenizer files, or a GGUF file, which has all in one.
        name: Name by which the user referred to it, free of absolute paths.
        config: Parsed config.json, or what it would be.
        shards: Weight files in order.
        adapter: Folder of a LoRA adapter that is merged into the weights; None without one.
    """

    path: Path
    name: str
    config: dict[str, Any]
    shards: tuple[Path, ...]
    adapter: Path | None = None

    @property
    def is_gguf(self) -> bool:
        """Whether it is a GGUF file."""
        return self.path.suffix == SUFFIX

    @property
    def architecture(self) -> str:
        """Hugging Face class name of the model."""
        names = self.config.get("architectures") or [str(self.config.get("model_type", "unknown"))]
        return str(names[0])


def find_checkpoint(model: str) -> Checkpoint:
    """Resolve what the user typed and check that every file is there.

    Args:
        model: A folder, a .gguf file, an alias of `ALIASES`, `demo`, or a hub id. The folder of a LoRA adapter stands
            for its base model with the adapter merged.

    Raises:
        CheckpointError: If nothing is found or a file is missing or damaged.
    """
    path = Path(model)
    if model.endswith(SUFFIX) and path.is_file():
        return Checkpoint(path=path, name=path.name, config=config_of(read_gguf(path)), shards=(path,))
    if (path / ADAPTER_CONFIG).is_file():
        return replace(find_checkpoint(_base_of(path)), name=path.resolve().name, adapter=path)
    path = _locate(model)
    config = _read_json(path / _CONFIG, "the model's configuration")
    if not config.get("model_type"):
        raise CheckpointError("config.json does not say which model this is (no model_type)", where=path)
    if not any((path / name).is_file() for name in _TOKENIZERS):
        raise CheckpointError(
            "the checkpoint has no tokenizer", where=path, hint="expected tokenizer.json or tokenizer.model"
        )
    return Checkpoint(
        path=path, name=path.resolve().name if Path(model).is_dir() else model, config=config, shards=_shards(path)
    )


def _locate(model: str) -> Path:
    if model == DEMO:
        from prgec.demo import checkpoint_dir

        return checkpoint_dir()
    path = Path(model)
    if path.is_dir():
        if not (path / _CONFIG).is_file():
            raise CheckpointError("the folder has no config.json, so it is not a Hugging Face checkpoint", where=path)
        return path
    if path.exists():
        raise CheckpointError("expected the folder of a checkpoint or a .gguf, found a file", where=path)
    hub_id = ALIASES.get(model, model)
    if hub_id.count("/") != 1 or hub_id.startswith((".", "/", "~")):
        raise CheckpointError(
            f"there is no folder, alias or hub id {model!r}", hint=f"aliases: {DEMO}, {', '.join(ALIASES)}"
        )
    return _from_hub(hub_id)


def _base_of(adapter: Path) -> str:
    """Return the model that an adapter belongs to, as its folder names it: a path may be one from there."""
    base = _read_json(adapter / ADAPTER_CONFIG, "the adapter's configuration").get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise CheckpointError(f"{ADAPTER_CONFIG} names no base model", where=adapter)
    if not (adapter / ADAPTER_WEIGHTS).is_file():
        raise CheckpointError(
            f"the adapter has no {ADAPTER_WEIGHTS}", where=adapter, hint="pickled weights are never loaded"
        )
    beside = adapter.parent / base
    found = str(beside) if not Path(base).exists() and beside.is_dir() else base
    if (Path(found) / ADAPTER_CONFIG).is_file():
        raise CheckpointError("the adapter's base is an adapter, too", where=adapter, hint="merge that one first")
    return found


def _from_hub(hub_id: str) -> Path:
    from huggingface_hub import HfApi, snapshot_download

    try:
        return Path(snapshot_download(hub_id, allow_patterns=_DOWNLOADED, local_files_only=True))
    except Exception:  # The cache's errors are many and none of them matters: the hub comes next.
        pass
    try:
        HfApi().model_info(hub_id, timeout=_HUB_TIMEOUT_S)
        return Path(snapshot_download(hub_id, allow_patterns=_DOWNLOADED))
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
        raise CheckpointError(
            f"{hub_id} is not in the local cache and could not be downloaded: {reason}", hint=_PASS_A_FOLDER
        ) from error


def _shards(path: Path) -> tuple[Path, ...]:
    if (path / _SINGLE).is_file():
        return (path / _SINGLE,)
    if not (path / _INDEX).is_file():
        hint = "pickled weights are never loaded: convert them with transformers, model.save_pretrained(folder)"
        raise CheckpointError(f"the checkpoint has neither {_SINGLE} nor {_INDEX}", where=path, hint=hint)
    weight_map = _read_json(path / _INDEX, "the index of the weights").get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{_INDEX} has no weight_map", where=path)
    names = sorted({str(name) for name in weight_map.values()})
    # Names come from the file: one with a separator could point outside the folder.
    foreign = [name for name in names if Path(name).name != name]
    if foreign:
        raise CheckpointError(f"{_INDEX} names a file outside the folder: {foreign[0]!r}", where=path)
    missing = [name for name in names if not (path / name).is_file()]
    if missing:
        what = f"{len(missing)} of {len(names)} weight files are missing, first {missing[0]}"
        raise CheckpointError(what, where=path, hint="download the checkpoint again")
    return tuple(path / name for name in names)


def _read_json(path: Path, what: str) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot read {what}: {error}", where=path) from error
    if not isinstance(raw, dict):
        raise CheckpointError(f"{what} is not a JSON object", where=path)
    return raw
