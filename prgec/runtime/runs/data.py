"""The data of a run: what it trains on, what it is measured by before and after, and what in between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from prgec.core.contract.engine import GeneratingProgram
from prgec.core.data.batches import warn_of_padding
from prgec.core.data.dataset import LOW_VOLUME_TEST, Dataset, load_datasets, load_feedback
from prgec.core.data.encode import Row, encode_items
from prgec.core.data.eval_set import encode_eval_set
from prgec.core.data.feedback_set import FeedbackSet, encode_feedback
from prgec.core.data.rows_file import RowSet, read_rows
from prgec.core.data.tasks import TOML_SUFFIX
from prgec.core.data.weight import check_weighs
from prgec.errors import DataError
from prgec.runtime.runs.feedback import check_kind, objective_of
from prgec.runtime.runs.options import RunOptions
from prgec.runtime.runs.result import Listener
from prgec.runtime.training.objectives import Objective


@dataclass(frozen=True)
class RunFiles:
    """Data that were read but not encoded yet; None where files of rows take their place or nothing is measured.

    Attributes:
        train: Rows to train on.
        test: Rows to evaluate before and after.
        dev: Rows to evaluate in between, where these are not `test`.
    """

    options: RunOptions
    train: Dataset | None
    test: Dataset | None
    dev: Dataset | None = None

    @property
    def task(self) -> str:
        """Name of the task of the rows, or its .toml file; empty without texts to train on."""
        if self.train is None:
            return ""
        given = self.options.task
        return str(Path(given).absolute()) if given.endswith(TOML_SUFFIX) else self.train.task.name

    @classmethod
    def read(cls, options: RunOptions, listener: Listener) -> RunFiles:
        """Read the data files.

        Raises:
            DataError: If one is bad, or they are of different tasks.
            UsageError: If there is no such task.
        """
        if (objective := objective_of(options)) is not None:
            return cls._of_feedback(options, objective, listener)
        paths = [path for path in (options.data, options.eval_data) if path is not None]
        # Train and test choose from the same answers.
        datasets = load_datasets(
            list(dict.fromkeys(paths)), options.task, no_eos=options.no_eos, columns=options.columns
        )
        train = datasets[0] if options.data else None
        if train is not None:
            listener.on_data(train)
        test = datasets[-1] if options.eval_data else None
        if train is not None and test is not None and test.task != train.task:
            raise DataError(
                f"--data is of task {train.task.name}, --eval-data of {test.task.name}",
                where=test.path,
                hint="name the task with --task",
            )
        if train is None or not options.low_volume:
            return cls(options, train, test)
        few, dev = train.low_volume(options.seed)
        if test is None and options.eval_rows is None:
            return cls(options, few, dev)
        return cls(options, few, test.sample(LOW_VOLUME_TEST, options.seed) if test else None, dev)

    @classmethod
    def _of_feedback(cls, options: RunOptions, objective: Objective, listener: Listener) -> RunFiles:
        train, test = (
            load_feedback(path, no_eos=options.no_eos, columns=options.columns, with_others=objective.needs_drift)
            if path is not None
            else None
            for path in (options.data, options.eval_data)
        )
        for each in filter(None, (train, test)):
            check_kind(objective, each)
        if train is not None:
            listener.on_data(train)
        return cls(options, train, test)

    def encode(self, program: GeneratingProgram) -> tuple[Sequence[Row], RowSet | None, RowSet | None]:
        """Return the rows of training, of the evaluations at the ends, and of those in between.

        Raises:
            DataError: If an item or a file of rows does not fit the program.
        """
        options = self.options
        if self.train is not None:
            train = self.train.choosing_from(program.manifest.answers)
            rows: Sequence[Row] = encode_items(train.examples, program.tokenizer, program.manifest)
            warn_of_padding(rows, program.manifest)
        else:
            rows = _read_rows(options.rows, program).right_rows()
        check_weighs(rows, program.manifest, options.data or options.rows)
        test: RowSet | None = encode_eval_set(self.test, program) if self.test else None
        if options.eval_rows is not None:
            test = _read_rows(options.eval_rows, program)
        return rows, test, encode_eval_set(self.dev, program) if self.dev else test

    def encode_feedback(self, program: GeneratingProgram) -> tuple[FeedbackSet, FeedbackSet | None]:
        """Return the answers to learn from, and those to evaluate.

        Raises:
            DataError: If an answer does not fit the program.
        """
        train, test = (
            encode_feedback(each, program.tokenizer, program.manifest) if each is not None else None
            for each in (self.train, self.test)
        )
        assert train is not None, "feedback comes as texts"
        warn_of_padding(train.rows, program.manifest)
        return train, test


def _read_rows(path: Path | None, program: GeneratingProgram) -> RowSet:
    assert path is not None, "options name data or rows"
    return read_rows(path, program.manifest, program.tokenizer.sha256)
