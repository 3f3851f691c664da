"""P-RGE as it ships: the compiled graphs, the trainer and the estimators, run by PyTorch or by ExecuTorch.

MeZO over LoRA-FA is the case q = 1.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from prgec.lab.study.programs import prepare_program, shared_program
from prgec.runtime.training.estimators import Estimator, find_estimator
from prgec.runtime.training.prge_trainer import Estimation, PrgeTrainer


class Prge(PrgeTrainer):
    """One run of P-RGE.

    Args:
        model: Checkpoint folder, alias or hub id.
        seed: Seed of the noise; the frozen A are those of `a_seed`, as in a program that was compiled once.
        eps: Perturbation scale.
        estimator: Row of the estimator table.
        options: Constants of the estimator, such as `floor` and `cap` of `std`, `engine`, and fields of
            `CompileOptions`.
    """

    def __init__(self, model: str, *, seed: int, eps: float = 1e-2, estimator: str = "plain", **options: Any) -> None:
        chosen = _with_constants(estimator, options)
        self.program, self.held_bytes = shared_program(model, options)
        super().__init__(self.program, Estimation(estimator=chosen, eps=eps, seed=seed))
        self.rows_per_step = self.program.manifest.num_rows

    @staticmethod
    def prepare(model: str, *, seed: int, eps: float = 1e-2, estimator: str = "plain", **options: Any) -> None:
        """Make what runs of these arguments share."""
        del seed, eps
        _with_constants(estimator, options)
        prepare_program(model, options)


def _with_constants(name: str, options: dict[str, Any]) -> Estimator:
    """Take out of the options those that are constants of the estimator, a dataclass, and give it them."""
    estimator: Any = find_estimator(name)
    names = {each.name for each in fields(estimator) if each.init} & set(options)
    changed: Estimator = replace(estimator, **{name: options.pop(name) for name in names})
    return changed
