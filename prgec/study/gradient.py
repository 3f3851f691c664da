"""Programs that compute their own gradients as they ship: the compiled graphs and the trainer, run by PyTorch."""

from __future__ import annotations

from typing import Any

from prgec.study.prge import shared_program
from prgec.training.gradient_trainer import GradientTrainer

# A backward pass computes two products for each one of the forward pass. The shortcut, which walks back through one
# block only, is charged the same.
_FORWARDS_PER_STEP = 3


class Gradient(GradientTrainer):
    """One run of `--method exact` or `shortcut`.

    Args:
        model: Checkpoint folder, alias or hub id.
        seed: Seed of the run; nothing but the order of examples is random here.
        method: `exact` or `shortcut`.
        options: Fields of `CompileOptions`.
    """

    def __init__(self, model: str, *, seed: int, method: str = "exact", **options: Any) -> None:
        del seed
        self.program = shared_program(model, {"method": method, "batch_size": 16, **options})
        self.program.write_optimizer({name: 0.0 * array for name, array in self.program.read_optimizer().items()})
        super().__init__(self.program)
        self.rows_per_step = _FORWARDS_PER_STEP * self.program.manifest.num_rows
