"""The parts of a study, from a TOML file; imports nothing heavy."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prgec.compiler.frontend.checkpoint import find_checkpoint
from prgec.core.data.tasks import AUTO_TASK, TOML_SUFFIX
from prgec.errors import DataError, UsageError
from prgec.lab.study.budget import KEYS as BUDGET_KEYS
from prgec.lab.study.budget import Budget, read_budget

Options = Mapping[str, Any]
# Engines of a compiled graph; `engine` of a method.
TORCH, EXECUTORCH = "torch", "executorch"
SPLITS = ("train", "dev", "test")
# `data` of a method that is compiled with the rows it trains on, as `prgec compile --data` has them.
OWN_DATA = "train"


@dataclass(frozen=True, kw_only=True)
class StudyTask:
    """One data set.

    Attributes:
        name: Its name in tables.
        train: File to train on.
        dev: File that chooses hyper-parameters and draws curves.
        test: File that is reported.
        task: Row of the task table, a TOML file that describes one, or `auto`.
        target: Accuracy whose price is reported; 0 for none.
    """

    name: str
    train: Path
    dev: Path
    test: Path
    task: str = AUTO_TASK
    target: float = 0.0


@dataclass(frozen=True)
class StudyMethod:
    """One way to train, and the values to try.

    Attributes:
        name: Its name in tables.
        grid: Options of each try; equal but for what is searched.
    """

    name: str
    grid: tuple[Options, ...]


@dataclass(frozen=True, kw_only=True)
class Study:
    """A whole study.

    Attributes:
        title: Line above the report.
        path: File it was read from.
        model: Checkpoint folder, alias or hub id.
        budget: Budget of each run.
        seeds: Seeds of noise, order and start; all of them are reported.
        tune_seeds: How many of the first seeds choose among a grid.
        threads: PyTorch threads; 0 leaves it to PyTorch.
        tasks: Data sets.
        methods: Ways to train.
        compare: Pairs of methods whose runs are compared seed by seed, winner first.
    """

    title: str
    path: Path
    model: str
    budget: Budget
    seeds: tuple[int, ...]
    tasks: tuple[StudyTask, ...]
    methods: tuple[StudyMethod, ...]
    tune_seeds: int = 2
    threads: int = 1
    compare: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Run:
    """One training run of a study.

    Attributes:
        method: Name of the method.
        task: The data set.
        options: Options of the method, all scalars.
        seed: Its seed.
    """

    method: str
    task: StudyTask
    options: Options = field(hash=False)
    seed: int

    @property
    def made_of(self) -> Options:
        """The options of its method, with the task's own rows where they say so."""
        if self.options.get("data") != OWN_DATA:
            return self.options
        return {**self.options, "data": str(self.task.train), "task": self.task.task}

    def key(self, study: Study) -> str:
        """Return what names the run in the file of results: runs with equal keys have equal results.

        Raises:
            DataError: If a file of the task cannot be read.
            CheckpointError: If the model cannot be found.
        """
        files = [_file_sha256(getattr(self.task, split)) for split in SPLITS]
        task = _file_sha256(Path(self.task.task)) if self.task.task.endswith(TOML_SUFFIX) else self.task.task
        parts = [_model_sha256(study.model), *study.budget.key, files, task, dict(self.options), self.seed]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def read_study(path: Path) -> Study:
    """Read and check a study.

    Raises:
        DataError: If the file cannot be read or is not TOML.
        UsageError: If it lacks something, or has a key nobody reads.
    """
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"cannot read the study: {error.strerror}", where=path) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"the study is not TOML: {error}", where=path) from error
    return make_study(raw, path)


def make_study(raw: dict[str, Any], path: Path) -> Study:
    """Make a study of what its file says.

    Args:
        raw: Keys and values; taken apart.
        path: The file, from whose folder others are found.

    Raises:
        UsageError: If it lacks something, or has a key nobody reads.
    """
    try:
        return _study(raw, path)
    except KeyError as error:
        raise UsageError(f"the study lacks {error.args[0]!r}", where=path) from error
    except (TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"the study has a value of the wrong kind: {error}", where=path) from error


