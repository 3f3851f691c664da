"""The state of a compiled program: what changes it, what must not, and that it is all a run has to keep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from prgec.core.contract.arrays import FloatArray, State
from prgec.core.contract.calls import StepInputs
from prgec.core.contract.names import DUAL_EPS_STATE
from prgec.core.data.batches import evaluation_batches
from prgec.core.formats.adapter import masters
from prgec.runtime.engines.executorch.pte_program import PteProgram
from tests.lockstep import Run, Step, batch_of, oracle_for, random_examples, random_steps, row_of

Open = Callable[[], PteProgram]
EPS, LR, SEED = 1e-2, 5e-3, 11
STEPS, HALF = 6, 3


def _start(program: PteProgram, step: int = 0) -> Run:
    return Run(program, eps=EPS, seed=SEED, step=step)


def _train(run: Run, steps: list[Step]) -> FloatArray:
    return np.stack([run.step(examples, lr) for examples, lr in steps])


def _steps(program: PteProgram) -> list[Step]:
    return random_steps(STEPS, program.manifest, lr=LR, pool=6)


def _evaluate(program: PteProgram, seed: int = 5, lr: float = 0.0) -> FloatArray:
    """Losses of N different examples under the present state."""
    manifest = program.manifest
    rows = [row_of(example) for example in random_examples(manifest.num_rows, manifest, seed)]
    (batch,) = evaluation_batches(rows, manifest)
    no_update = np.zeros(manifest.q, dtype=np.float32)
    loss_N = program.forward(batch, StepInputs(g_q=no_update, lr=lr, seed=1, step=1))
    return loss_N[np.argsort(batch.indices)]


def _same_bits(first: State, second: State) -> bool:
    return list(first) == list(second) and all(first[name].tobytes() == second[name].tobytes() for name in first)


def _g(program: PteProgram) -> FloatArray:
    return np.linspace(0.7, -1.3, program.manifest.q, dtype=np.float32)


def test_state_goes_by_the_names_of_the_checkpoint(open_program: Open) -> None:
    program = open_program()
    manifest = program.manifest
    copies = (manifest.q, 2) if manifest.state == "dual" else ()
    expected = {f"{site.name}.lora_B": (*copies, manifest.rank, site.out_features) for site in manifest.sites}
    if manifest.state == "dual":
        expected[DUAL_EPS_STATE] = (2,)
    state = program.read_state()
    assert {name: array.shape for name, array in state.items()} == expected
    assert not any(array.any() for array in state.values())


def test_evaluation_leaves_every_bit_of_the_state(open_program: Open) -> None:
    program = open_program()
    run = _start(program)
    _train(run, _steps(program))
    run.trainer.flush()
    before = program.read_state()
    first, second = _evaluate(program), _evaluate(program, lr=0.3)
    after = program.read_state()
    # The last eps that `dual` stores is not part of the trained state: with equal copies it multiplies zero.
    before.pop(DUAL_EPS_STATE, None), after.pop(DUAL_EPS_STATE, None)
    assert _same_bits(before, after) and max(np.abs(b).max() for b in before.values()) > 0.01
    assert first.tobytes() == second.tobytes()


def test_evaluation_measures_n_different_examples(open_program: Open, checkpoint: Path) -> None:
    program = open_program()
    oracle = oracle_for(program, checkpoint, eps=EPS, seed=SEED)
    run = _start(program)
    for number, (examples, lr) in enumerate(_steps(program), 1):
        run.step(examples, lr)
        oracle.step(number, examples, lr)
    run.trainer.flush()
    examples = random_examples(program.manifest.num_rows, program.manifest, seed=5)
    expected = oracle.losses(examples).numpy()
    assert len(set(expected.tolist())) == program.manifest.num_rows
    np.testing.assert_allclose(_evaluate(program), expected, rtol=1e-5)


def test_apply_is_the_update_inside_forward(open_program: Open) -> None:
    by_forward, by_apply = open_program(), open_program()
    steps = _steps(by_forward)
    for program in (by_forward, by_apply):
        _train(_start(program), steps[:HALF])
    assert _same_bits(by_forward.read_state(), by_apply.read_state())
    g, batch = _g(by_forward), batch_of(steps[HALF][0], by_forward.manifest)
    update = StepInputs(g_q=g, lr=0.02, seed=SEED, step=HALF + 1)
    by_apply.apply(update)
    # Zero eps adds no new noise, so the copies that `dual` keeps are the masters themselves.
    by_forward.forward(batch, update)
    found, expected = by_forward.read_state(), by_apply.read_state()
    assert _same_bits(found, expected)
    still = replace(update, g_q=np.zeros_like(g), eps=EPS)
    losses = [program.forward(batch, still) for program in (by_forward, by_apply)]
    assert losses[0].tobytes() == losses[1].tobytes()


def test_flush_and_evaluation_in_mid_run_change_nothing(open_program: Open) -> None:
    straight, stopped = _start(open_program()), _start(open_program())
    steps = _steps(straight.program)
    expected = _train(straight, steps)
    found = []
    for examples, lr in steps:
        found.append(stopped.step(examples, lr))
        stopped.trainer.flush()
        _evaluate(stopped.program)
    assert np.stack(found).tobytes() == expected.tobytes()
    straight.trainer.flush()
    assert stopped.program.state_sha256() != open_program().state_sha256()
    first, second = (masters(run.program.read_state(), run.program.manifest) for run in (straight, stopped))
    assert _same_bits(first, second)


def test_state_is_all_a_run_has_to_keep(open_program: Open) -> None:
    straight, first = _start(open_program()), _start(open_program())
    steps = _steps(straight.program)
    expected = _train(straight, steps)
    _train(first, steps[:HALF])
    first.trainer.flush()
    resumed = _start(open_program(), step=HALF)
    resumed.program.write_state(first.program.read_state())
    assert _train(resumed, steps[HALF:]).tobytes() == expected[HALF:].tobytes()
    straight.trainer.flush()
    resumed.trainer.flush()
    assert _same_bits(straight.program.read_state(), resumed.program.read_state())


def test_state_and_g_are_enough_in_the_middle_of_a_step(open_program: Open) -> None:
    """A program stopped between forward and flush, its state moved elsewhere: the pending update still arrives."""
    stopped, moved = open_program(), open_program()
    _train(_start(stopped), _steps(stopped)[:HALF])
    moved.write_state(stopped.read_state())
    for program in (stopped, moved):
        program.apply(StepInputs(g_q=_g(program), lr=0.02, seed=SEED, step=HALF + 1))
    assert _same_bits(stopped.read_state(), moved.read_state())


def test_losses_depend_on_every_key(open_program: Open) -> None:
    """The same call with another seed or step draws other noise; the same key draws the same."""
    program = open_program()
    batch = batch_of(_steps(program)[0][0], program.manifest)
    zeros = np.zeros(program.manifest.q, dtype=np.float32)

    def losses(seed: int, step: int) -> bytes:
        return program.forward(batch, StepInputs(g_q=zeros, lr=0.0, eps=EPS, seed=seed, step=step)).tobytes()

    keys = [(SEED, 1), (SEED, 2), (SEED + 1, 1), (SEED + 2**32, 1)]
    assert len({losses(*key) for key in keys}) == len(keys)
    assert losses(*keys[0]) == losses(*keys[0])


@pytest.mark.parametrize("sign", [0, 1])
def test_rows_of_a_query_share_its_noise(open_program: Open, sign: int) -> None:
    """Row (i * 2 + s) * B + b is example b under query i, sign s: equal examples of one query have equal losses."""
    program = open_program()
    m = program.manifest
    assert m.batch_size == 2
    (example, _) = random_examples(2, m, seed=3)
    batch = batch_of([example, example], m)
    zeros = np.zeros(m.q, dtype=np.float32)
    loss_N = program.forward(batch, StepInputs(g_q=zeros, lr=0.0, eps=EPS, seed=SEED, step=1))
    loss_QSB = torch.from_numpy(loss_N).reshape(m.q, 2, m.batch_size)
    torch.testing.assert_close(loss_QSB[:, sign, 0], loss_QSB[:, sign, 1], rtol=1e-6, atol=0)
    assert len(set(loss_QSB[:, :, 0].flatten().tolist())) == 2 * m.q
