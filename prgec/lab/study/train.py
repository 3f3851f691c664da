"""One run of a study: trains a method on a task to the end of the budget, and scores it on the way."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from prgec.core.data.dataset import load_dataset
from prgec.core.data.encode import Row, encode_items
from prgec.core.data.eval_set import EvalSet, encode_row_set
from prgec.core.data.weight import check_weighs
from prgec.core.machine.memory import Growth, SampledGrowth
from prgec.errors import DataError, NumericsError
from prgec.lab.study.method import TrainableMethod, build_method
from prgec.lab.study.results import Point, Result
from prgec.lab.study.spec import Run, Study, StudyTask
from prgec.runtime.engines.executorch.pte_program import PteProgram
from prgec.runtime.training.evaluate import Evaluation, evaluate
from prgec.runtime.training.loop import TrainingLoop
from prgec.runtime.training.schedules import DEFAULT_SCHEDULE, Rates, find_schedule


def train(run: Run, study: Study) -> Result:
    """Do one run.

    Raises:
        DataError: If a file cannot be read or holds no choices to score.
        UsageError: If the method cannot be made of its options.
    """
    method = build_method(study.model, run.made_of, run.seed, study.path)
    data = _Data.load(run.task, method)
    course = _Course(method, data, run, study)
    failure = ""
    try:
        course.go()
    except NumericsError as error:
        failure = error.what
    test = course.score(data.test)
    return Result(
        key=run.key(study),
        method=run.method,
        task=run.task.name,
        options=dict(run.options),
        seed=run.seed,
        steps=course.steps_done,
        curve=tuple(course.curve),
        test_accuracy=test.accuracy or 0.0,
        test_loss=test.loss,
        memory_bytes=course.memory_bytes,
        failure=failure,
    )


@dataclass(frozen=True)
class _Data:
    """A task encoded for one method."""

    train: Sequence[Row]
    dev: EvalSet
    test: EvalSet

    @classmethod
    def load(cls, task: StudyTask, method: TrainableMethod) -> _Data:
        program = method.program
        sets = {split: load_dataset(getattr(task, split), task.task) for split in ("train", "dev", "test")}
        rows = encode_items(sets["train"].examples, program.tokenizer, program.manifest)
        check_weighs(rows, program.manifest, task.train)
        dev, test = (encode_row_set(sets[split], program.tokenizer, program.manifest) for split in ("dev", "test"))
        for split, rows_of in (("dev", dev), ("test", test)):
            if not rows_of.examples or max(map(len, rows_of.choices), default=0) < 2:
                raise DataError(
                    "a study scores choices, and there are none",
                    where=getattr(task, split),
                    hint="name the task of the data with task = ...",
                )
        return cls(rows, dev, test)


class _Course:
    """One run on its way."""

    def __init__(self, method: TrainableMethod, data: _Data, run: Run, study: Study) -> None:
        self.method, self.data = method, data
        schedule = str(run.options.get("schedule", DEFAULT_SCHEDULE))
        num_steps = max(1, study.budget.forward_rows // method.rows_per_step)
        rates = Rates(num_steps, float(run.options["lr"]), schedule)
        self.budget = study.budget
        self.loop = TrainingLoop(
            trainer=method, rows=data.train, manifest=method.program.manifest, seed=run.seed, rates=rates
        )
        self.steps_per_eval = max(1, int(study.budget.eval_every) // method.rows_per_step)
        self.curve: list[Point] = []
        self.steps_done = 0
        self.memory_bytes: int | None = None

    def go(self) -> None:
        """Train to the end of the budget, scoring dev on the way.

        Raises:
            NumericsError: If training diverges; the curve then ends with what was reached.
        """
        growth = self._scored()
        for is_due in self._timed_steps() if self.budget.seconds else self._counted_steps():
            if is_due:
                growth.pause()
                self.memory_bytes = growth.bytes
                self._note()
                growth.go_on()
        growth.pause()  # ends the process that looks, if there is one

    def _scored(self) -> Growth:
        """Score dev, and begin to count the memory of steps.

        A file that is mapped keeps the room it computes in, which belongs to its steps too; PyTorch gives it back.
        """
        program = self.method.program
        if not isinstance(program, PteProgram):
            self._note()
            return Growth()
        growth = SampledGrowth(self.method.held_bytes)
        program.make_room()
        growth.pause()
        self._note()
        growth.go_on()
        return growth

    def _counted_steps(self) -> Iterator[bool]:
        """Take as many steps as the rows are enough for; yields after each whether a score is due."""
        for result in self.loop:
            self.steps_done = result.step
            yield result.step % self.steps_per_eval == 0 or result.step == self.loop.rates.steps

    def _timed_steps(self) -> Iterator[bool]:
        """Take steps until their time is spent, of which a share is the progress of the learning rate."""
        seconds, every, loop = self.budget.seconds, self.budget.eval_every, self.loop
        rate, schedule = loop.rates.lr, find_schedule(loop.rates.schedule)
        scores = 0
        while (spent := self._spent()) < seconds:
            lr = rate * schedule(spent / seconds)
            self.steps_done = loop.take(self.steps_done + 1, lr).step
            due = int(self._spent() / every)
            yield due > scores or self._spent() >= seconds
            scores = due

    def _spent(self) -> float:
        return self.loop.wall_seconds if self.budget.clock == "wall" else self.loop.cpu_seconds

    def score(self, rows: EvalSet) -> Evaluation:
        """Score the present weights; weights that give no number answer nothing right."""
        try:
            found = evaluate(self.method.program, rows)
        except NumericsError:
            return Evaluation(
                loss=math.log(self.method.program.manifest.vocab_size),
                accuracy=0.0,
                num_examples=len(rows.answers),
                num_calls=0,
                seconds=0.0,
            )
        assert found is not None, "nothing stops it"
        return found

    def _note(self) -> None:
        self.method.flush()
        found = self.score(self.data.dev)
        rows = self.steps_done * self.method.rows_per_step
        wall, cpu = round(self.loop.wall_seconds, 4), round(self.loop.cpu_seconds, 4)
        self.curve.append(
            Point(forward_rows=rows, accuracy=found.accuracy or 0.0, loss=found.loss, wall_s=wall, cpu_s=cpu)
        )
