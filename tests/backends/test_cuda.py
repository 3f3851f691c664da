"""The CUDA backend without a GPU: the preflight, the graph, and its twin on AOTInductor for CPUs."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.export import ExportedProgram

from prgec.backends import load_backend
from prgec.backends.cuda import preflight
from prgec.backends.cuda.backend import CudaBackend, exact_integers
from prgec.cli.main import main
from prgec.compiler.frontend.checkpoint import find_checkpoint
from prgec.compiler.frontend.model import export_loss, load_model
from prgec.compiler.options import CompileOptions
from prgec.compiler.pipelines import default_pipeline
from prgec.core.contract.calls import Batch, StepInputs
from prgec.errors import BackendError
from prgec.passes.pipeline import run_pipeline
from prgec.runtime.engines.executorch.device_gradient_program import DeviceGradientProgram
from prgec.runtime.engines.executorch.device_program import DeviceProgram
from prgec.runtime.engines.executorch.open import open_pte
from prgec.runtime.engines.executorch.pte_program import PteProgram
from prgec.runtime_ops import noise
from tests.device_backend import DeviceBackend
from tests.gradient_lockstep import follow_gradients
from tests.lockstep import batch_of, follow, oracle_for, random_steps
from tests.models import TinyLlama

EPS, LR, SEED = 1e-2, 5e-3, 2**40 + 5
# Two sites of different widths; compiling more of them would show nothing new.
MODEL = TinyLlama(hidden_size=16)
SHAPES: dict[str, Any] = {
    "q": 2,
    "batch_size": 1,
    "seq_len": 8,
    "num_labels": 1,
    "rank": 4,
    "alpha": 8.0,
    "targets": ("q_proj", "v_proj"),
}
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return MODEL.write(tmp_path_factory.mktemp("cuda") / "checkpoint")


def _exported(checkpoint: Path, **options: Any) -> ExportedProgram:
    settings = CompileOptions(model=str(checkpoint), output=Path("m.pte"), backend="cuda", **{**SHAPES, **options})
    program = export_loss(
        load_model(find_checkpoint(str(checkpoint))),
        num_rows=settings.num_rows,
        seq_len=settings.seq_len,
        num_labels=settings.num_labels,
        dynamic=False,
    )
    run_pipeline(program, default_pipeline(settings, CudaBackend()))
    return program.to_exported()


@no_gpu
def test_preflight_names_all_that_is_missing_in_one_line(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "m.pte"
    code = main(["compile", str(checkpoint), "--backend", "cuda", "-o", str(output)])
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert code == BackendError.exit_code and not output.exists()
    assert "this machine cannot lower for CUDA: PyTorch" in error
    assert "without CUDA" in error or "sees no GPU" in error
    assert "Hint: compile on a machine with the GPU the program is for" in error


def test_preflight_finds_the_toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "_DEFAULT_CUDA_HOME", tmp_path / "nowhere")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert preflight.cuda_home() is None
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvcc").touch()
    assert preflight.cuda_home() == tmp_path
    with pytest.raises(
        BackendError, match=f"the CUDA toolkit in {tmp_path} has no cuda.h; there is no C\\+\\+ compiler"
    ):
        preflight.check()


def test_step_is_one_partition_that_owns_its_state(checkpoint: Path) -> None:
    """By the partitioner ExecuTorch's CUDA one inherits from; the latter cannot be imported without Triton."""
    from executorch.backends.aoti.aoti_partitioner import AotiPartitioner
    from executorch.exir import to_edge
    from executorch.exir.backend.compile_spec_schema import CompileSpec

    exported = _exported(checkpoint)
    edge = to_edge(exported, compile_config=_edge_config()).exported_program()
    result = AotiPartitioner("CudaBackend", [CompileSpec("method_name", b"forward")]).partition(edge)
    assert len(result.partition_tags) == 1
    calls = [node for node in edge.graph.nodes if node.op == "call_function"]
    assert all("delegation_tag" in node.meta for node in calls)
    assert not [node for node in calls if "prge" in str(node.target)]
    signature = edge.graph_signature
    state = {
        name for name, buffer in signature.inputs_to_buffers.items() if buffer in signature.buffers_to_mutate.values()
    }
    assert len(state) == 2
    assert all("delegation_tag" in node.meta for node in edge.graph.nodes if node.name in state)


