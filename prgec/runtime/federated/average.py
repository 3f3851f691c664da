"""Averaging, for programs that compute their own gradients: devices train alone and send their masters.

A step of such a program does not follow from a few numbers, so the trained state itself travels: r O f32 a site.

Letters: D devices, n numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from prgec.core.contract.arrays import State
from prgec.core.contract.engine import TrainableProgram
from prgec.core.data.batches import step_batch
from prgec.core.data.row import Row
from prgec.core.formats.adapter import masters
from prgec.errors import DataError, UsageError
from prgec.runtime.federated.local import local_steps
from prgec.runtime.federated.merge import check_numbers, find_merge
from prgec.runtime.training.gradient_trainer import GradientTrainer


@dataclass(frozen=True, kw_only=True)
class LocalState:
    """The masters that a device has trained.

    Attributes:
        device: Name of the device.
        num_rows: Rows that its steps saw.
        state: Masters by name.
    """

    device: str
    num_rows: int
    state: State


def train_state(
    name: str,
    program: TrainableProgram,
    rows: Sequence[Row],
    *,
    rates: Sequence[float],
    number: int,
    order: int,
    proximal: float = 0.0,
) -> LocalState:
    """Take the steps of a round on a device's own rows, from the common state that the program holds.

    With `proximal` the loss has another term, mu/2 times the squared distance to the common state (FedProx: Li et al.,
    "Federated Optimization in Heterogeneous Networks", algorithm 2). The optimiser takes the step of the loss, and the
    proximal operator that of the term, B = (B + lr mu B_common) / (1 + lr mu): its length is the same under Adam.

    Args:
        name: Name of the device.
        program: A program of method `exact`; its optimiser starts afresh.
        rows: Rows of the device.
        rates: Learning rate of each step.
        number: The round, from 1.
        order: Seed of the order of its rows.
        proximal: mu, 0 for none.

    Raises:
        NumericsError: If a loss or gradient is not finite.
    """
    m = program.manifest
    program.forget_steps()
    trainer = GradientTrainer(program)
    common = masters(program.read_state(), m) if proximal else {}
    for step, lr in zip(local_steps(number, rates), rates, strict=True):
        trainer.step(step_batch(rows, order, step, m), lr)
        if proximal:
            pull, state = lr * proximal, masters(program.read_state(), m)
            program.write_state(
                {each: ((state[each] + pull * b) / (1 + pull)).astype(np.float32) for each, b in common.items()}
            )
    return LocalState(device=name, num_rows=len(rates) * m.batch_size, state=masters(program.read_state(), m))


def average(states: Sequence[LocalState], *, like: State, max_rows: int, merge: str = "mean") -> State:
    """Return the masters of all devices as one: their mean by rows (FedAvg), or another row of the table of merges.

    McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", algorithm 1.

    Args:
        states: One of each device, in any order.
        like: A state of the program.
        max_rows: Most rows that a device may count.
        merge: Row of the table of merges.

    Raises:
        UsageError: If there is no state, or no such merge.
        DataError: If one cannot be used, naming the device.
    """
    if not states:
        raise UsageError("no device has sent a state")
    rule = find_merge(merge)
    in_order = sorted(states, key=lambda each: each.device)
    for each in in_order:
        _check(each, like, max_rows)
    rows_D = np.array([each.num_rows for each in in_order], dtype=np.float64)
    result: State = {}
    for name, array in like.items():
        values_Dn = np.stack([each.state[name].reshape(-1) for each in in_order]).astype(np.float64)
        result[name] = rule(values_Dn, rows_D).reshape(array.shape).astype(np.float32)
    return result


def _check(each: LocalState, like: State, max_rows: int) -> None:
    shapes = {name: array.shape for name, array in like.items()}
    if {name: array.shape for name, array in each.state.items()} != shapes:
        raise DataError("a state has other sites than the program", where=each.device)
    for array in each.state.values():
        check_numbers(array, each.num_rows, max_rows, what="a state", device=each.device)
