"""The options of a compilation from what a user gave: what follows from the rest is filled in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prgec.backends import BACKENDS, all_settings, find_backend
from prgec.compiler.options import SCHEMES_BY_BITS, CompileOptions
from prgec.core.contract.names import DEFAULT_OPTIMIZERS, SIDE

# K of programs that write answers, and have no data: rewards are for sentences.
_WRITTEN_LABELS = 32


def options_from(said: Mapping[str, Any]) -> CompileOptions:
    """Return options from a user's values.

    Args:
        said: By name, settings of backends among them; T and K are None where the data should say them, the method,
            the optimizer and q where nobody did.
    """
    names = {setting.name for _, setting in all_settings()}
    settings = {name: value for name, value in said.items() if name in names and value is not None}
    values = {name: value for name, value in said.items() if name not in names}
    if values.get("quantize") in SCHEMES_BY_BITS:
        values["quantize"] = _scheme_for(values["quantize"], values.get("backend", CompileOptions.backend))
    if values.get("method") is None:
        values["method"] = _method_for(values)
    if values.get("optimizer") is None:
        values["optimizer"] = DEFAULT_OPTIMIZERS[values["method"]]
    if values.get("q") is None:
        values["q"] = CompileOptions.q
    if values.get("seq_len") is None:
        values["seq_len"] = 0 if values.get("data") else CompileOptions.seq_len
    if values.get("num_labels") is None:
        values["num_labels"] = _labels_for(values)
    return CompileOptions(**values, settings=settings)


def _labels_for(said: Mapping[str, Any]) -> int:
    """Return K where nobody gave it; 0 to have the data say it."""
    if said["method"] == SIDE:
        # Candidates are distinguished by the token they begin with.
        return 1
    if said.get("data"):
        return 0
    fits = said["seq_len"] > _WRITTEN_LABELS
    return _WRITTEN_LABELS if said.get("rollouts") and fits else CompileOptions.num_labels


def _scheme_for(bits: str, backend: str) -> str:
    """Return the scheme of a backend for weights of so many bits; the usual one where it has none, to be refused."""
    first, *others = SCHEMES_BY_BITS[bits]
    schemes = find_backend(backend).schemes if backend in BACKENDS else ()
    return next((each for each in (first, *others) if each in schemes), first)


def _method_for(said: Mapping[str, Any]) -> str:
    """Return the method of a user who named none: that of the backend, or the papers' where something speaks of it."""
    asks_for_losses = (
        said.get("q") is not None
        or said.get("state") == "dual"
        or said.get("prefix") == "shared"
        or said.get("passes") is not None
    )
    backend = said.get("backend", CompileOptions.backend)
    return "prge" if asks_for_losses or backend not in BACKENDS else find_backend(backend).default_method
