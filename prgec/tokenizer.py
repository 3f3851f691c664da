"""The tokenizer inside a program: packed at compile time with transformers, read back with `tokenizers` alone.

The packed form is an uncompressed zip with fixed time stamps, so equal tokenizers are equal bytes and a C++ runner
can read it without a decompressor. Members: `tokenizer.json` (Hugging Face fast format), `prgec_tokenizer.json`
(special ids, BOS behaviour, chat template) and, where the checkpoint has one, sentencepiece's `tokenizer.model`.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prgec.chat import render_chat, spans_said
from prgec.errors import CheckpointError, DataError, ProgramError

if TYPE_CHECKING:
    import tokenizers

TOKENIZER_JSON = "tokenizer.json"
SETTINGS_JSON = "prgec_tokenizer.json"
SENTENCEPIECE_MODEL = "tokenizer.model"
FORMAT_VERSION = 1

_TOKENIZER_FILES = (TOKENIZER_JSON, SENTENCEPIECE_MODEL, "vocab.json")
_EPOCH = (1980, 1, 1, 0, 0, 0)
_RECOMPILE = "compile the program again"
# Largest known tokenizer.json files are near 40 MB; anything far beyond is not a tokenizer.
_MAX_MEMBER_BYTES = {TOKENIZER_JSON: 256 << 20, SETTINGS_JSON: 4 << 20, SENTENCEPIECE_MODEL: 64 << 20}


def pack_tokenizer(checkpoint: Path) -> bytes:
    """Pack the tokenizer of a checkpoint folder; needs transformers.

    Args:
        checkpoint: Folder with `tokenizer.json`, or only with sentencepiece's `tokenizer.model`.

    Returns:
        The zip described in the module's docstring; deterministic.

    Raises:
        CheckpointError: If the folder has no tokenizer, or none that the fast format can express.
    """
    tokenizer = _load_with_transformers(checkpoint)
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    # Row length is the driver's business: a tokenizer that cuts or pads by itself would move label positions.
    backend["truncation"] = backend["padding"] = None
    members = {
        TOKENIZER_JSON: json.dumps(backend, ensure_ascii=False, separators=(",", ":")).encode(),
        SETTINGS_JSON: json.dumps(_settings(tokenizer), ensure_ascii=False, sort_keys=True).encode(),
    }
    sentencepiece_model = checkpoint / SENTENCEPIECE_MODEL
    if sentencepiece_model.is_file():
        members[SENTENCEPIECE_MODEL] = sentencepiece_model.read_bytes()
    return _zip(members)


@dataclass(frozen=True)
class Tokenizer:
    """Text to ids and back, from a packed blob; equal to the checkpoint's own tokenizer.

    Attributes:
        bos_id: Token that starts a text, None if the vocabulary has none.
        eos_id: Token that ends a text, None if the vocabulary has none.
        pad_id: Token to pad with; EOS, else 0, where the checkpoint names none.
        add_bos: Whether `encode` puts BOS in front.
        chat_template: Jinja template of the checkpoint, None if it has none.
        special_tokens: `bos_token` and the like, as chat templates read them.
        sha256: Hash of the packed blob, by which files of rows name their tokenizer.
    """

    backend: tokenizers.Tokenizer
    bos_id: int | None
    eos_id: int | None
    pad_id: int
    add_bos: bool
    chat_template: str | None
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    sha256: str = ""

    @classmethod
    def unpack(cls, blob: bytes) -> Tokenizer:
        """Read a packed tokenizer, trusting nothing in it.

        Raises:
            ProgramError: If the blob is not one that `pack_tokenizer` writes.
        """
        members = _unzip(blob)
        settings = _parse_settings(members[SETTINGS_JSON])
        backend = _parse_backend(members[TOKENIZER_JSON])
        _check_ids(settings, backend.get_vocab_size(with_added_tokens=True))
        return cls(backend=backend, bos_id=settings["bos_id"], eos_id=settings["eos_id"], pad_id=settings["pad_id"],
                   add_bos=settings["add_bos"], chat_template=settings["chat_template"],
                   special_tokens=settings["special_tokens"],
                   sha256=hashlib.sha256(blob).hexdigest())  # fmt: skip

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of a text, with BOS and the like as the checkpoint adds them unless told otherwise."""
        ids: list[int] = self.backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> tuple[list[int], list[bool]]:
        """Return the ids of a conversation under the chat template, and which of them the assistant says.

        Raises:
            DataError: If the checkpoint has no chat template, or it refuses the conversation.
        """
        text, spans = spans_said(self._template(), messages, self.special_tokens)
        # The template writes special tokens itself.
        encoding = self.backend.encode(text, add_special_tokens=False)
        is_said = [any(start < last and first < end for first, last in spans) for start, end in encoding.offsets]
        return encoding.ids, is_said

    def encode_chat_prompt(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Return the ids of a conversation up to where the assistant is to begin.

        Raises:
            DataError: If the checkpoint has no chat template, or it refuses the conversation.
        """
        text = render_chat(self._template(), messages, self.special_tokens, asks=True)
        return self.encode(text, add_special_tokens=False)

    def _template(self) -> str:
        if self.chat_template is None:
            raise DataError("the checkpoint has no chat template, so conversations cannot be written",
                            hint="compile a chat model, or use prompt and completion")  # fmt: skip
        return self.chat_template

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of some ids."""
        text: str = self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text


def _load_with_transformers(checkpoint: Path) -> Any:
    if not any((checkpoint / name).is_file() for name in _TOKENIZER_FILES):
        raise CheckpointError("the checkpoint has no tokenizer", where=checkpoint,
                              hint=f"expected {' or '.join(_TOKENIZER_FILES)}")  # fmt: skip
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
        raise CheckpointError(f"{type(tokenizer).__name__} has no fast form", where=checkpoint,
                              hint=f"save the checkpoint with a {TOKENIZER_JSON}")  # fmt: skip
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


def _settings(tokenizer: Any) -> dict[str, Any]:
    template = tokenizer.chat_template
    bos_id, eos_id = tokenizer.bos_token_id, tokenizer.eos_token_id
    pad_id = next((i for i in (tokenizer.pad_token_id, eos_id) if i is not None), 0)
    return {
        "format": FORMAT_VERSION,
        "bos_id": bos_id,
        "eos_id": eos_id,
        "pad_id": pad_id,
        # Asked of the tokenizer itself: configuration flags and post-processors contradict each other in the wild.
        "add_bos": bos_id is not None and tokenizer("a")["input_ids"][:1] == [bos_id],
        "chat_template": template if isinstance(template, str) else None,
        "special_tokens": {name: str(token) for name, token in tokenizer.special_tokens_map.items()
                           if isinstance(token, str)},
    }  # fmt: skip


def _zip(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, data in members.items():
            info = zipfile.ZipInfo(name, date_time=_EPOCH)
            info.create_system = 3
            archive.writestr(info, data)
    return buffer.getvalue()


def _unzip(blob: bytes) -> dict[str, bytes]:
    """Return the members of a blob: known names, stored uncompressed, of sane size."""
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


def _parse_settings(raw: bytes) -> dict[str, Any]:
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
    checks["special_tokens"] = _is_text_map(settings.setdefault("special_tokens", {}))
    if version != FORMAT_VERSION:
        raise ProgramError(f"the program's tokenizer has format {version!r}; this prgec reads {FORMAT_VERSION}")
    for name, is_good in checks.items():
        if not is_good:
            raise ProgramError(f"the program's tokenizer has {name} = {settings[name]!r}", hint=_RECOMPILE)
    parsed: dict[str, Any] = settings
    return parsed


def _is_id(value: object, *, optional: bool) -> bool:
    return (optional and value is None) or (isinstance(value, int) and not isinstance(value, bool) and value >= 0)


def _is_text_map(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())


def _check_ids(settings: dict[str, Any], vocab_size: int) -> None:
    for name in ("bos_id", "eos_id"):
        if settings[name] is not None and settings[name] >= vocab_size:
            raise ProgramError(f"the program's tokenizer has {name} = {settings[name]}, beyond its vocabulary")


def _parse_backend(raw: bytes) -> tokenizers.Tokenizer:
    import tokenizers

    try:
        backend = tokenizers.Tokenizer.from_str(raw.decode("utf-8"))
    except Exception as error:  # the Rust library raises bare Exception
        raise ProgramError(f"the program's {TOKENIZER_JSON} is damaged: {error}", hint=_RECOMPILE) from error
    backend.no_truncation()
    backend.no_padding()
    return backend
