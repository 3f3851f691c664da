"""What a user asks of a training run; imports nothing heavy, so that the command line can use it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from prgec.data.tasks import AUTO_TASK
from prgec.engines.choose import EXECUTORCH, check_engine
from prgec.errors import UsageError
from prgec.training.estimators import DEFAULT_ESTIMATOR
from prgec.training.limits import CLIP, STOP, Limits
from prgec.training.schedules import DEFAULT_SCHEDULE


@dataclass(frozen=True)
class RunOptions:
    """What a run does.

    Attributes:
        program: The compiled .pte.
        data: Training data; None where `rows` is given.
        eval_data: Evaluation data; without it and `eval_rows` nothing is evaluated.
        rows: Training rows made by `prgec tokenize`.
        eval_rows: Evaluation rows made by `prgec tokenize`.
        task: Row of the task table, or `auto`.
        steps: Number of training steps.
        lr: Learning rate at the start.
        schedule: Row of the schedule table: how lr changes over the run.
        warmup: Steps over which lr rises to its full size before the schedule begins.
        eps: Perturbation scale.
        seed: Key of the noise and of the order of examples.
        estimator: Row of the estimator table.
        eval_every: Steps between evaluations; 0 for before and after only.
        patience: Evaluations without a better score after which the run ends with its best state; 0 for never.
        low_volume: Train on 1,000 examples of `data`, choose by 500 others and evaluate on 1,000 of `eval_data`.
        adapter: Adapter to start from: a file of ours or a PEFT folder.
        prefix_cache: Folder that keeps hidden states of a program with a `prefix` method; None to keep none.
        out: Run folder; None for the first free `runs/<program>-<n>`.
        force: Use `out` even if it holds other files or an unfinished run.
        resume: Go on with the run in `out`.
        snapshot_every: Steps between snapshots; 0 for none.
        engine: What runs the program: `executorch` or `torch`.
        base: For engine torch, the checkpoint of the program; None for the one it names.
        device: For engine torch, where to run.
        compiled: For engine torch, whether to use `torch.compile`.
        max_g: Largest |g| a step may apply; 0 for any.
        over_limit: What becomes of a step with a larger one: `clip` or `skip`.
        not_finite: What becomes of a step whose loss or g is not finite: `stop` (the run) or `skip`.
        diverged: Times the start's mean loss at which a run ends with its best state; 0 for never.
        window: Steps those means are taken over.
    """

    program: Path
    data: Path | None = None
    eval_data: Path | None = None
    rows: Path | None = None
    eval_rows: Path | None = None
    task: str = AUTO_TASK
    steps: int = 1000
    lr: float = 3e-3
    schedule: str = DEFAULT_SCHEDULE
    warmup: int = 0
    eps: float = 1e-2
    seed: int = 0
    estimator: str = DEFAULT_ESTIMATOR
    eval_every: int = 0
    patience: int = 0
    low_volume: bool = False
    adapter: Path | None = None
    prefix_cache: Path | None = None
    out: Path | None = None
    force: bool = False
    resume: bool = False
    snapshot_every: int = 100
    engine: str = EXECUTORCH
    base: str | None = None
    device: str = "cpu"
    compiled: bool = False
    max_g: float = 0.0
    over_limit: str = CLIP
    not_finite: str = STOP
    diverged: float = 0.0
    window: int = 50

    @property
    def limits(self) -> Limits:
        """What a step may apply."""
        return Limits(self.max_g, self.over_limit, self.not_finite)

    def check(self) -> None:
        """Refuse impossible values.

        Raises:
            UsageError: Naming the first option at fault.
        """
        if self.steps < 1:
            raise UsageError(f"--steps is {self.steps}; expected at least 1")
        if not (math.isfinite(self.lr) and self.lr >= 0):
            raise UsageError(f"--lr is {self.lr}; expected a finite number, 0 or more")
        if not (math.isfinite(self.eps) and self.eps > 0):
            raise UsageError(f"--eps is {self.eps}; expected a finite number above 0")
        if self.snapshot_every < 0:
            raise UsageError(f"--snapshot-every is {self.snapshot_every}; expected 0 or more")
        if self.resume and self.out is None:
            raise UsageError("--resume needs --out, the folder of the run")
        if self.eval_every < 0:
            raise UsageError(f"--eval-every is {self.eval_every}; expected 0 or more")
        if not -(2**63) <= self.seed < 2**63:
            raise UsageError(f"--seed is {self.seed}; expected a 64-bit integer")
        if (self.data is None) == (self.rows is None):
            raise UsageError("a run needs either --data or --rows")
        if self.eval_data is not None and self.eval_rows is not None:
            raise UsageError("a run takes either --eval-data or --eval-rows")
        check_engine(self.engine, self.base, self.device, self.compiled)
        self.limits.check()
        self._check_course()

    def _check_course(self) -> None:
        """Refuse contradictions between what a run does at its steps."""
        if not 0 <= self.warmup < self.steps:
            raise UsageError(f"--warmup is {self.warmup}; expected 0 or more, and less than --steps {self.steps}")
        if self.patience < 0:
            raise UsageError(f"--early-stop is {self.patience}; expected 0 or more")
        if not (math.isfinite(self.diverged) and (self.diverged == 0 or self.diverged > 1)):
            raise UsageError(f"--diverged is {self.diverged}; expected 0, or a finite number above 1")
        if self.window < 1:
            raise UsageError(f"--window is {self.window}; expected at least 1")
        if self.low_volume and self.data is None:
            raise UsageError("--low-volume needs --data")
        if self.eval_every and self.eval_data is None and self.eval_rows is None and not self.low_volume:
            raise UsageError("--eval-every needs --eval-data or --eval-rows")
        if self.patience and not self.eval_every:
            raise UsageError("--early-stop needs --eval-every")
