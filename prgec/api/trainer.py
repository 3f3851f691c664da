"""A training run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from prgec.api.adapter import Adapter
from prgec.api.configs import TrainConfig
from prgec.api.inputs import Data, data_file
from prgec.api.notebook import notebook_bar
from prgec.api.program import Program
from prgec.core.formats.run_folder import PLOT_NAME
from prgec.errors import UsageError
from prgec.runtime.rewards.judge import FunctionJudge, RewardFunction
from prgec.runtime.runs.open import open_run
from prgec.runtime.runs.options import DEFAULT_REWARDED, RunOptions
from prgec.runtime.runs.result import Listener, RunResult
from prgec.runtime.runs.run import run
from prgec.runtime.training.evaluate import Evaluation
from prgec.runtime.training.step import StepResult

# Called after each step; False ends the run after it, as Ctrl-C does.
StepCallback: TypeAlias = Callable[[StepResult], bool | None]


class TrainerCallback:
    """Observes a run; the base class ignores everything."""

    def on_step(self, step: StepResult) -> bool | None:
        """Observe a step; return False to end the run after it."""

    def on_evaluate(self, step: int, evaluation: Evaluation) -> None:
        """Observe an evaluation after `step` steps."""


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """A finished run.

    Attributes:
        run: Its measurements.
        adapter: The trained adapter.
    """

    run: RunResult
    adapter: Adapter

    @property
    def accuracy(self) -> float | None:
        """Accuracy after training; None for an open-ended task, or without data to evaluate."""
        return self.run.after.accuracy if self.run.after else None

    @property
    def loss(self) -> float:
        """Mean training loss over the last steps."""
        return self.run.loss

    def _repr_png_(self) -> bytes | None:
        """Return the plot of the run, which a notebook shows below the cell."""
        plot = self.run.run / PLOT_NAME
        return plot.read_bytes() if plot.is_file() else None


class Trainer:
    """Trains a program on data, as `prgec run` does.

    Args:
        program: Program to train.
        config: Course of the run.
        train_dataset: A data file or rows.
        eval_dataset: A data file or rows, to evaluate before and after.
        callbacks: Functions of a step, or objects of `TrainerCallback`.
        reward_funcs: Functions of prompt, answer and row, whose results are added: the program then learns to write
            better answers, by `objective` "grpo" unless the config names another. They run in this process.

    Example:
        >>> trainer = Trainer(program, TrainConfig(max_steps=100), train_dataset="train.jsonl")  # doctest: +SKIP
        >>> trainer.train().adapter.path  # doctest: +SKIP
        PosixPath('runs/model-1')
    """

    def __init__(
        self,
        program: Program,
        config: TrainConfig | None = None,
        *,
        train_dataset: Data,
        eval_dataset: Data | None = None,
        callbacks: Sequence[StepCallback | TrainerCallback] = (),
        reward_funcs: Sequence[RewardFunction] = (),
    ) -> None:
        self.program, self.config = program, config or TrainConfig()
        self._train, self._eval = train_dataset, eval_dataset
        self._callbacks = callbacks
        self._judge = FunctionJudge(reward_funcs) if reward_funcs else None

    def train(self, *, resume: bool = False) -> TrainResult:
        """Train, and leave a run folder; the program then holds the trained adapter.

        Args:
            resume: Whether to continue the run in `output_dir` after the last step of its journal.

        Raises:
            PrgecError: If the data or an option is bad; nothing is written then.
            NumericsError: If a loss is not finite; the run folder then holds the state kept.
        """
        with ExitStack() as stack:
            options = self._options(stack, resume=resume)
            observer = _Observer(self._callbacks, options.steps)
            result = run(options, observer, lambda: observer.is_stopped, self._judge)
        adapter = Adapter(path=result.run, program=self.program.path)
        self.program.use(adapter)
        return TrainResult(run=result, adapter=adapter)

    def steps(self) -> Iterator[StepResult]:
        """Take the steps one by one, and write nothing; the program then holds the trained state.

        Example:
            >>> for step in trainer.steps():  # doctest: +SKIP
            ...     print(step.step, step.loss)
        """
        with ExitStack() as stack:
            opened = open_run(self._options(stack, resume=False), Listener(), self._judge)
            self.program.__dict__["engine"] = opened.program
            trainer = opened.trainer()
            self.program.__dict__["_trainer"] = trainer
            yield from opened.loop(trainer, opened.rates)
            trainer.flush()

    def _options(self, stack: ExitStack, *, resume: bool) -> RunOptions:
        data = stack.enter_context(data_file(self._train, "train"))
        test = None if self._eval is None else stack.enter_context(data_file(self._eval, "eval"))
        given: dict[str, Any] = {"program": self.program.path, "data": data, "eval_data": test, "resume": resume}
        try:
            options = RunOptions(**{**self.config.to_options(), **given})
        except TypeError as error:
            raise UsageError(f"options of TrainConfig: {error}") from error
        return replace(options, objective=DEFAULT_REWARDED) if self._judge and not options.rewarded else options


class _Observer(Listener):
    """Passes a run's progress on, and remembers whether a callback ends it."""

    def __init__(self, callbacks: Sequence[StepCallback | TrainerCallback], num_steps: int | None) -> None:
        self._callbacks, self._num_steps = callbacks, num_steps
        self._bar = notebook_bar()
        self.is_stopped = False

    def on_step(self, result: StepResult) -> None:
        if self._bar is not None:
            fraction = min(1.0, result.step / self._num_steps) if self._num_steps else None
            self._bar.show(fraction, f"step {result.step}, loss {result.loss:.4f}")
        for each in self._callbacks:
            answer = each.on_step(result) if isinstance(each, TrainerCallback) else each(result)
            self.is_stopped |= answer is False

    def on_evaluation(self, step: int, evaluation: Evaluation) -> None:
        for each in self._callbacks:
            if isinstance(each, TrainerCallback):
                each.on_evaluate(step, evaluation)
