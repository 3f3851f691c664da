"""Devices with rows of their own and the side that merges, over the tiny program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from prgec.core.contract.engine import TrainableProgram
from prgec.core.data.dataset import Dataset
from prgec.core.data.encode import Row, encode_rows
from prgec.core.formats.adapter import identity, masters_sha256
from prgec.core.formats.journal_records import Header
from prgec.runtime.engines.executorch.open import open_pte
from prgec.runtime.federated.coordinator import Coordinator
from prgec.runtime.federated.device import FederatedDevice
from prgec.runtime.federated.local import RoundPlan
from prgec.runtime.federated.rounds import Rounds
from prgec.runtime.training.evaluate import row_losses
from prgec.runtime.training.schedules import Rates

SEED, EPS, STEPS, DEVICES = 5, 5e-2, 60, 3
RATES = Rates(STEPS, 0.05)
PLAN = RoundPlan(rounds=6, places=DEVICES, local_steps=10)
COURSE = Rates(60, 0.15)


def read_rows(path: Path, data: Dataset) -> list[Row]:
    """The rows of a data file, for the program at `path`."""
    program = open_pte(path)
    return encode_rows([(e, e.completion or "") for e in data.examples], program.tokenizer, program.manifest)


def device(path: Path, rows: Sequence[Row], number: int, of: int = DEVICES) -> FederatedDevice:
    """One of several devices, with its part of the rows."""
    return FederatedDevice(f"device {number}", open_pte(path), rows[number::of], seed=SEED, eps=EPS, order=number)


def header(program: TrainableProgram, **changes: Any) -> Header:
    """Identity of a run of the program."""
    m = program.manifest
    ours = (identity(m), masters_sha256(program))
    plain = Header(m.q, m.batch_size, SEED, STEPS, RATES.lr, EPS, RATES.schedule, "norm", 0, 0, *ours)
    return replace(plain, **changes)


def coordinator(path: Path, program: TrainableProgram, merge: str = "mean", **changes: Any) -> Coordinator:
    """The side that merges single steps."""
    return Coordinator(path, header(program, **changes), RATES, merge=merge)


def rounds(
    path: Path, program: TrainableProgram, merge: str = "mean", plan: RoundPlan = PLAN, estimator: str = "norm"
) -> Rounds:
    """The side that merges rounds of local steps."""
    changed = header(program, steps=plan.steps, lr=COURSE.lr, estimator=estimator)
    return Rounds(path, changed, plan, COURSE, merge=merge)


def mean_loss(program: TrainableProgram, rows: Sequence[Row]) -> float:
    """Loss of the present state over rows."""
    return float(row_losses(program, rows).mean())  # type: ignore[arg-type]
