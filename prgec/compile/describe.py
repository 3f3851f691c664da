"""What a program says of itself, from what it was compiled from and by which passes."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from typing import Any

from prgec import __version__
from prgec.compile.options import WEIGHT_ONLY_BITS, CompileOptions
from prgec.compile.source import Source
from prgec.contract.manifest import Manifest, Site
from prgec.contract.tokenizer import Tokenizer
from prgec.errors import UsageError
from prgec.passes.infra import Pass
from prgec.passes.spec import print_pipeline


def manifest_of(
    options: CompileOptions, source: Source, passes: Sequence[Pass], sites: tuple[Site, ...], dynamic: bool
) -> Manifest:
    """Describe a program whose passes have run; what only the backend knows is added later.

    Raises:
        UsageError: If the passes make no program that trains.
    """
    if not sites:
        hint = "keep inject-lora-fa, dualize and insert-self-update in --passes"
        raise UsageError("the pipeline trains nothing", hint=hint)
    return Manifest(
        model=source.checkpoint.name,
        architecture=source.checkpoint.architecture,
        backend=options.backend,
        q=_option(passes, "dualize", "q"),
        batch_size=options.num_rows // (2 * _option(passes, "dualize", "q")),
        seq_len=options.seq_len,
        dynamic_seq_len=dynamic,
        num_labels=options.num_labels,
        vocab_size=source.vocab_size,
        rank=_option(passes, "inject-lora-fa", "rank"),
        alpha=_option(passes, "inject-lora-fa", "alpha"),
        a_seed=_option(passes, "inject-lora-fa", "seed"),
        state=_option(passes, "insert-self-update", "state"),
        quantize=scheme_of(passes),
        quantize_embedding=_optional(passes, "quantize-embedding", "bits", 0),
        state_access="outputs" if any(each.name == "return-state" for each in passes) else "buffers",
        generate=options.generate,
        sites=sites,
        pipeline=print_pipeline(passes),
        base_sha256=source.base_sha256,
        versions=_versions(),
        pad_token_id=_pad_id(source),
    )


def _pad_id(source: Source) -> int:
    """The tokenizer's pad token, unless the embedding has no such row; nothing ever attends to padding."""
    pad_id = Tokenizer.unpack(source.tokenizer).pad_id
    return pad_id if pad_id < source.vocab_size else 0


def _option(passes: Sequence[Pass], name: str, option: str) -> Any:
    found = [each for each in passes if each.name == name]
    if len(found) != 1:
        raise UsageError(f"the pipeline has {name} {len(found)} times; a program that trains itself needs it once")
    return getattr(found[0], option)


def scheme_of(passes: Sequence[Pass]) -> str:
    """Return the name of the scheme of the frozen layers, as `--quantize` spells it."""
    bits = _optional(passes, "narrow-weights", "bits", 16)
    weight_only = next((name for name, width in WEIGHT_ONLY_BITS.items() if width == bits), None)
    return weight_only or str(_optional(passes, "quantize-base", "scheme", "none"))


def _optional(passes: Sequence[Pass], name: str, option: str, default: Any) -> Any:
    return next((getattr(each, option) for each in passes if each.name == name), default)


def _versions() -> dict[str, str]:
    packages = ("torch", "executorch", "torchao", "transformers")
    return {"prgec": __version__, **{name: importlib.metadata.version(name) for name in packages}}
