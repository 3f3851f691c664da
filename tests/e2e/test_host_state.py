"""Programs whose state the host keeps: the same runs as those that keep it themselves, and nothing of prgec inside."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prgec.backends import load_backend
from prgec.compiler.check import check_options
from prgec.compiler.options import CompileOptions
from prgec.compiler.pipelines import default_pipeline
from prgec.core.contract.arrays import FloatArray
from prgec.core.contract.calls import Batch, Call, StepInputs
from prgec.core.contract.inspection import inspect_program
from prgec.core.formats.adapter import load_adapter, load_snapshot, save_adapter, save_snapshot
from prgec.errors import PrgecError, UsageError
from prgec.runtime.engines.executorch.host_gradient_program import HostGradientProgram
from prgec.runtime.engines.executorch.host_program import HostProgram
from prgec.runtime.engines.executorch.open import open_pte
from prgec.runtime.engines.executorch.pte_program import PteProgram
from tests.e2e.conftest import Compile
from tests.lockstep import batch_of, random_steps

EPS, LR, SEED = 1e-2, 5e-3, 2**40 + 5
BY_LOSSES = {
    "xnnpack": {"backend": "xnnpack"},
    "portable": {"backend": "portable", "static": True},
    "prefix": {"backend": "xnnpack", "layers": ("last:1",), "prefix": "shared", "generate": True},
}
BY_GRADIENTS: dict[str, dict[str, Any]] = {
    # A fixed length compiles four times as fast.
    "norm": {"method": "exact", "clip_norm": 0.7, "generate": True, "static": True},
    "momentum": {"method": "exact", "optimizer": "momentum", "weight_decay": 0.1, "backend": "portable"},
    "adamw": {"method": "shortcut", "optimizer": "adamw", "weight_decay": 0.1, "accumulate": True},
}


def _pair(compile_once: Compile, **options: Any) -> tuple[PteProgram, PteProgram]:
    """The program that keeps its state, and the one that does not."""
    return open_pte(compile_once(**options)), open_pte(compile_once(**options, state="host"))


def _assert_equal(first: Mapping[str, FloatArray], second: Mapping[str, FloatArray]) -> None:
    assert list(first) == list(second)
    assert all(np.array_equal(first[name], second[name]) for name in first)


def _batches(program: PteProgram, steps: int) -> list[Batch]:
    return [batch_of(rows, program.manifest) for rows, _ in random_steps(steps, program.manifest, lr=LR, pool=6)]


@pytest.mark.parametrize(
    "name", ["xnnpack", *(pytest.param(n, marks=pytest.mark.slow) for n in ("portable", "prefix"))]
)
def test_losses_and_state_are_those_of_seeded_bit_for_bit(compile_once: Compile, name: str) -> None:
    own, hosts = _pair(compile_once, **BY_LOSSES[name])
    assert isinstance(hosts, HostProgram)
    rng = np.random.default_rng(3)
    for number, batch in enumerate(_batches(own, 6), start=1):
        g_q = rng.normal(size=own.manifest.q).astype(np.float32) * np.float32(number > 1)
        step = StepInputs(g_q=g_q, lr=LR, eps=EPS, seed=SEED, step=number)
        assert np.array_equal(*(each.forward(batch, step) for each in (own, hosts)))
        assert np.array_equal(own.evaluate(batch), hosts.evaluate(batch))
        if own.manifest.generate:
            assert np.array_equal(own.next_tokens(batch), hosts.next_tokens(batch))
    for each in (own, hosts):
        each.apply(StepInputs(g_q=np.full(each.manifest.q, 0.5, dtype=np.float32), lr=LR, seed=SEED, step=7))
    _assert_equal(own.read_state(), hosts.read_state())
    assert max(float(np.abs(each).max()) for each in hosts.read_state().values()) > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("name", ["norm", "momentum", "adamw"])
def test_steps_along_gradients_are_those_of_seeded_bit_for_bit(compile_once: Compile, name: str) -> None:
    own, hosts = _pair(compile_once, **BY_GRADIENTS[name])
    assert isinstance(hosts, HostGradientProgram) and hosts.manifest.accumulates
    calls = [Call(0, True), Call(0, True)]
    if own.manifest.accumulates:
        calls += [Call(0, False), Call(1, False), Call(2, True), Call(0, True)]
    for call, batch in zip(calls, _batches(own, len(calls)), strict=True):
        losses, factors = zip(*(each.train(batch, LR, call) for each in (own, hosts)), strict=True)
        assert np.array_equal(*losses)
        assert not call.is_last or np.array_equal(*factors)
        _assert_equal(own.read_state(), hosts.read_state())
        assert np.array_equal(own.evaluate(batch), hosts.evaluate(batch))
        if own.manifest.generate:
            assert np.array_equal(own.next_tokens(batch), hosts.next_tokens(batch))
    _assert_equal(own.read_optimizer(), hosts.read_optimizer())
    assert max(float(np.abs(each).max()) for each in hosts.read_state().values()) > 0.001


def test_a_gradient_that_is_not_finite_changes_nothing(compile_once: Compile) -> None:
    hosts = open_pte(compile_once(**BY_GRADIENTS["norm"], state="host"))
    hosts.write_state({name: np.full_like(each, np.inf) for name, each in hosts.read_state().items()})
    before = hosts.read_state()
    _, factors = hosts.train(_batches(hosts, 1)[0], LR)
    assert factors[0] == 0.0 and np.isinf(factors[1])
    _assert_equal(before, hosts.read_state())
    assert not any(each.any() for each in hosts.read_optimizer().values())


def test_adapters_and_snapshots_go_from_one_to_the_other(compile_once: Compile, tmp_path: Path) -> None:
    own, hosts = _pair(compile_once, **BY_GRADIENTS["norm"])
    for batch in _batches(own, 2):
        own.train(batch, LR)
        hosts.train(batch, LR)
    save_adapter(tmp_path / "own.safetensors", own)
    save_adapter(tmp_path / "hosts.safetensors", hosts)
    assert (tmp_path / "own.safetensors").read_bytes() == (tmp_path / "hosts.safetensors").read_bytes()
    save_snapshot(tmp_path / "snapshot.safetensors", own, 2)
    fresh, other = (open_pte(hosts.path) for _ in range(2))
    load_adapter(tmp_path / "own.safetensors", fresh)
    _assert_equal(own.read_state(), fresh.read_state())
    assert load_snapshot(tmp_path / "snapshot.safetensors", other) == 2
    _assert_equal(own.read_optimizer(), other.read_optimizer())


@pytest.mark.parametrize("options", [BY_LOSSES["xnnpack"], BY_GRADIENTS["norm"]], ids=["prge", "exact"])
def test_no_operator_of_ours_is_inside(compile_once: Compile, options: dict[str, Any]) -> None:
    path = compile_once(**options, state="host")
    methods = inspect_program(path).pte.methods
    assert "apply" not in methods
    assert not [call for method in methods.values() for call in method.kernel_calls if "prge" in call]
    own = inspect_program(compile_once(**options)).pte.methods["forward"]
    assert [call for call in own.kernel_calls if "prge" in call]


# Runs forward of programs on zeros in the stock runtime, all inputs or the first ones; importing prgec fails.
_STOCK = """
import sys
sys.modules["prgec"] = None
import torch
from executorch.runtime import Runtime
dtypes = {4: torch.int64, 6: torch.float32}
for path in sys.argv[2:]:
    method = Runtime.get().load_program(path).load_method("forward")
    metas = [method.metadata.input_tensor_meta(i) for i in range(method.metadata.num_inputs())]
    inputs = [torch.zeros(m.sizes(), dtype=dtypes[m.dtype()]) for m in metas]
    print([list(each.shape) for each in method.execute(inputs[: int(sys.argv[1])])])
    assert not [name for name in Runtime.get().operator_registry.operator_names if name.startswith("prge")]
