"""Packs the tokenizer of a checkpoint into the form programs carry: `prgec.core.contract.tokenizer` reads it back."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

from prgec.core.contract.packed_tokenizer import (
    CLASSIFIER_FORMAT,
    FORMAT_VERSION,
    SENTENCEPIECE_MODEL,
    SETTINGS_JSON,
    TOKENIZER_JSON,
)
from prgec.core.formats.gguf_file import SUFFIX, read_gguf
from prgec.errors import CheckpointError

_TOKENIZER_FILES = (TOKENIZER_JSON, SENTENCEPIECE_MODEL, "vocab.json")
_EPOCH = (1980, 1, 1, 0, 0, 0)


def pack_tokenizer(checkpoint: Path, classes: tuple[str, ...] = ()) -> bytes:
    """Pack the tokenizer of a checkpoint folder; needs transformers.

    Args:
        checkpoint: Folder with `tokenizer.json`, or only with sentencepiece's `tokenizer.model`; or a GGUF file.
        classes: Names of a classifier's answers; none for a language model, whose answers are tokens.

    Returns:
        The zip described in the module's docstring; deterministic.

    Raises:
        CheckpointError: If the folder has no tokenizer, or none that the fast format can express.
    """
    tokenizer = load_tokenizer(checkpoint)
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    # Row length is the driver's business: a tokenizer that cuts or pads by itself would move label positions.
    backend["truncation"] = backend["padding"] = None
    members = {
        TOKENIZER_JSON: json.dumps(backend, ensure_ascii=False, separators=(",", ":")).encode(),
        SETTINGS_JSON: json.dumps(_settings(tokenizer, classes), ensure_ascii=False, sort_keys=True).encode(),
    }
    sentencepiece_model = checkpoint / SENTENCEPIECE_MODEL
    if sentencepiece_model.is_file():
        members[SENTENCEPIECE_MODEL] = sentencepiece_model.read_bytes()
    return _zip(members)


def load_tokenizer(checkpoint: Path) -> Any:
    """Load the tokenizer of a checkpoint as transformers has it.

    Raises:
        CheckpointError: As `pack_tokenizer`.
    """
    if checkpoint.suffix == SUFFIX:
        from prgec.compiler.frontend import gguf_tokenizer

        return gguf_tokenizer.load_tokenizer(read_gguf(checkpoint))
    if not any((checkpoint / name).is_file() for name in _TOKENIZER_FILES):
        raise CheckpointError(
            "the checkpoint has no tokenizer", where=checkpoint, hint=f"expected {' or '.join(_TOKENIZER_FILES)}"
        )
    # Imported here: programs are opened without transformers.
    from transformers import AutoTokenizer, LlamaTokenizer

    try:
        if _is_bare_sentencepiece(checkpoint):
            tokenizer = LlamaTokenizer.from_pretrained(checkpoint, local_files_only=True, add_bos_token=True)
        else:
            tokenizer = AutoTokenizer.from_pretrained(checkpoint, local_files_only=True)
    except Exception as error:  # transformers raises a dozen unrelated types here
        raise CheckpointError(f"cannot load the tokenizer: {error}", where=checkpoint) from error
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        raise CheckpointError(
            f"{type(tokenizer).__name__} has no fast form",
            where=checkpoint,
            hint=f"save the checkpoint with a {TOKENIZER_JSON}",
        )
    return tokenizer


def _is_bare_sentencepiece(checkpoint: Path) -> bool:
    """Return whether nothing but `tokenizer.model` says which tokenizer this is.

    AutoTokenizer then picks a generic class without sentencepiece's leading space and without BOS; models published
    with a bare sentencepiece file (Llama and its kin) were trained with both.
    """
    if (checkpoint / TOKENIZER_JSON).is_file() or not (checkpoint / SENTENCEPIECE_MODEL).is_file():
        return False
    try:
        settings = json.loads((checkpoint / "tokenizer_config.json").read_bytes())
    except FileNotFoundError:
        return True
    return not (isinstance(settings, dict) and settings.get("tokenizer_class"))


def _settings(tokenizer: Any, classes: tuple[str, ...]) -> dict[str, Any]:
    template = tokenizer.chat_template
    bos_id, eos_id = tokenizer.bos_token_id, tokenizer.eos_token_id
    pad_id = next((i for i in (tokenizer.pad_token_id, eos_id) if i is not None), 0)
    return {
        **({"format": CLASSIFIER_FORMAT, "classes": list(classes)} if classes else {"format": FORMAT_VERSION}),
        "bos_id": bos_id,
        "eos_id": eos_id,
        "pad_id": pad_id,
        # This calls the tokenizer itself: configuration flags and post-processors contradict each other in the wild.
        "add_bos": bos_id is not None and tokenizer("a")["input_ids"][:1] == [bos_id],
        "chat_template": template if isinstance(template, str) else None,
        "special_tokens": {
            name: str(token) for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)
        },
    }


def _zip(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, data in members.items():
            info = zipfile.ZipInfo(name, date_time=_EPOCH)
            info.create_system = 3
            archive.writestr(info, data)
    return buffer.getvalue()
