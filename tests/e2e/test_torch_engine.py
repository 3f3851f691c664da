"""The reference engine follows the .pte, which follows the oracle."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from prgec.cli.main import main
from prgec.errors import ProgramError, UsageError
from prgec.lab.torch.noise import NoiseSource
from prgec.lab.torch.program import TorchProgram
from prgec.lab.torch.rebuild import rebuild
from prgec.runtime.engines.executorch.open import open_pte
from prgec.runtime.engines.executorch.pte_program import PteProgram
from prgec.runtime_ops import noise
from tests.e2e.conftest import PROGRAMS, Compile
from tests.lockstep import Run, follow, oracle_for, random_steps
from tests.models import TinyLlama

EPS, LR, SEED = 1e-2, 5e-3, 2**40 + 5


def _assert_same_trajectory(pte: PteProgram, other: TorchProgram) -> None:
    """Same losses row by row over ten steps, and the same state, with a flush in the middle."""
    runs = [Run(program, eps=EPS, seed=SEED) for program in (pte, other)]  # type: ignore[arg-type]
    for number, (examples, lr) in enumerate(random_steps(10, pte.manifest, lr=LR, pool=6)):
        losses = [run.step(examples, lr) for run in runs]
        np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
        if number == 4:
            for run in runs:
                run.trainer.flush()
    expected, found = pte.read_state(), other.read_state()
    assert list(found) == list(expected)
    for name, array in expected.items():
        size = np.abs(array).max()
        assert size > 1e-3
        np.testing.assert_allclose(found[name], array, atol=1e-4 * size, err_msg=name)


def test_same_trajectory_as_the_pte(open_program: Callable[[], PteProgram], checkpoint: Path) -> None:
    pte = open_program()
    _assert_same_trajectory(pte, rebuild(pte.path, str(checkpoint)))


def test_same_losses_on_a_quantised_base(compile_once: Compile, checkpoint: Path) -> None:
    """Activations are rounded to 8 bits: a sum in another order may tip a value, so losses agree less closely."""
    pte = open_pte(compile_once(backend="xnnpack", quantize="8da4w", static=True))
    other = rebuild(pte.path, str(checkpoint))
    runs = [Run(program, eps=EPS, seed=SEED) for program in (pte, other)]  # type: ignore[arg-type]
    for examples, lr in random_steps(4, pte.manifest, lr=LR, pool=6):
        losses = [run.step(examples, lr) for run in runs]
        np.testing.assert_allclose(losses[1], losses[0], rtol=2e-2)


@pytest.mark.slow
def test_a_prefix_of_its_own(compile_once: Compile, tmp_path: Path) -> None:
    checkpoint = TinyLlama(num_layers=2, seed=3).write(tmp_path / "two-layers")
    path = compile_once(model=str(checkpoint), backend="portable", layers=("last:1",), prefix="method")
    pte = open_pte(path)
    other = rebuild(path, str(checkpoint))
    _assert_same_trajectory(pte, other)
    assert other.prefix is not None


@pytest.mark.slow
def test_compiled_by_torch_it_follows_the_oracle(compile_once: Compile, checkpoint: Path) -> None:
    program = rebuild(compile_once(backend="portable"), str(checkpoint), compiled=True)
    oracle = oracle_for(program, checkpoint, eps=EPS, seed=SEED)  # type: ignore[arg-type]
    found = follow(program, oracle, random_steps(4, program.manifest, lr=LR, pool=6))  # type: ignore[arg-type]
    assert found.max_abs_state > 0.01
    assert found.max_rel_loss_diff < 1e-5
    assert found.max_rel_state_diff < 1e-4


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
def test_same_trajectory_on_a_gpu(compile_once: Compile, checkpoint: Path) -> None:
    pte = open_pte(compile_once(backend="xnnpack"))
    _assert_same_trajectory(pte, rebuild(pte.path, str(checkpoint), device="cuda"))


def test_noise_is_that_of_the_contract() -> None:
    source = NoiseSource(torch.device("cpu"))
    for seed, step in ((5, 1), (-(2**63), 2**31), (2**63 - 1, -1), (5, 1)):
        keys = torch.tensor(seed), torch.tensor(step)
        expected = noise.randn(*keys, 3, 2, (5, 117))
        assert torch.equal(source.draw(*keys, 3, 2, (5, 117)), expected)


def test_refusals(compile_once: Compile, tmp_path: Path) -> None:
    path = compile_once(**PROGRAMS["portable-dual"])
    other = TinyLlama(has_bias=True, seed=1).write(tmp_path / "other")
    with pytest.raises(ProgramError, match="not those the program was compiled from"):
        rebuild(path, str(other))
    if not torch.cuda.is_available():
        with pytest.raises(UsageError, match="cannot use device 'cuda'"):
            rebuild(path, str(TinyLlama(has_bias=True).write(tmp_path / "same")), device="cuda")


def test_state_that_does_not_fit(compile_once: Compile, checkpoint: Path) -> None:
    program = rebuild(compile_once(**PROGRAMS["portable-seeded-static"]), str(checkpoint))
    before = program.state_sha256()
    state = {name: array + 1 for name, array in program.read_state().items()}
    name = list(state)[-1]
    with pytest.raises(ProgramError, match=name.replace(".", r"\.")):
        program.write_state({**state, name: state[name][:1]})
    assert program.state_sha256() == before
    program.write_state(state)
    np.testing.assert_array_equal(program.read_state()[name], state[name])


def test_a_run_goes_from_one_engine_to_the_other(
    compile_once: Compile, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = compile_once(backend="portable", num_labels=4, static=True)
    data = tmp_path / "train.jsonl"
    words = ("great", "awful")
    rows = [{"prompt": f"the film {n} was", "completion": f" {words[n % 2]}"} for n in range(6)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    common = ["run", str(path), "--data", str(data), "--steps", "4", "--lr", "0.05", "--json"]
    torch_flags = ["--engine", "torch", "--base", str(checkpoint)]
    losses = []
    for name, flags in (("one", []), ("two", torch_flags)):
        assert main([*common, *flags, "--out", str(tmp_path / name)]) == 0
        losses.append(json.loads(capsys.readouterr().out)["loss"])
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert main([*common[:-1], *torch_flags, "--out", str(tmp_path / "two"), "--resume"]) != 0  # complete
    assert "the run is complete" in capsys.readouterr().err
    assert (
        main(["eval", str(path), "--data", str(data), "--adapter", str(tmp_path / "two" / "adapter.safetensors")]) == 0
    )
    assert main([*common, "--device", "cuda"]) == 2
    assert "--device needs --engine torch" in capsys.readouterr().err
