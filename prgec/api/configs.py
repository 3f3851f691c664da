"""Settings of the Python interface, under the names that PEFT and TRL have made usual."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """The adapter that a program trains: LoRA with a frozen A drawn from a seed, of which B alone is trained (LoRA-FA).

    Zhang et al., "LoRA-FA: Memory-efficient Low-rank Adaptation for Large Language Models Fine-tuning", equation 3.

    Attributes:
        r: Rank.
        lora_alpha: The branch is scaled by `lora_alpha / r`.
        target_modules: Names of layers or regular expressions; `all-linear` for every linear layer of the blocks.
        layers: Blocks to train: `all`, `last:K`, or indices and ranges such as `0,4-7`.
        seed: Seed of A.

    Example:
        >>> LoraConfig(r=8, lora_alpha=16, layers="last:2").r
        8
    """

    r: int = 16
    lora_alpha: float = 32.0
    target_modules: str | tuple[str, ...] = "all-linear"
    layers: str = "all"
    seed: int = 0

    def to_options(self) -> dict[str, Any]:
        """Return the same as fields of `CompileOptions`."""
        targets = self.target_modules
        return {
            "rank": self.r,
            "alpha": float(self.lora_alpha),
            "targets": tuple(targets.split(",")) if isinstance(targets, str) else tuple(targets),
            "layers": tuple(self.layers.split(",")),
            "a_seed": self.seed,
        }


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The course of a training run.

    Attributes:
        output_dir: Run folder; None for the first free `runs/<program>-<n>`.
        max_steps: Training steps.
        learning_rate: Learning rate; None for the program's own.
        lr_scheduler_type: How the rate changes over the run: a name of `prgec run --lr-schedule`.
        warmup_steps: Steps over which the rate rises first.
        gradient_accumulation_steps: Calls a step (programs compiled with `accumulate=True`).
        seed: Key of the order of rows, and of the noise of `prge`.
        eval_steps: Also evaluate every so many steps; 0 for before and after alone.
        early_stopping_patience: End after so many evaluations without a better score, with the best state; 0 for never.
        init_adapter: Adapter to start from: a run folder, a file, or a PEFT folder.
        task: Task of the rows; `auto` finds it from their fields.
        overwrite_output_dir: Whether a run in `output_dir` is replaced.
        options: Further fields of `RunOptions`, by name.

    Example:
        >>> TrainConfig(max_steps=20, learning_rate=1e-3).max_steps
        20
    """

    output_dir: str | Path | None = None
    max_steps: int = 1000
    learning_rate: float | None = None
    lr_scheduler_type: str | None = None
    warmup_steps: int = 0
    gradient_accumulation_steps: int = 1
    seed: int = 0
    eval_steps: int = 0
    early_stopping_patience: int = 0
    init_adapter: str | Path | None = None
    task: str = "auto"
    overwrite_output_dir: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    def to_options(self) -> dict[str, Any]:
        """Return the same as fields of `RunOptions`."""
        schedule = {} if self.lr_scheduler_type is None else {"schedule": self.lr_scheduler_type}
        return {
            "out": None if self.output_dir is None else Path(self.output_dir),
            "steps": self.max_steps,
            "lr": self.learning_rate,
            "warmup": self.warmup_steps,
            "accumulate": self.gradient_accumulation_steps,
            "seed": self.seed,
            "eval_every": self.eval_steps,
            "patience": self.early_stopping_patience,
            "adapter": None if self.init_adapter is None else Path(self.init_adapter),
            "task": self.task,
            "force": self.overwrite_output_dir,
            **schedule,
            **self.options,
        }
