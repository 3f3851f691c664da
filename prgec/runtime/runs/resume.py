"""Bring a program to the state a journal leads to: the last snapshot that fits it, then `apply` for every later step.

Not programs with `dual` state: in all others the noise of a step follows from (seed, step).
"""

from __future__ import annotations

import logging
import zlib
from pathlib import Path

from prgec.core.contract.arrays import State
from prgec.core.contract.calls import StepInputs
from prgec.core.contract.engine import TrainableProgram
from prgec.core.contract.manifest import Manifest
from prgec.core.data.rows_file import fingerprint
from prgec.core.formats.adapter import identity, load_adapter, load_snapshot, masters_sha256
from prgec.core.formats.journal import Journal, read_journal
from prgec.core.formats.journal_records import Header
from prgec.core.formats.run_folder import (
    ADAPTER_NAME,
    JOURNAL_NAME,
    PARTIAL_JOURNAL_NAME,
    SNAPSHOT_NAME,
    SUMMARY_NAME,
    RunFolder,
)
from prgec.errors import DataError, ProgramError, UsageError
from prgec.runtime.runs.open import Opened
from prgec.runtime.training.reward_trainer import RECORDED_QUERIES
from prgec.runtime.training.schedules import course

logger = logging.getLogger(__name__)

# The user's names of the fields of a header; the first that differs is reported.
_NAMES = {
    "q": "the program's q",
    "batch_size": "the program's batch size or --accumulate",
    "seed": "--seed",
    "steps": "--steps",
    "lr": "--lr",
    "schedule": "--lr-schedule or --warmup",
    "estimator": "--estimator",
    "num_examples": "the number of examples",
    "rows_crc": "the data",
    "program_sha256": "the program",
    "eps": "--eps",
    "start_sha256": "the adapter to start from",
    "max_g": "--max-g",
    "policies": "--over-limit or --not-finite",
}


def header_of(opened: Opened) -> Header:
    """Return what a run is, with the start adapter in the program."""
    options, program, rows = opened.options, opened.program, opened.rows
    m = program.manifest
    feedback, rewards = opened.feedback and opened.feedback.train, opened.rewards
    objective = feedback.objective.name if feedback else rewards.objective if rewards else ""
    judged, budget = feedback or rewards, opened.budget
    rows_crc = judged.crc if judged else fingerprint(rows)
    if budget is not None:
        objective = "private"
        rows_crc = zlib.crc32(f"{budget.epsilon} {budget.delta} {options.dp_clip}".encode(), rows_crc)
    # A step by an objective and gradients measures several pairs of numbers.
    pairs = (2 if feedback else RECORDED_QUERIES) if judged and m.has_gradients else m.q
    return Header(
        q=pairs,
        batch_size=m.batch_size * options.accumulate,
        seed=options.seed,
        steps=options.steps,
        lr=opened.rates.lr,
        eps=0.0 if m.has_gradients else options.eps,
        schedule=course(opened.rates),
        estimator=(m.optimizer or options.estimator) + (f"+{objective}" if objective else ""),
        num_examples=len(rows),
        rows_crc=rows_crc,
        program_sha256=identity(m),
        start_sha256=masters_sha256(program),
        max_g=options.limits.max_g,
        policies=options.limits.flags,
    )


def resume(program: TrainableProgram, folder: RunFolder, header: Header) -> Journal | None:
    """Bring a program from its start state to the last step of the run in a folder.

    Args:
        program: The program, with the start adapter in it.
        folder: The run folder.
        header: Identity of the run if it began now; the journal's must be equal.

    Returns:
        The journal to go on with; None where no run has begun in the folder.

    Raises:
        UsageError: If the run is complete, was begun with other flags or data, or cannot be replayed.
        DataError: If the journal cannot be read.
        ProgramError: If the replay gives another state than the run had.
    """
    journal = find_journal(folder)
    if journal is None:
        logger.warning("nothing to resume in %s: starting with step 1", folder.path)
        return None
    _check_same_run(journal, header, program.manifest)
    if not program.manifest.has_gradients:
        _check_replayable(program.manifest, journal)
    done = len(journal.steps)
    # Without a summary the run was killed between its last files.
    if done >= header.steps and journal.path.name == JOURNAL_NAME and (folder.path / SUMMARY_NAME).exists():
        raise UsageError(f"the run is complete: all {done} steps are done", where=folder.path)
    if journal.bad_bytes:
        logger.warning("the last %d bytes of the journal are damaged: going on after step %d", journal.bad_bytes, done)
    if program.manifest.has_gradients:
        return _back_to_snapshot(program, journal, folder)
    _replay(program, journal, _load_snapshot(program, journal, folder), done)
    return journal


def _back_to_snapshot(program: TrainableProgram, journal: Journal, folder: RunFolder) -> Journal:
    """Bring a program that computes gradients to its last snapshot; return the journal up to there.

    A step of such a program does not follow from a few numbers, but from its rows, and those from the seed: the steps
    after the snapshot are taken again, and come out the same.
    """
    path, start = folder.path / SNAPSHOT_NAME, program.read_state()
    step = 0
    if path.is_file():
        optimizer = program.read_optimizer()
        try:
            step = load_snapshot(path, program)
        except ProgramError as error:
            logger.warning("not using a snapshot: %s", error)
        if not step or journal.states.get(step) != masters_sha256(program):
            step = 0
            program.write_state(start)
            program.write_optimizer(optimizer)
    done = len(journal.steps)
    if step < done:
        logger.warning("taking steps %d to %d again, from the last snapshot", step + 1, done)
    return journal.until(step)


