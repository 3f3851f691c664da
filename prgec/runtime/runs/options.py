"""The options of a training run; imports nothing heavy, so that the command line can use it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prgec.core.config.option import argument, option, table_of
from prgec.core.config.toml_file import write_options
from prgec.core.data.columns import MAP_HELP
from prgec.core.data.records import NO_FILE
from prgec.core.data.tasks import AUTO_TASK, NO_EOS_HELP, TASK_HELP
from prgec.errors import UsageError
from prgec.runtime.engines.choose import ENGINES, EXECUTORCH, check_engine
from prgec.runtime.rewards.source import REWARD_HELP
from prgec.runtime.trackers.table import TRACKERS, check_trackers
from prgec.runtime.training.advantages import ADVANTAGES
from prgec.runtime.training.estimators import DEFAULT_ESTIMATOR, ESTIMATORS
from prgec.runtime.training.limits import CLIP, NOT_FINITE_POLICIES, OVER_LIMIT_POLICIES, STOP, Limits
from prgec.runtime.training.objectives import LIKELIHOOD, OBJECTIVES
from prgec.runtime.training.sampling import Sampling
from prgec.runtime.training.schedules import DEFAULT_SCHEDULE, SCHEDULES

# The objective of rewards of runs that name none.
DEFAULT_REWARDED = "grpo"
# Calls of a step: sums of more would lose their last digits.
MAX_CALLS = 1 << 10


@dataclass(frozen=True)
class RunOptions:
    """The options of a run; each field has its help.

    Those without help:

    Attributes:
        program: The compiled .pte.
    """

    program: Path = field(metadata=argument())

    data: Path | None = option(
        "data",
        None,
        "Training rows: a file (json, csv, tsv, txt, parquet, packed or not), a folder of such files, "
        "hf:NAME:CONFIG:SPLIT, or - for stdin.",
        no_path=NO_FILE,
    )
    eval_data: Path | None = option("data", None, "Rows to evaluate before and after.", no_path=NO_FILE)
    rows: Path | None = option("data", None, "Training rows made by prgec tokenize, instead of --data.")
    eval_rows: Path | None = option("data", None, "Rows made by prgec tokenize, instead of --eval-data.")
    task: str = option("data", AUTO_TASK, TASK_HELP, is_place=True)
    columns: tuple[str, ...] = option("data", (), MAP_HELP, "--map", metavar="OURS=THEIRS", is_repeated=True)
    no_eos: bool = option("data", False, NO_EOS_HELP)
    low_volume: bool = option(
        "data",
        False,
        "Train on 1,000 rows of --data, choose by 500 others, evaluate on 1,000 of --eval-data "
        "(on the 500 without it).",
    )

    steps: int = option("training", 1000, "Training steps.")
    lr: float | None = option(
        "training", None, "Learning rate.", unset="what the program says: 0.001 with AdamW, else 0.003"
    )
    schedule: str = option(
        "training",
        DEFAULT_SCHEDULE,
        "How the learning rate changes over the run.",
        "--lr-schedule",
        choices=tuple(SCHEDULES),
    )
    warmup: int = option("training", 0, "Steps over which lr rises first.", metavar="N")
    accumulate: int = option(
        "training",
        1,
        "Calls a step, whose gradients are averaged: K times the examples in the memory of one call (programs "
        "compiled with --accumulate).",
        metavar="K",
    )
    eps: float = option("training", 1e-2, "Perturbation scale.")
    seed: int = option("training", 0, "Key of noise and data order.")
    estimator: str = option(
        "training",
        DEFAULT_ESTIMATOR,
        "How losses become coefficients; plain is the paper's.",
        choices=tuple(ESTIMATORS),
    )
    adapter: Path | None = option(
        "training",
        None,
        "Start from this adapter: adapter.safetensors of a run, or a PEFT adapter's folder.",
        "--init-adapter",
        "--adapter",
    )

    objective: str = option(
        "objective",
        LIKELIHOOD,
        "What is learnt: right answers (likelihood), which of two answers is better, or answers that earn a reward "
        "(programs compiled with --label-weights; docs/feedback.md).",
        choices=(LIKELIHOOD, *OBJECTIVES, *ADVANTAGES),
    )
    beta: float | None = option(
        "objective",
        None,
        "Sharpness of the comparison of answers; the weight of the odds ratio in orpo; with rewards, what distance "
        "to the start costs.",
        unset="0.1; 2 with simpo; 0 with rewards",
    )
    gamma: float = option("objective", 1.0, "Margin that simpo wants between two answers.")
    desirable: float = option("objective", 1.0, "Weight of kto's good answers.")
    undesirable: float = option("objective", 1.0, "Weight of kto's bad answers.")

    reward: tuple[str, ...] = option("reward", (), REWARD_HELP, metavar="REWARD", is_repeated=True, is_place=True)
    num_generations: int = option(
        "reward", 0, "Answers to each prompt of a step; 0: up to 8, as the batch size allows.", metavar="G"
    )
    max_new_tokens: int = option("reward", 0, "Most tokens of an answer; 0: the program's K.", metavar="N")
    temperature: float = option("reward", 1.0, "Temperature of sampled answers.")
    top_k: int = option("reward", 0, "Sample among this many most likely tokens; 0 for all.")
    top_p: float = option("reward", 1.0, "Sample among the fewest tokens that have this probability together.")
    reward_timeout: float = option("reward", 10.0, "Most seconds for the reward of one answer.", metavar="SECONDS")
    reward_memory: int = option("reward", 4096, "Most memory of the reward's process.", metavar="MB")
    reward_network: bool = option("reward", False, "Let rewards reach the network.")

    eval_every: int = option("evaluation", 0, "Also evaluate every N steps.", metavar="N")
    patience: int = option(
        "evaluation",
        0,
        "End after N evaluations without a better score; the best state is kept; 0: never.",
        "--early-stop",
        metavar="N",
    )

    max_g: float = option("limits", 0.0, "Largest coefficient |g| a step may apply; 0 for any.", metavar="X")
    over_limit: str = option("limits", CLIP, "What becomes of a step with a larger one.", choices=OVER_LIMIT_POLICIES)
    not_finite: str = option(
        "limits",
        STOP,
        "What a loss or g that is not finite does: stop the run, or skip the step.",
        choices=NOT_FINITE_POLICIES,
    )
    diverged: float = option(
        "limits",
        0.0,
        "End with the best state when the mean loss is X times what it was at first; 0: never.",
        metavar="X",
    )
    window: int = option("limits", 50, "Steps that mean is taken over.", metavar="N")

    engine: str = option(
        "engine",
        EXECUTORCH,
        "What runs it: torch builds the graph again from the checkpoint (docs/study.md).",
        choices=ENGINES,
    )
    base: str | None = option(
        "engine",
        None,
        "The checkpoint, for --engine torch [default: the one PROGRAM names].",
        metavar="MODEL",
        is_place=True,
    )
    device: str = option("engine", "cpu", "Where --engine torch runs: cpu, cuda.")
    compiled: bool = option("engine", False, "Let --engine torch generate code.", "--torch-compile")
    ignore_memory: bool = option("engine", False, "Train even where this machine has less memory than was planned.")
    prefix_cache: Path | None = option(
        "engine",
        None,
        "Keep hidden states here, so that later epochs run the trained blocks only (programs compiled with "
        "--prefix method).",
        metavar="DIR",
    )

    no_verify: bool = option("engine", False, "Do not compare the program with its checksums when it is opened.")

    out: Path | None = option("output", None, "Run folder [default: the first free runs/<program>-<n>].", is_kept=False)
    force: bool = option(
        "output", False, "Use --out even if it holds other files, and replace a run that it holds.", is_kept=False
    )
    resume: bool = option("output", False, "Go on with the run in --out, from its journal.", is_kept=False)
    snapshot_every: int = option(
        "output", 100, "Keep the state every N steps, so that resuming is quick; 0 for never.", metavar="N"
    )

    log_to: tuple[str, ...] = option(
        "output", (), "Also report the run to this tracker; repeat for more (docs/trackers.md).", choices=TRACKERS
    )

    @property
    def rewarded(self) -> str:
        """The objective of a run by rewards; empty where rows have the answers."""
        if self.objective in ADVANTAGES:
            return self.objective
        return DEFAULT_REWARDED if self.reward else ""

    @property
    def limits(self) -> Limits:
        """The limits of a step."""
        return Limits(self.max_g, self.over_limit, self.not_finite)

    def check(self) -> None:
        """Refuse impossible values.

        Raises:
            UsageError: Naming the first option at fault.
        """
        if self.steps < 1:
            raise UsageError(f"--steps is {self.steps}; expected at least 1")
        if not 1 <= self.accumulate <= MAX_CALLS:
            raise UsageError(f"--accumulate is {self.accumulate}; expected 1 to {MAX_CALLS}")
        if self.lr is not None and not (math.isfinite(self.lr) and self.lr >= 0):
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
        check_trackers(self.log_to)
        self._check_course()
        self._check_objective()

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

    def _check_objective(self) -> None:
        """Refuse numbers of no objective, and data that it cannot read."""
        numbers = {
            "--beta": self.beta,
            "--gamma": self.gamma,
            "--desirable": self.desirable,
            "--undesirable": self.undesirable,
        }
        for flag, number in numbers.items():
            if number is not None and not (math.isfinite(number) and number >= 0):
                raise UsageError(f"{flag} is {number}; expected a finite number, 0 or more")
        self._check_rewards()
        if self.rewarded:
            return
        if self.objective == LIKELIHOOD:
            if (self.beta, self.gamma, self.desirable, self.undesirable) != (None, 1.0, 1.0, 1.0):
                raise UsageError(
                    "--beta, --gamma, --desirable and --undesirable are numbers of an objective",
                    hint=f"add --objective {', '.join(OBJECTIVES)}",
                )
            return
        if self.data is None or self.eval_rows is not None:
            raise UsageError(f"--objective {self.objective} reads texts", hint="give --data and --eval-data")
        if self.low_volume or self.task != AUTO_TASK:
            raise UsageError(f"--objective {self.objective} knows its rows; leave out --low-volume and --task")

    def _check_rewards(self) -> None:
        """Refuse rewards without an objective of theirs, and options that mean nothing without them."""
        Sampling(self.temperature, self.top_k, self.top_p).check()
        for flag, number in (("--num-generations", self.num_generations), ("--max-new-tokens", self.max_new_tokens)):
            if number < 0:
                raise UsageError(f"{flag} is {number}; expected 0 or more")
        if not (math.isfinite(self.reward_timeout) and self.reward_timeout > 0):
            raise UsageError(f"--reward-timeout is {self.reward_timeout}; expected seconds above 0")
        if self.reward_memory < 1:
            raise UsageError(f"--reward-memory is {self.reward_memory}; expected megabytes, 1 or more")
        if not self.rewarded:
            return
        if self.objective in OBJECTIVES:
            raise UsageError(
                f"--objective {self.objective} reads answers, and --reward judges new ones",
                hint=f"leave one of them out, or take --objective {', '.join(ADVANTAGES)}",
            )
        if (self.gamma, self.desirable, self.undesirable) != (1.0, 1.0, 1.0):
            raise UsageError("--gamma, --desirable and --undesirable are numbers of other objectives")
        if self.data is None or self.eval_rows is not None:
            raise UsageError("--reward reads prompts as texts", hint="give --data and --eval-data")
        if self.low_volume:
            raise UsageError("--reward takes all of --data", hint="leave out --low-volume")


RUN_TABLE = table_of(RunOptions)


def plain_values(options: RunOptions) -> dict[str, Any]:
    """Return the options as JSON has them."""
    return {key: str(value) if isinstance(value, Path) else value for key, value in vars(options).items()}


def repeating_text(options: RunOptions, folder: Path) -> str:
    """Return the TOML file that repeats a run, as seen from the folder it will be in."""
    return write_options(vars(options), RUN_TABLE, folder=folder, remark="prgec run -c FILE repeats this run")
