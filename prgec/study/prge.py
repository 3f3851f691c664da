"""P-RGE as it ships: the compiled graphs, the trainer and the estimators, run by PyTorch.

MeZO over LoRA-FA is the case q = 1.
"""

from __future__ import annotations

import functools
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
        # Without legality passes: they exist for delegates, and cost time here.
        options = {"backend": "portable", "seq_len": 64, **options}
        for name in ("targets", "layers"):
            if isinstance(options.get(name), str):
                options[name] = tuple(options[name].split(","))
        self.program = _program(tuple(sorted({**options, "model": model}.items())))
        self.program.write_state({name: 0.0 * array for name, array in self.program.read_state().items()})
        super().__init__(self.program, chosen, eps=eps, seed=seed)
        self.rows_per_step = self.program.manifest.num_rows


def _with_constants(estimator: Any, options: dict[str, Any]) -> Estimator:
    """Take out of the options those that are constants of the estimator, a dataclass, and give it them."""
    names = {each.name for each in fields(estimator) if each.init} & set(options)
    changed: Estimator = replace(estimator, **{name: options.pop(name) for name in names})
    return changed


@functools.lru_cache(maxsize=4)
def _program(options: tuple[tuple[str, Any], ...]) -> TorchProgram:
    """Exporting takes longer than training a small model: runs of equal options share the program, one by one."""
    return TorchProgram.build(CompileOptions(**dict(options), output=Path("unused.pte")))