def rebuild(program: TrainableProgram, journal: Journal, step: int | None) -> int:
    """Bring a program from its start state to the state after `step` steps, None for all; return how many.

    Raises:
        UsageError: If the journal has no such step, or the program's state cannot be replayed.
        DataError: If the journal is of another program, or its run began from another adapter.
        ProgramError: If the result is not the state whose hash the journal has.
    """
    _check_replayable(program.manifest, journal)
    if journal.header.program_sha256 != identity(program.manifest):
        raise DataError("the journal is of a program with other weights, sites, rank, alpha or A", where=journal.path)
    if journal.header.start_sha256 != masters_sha256(program):
        raise DataError(
            "the journal's run began from another adapter", where=journal.path, hint="name it with --adapter"
        )
    available = len(journal.steps)
    last = available if step is None else step
    if not 0 <= last <= available:
        raise UsageError(f"--step is {last}; the journal has {available} steps", where=journal.path)
    _replay(program, journal, 0, last)
    return last


def go_back(program: TrainableProgram, start: State, path: Path, step: int) -> bool:
    """Bring a program to the state after an earlier step of its own run; return whether it could be done.

    Args:
        program: The program.
        start: Its state before the first step.
        path: The journal of the run.
        step: The step.
    """
    m = program.manifest
    if m.has_gradients or m.state == "dual" or m.state_access == "outputs":
        return False
    program.write_state(start)
    _replay(program, read_journal(path), 0, step)
    return True


def find_journal(folder: RunFolder) -> Journal | None:
    """Read the journal of a folder: that of an unfinished run, else that of the last one; None without any.

    Raises:
        DataError: If it cannot be read at all.
    """
    for name in (PARTIAL_JOURNAL_NAME, JOURNAL_NAME):
        path = folder.path / name
        if path.is_file():
            return read_journal(path)
    return None


def _check_same_run(journal: Journal, header: Header, manifest: Manifest) -> None:
    names = {**_NAMES, "estimator": "the program's optimizer"} if manifest.has_gradients else _NAMES
    if "+" in header.estimator + journal.header.estimator:
        names = names | {
            "estimator": f"--objective, --dp-epsilon or {names['estimator']}",
            "rows_crc": "the data, --beta, --gamma, --desirable, --undesirable, --dp-... or what belongs to --reward",
            **({"q": "--objective"} if manifest.has_gradients else {}),
        }
    for field, name in names.items():
        found, expected = getattr(header, field), getattr(journal.header, field)
        if found != expected:
            detail = "" if field.endswith(("sha256", "crc")) else f": {found}, not {expected}"
            raise UsageError(
                f"{name} differs from the run to resume{detail}",
                where=journal.path,
                hint="resume with the program and the flags the run was started with",
            )


def _check_replayable(manifest: Manifest, journal: Journal) -> None:
    if manifest.has_gradients:
        raise UsageError(
            "a program that computes gradients makes its steps from the rows, which a journal does not have",
            hint="resume the run with its data: prgec run --resume",
        )
    if manifest.state == "dual":
        raise UsageError(
            "a program with dual state keeps its noise in memory: its runs cannot be replayed",
            hint="compile it with --state seeded",
        )
    if manifest.q != journal.header.q:
        raise DataError(
            f"the journal is of a program with q = {journal.header.q}; this one has q = {manifest.q}",
            where=journal.path,
        )


def _load_snapshot(program: TrainableProgram, journal: Journal, folder: RunFolder) -> int:
    """Load the snapshot whose hash the journal has; return its step, 0 where there is none.

    A snapshot that is damaged or of another run costs time, not the run.
    """
    if program.manifest.state_access == "outputs":
        # Nothing can be put into the program: every step is replayed.
        return 0
    steps = {sha256: step for step, sha256 in journal.states.items()}
    start = program.read_state()
    for name in (SNAPSHOT_NAME, ADAPTER_NAME):
        path = folder.path / name
        if not steps or not path.is_file():
            continue
        try:
            load_adapter(path, program)
        except ProgramError as error:
            logger.warning("not using a snapshot: %s", error)
            continue
        if (step := steps.get(masters_sha256(program))) is not None:
            return step
        program.write_state(start)
    return 0


def _replay(program: TrainableProgram, journal: Journal, first: int, last: int) -> None:
    """Apply the updates of steps first + 1 to last, and compare the state with the last hash on the way."""
    states = journal.states
    checked = max((step for step in states if first < step <= last), default=None)
    for record in journal.steps[first:last]:
        program.apply(StepInputs(g_q=record.g, lr=record.lr, seed=journal.header.seed, step=record.step + 1))
        if record.step == checked and masters_sha256(program) != states[checked]:
            raise ProgramError(
                f"the replay of step {checked} gives another state than the run had",
                where=journal.path,
                hint="was the run made on another kind of processor?",
            )
