"""Which options of a run go together, and which values they may have."""

from __future__ import annotations

import math

from prgec.core.data.tasks import AUTO_TASK
from prgec.errors import UsageError
from prgec.runtime.engines.choose import check_engine
from prgec.runtime.runs.options import REWARDED, RunOptions
from prgec.runtime.trackers.table import check_trackers
from prgec.runtime.training.evolution import EVOLUTION
from prgec.runtime.training.objectives import LIKELIHOOD, OBJECTIVES
from prgec.runtime.training.privacy import privacy_terms
from prgec.runtime.training.sampling import Sampling

# Calls of a step: sums of more would lose their last digits.
MAX_CALLS = 1 << 10


def check_run(options: RunOptions) -> None:
    """Refuse impossible values.

    Raises:
        UsageError: Naming the first option at fault.
    """
    if options.steps < 1:
        raise UsageError(f"--steps is {options.steps}; expected at least 1")
    if not 1 <= options.accumulate <= MAX_CALLS:
        raise UsageError(f"--accumulate is {options.accumulate}; expected 1 to {MAX_CALLS}")
    if options.lr is not None and not (math.isfinite(options.lr) and options.lr >= 0):
        raise UsageError(f"--lr is {options.lr}; expected a finite number, 0 or more")
    if not (math.isfinite(options.eps) and options.eps > 0):
        raise UsageError(f"--eps is {options.eps}; expected a finite number above 0")
    if options.snapshot_every < 0:
        raise UsageError(f"--snapshot-every is {options.snapshot_every}; expected 0 or more")
    if options.resume and options.out is None:
        raise UsageError("--resume needs --out, the folder of the run")
    if options.eval_every < 0:
        raise UsageError(f"--eval-every is {options.eval_every}; expected 0 or more")
    if not -(2**63) <= options.seed < 2**63:
        raise UsageError(f"--seed is {options.seed}; expected a 64-bit integer")
    if (options.data is None) == (options.rows is None):
        raise UsageError("a run needs either --data or --rows")
    if options.eval_data is not None and options.eval_rows is not None:
        raise UsageError("a run takes either --eval-data or --eval-rows")
    check_engine(options.engine, options.base, options.device, options.compiled)
    options.limits.check()
    check_trackers(options.log_to)
    privacy_terms(options.dp_epsilon, options.dp_delta, options.dp_clip)
    _check_course(options)
    _check_objective(options)


def _check_course(options: RunOptions) -> None:
    """Refuse contradictions between what a run does at its steps."""
    if not 0 <= options.warmup < options.steps:
        raise UsageError(f"--warmup is {options.warmup}; expected 0 or more, and less than --steps {options.steps}")
    if options.patience < 0:
        raise UsageError(f"--early-stop is {options.patience}; expected 0 or more")
    if not (math.isfinite(options.diverged) and (options.diverged == 0 or options.diverged > 1)):
        raise UsageError(f"--diverged is {options.diverged}; expected 0, or a finite number above 1")
    if options.window < 1:
        raise UsageError(f"--window is {options.window}; expected at least 1")
    if options.low_volume and options.data is None:
        raise UsageError("--low-volume needs --data")
    if options.eval_every and options.eval_data is None and options.eval_rows is None and not options.low_volume:
        raise UsageError("--eval-every needs --eval-data or --eval-rows")
    if options.patience and not options.eval_every:
        raise UsageError("--early-stop needs --eval-every")


def _check_objective(options: RunOptions) -> None:
    """Refuse numbers of no objective, and data that it cannot read."""
    numbers = {
        "--beta": options.beta,
        "--gamma": options.gamma,
        "--desirable": options.desirable,
        "--undesirable": options.undesirable,
    }
    for flag, number in numbers.items():
        if number is not None and not (math.isfinite(number) and number >= 0):
            raise UsageError(f"{flag} is {number}; expected a finite number, 0 or more")
    _check_rewards(options)
    if options.dp_epsilon and (options.rewarded or options.objective != LIKELIHOOD):
        raise UsageError("--dp-epsilon is for runs that learn right answers", hint="leave out --objective and --reward")
    if options.rewarded:
        return
    if options.objective == LIKELIHOOD:
        if (options.beta, options.gamma, options.desirable, options.undesirable) != (None, 1.0, 1.0, 1.0):
            raise UsageError(
                "--beta, --gamma, --desirable and --undesirable are numbers of an objective",
                hint=f"add --objective {', '.join(OBJECTIVES)}",
            )
        return
    if options.data is None or options.eval_rows is not None:
        raise UsageError(f"--objective {options.objective} reads texts", hint="give --data and --eval-data")
    if options.low_volume or options.task != AUTO_TASK:
        raise UsageError(f"--objective {options.objective} knows its rows; leave out --low-volume and --task")


def _check_rewards(options: RunOptions) -> None:
    """Refuse rewards without an objective of theirs, and options that mean nothing without them."""
    Sampling(options.temperature, options.top_k, options.top_p).check()
    for flag, number in (("--num-generations", options.num_generations), ("--max-new-tokens", options.max_new_tokens)):
        if number < 0:
            raise UsageError(f"{flag} is {number}; expected 0 or more")
    if options.num_iterations < 1:
        raise UsageError(f"--num-iterations is {options.num_iterations}; expected 1 or more")
    if not (math.isfinite(options.clip) and options.clip > 0):
        raise UsageError(f"--clip is {options.clip}; expected a number above 0")
    if not (math.isfinite(options.reward_timeout) and options.reward_timeout > 0):
        raise UsageError(f"--reward-timeout is {options.reward_timeout}; expected seconds above 0")
    if options.reward_memory < 1:
        raise UsageError(f"--reward-memory is {options.reward_memory}; expected megabytes, 1 or more")
    if not options.rewarded:
        return
    if options.objective in OBJECTIVES:
        raise UsageError(
            f"--objective {options.objective} reads answers, and --reward judges new ones",
            hint=f"leave one of them out, or take --objective {', '.join(REWARDED)}",
        )
    if (options.gamma, options.desirable, options.undesirable) != (1.0, 1.0, 1.0):
        raise UsageError("--gamma, --desirable and --undesirable are numbers of other objectives")
    if options.objective == EVOLUTION and options.beta:
        raise UsageError("--beta is a number of other objectives: es measures no distance to the start")
    if options.data is None or options.eval_rows is not None:
        raise UsageError("--reward reads prompts as texts", hint="give --data and --eval-data")
    if options.low_volume:
        raise UsageError("--reward takes all of --data", hint="leave out --low-volume")
