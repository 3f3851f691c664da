"""One training step of each variant as a function without arguments; building it does everything that is not timed.

Letters: q queries, B examples a step, N rows of a call, T tokens, K label positions. Every row is full, as in the
paper's standard benchmark, and all K targets count.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from prgec.core.contract.arrays import FloatArray
from prgec.core.contract.calls import Batch, StepInputs
from prgec.lab.bench.job import EPS, LR, Job
from prgec.lab.bench.variants import Branch
from prgec.runtime.engines.executorch.methods import Method
from prgec.runtime.engines.executorch.open import open_pte
from prgec.runtime.engines.executorch.pte_program import PteProgram
from prgec.runtime.engines.executorch.runtime import float_scalar, keys, open_forward, scalars

Step = Callable[[], None]
Array: TypeAlias = npt.NDArray[Any]

# g of a run that is going well.
_G_STD = 1e-2
_SEED = 0
_NUM_ROW_INPUTS = 3


def make_step(job: Job) -> Step:
    """Load what `job` runs and return its step.

    Raises:
        PrgecError: If the program or the model cannot be loaded.
    """
    if job.program is None:
        # The exporter's side of the house: other variants must not pay for importing it.
        if job.variant.is_full:
            return _full_step(job)
        if job.variant.branch is Branch.DIFFERENTIATED:
            from prgec.lab.bench.first_order import EagerFirstOrder

            return EagerFirstOrder.load(job.model, row_inputs(job), job.layers).step
        from prgec.lab.bench.eager import EagerMezo

        return EagerMezo.load(job.model, row_inputs(job), job.cell.q, job.layers).step
    if job.variant.branch is Branch.HOSTED:
        return _hosted_step(job, open_pte(job.program))
    return compiled_step(job, open_forward(job.program, job.backend))


def _full_step(job: Job) -> Step:
    from prgec.lab.bench.full import FullFirstOrder, FullMezo

    if job.variant.is_batch:
        return FullFirstOrder.load(job.model, row_inputs(job)).step
    return FullMezo.load(job.model, row_inputs(job), job.cell.q).step


def compiled_step(job: Job, method: Method) -> Step:
    """Return a step of a program whose forward is loaded; jobs with shorter rows may share it."""
    rows: list[Array] = [each.numpy() for each in row_inputs(job)]
    if job.variant.branch is Branch.DIFFERENTIATED:
        return _Differentiating(method, [*rows, float_scalar(LR)]).step
    if job.variant.branch is Branch.UPDATED:
        return _Training(method, rows, job.cell.q).step
    return _Forward(method, rows, job.variant.calls(job.cell.q)).step


def row_inputs(job: Job) -> list[Tensor]:
    """Tokens i64[N, T], label positions i64[N, K] and targets i64[N, K] of one call."""
    rows, seq_len = job.variant.rows(job.cell.q, job.cell.batch_size), job.cell.seq_len
    generator = torch.Generator().manual_seed(_SEED)
    tokens_NT = torch.randint(job.vocab_size, (rows, seq_len), generator=generator)
    position_K = torch.arange(seq_len - job.num_labels - 1, seq_len - 1)
    label_pos_NK = position_K.expand(rows, -1).contiguous()
    return [tokens_NT, label_pos_NK, tokens_NT.gather(1, label_pos_NK + 1)]


def _hosted_step(job: Job, program: PteProgram) -> Step:
    """Return a step of a program whose state the driver keeps: what the driver does is part of it."""
    batch = Batch(*(each.numpy() for each in row_inputs(job)))
    g_q, steps = _g_of(job.cell.q), itertools.count(1)

    def step() -> None:
        if job.variant.is_batch:
            program.train(batch, LR)
        else:
            program.forward(batch, StepInputs(g_q=g_q, lr=LR, eps=EPS, seed=_SEED, step=next(steps)))

    return step


def _g_of(q: int) -> FloatArray:
    return np.random.default_rng(_SEED).normal(scale=_G_STD, size=q).astype(np.float32)


class _Differentiating:
    """A program that computes its own gradients: one call is one step."""

    def __init__(self, method: Method, inputs: Sequence[Array]) -> None:
        self._method, self._inputs = method, inputs

    def step(self) -> None:
        self._method(self._inputs)


class _Training:
    """A program that updates itself: one call is one step."""

    def __init__(self, method: Method, rows: Sequence[Array], q: int) -> None:
        self._method = method
        self._rows = rows
        self._g_q = _g_of(q)
        self._step = 0

    def step(self) -> None:
        self._step += 1
        self._method([*self._rows, *scalars(self._g_q, LR, EPS), *keys(_SEED, self._step)])


class _Forward:
    """A program that only computes losses: as many calls as the step has groups of rows, each with other copies of B.

    The copies are drawn once. Neither noise nor update is part of the step, in favour of these variants.
    """

    def __init__(self, method: Method, rows: Sequence[Array], calls: int) -> None:
        self._method = method
        self._inputs = [*rows, *_copies(method)]
        self._calls = calls

    def step(self) -> None:
        for _ in range(self._calls):
            self._method(self._inputs)


def _copies(method: Method) -> list[FloatArray]:
    """Perturbed copies of B for every input after the rows; none where the program has no branch."""
    generator = np.random.default_rng(_SEED)
    shapes = map(method.input_shape, range(_NUM_ROW_INPUTS, method.num_inputs))
    return [generator.normal(scale=EPS, size=shape).astype(np.float32) for shape in shapes]
