"""P-RGE as it ships: the compiled graphs, the trainer and the estimators, run by PyTorch.

MeZO over LoRA-FA is the case q = 1.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from prgec.compile.options import CompileOptions
from prgec.engines.torch.program import TorchProgram
from prgec.training.estimators import Estimator, find_estimator
from prgec.training.trainer import Trainer


class Prge(Trainer):
    """One run of P-RGE.

    Args:
        model: Checkpoint folder, alias or hub id.
        seed: Seed of the noise; the frozen A are those of `a_seed`, as in a program that was compiled once.
        eps: Perturbation scale.
        estimator: Row of the estimator table.
        options: Constants of the estimator, such as `floor` and `cap` of `std`, and fields of `CompileOptions`.
    """

    def __init__(self, model: str, *, seed: int, eps: float = 1e-2, estimator: str = "plain", **options: Any) -> None:
        chosen = _with_constants(find_estimator(estimator), options)
        self.program = shared_program(model, options)
        super().__init__(self.program, chosen, eps=eps, seed=seed)
        self.rows_per_step = self.program.manifest.num_rows


def _with_constants(estimator: Any, options: dict[str, Any]) -> Estimator:
    """Take out of the options those that are constants of the estimator, a dataclass, and give it them."""
    names = {each.name for each in fields(estimator) if each.init} & set(options)
    changed: Estimator = replace(estimator, **{name: options.pop(name) for name in names})
    return changed


def shared_program(model: str, options: Mapping[str, Any]) -> TorchProgram:
    """Return the graphs of a compilation with their state at zero; equal options share them, one run at a time.

    Args:
        model: Checkpoint folder, alias or hub id.
        options: Fields of `CompileOptions`; targets, layers and data may be texts with commas.
    """
    # Without legality passes that exist for delegates alone: they cost time here.
    chosen = {"backend": "portable", "seq_len": 64, **options}
    for name, kind in {"targets": str, "layers": str, "data": Path}.items():
        if isinstance(chosen.get(name), str):
            chosen[name] = tuple(map(kind, chosen[name].split(",")))
    if "lora_a" in chosen:
        chosen["lora_a"] = Path(chosen["lora_a"])
    program = _program(tuple(sorted({**chosen, "model": model}.items())))
    program.write_state({name: 0.0 * array for name, array in program.read_state().items()})
    return program


@functools.lru_cache(maxsize=4)
def _program(options: tuple[tuple[str, Any], ...]) -> TorchProgram:
    """Exporting takes longer than training a small model: runs of equal options share the program, one by one."""
    return TorchProgram.build(CompileOptions(**dict(options), output=Path("unused.pte")))
