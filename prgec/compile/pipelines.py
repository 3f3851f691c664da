"""The passes a compilation runs when the user names none: which rows of the pass table, with which options."""

from __future__ import annotations

from typing import Any

from prgec.backends.base import Backend
from prgec.compile.options import WEIGHT_ONLY_BITS, CompileOptions
from prgec.errors import UsageError
from prgec.passes import pass_table
from prgec.passes.spec import print_pipeline


def default_pipeline(options: CompileOptions, backend: Backend) -> str:
    """Pipeline text for `options`; the order is that of the pass table, less what the backend does not need.

    Raises:
        UsageError: If the backend has no such quantisation or dtype.
    """
    _check_formats(options, backend)
    chosen = _pass_options(options, backend)
    unused = _unused(options, backend)
    needed = {
        name: cls
        for name, cls in pass_table().items()
        if name not in unused and (not cls.is_legality or name in backend.legality)
    }
    return print_pipeline([cls(**chosen.get(name, {})) for name, cls in needed.items()])


def _check_formats(options: CompileOptions, backend: Backend) -> None:
    if options.quantize != "none" and options.quantize not in backend.schemes:
        known = ", ".join(("none", *sorted(backend.schemes)))
        raise UsageError(f"--backend {backend.name} has no --quantize {options.quantize}", hint=f"it has: {known}")
    if options.quantize_embedding and options.quantize_embedding not in backend.embedding_bits:
        raise UsageError(f"--backend {backend.name} has no --quantize-embedding", hint="leave it out")
    if options.dtype not in ("auto", *backend.dtypes):
        raise UsageError(
            f"--backend {backend.name} does not compute in {options.dtype}",
            hint=f"it does in: {', '.join(backend.dtypes)}",
        )
    if options.dtype == "f32" and options.quantize in WEIGHT_ONLY_BITS:
        raise UsageError(f"--quantize {options.quantize} multiplies in 16 bits; leave out --dtype f32")


def _pass_options(options: CompileOptions, backend: Backend) -> dict[str, dict[str, Any]]:
    return {
        "inject-lora-fa": {
            "targets": options.targets,
            "layers": options.layers,
            "rank": options.rank,
            "alpha": options.alpha,
            "seed": options.a_seed,
        },
        "share-prefix": {"q": options.q},
        "dualize": {"q": options.q},
        "insert-self-update": {"state": options.state},
        "quantize-base": {"scheme": options.quantize, "group": options.group_size},
        "quantize-embedding": {"bits": options.quantize_embedding, "group": options.group_size},
        "narrow-weights": {
            "dtype": _dtype(options, backend),
            "bits": WEIGHT_ONLY_BITS.get(options.quantize, 16),
            "group": options.group_size,
        },
    }


def _unused(options: CompileOptions, backend: Backend) -> set[str]:
    """Passes that these options have no work for."""
    has_kernels = options.rng == "kernel" or (options.rng == "auto" and backend.has_kernels)
    is_used = {
        "share-prefix": options.prefix in ("shared", "method")
        or (options.prefix == "auto" and options.layers != ("all",)),
        "fuse-update": has_kernels,
        "decompose-noise": not has_kernels,
        "quantize-base": options.quantize != "none" and options.quantize not in WEIGHT_ONLY_BITS,
        "quantize-embedding": bool(options.quantize_embedding),
        "narrow-weights": _dtype(options, backend) != "f32",
    }
    return {name for name, is_on in is_used.items() if not is_on}


def _dtype(options: CompileOptions, backend: Backend) -> str:
    return backend.dtypes[0] if options.dtype == "auto" else options.dtype