"""


def _run_stock(*programs: Path, num_inputs: int = 1000) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _STOCK, str(num_inputs), *map(str, programs)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(BY_LOSSES["xnnpack"], id="prge", marks=pytest.mark.slow),
        pytest.param(BY_GRADIENTS["norm"], id="exact"),
    ],
)
def test_a_stock_runtime_runs_it(compile_once: Compile, options: dict[str, Any]) -> None:
    path = compile_once(**options, state="host")
    result = _run_stock(path, compile_once(**options))
    m = open_pte(path).manifest
    gradients = [[m.rank, site.out_features] for site in m.sites] if m.has_gradients else []
    assert result.stdout == f"{[[m.num_rows], *gradients]}\n", result.stderr
    assert "Missing operator" in result.stderr, "the other one needs no kernels either, so this test tells nothing"


def test_a_driver_that_forgets_the_state_is_reported(compile_once: Compile, tmp_path: Path) -> None:
    path = compile_once(**BY_LOSSES["xnnpack"], state="host")
    rows_alone = _run_stock(path, num_inputs=3)
    assert rows_alone.returncode == 1
    assert rows_alone.stderr.splitlines()[-1].startswith("RuntimeError: method->set_inputs() for method 'forward'")
    # A driver that takes the program for one that keeps its state, as earlier ones do.
    other = tmp_path / "other.pte"
    other.write_bytes(path.read_bytes().replace(b'"state": "host"', b'"state": "dual"'))
    with pytest.raises(PrgecError, match="manifest has state = 'dual' and state_access = 'inputs'"):
        open_pte(other, verify=False)
    program = open_pte(path)
    with pytest.raises(PrgecError, match="the state does not fit the program: .*lora_B is in only one of them"):
        program.write_state({})


def test_what_cannot_be_is_refused_in_a_line(compile_once: Compile, tmp_path: Path) -> None:
    options = CompileOptions(model="model", output=tmp_path / "m.pte", state="host", backend="cuda")
    for name, states in (("cuda", "seeded"), ("qnn", "dual, seeded")):
        with pytest.raises(UsageError, match=f"--backend {name} cannot train with --state host.*it has: {states}$"):
            default_pipeline(replace(options, backend=name), load_backend(name))
    with pytest.raises(UsageError, match="--state host leaves the noise to the host; leave out --rng"):
        check_options(CompileOptions(model="model", output=tmp_path / "m.pte", state="host", rng="decomposed"))
    with pytest.raises(UsageError, match="--state dual is for --method prge"):
        check_options(CompileOptions(model="model", output=tmp_path / "m.pte", state="dual", method="exact"))
    from prgec.runtime.engines.choose import open_program

    with pytest.raises(PrgecError, match="engine torch cannot rebuild a program that leaves its state to the host"):
        open_program(compile_once(**BY_LOSSES["xnnpack"], state="host"), "torch")
