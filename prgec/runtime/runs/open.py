"""Open what a run, a probe and a command need: a program with its adapter, encoded data, and a trainer."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from prgec.core.contract.engine import Engine
from prgec.core.contract.listener import CallListener
from prgec.core.contract.manifest import Manifest
from prgec.core.data.encode import Row
from prgec.core.data.feedback_set import FeedbackSet
from prgec.core.data.rows_file import RowSet
from prgec.core.formats.adapter import load_adapter
from prgec.core.formats.journal_records import StepRecord
from prgec.core.formats.run_folder import RunFolder
from prgec.core.machine.memory import available_memory_bytes
from prgec.errors import UsageError
from prgec.runtime.engines.choose import EXECUTORCH, open_program
from prgec.runtime.rewards.judge import Judge
from prgec.runtime.runs.data import RunFiles
from prgec.runtime.runs.feedback import RunFeedback, check_objective, objective_of, with_references
from prgec.runtime.runs.open_rewards import open_rewards
from prgec.runtime.runs.option_checks import check_run
from prgec.runtime.runs.options import RunOptions
from prgec.runtime.runs.result import Listener
from prgec.runtime.runs.rewards import RunRewards
from prgec.runtime.training.estimators import find_estimator
from prgec.runtime.training.evolution import EvolutionTrainer
from prgec.runtime.training.gradient_trainer import GradientTrainer
from prgec.runtime.training.loop import TrainingLoop
from prgec.runtime.training.objective_estimate import ObjectiveEstimator
from prgec.runtime.training.objective_trainer import ObjectiveTrainer
from prgec.runtime.training.prge_trainer import Estimation, PrgeTrainer
from prgec.runtime.training.privacy import Privacy
from prgec.runtime.training.privacy_budget import PrivacyBudget
from prgec.runtime.training.reward_estimate import RewardEstimator
from prgec.runtime.training.reward_trainer import RewardTrainer
from prgec.runtime.training.schedules import Rates, find_schedule
from prgec.runtime.training.step import Steps, StepTrainer

logger = logging.getLogger(__name__)


def open_with_adapter(
    path: Path,
    adapter: Path | None,
    engine: str = EXECUTORCH,
    *,
    base: str | None = None,
    device: str = "cpu",
    compiled: bool = False,
    verify: bool = True,
) -> Engine:
    """Open a program, with an adapter in it where one is named.

    Raises:
        PrgecError: If the program, the adapter, the checkpoint or the device cannot be used.
    """
    program = open_program(path, engine, base=base, device=device, compiled=compiled, verify=verify)
    if adapter is not None:
        load_adapter(adapter, program)
    return program


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A program and its data, ready to train.

    Attributes:
        options: Options they were opened for, with the program's own learning rate by default.
        rates: The course of the learning rate.
        program: The program, with the adapter to start from in it.
        rows: Training rows.
        eval_set: Rows for evaluations before and after; None to evaluate nothing.
        dev_set: Rows for evaluations in between.
        answers: The answers whose rows these are, in a run of an objective.
        feedback: The same with their reference, once it is measured.
        rewards: The prompts and their rewards, in a run by rewards.
        budget: The budget of privacy; None for a run that hides nothing.
        task: Name or .toml file of the task of the rows; empty where no texts were read.
    """

    options: RunOptions
    rates: Rates
    program: Engine
    rows: Sequence[Row]
    eval_set: RowSet | None
    dev_set: RowSet | None
    answers: FeedbackSet | None = None
    feedback: RunFeedback | None = None
    rewards: RunRewards | None = None
    budget: PrivacyBudget | None = None
    task: str = ""

    def with_feedback(self, folder: RunFolder, on_batch: CallListener) -> Opened:
        """Return the same with what the folder keeps of its answers: references, or rewards so far.

        `on_batch` is called with (rows done, all rows) after every call for a reference; it may raise to end them.
        """
        if self.rewards is not None:
            return replace(self, rewards=self.rewards.kept_in(folder, resume=self.options.resume))
        if self.answers is None:
            return self
        test = self.eval_set if isinstance(self.eval_set, FeedbackSet) else None
        found = with_references(self.options, self.program, self.answers, test, folder, on_batch)
        return replace(self, feedback=found)

    def trainer(self) -> StepTrainer[StepRecord]:
        """Return a new trainer of the program's kind, within the limits of the options."""
        options = self.options
        if self.rewards is not None:
            return self._reward_trainer(self.rewards)
        if self.feedback is not None and self.program.manifest.has_gradients:
            return ObjectiveTrainer(self.program, self.feedback.train, options.limits)
        if self.feedback is not None:
            return ObjectiveEstimator(self.program, self._estimation, self.feedback.train)
        if self.program.manifest.has_gradients:
            return GradientTrainer(self.program, options.limits)
        return PrgeTrainer(self.program, self._estimation)

    def _reward_trainer(self, rewards: RunRewards) -> StepTrainer[StepRecord]:
        limits, rollouts = self.options.limits, rewards.rollouts(self.program)
        if rewards.advantage is None:
            return EvolutionTrainer(self.program, self._estimation, rollouts)
        if self.program.manifest.has_gradients:
            return RewardTrainer(self.program, rollouts, rewards.advantage, beta=rewards.beta, limits=limits)
        return RewardEstimator(self.program, self._estimation, rollouts, rewards.advantage, beta=rewards.beta)

    @property
    def _estimation(self) -> Estimation:
        """The way from measured losses to an update, with an estimator that remembers nothing yet."""
        options = self.options
        return Estimation(
            estimator=find_estimator(options.estimator),
            eps=options.eps,
            seed=options.seed,
            limits=options.limits,
            privacy=Privacy(noise_multiplier=self.budget.noise_multiplier, clip=options.dp_clip)
            if self.budget
            else None,
        )

    def loop(self, trainer: Steps, rates: Rates) -> TrainingLoop:
        """Return the loop that trains on the rows, in the order of the options' seed."""
        options, gather = self.options, trainer.gather if isinstance(trainer, GradientTrainer) else None
        group, repeats = 2 if self.feedback is not None and self.feedback.train.objective.is_paired else 1, 1
        if self.rewards is not None:
            group, repeats = self.rewards.group, self.rewards.iterations
        m = self.program.manifest
        return TrainingLoop(
            trainer=trainer,
            rows=self.rows,
            manifest=m,
            seed=options.seed,
            rates=rates,
            accumulate=options.accumulate,
            gather=gather,
            group=group,
            repeats=repeats,
        )


