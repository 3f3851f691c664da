"""Data files under one task: their items, samples of them, and the answers they share."""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np

from prgec.core.contract.chat import WEIGHT
from prgec.core.data.columns import read_renamed
from prgec.core.data.detect import check_fields, detect
from prgec.core.data.feedback import FEEDBACK, answers_of_records, feedback_item, is_pair, is_thumb, to_other_prompts
from prgec.core.data.items import Items
from prgec.core.data.jsonl import Record
from prgec.core.data.task import Example, Item, Task
from prgec.core.data.tasks import AUTO_TASK, find_task
from prgec.core.data.weight import weighed_item, weight_of
from prgec.errors import DataError, UsageError

logger = logging.getLogger(__name__)

# The paper's low-volume condition (section D.2, after MeZO): 1,000 training, 500 validation and 1,000 test examples.
LOW_VOLUME_TRAIN, LOW_VOLUME_DEV, LOW_VOLUME_TEST = 1000, 500, 1000


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A data file read under one task.

    Attributes:
        task: Row of the task table.
        path: File the examples came from.
        examples: Items in file order.
        found_by: Why it is this task, for people.
        kept_in: The layout of the file, for people.
        answers: Candidates where the data give them, not the task (`share_answers`).
        no_eos: Whether free answers are learned without their end.
        is_good: Whether each example is a good answer, in a file of feedback; else empty.
        is_paired: Whether those come as pairs, chosen before rejected.
        others: Each example's prompt with the answer to another one, in feedback for objectives that need it.
    """

    task: Task
    path: Path
    examples: Sequence[Item]
    found_by: str = ""
    kept_in: str = ""
    answers: tuple[str, ...] = ()
    no_eos: bool = False
    is_good: tuple[bool, ...] = ()
    is_paired: bool = False
    others: Sequence[Item] = ()

    def candidates(self) -> tuple[str, ...]:
        """Return the choices an answer is picked from; empty when items bring their own or the task is open-ended."""
        return self.task.candidates or self.answers

    @functools.cached_property
    def has_own_candidates(self) -> bool:
        """Whether every item brings its choices."""
        return all(isinstance(each, Example) and each.candidates for each in self.examples)

    @property
    def has_choices(self) -> bool:
        """Whether answers are picked from several, those of all items or each item's own."""
        return bool(self.candidates()) or self.has_own_candidates

    def sample(self, count: int, seed: int) -> Dataset:
        """Return `count` items in a random order; all of them where there are fewer."""
        return self._at(_shuffled(len(self.examples), seed)[:count])

    def low_volume(self, seed: int) -> tuple[Dataset, Dataset]:
        """Return 1,000 items to train on and 500 others to choose by; a third of the data where there are too few."""
        order = _shuffled(len(self.examples), seed)
        num_dev = min(LOW_VOLUME_DEV, len(order) // 3)
        num_train = min(LOW_VOLUME_TRAIN, len(order) - num_dev)
        return self._at(order[:num_train]), self._at(order[num_train : num_train + num_dev])

    def choosing_from(self, known: Sequence[str]) -> Dataset:
        """Return the data set with answers that a program was compiled for, where its own are among them.

        A file that lacks some of the answers, or has a single one, is still a choice between all.
        """
        if not (known and _may_derive(self) and all(each in known for each in _completions(self))):
            return self
        return replace(self, answers=tuple(known), examples=Items(self.examples, ends=False))

    def describe(self) -> str:
        """Return one line for people: the task and why."""
        return f"task {self.task.name} ({self.found_by}), {len(self.examples)} items of {self.path} ({self.kept_in})"

    def _at(self, indices: Sequence[int]) -> Dataset:
        return replace(
            self,
            examples=Items(self.examples, indices),
            is_good=tuple(self.is_good[i] for i in indices if self.is_good),
            others=Items(self.others, indices) if self.others else (),
        )


def load_dataset(
    path: Path,
    task_name: str = AUTO_TASK,
    *,
    labelled: bool = True,
    no_eos: bool = False,
    columns: Sequence[str] = (),
    takes_feedback: bool = False,
) -> Dataset:
    """Read a data file as items of a task.

    Args:
        path: The data file.
        task_name: A name in `TASKS`, a .toml file, or `auto` to infer it from the fields of the first record.
        labelled: Whether every record must say the right answer; otherwise answers are ignored.
        no_eos: Whether to learn free answers without their end.
        columns: Names of columns as `--map` takes them, `ours=theirs`.
        takes_feedback: Whether a file of feedback is read as such (`load_feedback`), and not refused.

    Raises:
        UsageError: If the task is not in the table, or a column is mapped wrongly.
        DataError: If the file or a record is bad.
    """
    # A task that cannot be found is reported before a large file is read.
    named = None if task_name == AUTO_TASK else find_task(task_name)
    records, kept_in = read_renamed(path, columns)
    first = next(records)
    records = chain([first], records)
    if takes_feedback and named is None and (is_pair(first) or is_thumb(first)):
        return _feedback(path, list(records), kept_in, no_eos=no_eos)
    if named is None:
        records, task, found_by = detect(records, labelled)
    else:
        task, found_by = named, "named"
    items = Items.of(_items(task, records, labelled))
    return share_answers(
        [Dataset(task=task, path=path, examples=items, found_by=found_by, kept_in=kept_in, no_eos=no_eos)]
    )[0]


def _items(task: Task, records: Iterator[Record], labelled: bool) -> Iterator[Item]:
    first = None
    for record in records:
        first = first or record
        check_fields(task, record, first, labelled)
        yield weighed_item(task, record, labelled=labelled)


def load_feedback(
    path: Path, *, no_eos: bool = False, columns: Sequence[str] = (), with_others: bool = False
) -> Dataset:
    """Read a file of feedback: an item for each answer, pairs as chosen, rejected.

    Args:
        path: The data file.
        no_eos: Whether to learn answers without their end.
        columns: Names of columns as `--map` takes them, `ours=theirs`.
        with_others: Whether prompts are wanted with answers to other prompts, too.

    Raises:
        UsageError: If a column is mapped wrongly.
        DataError: If the file or a record is bad.
    """
    records, kept_in = read_renamed(path, columns)
    return _feedback(path, list(records), kept_in, no_eos=no_eos, with_others=with_others)


def _feedback(path: Path, records: list[Record], kept_in: str, *, no_eos: bool, with_others: bool = False) -> Dataset:
    answers, is_good = answers_of_records(records)
    for record in answers:
        if weight_of(record) != 1.0:
            raise DataError(
                f'field "weight" is {record.fields[WEIGHT]!r}: objectives weigh answers themselves',
                where=record.where,
                hint="leave the field out",
            )
    others = to_other_prompts(answers) if with_others else []
    return Dataset(
        task=FEEDBACK,
        path=path,
        examples=Items([feedback_item(each) for each in answers], ends=not no_eos),
        found_by="pairs" if is_pair(records[0]) else "answers with labels",
        kept_in=kept_in,
        no_eos=no_eos,
        is_good=tuple(is_good),
        is_paired=is_pair(records[0]),
        others=Items([feedback_item(each) for each in others], ends=not no_eos),
    )


def load_datasets(
    paths: Sequence[Path],
    task_name: str = AUTO_TASK,
    *,
    no_eos: bool = False,
    columns: Sequence[str] = (),
    known: Sequence[str] = (),
    takes_feedback: bool = False,
) -> list[Dataset]:
    """Read files as `load_dataset` does each; those of one task share their answers, which may be known already.

    Raises:
        UsageError: If a file is named twice.
    """
    twice = next((path for n, path in enumerate(paths) if path in paths[:n]), None)
    if twice is not None:
        raise UsageError("a data file is named twice", where=twice, hint="name each file once")
    datasets = [
        load_dataset(path, task_name, no_eos=no_eos, columns=columns, takes_feedback=takes_feedback) for path in paths
    ]
    names = dict.fromkeys(dataset.task.name for dataset in datasets)
    shared = {name: share_answers([each for each in datasets if each.task.name == name]) for name in names}
    return [shared[dataset.task.name].pop(0).choosing_from(known) for dataset in datasets]


def share_answers(datasets: Sequence[Dataset]) -> list[Dataset]:
    """Return data sets of one task with one set of answers for all: a dev file that lacks a class knows it.

    The set is closed where the files hold 2 to 16 different completions and repeat at least one of them, or labels. A
    choice needs no end; a free answer learns its own.

    Args:
        datasets: The files of one compilation, run or evaluation, the training file first.
    """
    if not datasets or any(not _may_derive(dataset) for dataset in datasets):
        return list(datasets)
    task = datasets[0].task
    found = [_few_completions(dataset, task.most_answers) for dataset in datasets]
    few = [each for each in found if each is not None]
    together = sum(few, Counter[str]())
    is_repeated = len(together) < together.total() or task.has_labels
    is_closed = len(few) == len(found) and 2 <= len(together) <= task.most_answers and is_repeated
    if is_closed:
        _remark_on_unknown(datasets, few)
    answers = tuple(sorted(together)) if is_closed else ()
    ends = not (is_closed or task.has_labels)
    return [
        replace(each, answers=answers, examples=Items(each.examples, ends=ends and not each.no_eos))
        for each in datasets
    ]


def _may_derive(dataset: Dataset) -> bool:
    return dataset.task.most_answers > 0 and not dataset.has_own_candidates


def _completions(dataset: Dataset) -> Iterator[str]:
    found = (each.completion for each in dataset.examples if isinstance(each, Example))
    return (completion for completion in found if completion is not None)


def _few_completions(dataset: Dataset, most: int) -> Counter[str] | None:
    """Count the different completions; None where there are more than `most`."""
    counts = Counter[str]()
    for completion in _completions(dataset):
        counts[completion] += 1
        if len(counts) > most:
            return None
    return counts


def _remark_on_unknown(datasets: Sequence[Dataset], counts: Sequence[Counter[str]]) -> None:
    """Name answers that the first file does not teach."""
    for dataset, count in zip(datasets[1:], counts[1:], strict=True):
        unknown = sorted(set(count) - set(counts[0]))
        if unknown:
            listed = ", ".join(map(repr, unknown))
            logger.warning("%s has the answers %s, which %s never gives", dataset.path, listed, datasets[0].path)


def _shuffled(count: int, seed: int) -> list[int]:
    # Raw PCG64 output: numpy keeps it stable across versions, and `permutation` carries no such promise.
    keys = np.random.PCG64(seed % 2**64).random_raw(count)
    order: list[int] = np.argsort(keys, kind="stable").tolist()
    return order