def expand(options: Options) -> tuple[Options, ...]:
    """Return the grid of options whose searched values are lists."""
    names = list(options)
    values = [value if isinstance(value, list) else [value] for value in options.values()]
    return tuple(dict(zip(names, chosen, strict=True)) for chosen in itertools.product(*values))


@functools.cache
def _file_sha256(path: Path) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            for chunk in iter(lambda: file.read(1 << 20), b""):
                digest.update(chunk)
    except OSError as error:
        raise DataError(f"cannot read the data: {error.strerror}", where=path) from error
    return digest.hexdigest()


@functools.cache
def _model_sha256(model: str) -> list[str]:
    return [_file_sha256(path) for path in find_checkpoint(model).shards]


def _study(raw: dict[str, Any], path: Path) -> Study:
    defaults = raw.pop("defaults", {})
    target = raw.pop("target", 0.0)
    tasks = tuple(_task(name, {"target": target, **entry}, path.parent) for name, entry in raw.pop("tasks").items())
    methods = tuple(StudyMethod(name, expand({**defaults, **entry})) for name, entry in raw.pop("methods").items())
    known = {"title", "model", *BUDGET_KEYS, "seeds", "tune_seeds", "threads", "compare"}
    if unknown := sorted(set(raw) - known):
        raise UsageError(
            f"the study has {unknown[0]!r}, which is unknown",
            where=path,
            hint=f"known: {', '.join(sorted(known))}, target, defaults, tasks, methods",
        )
    budget = read_budget({name: raw.pop(name) for name in BUDGET_KEYS if name in raw}, path)
    for name in ("title", "model", "seeds"):
        _ = raw[name]  # a KeyError names what is missing
    model = path.parent / raw["model"]
    study = Study(
        **{
            **raw,
            "model": str(model) if model.exists() else raw["model"],
            "seeds": tuple(raw["seeds"]),
            "compare": tuple((first, second) for first, second in raw.get("compare", ())),
        },
        path=path,
        budget=budget,
        tasks=tasks,
        methods=methods,
    )
    _check(study)
    return study


def _task(name: str, entry: Options, folder: Path) -> StudyTask:
    files = {
        split: folder / (entry[split] if split in entry else f"{entry['folder']}/{split}.jsonl") for split in SPLITS
    }
    task = entry.get("task", AUTO_TASK)
    task = str(folder / task) if task.endswith(TOML_SUFFIX) else task
    return StudyTask(name=name, **files, task=task, target=float(entry["target"]))


def _check(study: Study) -> None:
    if not isinstance(study.tune_seeds, int) or study.tune_seeds < 1:
        raise UsageError(f"tune_seeds is {study.tune_seeds!r}; expected a positive integer", where=study.path)
    for task in study.tasks:
        if not 0.0 <= task.target <= 1.0:
            raise UsageError(f"the target of task {task.name!r} is {task.target}; expected 0 to 1", where=study.path)
    for method in study.methods:
        _check_options(method, study.path)
    _check_names([name for pair in study.compare for name in pair], [each.name for each in study.methods], study.path)
    if not (study.seeds and study.tasks and study.methods):
        raise UsageError("a study needs seeds, tasks and methods", where=study.path)


def _check_options(method: StudyMethod, path: Path) -> None:
    if not method.grid:
        raise UsageError(f"method {method.name!r} has an option with no value to try", where=path)
    # TOML reads the dot of [methods.adam-0.5] as a table within a table.
    for name in (name for name, value in method.grid[0].items() if isinstance(value, dict)):
        raise UsageError(
            f"method {method.name!r} has a table {name!r} where options are expected",
            where=path,
            hint=f'put a name with dots in quotes: [methods."{method.name}.{name}"]',
        )


def _check_names(found: Sequence[str], known: Sequence[str], path: Path) -> None:
    for name in found:
        if name not in known:
            raise UsageError(f"compare names {name!r}, which is not a method", where=path, hint=f"known: {known}")
