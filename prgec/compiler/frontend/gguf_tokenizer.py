"""The tokenizer of a GGUF file, in the form of `tokenizers`: pieces by scores (Llama, Gemma), or merges over bytes.

A file names the rule that splits text before the merges; only rules that are known here are read, since a wrong one
would silently split words elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from prgec.core.formats.gguf_file import GgufFile
from prgec.errors import CheckpointError

_PIECES, _BYTES = "llama", "gpt2"
# Kinds of tokens: what a text never contains, and what is found in it before anything else.
_CONTROL, _USER_DEFINED = 3, 4
_SPACE = "\u2581"
_QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
# Name of the rule -> its regular expression; None for GPT-2's, which is built in.
_SPLITS: dict[str, str | None] = {"gpt-2": None, "smollm": None, "qwen2": _QWEN_SPLIT, "llama-bpe": _LLAMA3_SPLIT}
_DIGITS_APART = ("smollm",)
_COMPOSED = ("qwen2",)
# Whole words of the vocabulary are taken before merges are tried.
_WORDS_FIRST = ("llama-bpe",)
_NAMED = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}


def load_tokenizer(file: GgufFile) -> Any:
    """Return the tokenizer as transformers has it.

    Raises:
        CheckpointError: If the file has none, a damaged one, or one of a kind that is not read.
    """
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    kind = file.metadata.get("tokenizer.ggml.model")
    if not tokens or kind not in (_PIECES, _BYTES):
        raise CheckpointError(
            f"the file's tokenizer is of kind {kind!r}, which is not supported",
            where=file.path,
            hint=f"known: {_PIECES}, {_BYTES}; or pass the folder of a Hugging Face checkpoint",
        )
    try:
        return _build(file, tokens, str(kind))
    except CheckpointError:
        raise
    except Exception as error:  # the Rust library raises bare Exception
        reason = " ".join(str(error).split())[:160]
        raise CheckpointError(f"the file's tokenizer is damaged: {reason}", where=file.path) from error


def _build(file: GgufFile, tokens: Sequence[str], kind: str) -> Any:
    from transformers import PreTrainedTokenizerFast

    backend = _over_bytes(file, tokens) if kind == _BYTES else _by_scores(file, tokens)
    named = {name: _named(file, key, tokens) for key, name in _NAMED.items()}
    special = {name: text for name, text in named.items() if text is not None}
    _add_whole(backend, file, tokens)
    if file.metadata.get("tokenizer.ggml.add_bos_token", kind == _PIECES) and "bos_token" in special:
        _put_in_front(backend, special["bos_token"])
    wrapped = PreTrainedTokenizerFast(tokenizer_object=backend, clean_up_tokenization_spaces=False, **special)
    wrapped.chat_template = file.metadata.get("tokenizer.chat_template")
    return wrapped


def _over_bytes(file: GgufFile, tokens: Sequence[str]) -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    rule = str(file.metadata.get("tokenizer.ggml.pre", "unknown"))
    if rule not in _SPLITS:
        raise CheckpointError(
            f"the file's tokenizer splits text by the rule {rule!r}, which is not supported",
            where=file.path,
            hint=f"known: {', '.join(_SPLITS)}; or pass the folder of a Hugging Face checkpoint",
        )
    merges = [tuple(merge.split(" ", 1)) for merge in file.metadata.get("tokenizer.ggml.merges", ())]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    backend = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=rule in _WORDS_FIRST))
    split = _SPLITS[rule]
    parts: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if rule in _DIGITS_APART else []
    if split is not None:
        parts.append(pre_tokenizers.Split(Regex(split), behavior="isolated"))
    parts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None))
    backend.pre_tokenizer = pre_tokenizers.Sequence(parts)
    if rule in _COMPOSED:
        backend.normalizer = normalizers.NFC()
    backend.decoder = decoders.ByteLevel()
    return backend


def _by_scores(file: GgufFile, stored: Sequence[str]) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    # Runs of spaces are stored as they are, all else with the sign for a space.
    tokens = [_SPACE * len(token) if token and not token.strip(" ") else token for token in stored]
    has_prefix = bool(file.metadata.get("tokenizer.ggml.add_space_prefix", True))
    unknown = _named(file, "unknown", tokens)
    vocabulary = {token: index for index, token in enumerate(tokens)}
    merges = _merges(file, tokens, vocabulary)
    backend = Tokenizer(models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(
        replacement=_SPACE, prepend_scheme="first" if has_prefix else "never", split=False
    )
    last = [decoders.Strip(content=" ", left=1)] if has_prefix else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *last]
    )
    return backend


def _merges(file: GgufFile, tokens: Sequence[str], vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return every way to put a piece together out of two, the best pieces first.

    Scores fall with the place of a merge. Gemma's file has equal ones where that is lost, and the order of its
    vocabulary instead.
    """
    is_gemma = file.architecture.startswith("gemma")
    scores = file.metadata.get("tokenizer.ggml.scores")
    ranks = range(len(tokens)) if is_gemma or scores is None else (-scores).tolist()
    found = []
    for token, rank in zip(tokens, ranks, strict=True):
        for at in range(1, len(token)):
            left, right = token[:at], token[at:]
            if left in vocabulary and right in vocabulary:
                found.append((rank, -len(left), -len(right), left, right))
    # Stable: pieces of one rank keep the order of the vocabulary.
    found.sort(key=lambda each: each[:3])
    return [(left, right) for *_, left, right in found]


def _add_whole(backend: Any, file: GgufFile, tokens: Sequence[str]) -> None:
    """Name the tokens that text is searched for before it is split."""
    from tokenizers import AddedToken

    kinds = file.metadata.get("tokenizer.ggml.token_type")
    if kinds is None:
        return
    control = [AddedToken(token, normalized=False, special=True) for token in _of(tokens, kinds, _CONTROL)]
    own = [AddedToken(token, normalized=False, special=False) for token in _of(tokens, kinds, _USER_DEFINED)]
    backend.add_special_tokens(control)
    backend.add_tokens([token for token in own if token.content.strip(" ")])


def _of(tokens: Sequence[str], kinds: Sequence[int], kind: int) -> list[str]:
    return [token for token, each in zip(tokens, kinds, strict=True) if each == kind]


def _put_in_front(backend: Any, token: str) -> None:
    from tokenizers import processors

    backend.post_processor = processors.TemplateProcessing(
        single=f"{token} $A", pair=f"{token} $A {token} $B", special_tokens=[(token, backend.token_to_id(token))]
    )


def _named(file: GgufFile, key: str, tokens: Sequence[str]) -> str | None:
    index = file.metadata.get(f"tokenizer.ggml.{key}_token_id")
    if index is None:
        return None
    if not 0 <= index < len(tokens):
        raise CheckpointError(f"the file's {key} token is {index}, beyond its {len(tokens)} tokens", where=file.path)
    return str(tokens[index])
