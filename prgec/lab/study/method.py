"""The one interface of everything a study can train, and the table of kinds."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, Protocol

from prgec.core.contract.engine import GeneratingProgram
from prgec.errors import UsageError
from prgec.lab.study.spec import Options
from prgec.runtime.training.step import Steps

COMPILED = "prge"
# Kind -> `module:class`, imported when it is used.
KINDS = {
    COMPILED: "prgec.lab.study.prge:Prge",
    "gradient": "prgec.lab.study.gradient:Gradient",
    "mezo": "prgec.lab.study.mezo:Mezo",
    "conmezo": "prgec.lab.study.conmezo:ConMezo",
    "fo": "prgec.lab.study.first_order:FirstOrder",
    "side": "prgec.lab.study.side:Side",
}


class TrainableMethod(Steps, Protocol):
    """A model under training, one batch of the program's shapes a step.

    Attributes:
        program: Answers `forward` and carries manifest and tokenizer, for encoding and evaluation.
        rows_per_step: Rows of forward passes a step costs.
        held_bytes: Room for computing that it holds when it is made, weights left out.
    """

    program: GeneratingProgram
    rows_per_step: int
    held_bytes: int


def build_method(model: str, options: Options, seed: int, where: Path) -> TrainableMethod:
    """Return a fresh method of the kind its options name.

    Args:
        model: Checkpoint folder, alias or hub id.
        options: `kind`, and what the kind takes.
        seed: Seed of everything random.
        where: The study, for messages.

    Raises:
        UsageError: If there is no such kind, or it does not take an option.
    """
    method: TrainableMethod = _call(_class(options, where), model, options, seed, where)
    return method


def prepare(model: str, options: Options, where: Path) -> None:
    """Make what runs of equal options share, so that processes forked later find it: the export of a compiled graph.

    Raises:
        UsageError: If there is no such kind, or it does not take an option.
    """
    kind = _class(options, where)
    if hasattr(kind, "prepare"):
        _call(kind.prepare, model, options, 0, where)


def _class(options: Options, where: Path) -> Any:
    kind = options.get("kind", COMPILED)
    if kind not in KINDS:
        raise UsageError(f"unknown kind {kind!r}", where=where, hint=f"known: {', '.join(KINDS)}")
    module, name = KINDS[kind].split(":")
    return getattr(importlib.import_module(module), name)


def _call(what: Any, model: str, options: Options, seed: int, where: Path) -> Any:
    values = {name: value for name, value in options.items() if name not in ("kind", "lr", "schedule")}
    try:
        return what(model, seed=seed, **values)
    except TypeError as error:
        kind = options.get("kind", COMPILED)
        raise UsageError(f"kind {kind} cannot be made of {dict(options)}: {error}", where=where) from error
