"""The options of a training run; imports nothing heavy, so that the command line can use it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prgec.core.config.option import argument, option, table_of
from prgec.core.config.toml_file import write_options
from prgec.core.data.columns import MAP_HELP
from prgec.core.data.records import NO_FILE
from prgec.core.data.tasks import AUTO_TASK, NO_EOS_HELP, TASK_HELP
from prgec.runtime.engines.choose import ENGINES, EXECUTORCH
from prgec.runtime.rewards.source import REWARD_HELP
from prgec.runtime.trackers.table import TRACKERS
from prgec.runtime.training.advantages import ADVANTAGES
from prgec.runtime.training.estimators import DEFAULT_ESTIMATOR, ESTIMATORS
from prgec.runtime.training.evolution import EVOLUTION
from prgec.runtime.training.limits import CLIP, NOT_FINITE_POLICIES, OVER_LIMIT_POLICIES, STOP, Limits
from prgec.runtime.training.objectives import LIKELIHOOD, OBJECTIVES
from prgec.runtime.training.privacy import (
    CLIP_HELP,
    DEFAULT_DELTA,
    DELTA_HELP,
    EPSILON_HELP,
    PrivacyTerms,
    privacy_terms,
)
from prgec.runtime.training.schedules import DEFAULT_SCHEDULE, SCHEDULES

# Objectives of rewards, and that of runs that name none.
REWARDED = (*ADVANTAGES, EVOLUTION)
DEFAULT_REWARDED = "grpo"


@dataclass(frozen=True, kw_only=True)
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
        choices=(LIKELIHOOD, *OBJECTIVES, *REWARDED),
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
    num_iterations: int = option("reward", 1, "Steps on each batch of answers.", metavar="M")
    clip: float = option(
        "reward", 0.2, "How far later ones may move the ratio of an answer's probabilities from 1.", metavar="X"
    )
    temperature: float = option("reward", 1.0, "Temperature of sampled answers.")
    top_k: int = option("reward", 0, "Sample among this many most likely tokens; 0 for all.")
    top_p: float = option("reward", 1.0, "Sample among the fewest tokens that have this probability together.")
    reward_timeout: float = option("reward", 10.0, "Most seconds for the reward of one answer.", metavar="SECONDS")
    reward_memory: int = option("reward", 4096, "Most memory of the reward's process.", metavar="MB")
    reward_network: bool = option("reward", False, "Let rewards reach the network.")

    dp_epsilon: float = option("privacy", 0.0, EPSILON_HELP, metavar="X")
    dp_delta: float = option("privacy", DEFAULT_DELTA, DELTA_HELP, metavar="X")
    dp_clip: float = option("privacy", 0.0, CLIP_HELP, metavar="X")

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
        if self.objective in REWARDED:
            return self.objective
        return DEFAULT_REWARDED if self.reward else ""

    @property
    def limits(self) -> Limits:
        """The limits of a step."""
        return Limits(self.max_g, self.over_limit, self.not_finite)

    @property
    def terms(self) -> PrivacyTerms | None:
        """The terms of privacy; None for a run that hides nothing.

        Raises:
            UsageError: If a value is impossible.
        """
        return privacy_terms(self.dp_epsilon, self.dp_delta, self.dp_clip)


RUN_TABLE = table_of(RunOptions)


def plain_values(options: RunOptions) -> dict[str, Any]:
    """Return the options as JSON has them."""
    return {key: str(value) if isinstance(value, Path) else value for key, value in vars(options).items()}


def repeating_text(options: RunOptions, folder: Path) -> str:
    """Return the TOML file that repeats a run, as seen from the folder it will be in."""
    return write_options(vars(options), RUN_TABLE, folder=folder, remark="prgec run -c FILE repeats this run")
