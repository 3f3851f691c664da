"""The feedback of a run: its objective, and the losses of its answers before the first step."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from prgec.core.contract.engine import Engine
from prgec.core.contract.listener import CallListener
from prgec.core.contract.names import LABEL_WEIGHTS_HINT
from prgec.core.data.dataset import Dataset
from prgec.core.data.feedback_set import FeedbackSet
from prgec.core.formats.run_folder import REFERENCE_NAME, RunFolder
from prgec.core.formats.tensor_file import pack_tensors, unpack_tensors
from prgec.core.machine.files import write_atomic
from prgec.errors import DataError, UsageError
from prgec.runtime.runs.options import RunOptions
from prgec.runtime.training.feedback import Feedback, Reference, measure_reference
from prgec.runtime.training.objectives import OBJECTIVES, Numbers, Objective

logger = logging.getLogger(__name__)

_PARTS = ("rows", "others")


@dataclass(frozen=True)
class RunFeedback:
    """The answers of a run.

    Attributes:
        train: To learn from.
        test: To evaluate; None to evaluate nothing.
    """

    train: Feedback
    test: Feedback | None


def objective_of(options: RunOptions) -> Objective | None:
    """Return the objective of a run; None where it learns right answers."""
    return OBJECTIVES.get(options.objective)


def numbers_of(options: RunOptions, objective: Objective) -> Numbers:
    """Return what a user set of an objective, and its defaults."""
    beta = objective.beta if options.beta is None else options.beta
    return Numbers(beta, options.gamma, options.desirable, options.undesirable)


def check_objective(objective: Objective, program: Engine, path: Path) -> None:
    """Refuse a program that cannot learn by an objective.

    Raises:
        UsageError: If it computes gradients and takes no label weights, or holds no whole number of pairs.
    """
    m = program.manifest
    if m.has_gradients and not m.label_weights:
        raise UsageError(
            f"--objective {objective.name} needs a program that weighs labels", where=path, hint=LABEL_WEIGHTS_HINT
        )
    if objective.is_paired and m.batch_size % 2:
        raise UsageError(
            f"--objective {objective.name} takes pairs, and the program takes {m.batch_size} rows a call",
            where=path,
            hint="compile it with an even --batch-size",
        )


def check_kind(objective: Objective, dataset: Dataset) -> None:
    """Refuse single answers where an objective compares two.

    Raises:
        DataError: If it does.
    """
    if objective.is_paired and not dataset.is_paired:
        raise DataError(
            f"--objective {objective.name} compares two answers, and rows have one",
            where=dataset.path,
            hint="give rows prompt, chosen and rejected, or learn from single answers with --objective kto",
        )


def with_references(
    options: RunOptions,
    program: Engine,
    train: FeedbackSet,
    test: FeedbackSet | None,
    folder: RunFolder,
    on_batch: CallListener,
) -> RunFeedback:
    """Return the feedback of a run with its references: those the folder keeps, or new ones, kept from now on.

    Args:
        options: Options of the run.
        program: The program, before its first step; its state is left as it is.
        train: Answers to learn from.
        test: Answers to evaluate.
        folder: The run folder.
        on_batch: Called with (rows done, all rows) after every call; it may raise to end the rest.
    """
    objective = objective_of(options)
    assert objective is not None
    numbers = numbers_of(options, objective)
    if not objective.needs_reference:
        nothing = Reference(np.zeros(0, np.float32), np.zeros(0, np.float32))
        tested = Feedback(objective, numbers, test, nothing) if test is not None else None
        return RunFeedback(Feedback(objective, numbers, train, nothing), tested)
    sets = {"train": train} | ({"test": test} if test is not None else {})
    names = [objective.name, program.manifest.to_json(), *(f"{name} {each.crc}" for name, each in sets.items())]
    key = hashlib.sha256("\n".join(names).encode()).hexdigest()
    references = _kept(folder.path / REFERENCE_NAME, key, sets, objective)
    if references is None:
        logger.info("measuring the reference")
        references = {name: measure_reference(program, objective, each, on_batch) for name, each in sets.items()}
        tensors = {f"{name}.{part}": getattr(each, part) for name, each in references.items() for part in _PARTS}
        write_atomic(folder.file(REFERENCE_NAME), pack_tensors(tensors, {"key": key}))
    made = {name: Feedback(objective, numbers, each, references[name]) for name, each in sets.items()}
    return RunFeedback(made["train"], made.get("test"))


def _kept(path: Path, key: str, sets: dict[str, FeedbackSet], objective: Objective) -> dict[str, Reference] | None:
    """Return the references of a file; None where there is none, or one of other answers or of another program."""
    try:
        tensors, metadata = unpack_tensors(path.read_bytes(), path)
    except FileNotFoundError:
        return None
    except (OSError, DataError) as error:
        logger.warning("measuring the reference again: %s", error)
        return None
    sizes = {
        f"{name}.{part}": (len(rows),)
        for name, each in sets.items()
        for part, rows in (("rows", each.rows), ("others", each.others if objective.needs_drift else ()))
    }
    if metadata.get("key") != key or {name: each.shape for name, each in tensors.items()} != sizes:
        return None
    return {name: Reference(*(tensors[f"{name}.{part}"] for part in _PARTS)) for name in sets}
