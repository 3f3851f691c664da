"""Finds a model's configuration, and of its weights the headers alone: in a folder, a file, the package, the hub."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from prgec.compiler.frontend.checkpoint import ALIASES, DEMO, QUANTIZATION_CONFIG
from prgec.compiler.frontend.gguf_config import config_of
from prgec.compiler.plan.shape import ModelShape, shape_of_config
from prgec.core.formats.gguf_file import SUFFIX, read_gguf
from prgec.errors import CheckpointError

_CONFIG = "config.json"
_KNOWN = Path(__file__).with_name("known.json")
_MOST_HEADER = 1 << 27
_ELEMENT_BYTES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
# Type to which a compilation unpacks the weights of a GGUF file.
_UNPACKED = "F32"
# A hub that accepts the connection and never answers must not hold a command of a second.
_HUB_TIMEOUT_S = 10.0
# Share of weights that config.json does not count: norms and biases.
_TOLERANCE = 0.02


def read_shape(model: str) -> ModelShape:
    """Return the sizes of what a user named.

    Args:
        model: A checkpoint's folder, a .gguf, a config.json, `demo`, a name of `known_models`, an alias, or a hub id.

    Raises:
        CheckpointError: If there is no such model, its files are damaged, or it is not modelled.
    """
    path = _demo() if model == DEMO else Path(model)
    if path.is_dir() or _is_gguf(path):
        return shape_of_checkpoint(path, path.resolve().name if model != DEMO else DEMO)
    if path.is_file():
        return shape_of_config(_read_config(path), path.stem if path.name != _CONFIG else path.resolve().parent.name)
    known = {name.lower(): name for name in known_models()}
    if (name := known.get(model.lower())) is not None:
        return shape_of_config(known_models()[name], name)
    return _from_hub(model)


def read_config(model: str) -> Mapping[str, Any]:
    """Return the configuration that `read_shape` read; for a hub id, its copy of it.

    Raises:
        CheckpointError: If there is none.
    """
    path = _demo() if model == DEMO else Path(model)
    if path.is_dir():
        return _read_config(path / _CONFIG)
    if path.is_file():
        return _read_config(path)
    known = {name.lower(): config for name, config in known_models().items()}
    if model.lower() in known:
        return known[model.lower()]
    from huggingface_hub import hf_hub_download

    return _read_config(Path(hf_hub_download(ALIASES.get(model, model), _CONFIG, local_files_only=True)))


def compile_name(model: str) -> str:
    """Return what `prgec compile` calls the model: it takes a folder, an alias or a hub id, and weights with it."""
    if Path(model).is_file():
        return model if _is_gguf(Path(model)) else str(Path(model).parent)
    is_known = model.lower() in {name.lower() for name in known_models()}
    if Path(model).is_dir() or not is_known or model in ALIASES:
        return model
    return model.lower() if model.lower() in ALIASES else f"path/to/{model}"


def shape_of_checkpoint(path: Path, name: str) -> ModelShape:
    """Return the sizes of a checkpoint in a folder, or in a .gguf.

    Raises:
        CheckpointError: As `read_shape`.
    """
    if _is_gguf(path):
        return _with_tensors(shape_of_config(_read_config(path), name), [tensors_of(path)])
    config = _read_config(path / _CONFIG)
    shape = shape_of_config(config, name)
    # Tensors of quantised layers are not those of the model that is made of them.
    files = [] if QUANTIZATION_CONFIG in config else sorted(path.glob("*.safetensors"))
    return _with_tensors(shape, [tensors_of(each) for each in files])


def count_weights(shards: Iterable[Path]) -> int:
    """Elements of all tensors of some files, from their headers."""
    return sum(_elements(dims) for path in shards for _, dims in tensors_of(path).values())


def known_models() -> dict[str, dict[str, Any]]:
    """Configurations of well-known models by name, smallest of a family first; sizes only."""
    raw: dict[str, dict[str, Any]] = json.loads(_KNOWN.read_text(encoding="utf-8"))
    return raw


def tensors_of(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return dtype and shape of every tensor of a file of weights, from its header.

    Raises:
        CheckpointError: If it is not such a file.
    """
    if _is_gguf(path):
        return {name: (_UNPACKED, each.shape) for name, each in read_gguf(path).tensors.items()}
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > _MOST_HEADER:
                raise ValueError(f"its header has {length} bytes")
            raw = json.loads(file.read(length))
        return {
            name: (str(each["dtype"]), tuple(map(int, each["shape"])))
            for name, each in raw.items()
            if name != "__metadata__"
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise CheckpointError(f"cannot read the header of the weights: {error}", where=path) from error


def _with_tensors(shape: ModelShape, files: list[dict[str, tuple[str, tuple[int, ...]]]]) -> ModelShape:
    """Count the weights there are, and refuse a configuration they do not bear out."""
    tensors = {name: each for file in files for name, each in file.items()}
    if not tensors:
        return shape
    sizes = {name: _elements(dims) for name, (_, dims) in tensors.items()}
    weights = sum(sizes.values())
    expected = shape.num_weights
    stored_head = shape.is_tied and any(name.endswith("lm_head.weight") for name in sizes)
    counted = weights - (shape.vocab * shape.width if stored_head else 0)
    if abs(counted - expected) > _TOLERANCE * expected:
        raise CheckpointError(
            f"the weights of {shape.name} have {counted / 1e6:.1f} million elements; its config.json implies "
            f"{expected / 1e6:.1f}",
            hint="it has layers that are not modelled, or files of another model",
        )
    num_bytes = sum(sizes[name] * _ELEMENT_BYTES.get(dtype, 4) for name, (dtype, _) in tensors.items())
    return replace(shape, weights=counted, file_bytes=num_bytes)


def _is_gguf(path: Path) -> bool:
    return path.suffix == SUFFIX and path.is_file()


def _elements(dims: tuple[int, ...]) -> int:
    elements = 1
    for size in dims:
        elements *= size
    return elements


def _demo() -> Path:
    from prgec.demo import checkpoint_dir

    return checkpoint_dir()


def _read_config(path: Path) -> Mapping[str, Any]:
    if _is_gguf(path):
        return config_of(read_gguf(path))
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot read the model's configuration: {error}", where=path) from error
    if not isinstance(raw, dict):
        raise CheckpointError("the model's configuration is not a JSON object", where=path)
    return raw


def _from_hub(model: str) -> ModelShape:
    """Ask the hub for the configuration and for the headers of the weights, never for weights."""
    hub_id = ALIASES.get(model, model)
    if hub_id.count("/") != 1 or hub_id.startswith((".", "/", "~")):
        names = ", ".join((DEMO, *ALIASES, *known_models()))
        raise CheckpointError(f"there is no folder, file, name or hub id {model!r}", hint=f"names: {names}")
    # Takes half a second to import, which no local model should wait for.
    from huggingface_hub import HfApi, hf_hub_download

    try:
        return shape_of_config(_read_config(Path(hf_hub_download(hub_id, _CONFIG, local_files_only=True))), model)
    except CheckpointError:
        raise
    except Exception:  # The cache's errors are many and none of them matters: the hub comes next.
        pass
    try:
        api = HfApi()
        api.model_info(hub_id, timeout=_HUB_TIMEOUT_S)
        config = _read_config(Path(hf_hub_download(hub_id, _CONFIG)))
        files = api.get_safetensors_metadata(hub_id).files_metadata.values()
    except CheckpointError:
        raise
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
        raise CheckpointError(
            f"the configuration of {hub_id} is not in the local cache and could not be downloaded: {reason}",
            hint="pass a folder or a config.json instead",
        ) from error
    tensors = [{name: (str(each.dtype), tuple(each.shape)) for name, each in file.tensors.items()} for file in files]
    return _with_tensors(shape_of_config(config, model), [] if QUANTIZATION_CONFIG in config else tensors)
