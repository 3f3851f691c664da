"""Programs that keep their state to themselves and their weights in a file beside them, as CUDA's do.

A program for a GPU runs here on ExecuTorch's own kernels: the same graph, contract, files and driver.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from prgec.compiler.compile import compile_model
from prgec.compiler.options import CompileOptions
from prgec.core.contract.checksums import read_checksums
from prgec.core.contract.inspection import inspect_program
from prgec.core.contract.ptd import data_path
from prgec.errors import ProgramError, UsageError
from prgec.runtime.engines.executorch.device_gradient_program import DeviceGradientProgram
from prgec.runtime.engines.executorch.device_program import DeviceProgram
from prgec.runtime.engines.executorch.open import open_pte
from tests.device_backend import DeviceBackend
from tests.e2e.conftest import MODEL, Compile
from tests.gradient_lockstep import follow_gradients
from tests.lockstep import batch_of, follow, oracle_for, random_steps

EPS, LR, SEED = 1e-2, 5e-3, 2**40 + 5


def _options(checkpoint: Path, output: Path) -> CompileOptions:
    return CompileOptions(
        model=str(checkpoint),
        output=output,
        backend="portable",
        static=True,
        q=2,
        batch_size=2,
        seq_len=16,
        num_labels=2,
        rank=4,
        alpha=8.0,
    )


@pytest.fixture(scope="module")
def path(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("device") / "model.pte"
    return compile_model(_options(checkpoint, output), backend=DeviceBackend()).path


def test_weights_are_beside_the_program(path: Path) -> None:
    weights = sum(p.numel() * 4 for p in MODEL.build().parameters())
    assert data_path(path).stat().st_size > weights > path.stat().st_size / 4
    methods = inspect_program(path).pte.methods
    assert "apply" not in methods
    assert not [call for call in methods["forward"].kernel_calls if "prge" in call]


def test_follows_the_oracle(path: Path, checkpoint: Path) -> None:
    """In the state it returns, too; the last update is flushed by a forward that perturbs nothing."""
    program = open_pte(path)
    assert isinstance(program, DeviceProgram)
    oracle = oracle_for(program, checkpoint, eps=EPS, seed=SEED)
    found = follow(program, oracle, random_steps(6, program.manifest, lr=LR, pool=6))
    assert found.max_abs_state > 0.02
    assert found.max_rel_loss_diff < 1e-5
    assert found.max_rel_state_diff < 1e-4


@pytest.mark.slow
def test_follows_autograd_along_its_own_gradients(checkpoint: Path, tmp_path: Path) -> None:
    """One method takes steps and, at a rate of 0, evaluates; what the optimiser keeps stays inside."""
    options = replace(_options(checkpoint, tmp_path / "exact.pte"), method="exact", targets=("q_proj", "down_proj"))
    program = open_pte(compile_model(options, backend=DeviceBackend()).path)
    assert isinstance(program, DeviceGradientProgram)
    steps = random_steps(6, program.manifest, lr=LR, pool=6)
    found = follow_gradients(program, MODEL.build, steps)
    assert found.max_rel_gradient_diff < 1e-4 and found.max_rel_loss_diff < 1e-5
    assert found.rel_state_diff < 1e-4 and found.max_abs_state > 0.02
    batch, held = batch_of(steps[0][0], program.manifest), program.read_state()
    assert np.array_equal(program.evaluate(batch), program.evaluate(batch))
    assert all(np.array_equal(held[name], master) for name, master in program.read_state().items())
    program.write_state(held)
    with pytest.raises(ProgramError, match="no adapter can be put into it .*Hint: take its steps again with --resume"):
        program.write_state({name: 0.0 * master for name, master in held.items()})


def test_starts_from_zero_and_refuses_another_state(path: Path) -> None:
    program = open_pte(path)
    state = program.read_state()
    assert not any(each.any() for each in state.values())
    program.write_state(state)
    first = next(iter(state))
    with pytest.raises(ProgramError, match="keeps its state on the device; no adapter can be put into it"):
        program.write_state({**state, first: state[first] + np.float32(1.0)})


def test_missing_data_is_reported(path: Path, tmp_path: Path) -> None:
    alone = tmp_path / "model.pte"
    alone.write_bytes(path.read_bytes())
    with pytest.raises(ProgramError, match=r"weights are missing: expected model\.ptd beside it .*Hint: .*copy both"):
        open_pte(alone)


def test_data_of_another_program_are_reported(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "model.pte"
    copy.write_bytes(path.read_bytes())
    data = bytearray(data_path(path).read_bytes())
    data[-100] ^= 1
    data_path(copy).write_bytes(data)
    with pytest.raises(ProgramError, match=r"model\.ptd belongs to another program"):
        open_pte(copy)


def test_damage_in_the_middle_of_the_data_is_reported(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "model.pte"
    copy.write_bytes(path.read_bytes())
    data_path(copy).write_bytes(data_path(path).read_bytes())
    checksums = read_checksums(copy)
    assert checksums is not None
    checksums.check_data(data_path(copy))
    data = bytearray(data_path(path).read_bytes())
    data[len(data) // 2] ^= 1
    data_path(copy).write_bytes(data)
    with pytest.raises(ProgramError, match=r"the program is damaged: weights, bytes 0 to \d+, not as compiled"):
        checksums.check_data(data_path(copy))


def test_one_method_only(checkpoint: Path, tmp_path: Path) -> None:
    options = _options(checkpoint, tmp_path / "model.pte")
    with pytest.raises(UsageError, match="programs of one method; leave out --prefix method and --generate"):
        compile_model(CompileOptions(**{**vars(options), "generate": True}), backend=DeviceBackend())
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_noise_in_the_graph_trains_like_the_kernels(compile_once: Compile, checkpoint: Path) -> None:
    """`--rng decomposed` on a runtime that has the kernels as well: the same bits of noise, so the same training."""
    states = []
    for rng in ("kernel", "decomposed"):
        program = open_pte(compile_once(backend="portable", rng=rng))
        oracle = oracle_for(program, checkpoint, eps=EPS, seed=SEED)
        follow(program, oracle, random_steps(3, program.manifest, lr=LR, pool=6))
        states.append(program.read_state())
    for name, kernel in states[0].items():
        np.testing.assert_allclose(states[1][name], kernel, rtol=0, atol=2e-6 * np.abs(kernel).max())
