"""Opening of a run by rewards: its prompts are read, and its program is checked.

Letters: K label positions.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from prgec.core.contract.engine import Engine
from prgec.core.contract.listener import CallListener
from prgec.core.contract.manifest import Manifest
from prgec.core.contract.names import LABEL_WEIGHTS_HINT
from prgec.core.data.prompts import encode_prompts, load_prompts
from prgec.errors import UsageError
from prgec.runtime.rewards.judge import Judge
from prgec.runtime.rewards.process import RewardLimits, RewardProcess
from prgec.runtime.rewards.source import parse_rewards
from prgec.runtime.runs.options import RunOptions
from prgec.runtime.runs.rewards import RunRewards, judge_most_likely
from prgec.runtime.training.evaluate import Evaluation
from prgec.runtime.training.evolution import EVOLUTION
from prgec.runtime.training.limits import SKIP
from prgec.runtime.training.rollouts import Rollouts
from prgec.runtime.training.sampling import Sampling

DEFAULT_GROUP = 8


def open_rewards(options: RunOptions, program: Engine, judge: Judge | None) -> RunRewards:
    """Read the prompts of a run and check that its program can learn by rewards.

    Args:
        options: Options of the run.
        program: Its program.
        judge: Computes rewards; None for those that the options name.

    Raises:
        UsageError: If the program writes no answers, takes no label weights, or holds no whole group of them.
        DataError: If the prompts are bad.
    """
    m = program.manifest
    if judge is None and not options.reward:
        raise UsageError(f"--objective {options.objective} needs a reward", hint="add --reward reward.py")
    max_tokens, room = _lengths(m, options.max_new_tokens, options.program)
    if m.has_gradients and not m.label_weights:
        raise UsageError("--reward needs a program that weighs labels", where=options.program, hint=LABEL_WEIGHTS_HINT)
    if options.num_iterations > 1 and not m.has_gradients:
        raise UsageError(
            "--num-iterations needs a program with gradients", where=options.program, hint=LABEL_WEIGHTS_HINT
        )
    group = _group_of(options, m)
    assert options.data is not None, "options were checked"
    train, test = (
        encode_prompts(load_prompts(path, options.columns), program.tokenizer, room=room) if path is not None else None
        for path in (options.data, options.eval_data)
    )
    assert train is not None, "it was named"
    sampling = Sampling(options.temperature, options.top_k, options.top_p, options.seed & (2**64 - 1))
    beta = options.beta or 0.0
    return RunRewards(
        train=train,
        test=test,
        judge=reward_process(options) if judge is None else judge,
        objective=options.rewarded,
        beta=beta,
        group=group,
        max_tokens=max_tokens,
        sampling=sampling,
        iterations=options.num_iterations,
        clip=options.clip,
        skips=options.not_finite == SKIP,
        name=repr((_sources(options), group, max_tokens, sampling, beta, options.num_iterations, options.clip)),
    )


def evaluate_rewards(
    program: Engine, data: Path, columns: tuple[str, ...], rewards: Sequence[str], *, max_new_tokens: int, where: Path
) -> Callable[[CallListener], Evaluation]:
    """Read prompts for a program that is only measured; return what measures its present state.

    Args:
        program: The program.
        data: File of the prompts.
        columns: Columns under other names, `OURS=THEIRS`.
        rewards: Rewards as the command line names them; they are added.
        max_new_tokens: Most tokens of an answer; 0 for the program's K.
        where: Name of the program in messages.

    Raises:
        UsageError: If a reward does not exist, or the program writes no answers, or not so long ones.
        DataError: If the prompts are bad, or a reward cannot be loaded.
    """
    judge = RewardProcess(parse_rewards(rewards), RewardLimits())
    max_tokens, room = _lengths(program.manifest, max_new_tokens, where)
    prompts = encode_prompts(load_prompts(data, columns), program.tokenizer, room=room)
    judge.start()
    rollouts = Rollouts(
        program=program,
        prompts=prompts,
        scorer=lambda step, call, answers: np.zeros(len(answers)),
        group=1,
        max_tokens=max_tokens,
        sampling=Sampling(),
    )
    return functools.partial(
        judge_most_likely, rollouts, lambda prompt, text: judge.score(prompt.shown, text, prompt.record)
    )


def _lengths(m: Manifest, max_new_tokens: int, where: Path) -> tuple[int, int]:
    """Return the most tokens of an answer, and of a prompt.

    Raises:
        UsageError: If the program writes no answers, or not so long ones.
    """
    if not m.context:
        raise UsageError(
            "--reward needs a program that writes answers", where=where, hint="compile it with --generate --context C"
        )
    max_tokens = max_new_tokens or m.num_labels
    room = min(m.seq_len, m.context) - max_tokens + 1
    if max_tokens > m.num_labels or room < 1:
        raise UsageError(
            f"--max-new-tokens is {max_tokens}; the program holds {min(m.num_labels, m.seq_len)}",
            where=where,
            hint="compile it with more --label-tokens and --seq-len",
        )
    return max_tokens, room


def _group_of(options: RunOptions, m: Manifest) -> int:
    """Return the number of answers to a prompt.

    Raises:
        UsageError: If the program's method or its batch size has no room for it.
    """
    is_es = options.objective == EVOLUTION
    if is_es and (m.has_gradients or m.state == "dual"):
        raise UsageError(
            "--objective es perturbs the copies of a program that measures losses",
            where=options.program,
            hint="compile it with --method prge and without --state dual",
        )
    group = options.num_generations or (1 if is_es else math.gcd(m.batch_size, DEFAULT_GROUP))
    if group < (1 if is_es else 2) or m.batch_size % group:
        raise UsageError(
            f"{group} answers to a prompt do not fill the {m.batch_size} rows of a call",
            where=options.program,
            hint=f"give --num-generations a divisor of the batch size{'' if is_es else ', 2 or more'}",
        )
    return group


def reward_process(options: RunOptions) -> RewardProcess:
    """Return the process of a run's rewards, not started yet.

    Raises:
        UsageError: If a reward is named that does not exist.
        DataError: If a file of several is damaged.
    """
    limits = RewardLimits(
        seconds=options.reward_timeout, memory=options.reward_memory << 20, network=options.reward_network
    )
    return RewardProcess(parse_rewards(options.reward), limits)


def _sources(options: RunOptions) -> list[str | bytes]:
    """Return what defines the rewards: the content of files, wherever they lie, and other texts as they are."""
    return [Path(text).read_bytes() if Path(text).is_file() else text for text in options.reward]