@pytest.mark.parametrize("method", ["exact", "shortcut"])
def test_steps_along_gradients_are_one_partition(method: str, checkpoint: Path) -> None:
    """The update is arithmetic, and the masters come out after the losses and the factors."""
    from executorch.backends.aoti.aoti_partitioner import AotiPartitioner
    from executorch.exir import to_edge
    from executorch.exir.backend.compile_spec_schema import CompileSpec

    exported = _exported(checkpoint, method=method)
    edge = to_edge(exported, compile_config=_edge_config()).exported_program()
    result = AotiPartitioner("CudaBackend", [CompileSpec("method_name", b"forward")]).partition(edge)
    assert len(result.partition_tags) == 1
    calls = [node for node in edge.graph.nodes if node.op == "call_function"]
    assert all("delegation_tag" in node.meta for node in calls)
    assert not [node for node in calls if "prge" in str(node.target)]
    outputs = [node.meta["val"].shape for node in exported.graph.output_node().args[0]]  # type: ignore[union-attr]
    assert [tuple(shape) for shape in outputs[-4:]] == [(1,), (4,), (4, 16), (4, 8)]


def test_mutable_buffers_have_more_than_one_element(checkpoint: Path) -> None:
    """Inductor takes smaller ones for constants."""
    exported = _exported(checkpoint).run_decompositions({})
    sizes = [exported.state_dict[name].numel() for name in exported.graph_signature.buffers_to_mutate.values()]
    assert len(sizes) == 2 and min(sizes) > 1


@pytest.mark.parametrize(
    ("options", "dtypes"),
    [
        ({}, {torch.bfloat16}),
        ({"dtype": "f16"}, {torch.float16}),
        ({"quantize": "int8", "group_size": 16}, {torch.bfloat16, torch.int8}),
        ({"dtype": "f32"}, set()),
    ],
)
def test_formats_of_weights(checkpoint: Path, options: dict[str, Any], dtypes: set[torch.dtype]) -> None:
    """A, B, norms and the loss stay f32, whatever the frozen layers are; tables of the noise are integers."""
    exported = _exported(checkpoint, **options)
    found = {
        tensor.dtype
        for tensor in (*exported.state_dict.values(), *exported.constants.values())
        if isinstance(tensor, torch.Tensor)
    }
    assert found - {torch.float32, torch.int64, torch.bool} == dtypes
    trained = [tensor for name, tensor in exported.state_dict.items() if ".lora_" in name]
    assert len(trained) == 4 and all(tensor.dtype == torch.float32 for tensor in trained)
    loss = exported.graph.output_node().args[0][0]  # type: ignore[index]
    assert loss.meta["val"].dtype == torch.float32  # type: ignore[union-attr]


