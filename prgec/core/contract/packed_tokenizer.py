"""The packed form of a tokenizer, read without trust: its members, their sizes and their types."""

from __future__ import annotations

import io
import json
import zipfile
from typing import TYPE_CHECKING, Any

from prgec.errors import ProgramError

if TYPE_CHECKING:
    import tokenizers

TOKENIZER_JSON = "tokenizer.json"
SETTINGS_JSON = "prgec_tokenizer.json"
SENTENCEPIECE_MODEL = "tokenizer.model"
FORMAT_VERSION = 1
# The format of a classifier: rows are whole texts and answers are its classes, so readers that only know tokens must
# refuse it.
CLASSIFIER_FORMAT = 2

_RECOMPILE = "compile the program again"
# Largest known tokenizer.json files are near 40 MB; anything far beyond is not a tokenizer.
_MAX_MEMBER_BYTES = {TOKENIZER_JSON: 256 << 20, SETTINGS_JSON: 4 << 20, SENTENCEPIECE_MODEL: 64 << 20}


def unzip(blob: bytes) -> dict[str, bytes]:
    """Return the members of a blob: known names, stored uncompressed, of sane size.

    Raises:
        ProgramError: If something else is in it, or it is damaged.
    """
    members: dict[str, bytes] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(blob)) as archive:
            for info in archive.infolist():
                _check_member(info, members)
                members[info.filename] = archive.read(info)
    except (zipfile.BadZipFile, ValueError, NotImplementedError, RuntimeError, EOFError) as error:
        raise ProgramError(f"the program's tokenizer is damaged: {error}", hint=_RECOMPILE) from error
    for name in (TOKENIZER_JSON, SETTINGS_JSON):
        if name not in members:
            raise ProgramError(f"the program's tokenizer lacks {name}", hint=_RECOMPILE)
    return members


def _check_member(info: zipfile.ZipInfo, seen: dict[str, bytes]) -> None:
    limit = _MAX_MEMBER_BYTES.get(info.filename)
    if limit is None or info.filename in seen:
        raise ProgramError(f"the program's tokenizer has an unexpected member {info.filename!r}", hint=_RECOMPILE)
    if info.compress_type != zipfile.ZIP_STORED or info.file_size > limit:
        raise ProgramError(f"the program's tokenizer member {info.filename} is compressed or too large")


def parse_settings(raw: bytes) -> dict[str, Any]:
    """Return the settings, each of its type.

    Raises:
        ProgramError: If one is missing or of another type, or the format is one of a later prgec.
    """
    try:
        settings = json.loads(raw)
        version = settings["format"]
        checks = {
            "bos_id": _is_id(settings["bos_id"], optional=True),
            "eos_id": _is_id(settings["eos_id"], optional=True),
            "pad_id": _is_id(settings["pad_id"], optional=False),
            "add_bos": isinstance(settings["add_bos"], bool),
            "chat_template": settings["chat_template"] is None or isinstance(settings["chat_template"], str),
        }
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ProgramError(f"the program's tokenizer settings are damaged: {error}", hint=_RECOMPILE) from error
    special = settings.setdefault("special_tokens", {})
    checks["special_tokens"] = isinstance(special, dict) and all(isinstance(text, str) for text in special.values())
    if version == CLASSIFIER_FORMAT:
        names = settings.get("classes")
        checks["classes"] = isinstance(names, list) and bool(names) and all(isinstance(each, str) for each in names)
    elif version != FORMAT_VERSION:
        raise ProgramError(f"the program's tokenizer has format {version!r}; this prgec reads 1 and 2")
    for name, is_good in checks.items():
        if not is_good:
            raise ProgramError(f"the program's tokenizer has {name} = {settings.get(name)!r}", hint=_RECOMPILE)
    parsed: dict[str, Any] = settings
    return parsed


def _is_id(value: object, *, optional: bool) -> bool:
    return (optional and value is None) or (isinstance(value, int) and not isinstance(value, bool) and value >= 0)


def check_ids(settings: dict[str, Any], vocab_size: int) -> None:
    """Check that special ids are within the vocabulary.

    Raises:
        ProgramError: If one is not.
    """
    for name in ("bos_id", "eos_id"):
        if settings[name] is not None and settings[name] >= vocab_size:
            raise ProgramError(f"the program's tokenizer has {name} = {settings[name]}, beyond its vocabulary")


def parse_backend(raw: bytes) -> tokenizers.Tokenizer:
    """Return the tokenizer of a `tokenizer.json`, which neither cuts nor pads.

    Raises:
        ProgramError: If it cannot be read.
    """
    import tokenizers

    try:
        backend = tokenizers.Tokenizer.from_str(raw.decode("utf-8"))
    except Exception as error:  # the Rust library raises bare Exception
        raise ProgramError(f"the program's {TOKENIZER_JSON} is damaged: {error}", hint=_RECOMPILE) from error
    backend.no_truncation()
    backend.no_padding()
    return backend