def check_room(path: Path, *, verify: bool) -> None:
    """Check that this machine has the memory that training was planned to take.

    Args:
        path: The .pte.
        verify: Whether to compare what it says with its checksums.

    Raises:
        ProgramError: If the file is not a program.
        UsageError: If it has not.
    """
    from prgec.runtime.engines.executorch.runtime import manifest_of

    manifest = manifest_of(path, verify=verify)
    available = available_memory_bytes()
    if manifest.planned_bytes > available:
        raise UsageError(
            f"training takes about {manifest.planned_bytes / 1e9:.2f} GB of memory, and {available / 1e9:.2f} GB are "
            "free",
            where=path,
            hint="free some, compile with less (prgec plan), or go on with --ignore-memory",
        )


def open_run(options: RunOptions, listener: Listener, judge: Judge | None = None) -> Opened:
    """Check and load everything that can be bad; nothing is written.

    Args:
        options: Options of the run.
        listener: Observes what was read.
        judge: Computes rewards; None for those that the options name.

    Raises:
        PrgecError: A fitting subclass if an option, the program or the data are bad.
    """
    check_run(options)
    estimator = find_estimator(options.estimator)
    find_schedule(options.schedule)
    objective = objective_of(options)
    if options.engine == EXECUTORCH and not options.ignore_memory:
        check_room(options.program, verify=not options.no_verify)
    files = None if options.rewarded else RunFiles.read(options, listener)
    program = open_with_adapter(
        options.program,
        options.adapter,
        options.engine,
        base=options.base,
        device=options.device,
        compiled=options.compiled,
        verify=not options.no_verify,
    )
    m = program.manifest
    if options.accumulate > 1 and not m.accumulates:
        raise UsageError(
            f"--accumulate {options.accumulate} needs a program that gathers gradients",
            where=options.program,
            hint="compile it with --method exact --accumulate, or leave the flag out",
        )
    if not m.has_gradients and (remark := estimator.remark(m.q)) is not None:
        logger.warning("%s", remark)
    answers: FeedbackSet | None = None
    rewards = open_rewards(options, program, judge) if options.rewarded else None
    rows: Sequence[Row]
    if rewards is not None:
        rows, eval_set, dev_set = rewards.rows, rewards.test_set, rewards.test_set
    elif objective is None:
        assert files is not None, "runs by rewards alone read no files of rows"
        rows, eval_set, dev_set = files.encode(program)
    else:
        assert files is not None, "runs by rewards alone read no files of rows"
        check_objective(objective, program, options.program)
        answers, eval_set = files.encode_feedback(program)
        rows, dev_set = answers.rows, eval_set
    if options.prefix_cache is not None:
        program.keep_prefix_in(options.prefix_cache)
    listener.on_ready(program, len(rewards.train) if rewards else len(rows), len(eval_set.answers) if eval_set else 0)
    budget = _budget_of(options, m, len(rows))
    if budget is not None:
        listener.on_privacy(budget)
    rates = Rates(options.steps, m.lr if options.lr is None else options.lr, options.schedule, options.warmup)
    return Opened(
        options=replace(options, lr=rates.lr),
        rates=rates,
        program=program,
        rows=rows,
        eval_set=eval_set,
        dev_set=dev_set,
        answers=answers,
        rewards=rewards,
        budget=budget,
        task=files.task if files else "",
    )


def _budget_of(options: RunOptions, manifest: Manifest, num_rows: int) -> PrivacyBudget | None:
    """Return the budget of a run; None where it hides nothing.

    Raises:
        UsageError: If the program cannot hide single rows.
    """
    terms = options.terms
    if terms is None:
        return None
    terms.check(manifest, options.program)
    return PrivacyBudget.of_run(
        epsilon=terms.epsilon, delta=terms.delta, steps=options.steps, batch_size=manifest.batch_size, num_rows=num_rows
    )