def test_schemes_of_other_backends_are_refused(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["compile", str(checkpoint), "-o", str(tmp_path / "m.pte")]
    assert main([*arguments, "--backend", "cuda", "--quantize", "8da4w"]) == 2
    assert "--backend cuda has no --quantize 8da4w. Hint: it has: none, int4, int8" in capsys.readouterr().err
    assert main([*arguments, "--quantize", "int4"]) == 2
    assert "--backend xnnpack has no --quantize int4" in capsys.readouterr().err
    assert main([*arguments, "--dtype", "bf16"]) == 2
    assert "--backend xnnpack does not compute in bf16" in capsys.readouterr().err


class Twin(DeviceProgram):
    """The exported step of a CUDA program, compiled by AOTInductor for this CPU, under the driver's own contract."""

    def __init__(self, package: Path, like: PteProgram) -> None:
        method = _Package(torch._inductor.aoti_load_package(str(package)))
        super().__init__(package, like.manifest, like.tokenizer, lambda name, inputs: method)


class GradientTwin(DeviceGradientProgram):
    """The same of a program that computes its own gradients."""

    def __init__(self, package: Path, like: PteProgram) -> None:
        method = _Package(torch._inductor.aoti_load_package(str(package)))
        super().__init__(package, like.manifest, like.tokenizer, lambda name, inputs: method)


class _Package:
    """Takes and gives arrays, as methods of a program do."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def __call__(self, inputs: list[NDArray[Any]]) -> list[NDArray[Any]]:
        return [each.numpy() for each in self._run(*map(torch.tensor, inputs))]


@pytest.fixture(scope="module")
def twin(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Twin:
    from prgec.compiler.compile import compile_model

    folder = tmp_path_factory.mktemp("twin")
    options = CompileOptions(model=str(checkpoint), output=folder / "m.pte", backend="portable", static=True, **SHAPES)
    like = open_pte(compile_model(options).path)
    return Twin(_package(_exported(checkpoint, dtype="f32"), folder), like)


def _package(exported: ExportedProgram, folder: Path) -> Path:
    """Compile a step for this CPU."""
    # Headers and wrapper take longer to compile than to run.
    quick = {"aot_inductor.precompile_headers": False, "aot_inductor.compile_wrapper_opt_level": "O0"}
    with exact_integers(), torch.no_grad(), torch._inductor.config.patch(quick):
        return Path(torch._inductor.aoti_compile_and_package(exported, package_path=str(folder / "step.pt2")))


@pytest.mark.slow  # Inductor takes two minutes for the noise of two sites
def test_compiled_step_follows_the_oracle(twin: Twin, checkpoint: Path) -> None:
    """Fifty steps: losses row by row, and the state it returns."""
    oracle = oracle_for(twin, checkpoint, eps=EPS, seed=SEED)
    steps = [(examples, lr) for examples, lr in random_steps(50, twin.manifest, lr=LR, pool=6)]
    found = follow(_Padded(twin), oracle, steps)  # type: ignore[arg-type]
    assert found.max_abs_state > 0.02
    assert found.max_rel_loss_diff < 1e-4
    assert found.max_rel_state_diff < 1e-3


@pytest.mark.slow  # Inductor
@pytest.mark.parametrize("method", ["exact", "shortcut"])
def test_compiled_steps_along_gradients_follow_autograd(method: str, tmp_path: Path) -> None:
    """Gradients, losses and B over twenty steps, and an evaluation in between that changes nothing."""
    from prgec.compiler.compile import compile_model

    checkpoint = TinyLlama(num_layers=2, hidden_size=16).write(tmp_path / "checkpoint")
    shapes = {**SHAPES, "batch_size": 2, "method": method, "targets": ("o_proj", "down_proj", "v_proj")}
    options = CompileOptions(
        model=str(checkpoint), output=tmp_path / "m.pte", backend="portable", static=True, **shapes
    )
    like = open_pte(compile_model(options, backend=DeviceBackend()).path)
    twin = GradientTwin(_package(_exported(checkpoint, dtype="f32", **shapes), tmp_path), like)
    steps = random_steps(20, like.manifest, lr=LR, pool=6)
    found = follow_gradients(twin, lambda: load_model(find_checkpoint(str(checkpoint))), steps)
    assert found.max_rel_gradient_diff < 1e-4 and found.max_rel_loss_diff < 1e-4
    assert found.rel_state_diff < 1e-3 and found.max_abs_state > 0.02
    before = twin.read_state()
    batch = batch_of(steps[0][0], like.manifest)
    twin.evaluate(batch)
    assert all(np.array_equal(before[name], master) for name, master in twin.read_state().items())


class _Padded:
    """Pads rows to the one T a static program takes."""

    def __init__(self, program: Twin) -> None:
        self._program = program

    def __getattr__(self, name: str) -> Any:
        return getattr(self._program, name)

    def forward(self, batch: Batch, step: StepInputs) -> Any:
        padding = self._program.manifest.seq_len - batch.tokens_NT.shape[1]
        tokens_NT = np.pad(batch.tokens_NT, ((0, 0), (0, padding)))
        return self._program.forward(replace(batch, tokens_NT=tokens_NT), step)


@pytest.mark.slow
def test_compiled_noise_has_the_same_bits(twin: Twin) -> None:
    """With g only on one query and lr = q, what a call subtracts from zero is that query's noise itself."""
    q = twin.manifest.q
    for query in range(q):
        fresh = Twin(twin.path, twin)
        g = np.zeros(q, dtype=np.float32)
        g[query] = -1.0
        fresh.apply(StepInputs(g_q=g, lr=float(q), seed=SEED, step=8))
        state: Mapping[str, Any] = fresh.read_state()
        for site in twin.manifest.sites:
            shape = (twin.manifest.rank, site.out_features)
            z = noise.randn(torch.tensor(SEED), torch.tensor(7), site.index, q, shape)[query]
            assert np.array_equal(state[site.state_name], z.numpy())


def test_backend_is_in_the_table() -> None:
    assert isinstance(load_backend("cuda"), CudaBackend)


def _edge_config() -> Any:
    from executorch.exir import EdgeCompileConfig

    return EdgeCompileConfig(_check_ir_validity=False, _skip_dim_order=True)
