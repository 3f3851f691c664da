"""Programs that compute their own gradients as they ship: the compiled graphs and the trainer."""

from __future__ import annotations

from typing import Any

from prgec.lab.study.programs import prepare_program, shared_program
from prgec.runtime.training.gradient_trainer import GradientTrainer

# A backward pass computes two products for each one of the forward pass. The shortcut, which walks back through one
# block only, is charged the same.
_FORWARDS_PER_STEP = 3


class Gradient(GradientTrainer):
    """One run of `--method exact` or `shortcut`.

    Args:
        model: Checkpoint folder, alias or hub id.
        seed: Seed of the run; nothing but the order of examples is random here.
        method: `exact` or `shortcut`.
        options: `engine`, and fields of `CompileOptions`.
    """

    def __init__(self, model: str, *, seed: int, method: str = "exact", **options: Any) -> None:
        del seed
        self.program, self.held_bytes = shared_program(model, _complete(method, options))
        self.program.forget_steps()
        super().__init__(self.program)
        self.rows_per_step = _FORWARDS_PER_STEP * self.program.manifest.num_rows

    @staticmethod
    def prepare(model: str, *, seed: int, method: str = "exact", **options: Any) -> None:
        """Make what runs of these arguments share."""
        del seed
        prepare_program(model, _complete(method, options))


def _complete(method: str, options: dict[str, Any]) -> dict[str, Any]:
    return {"method": method, "batch_size": 16, **options}
