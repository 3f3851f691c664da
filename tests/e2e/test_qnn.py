"""Programs for the HTP: compiled by Qualcomm's own compiler, run by the simulator inside its libraries."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from prgec.backends import load_backend
from prgec.backends.lowering import lower
from prgec.compiler import preflight
from prgec.compiler.compile import compile_model
from prgec.compiler.options import CompileOptions
from prgec.compiler.result import CompileResult
from prgec.core.contract.calls import Batch
from prgec.demo import data_file
from prgec.errors import BackendError, UsageError
from prgec.passes.weights import SCHEMES
from prgec.runtime.engines.executorch.open import open_pte
from tests.architectures import architecture, random_rows
from tests.gradient_lockstep import follow_gradients
from tests.lockstep import batch_of, follow, oracle_for, random_steps
from tests.models import TinyLlama, rounded_checkpoint

EPS, LR, SEED = 1e-2, 5e-3, 7
# The HTP computes in fp16: what follows the f32 oracle to 1e-5 on a CPU follows it to 1e-2 here, the worst row to 2e-2.
MEAN_LOSS_DIFF = 1e-2
MAX_REL_LOSS_DIFF = 2e-2


def _options(checkpoint: Path, output: Path, **options: Any) -> CompileOptions:
    defaults: dict[str, Any] = {
        "backend": "qnn",
        "q": 2,
        "batch_size": 2,
        "seq_len": 16,
        "num_labels": 2,
        "rank": 4,
        "alpha": 8.0,
    }
    return CompileOptions(model=str(checkpoint), output=output, **{**defaults, **options})


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers, wide enough for the HTP's own RMSNorm."""
    return TinyLlama(num_layers=2, hidden_size=64).write(tmp_path_factory.mktemp("qnn") / "wide")


@pytest.fixture(scope="module")
def compiled(wide: Path) -> CompileResult:
    before = dict(os.environ), torch.backends.mkldnn.enabled
    result = compile_model(_options(wide, wide.parent / "wide.pte", settings={"soc": "SM8550"}))
    assert (dict(os.environ), torch.backends.mkldnn.enabled) == before, "the compilation left something behind"
    return result


@pytest.mark.slow
def test_the_whole_forward_is_one_delegate(compiled: CompileResult) -> None:
    (delegate,) = compiled.delegation.delegates
    assert delegate.backend == "QnnBackend"
    assert {"aten.embedding", "aten.rms_norm", "aten._softmax", "aten.bmm", "aten.linear"} <= set(delegate.op_counts)
    assert "aten.gather" not in delegate.op_counts, "the HTP's is wrong where it is large"
    outside = {op.op: op.reason for op in compiled.delegation.cpu_ops}
    assert outside.pop("prge.dual_update") == "the state update, in f32 and in memory the host reads"
    assert "aten._log_softmax" in outside
    assert set(outside.values()) == {"the f32 loss; one in fp16 is too coarse to differ"}


@pytest.mark.slow
def test_the_manifest_names_chip_and_compiler(compiled: CompileResult) -> None:
    assert compiled.manifest.soc == "SM8550"
    assert compiled.manifest.versions["qairt"].startswith("2.")
    assert compiled.manifest.dynamic_seq_len is False


def test_training_follows_the_f32_oracle(compiled: CompileResult, wide: Path) -> None:
    program = open_pte(compiled.path)
    steps = random_steps(20, program.manifest, lr=LR, pool=6)
    found = follow(program, oracle_for(program, wide, eps=EPS, seed=SEED), steps)
    assert found.max_abs_state > 0.1 and found.last_loss < found.first_loss - 0.5
    assert found.g_sign_agreement >= 0.95
    assert found.mean_abs_loss_diff <= MEAN_LOSS_DIFF
    assert found.max_rel_loss_diff <= MAX_REL_LOSS_DIFF
    assert found.max_rel_state_diff < 0.05


@pytest.mark.slow
def test_activations_of_eight_megabytes(tmp_path: Path) -> None:
    """Every row has its own loss: from activations this large the HTP's own gather takes rows of other examples."""
    checkpoint = TinyLlama(hidden_size=2048).write(tmp_path / "large")
    path = compile_model(_options(checkpoint, tmp_path / "large.pte", batch_size=8, seq_len=64)).path
    program = open_pte(path)
    found = follow(
        program, oracle_for(program, checkpoint, eps=EPS, seed=SEED), random_steps(1, program.manifest, lr=LR, pool=8)
    )
    assert found.max_rel_loss_diff <= MAX_REL_LOSS_DIFF
    assert found.g_sign_agreement == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["w8a16", "w4a16"])
def test_narrow_weights_train_as_the_rounded_model_does(scheme: str, wide: Path, tmp_path: Path) -> None:
    """They change the model, not g: the oracle trains the untouched model with rounded weights."""
    path = compile_model(_options(wide, tmp_path / "narrow.pte", quantize=scheme)).path
    program = open_pte(path)
    assert program.manifest.quantize == scheme
    oracle = oracle_for(program, rounded_checkpoint(wide, tmp_path / "rounded", SCHEMES[scheme]), eps=EPS, seed=SEED)
    found = follow(program, oracle, random_steps(4, program.manifest, lr=LR, pool=6))
    assert found.max_rel_loss_diff <= MAX_REL_LOSS_DIFF
    assert found.g_sign_agreement == 1.0
    assert found.max_rel_state_diff < 0.05 < found.max_abs_state


@pytest.mark.slow
def test_more_methods_dual_state_and_narrow_norms(tmp_path: Path) -> None:
    """Three graphs in one context binary, updates spelt out in ops, and norms narrower than a vector of the HTP."""
    checkpoint = TinyLlama(num_layers=2, has_bias=True).write(tmp_path / "narrow")
    path = compile_model(
        _options(checkpoint, tmp_path / "narrow.pte", layers=("last:1",), prefix="method", state="dual", generate=True)
    ).path
    program = open_pte(path)
    tokens, label_pos, targets = random_rows(program.manifest.batch_size, program.manifest.seq_len)
    copies = 2 * program.manifest.q
    rows = (each.repeat(copies, 1).numpy() for each in (tokens, label_pos, targets))
    found_tokens = program.next_tokens(Batch(*rows))
    logits: Tensor = AutoModelForCausalLM.from_pretrained(checkpoint).eval()(tokens).logits
    expected = logits.argmax(-1).gather(1, label_pos).repeat(copies, 1)
    assert (found_tokens == expected.numpy()).all()
    found = follow(
        program, oracle_for(program, checkpoint, eps=EPS, seed=SEED), random_steps(4, program.manifest, lr=LR, pool=6)
    )
    assert found.max_rel_loss_diff <= MAX_REL_LOSS_DIFF
    assert found.max_rel_state_diff < 0.05 < found.max_abs_state


@pytest.mark.parametrize(
    "name",
    [pytest.param("OPT", id="layer-norm"), pytest.param("Qwen2", id="pad-token-without-a-row", marks=pytest.mark.slow)],
)
def test_other_architectures(name: str, tmp_path: Path) -> None:
    checkpoint = architecture(name).write(tmp_path / "checkpoint")
    path = compile_model(_options(checkpoint, tmp_path / "other.pte", batch_size=1)).path
    program = open_pte(path)
    found = follow(
        program, oracle_for(program, checkpoint, eps=EPS, seed=SEED), random_steps(4, program.manifest, lr=LR, pool=4)
    )
    assert found.max_rel_loss_diff <= MAX_REL_LOSS_DIFF


@pytest.mark.slow
@pytest.mark.parametrize(("method", "layers"), [("shortcut", "all"), ("exact", "last:1")])
def test_gradients_follow_autograd(method: str, layers: str, wide: Path, tmp_path: Path) -> None:
    """One delegate computes logits and gradients; updates are f32 kernels; what overflows moves nothing far."""
    options = _options(wide, tmp_path / "gradient.pte", method=method, layers=(layers,))
    done = compile_model(options)
    assert len(done.delegation.delegates) == 1
    outside = {(op.op, op.reason) for op in done.delegation.cpu_ops}
    assert ("prge.sgd_update", "the state update, in f32 and in memory the host reads") in outside
    assert ("aten.mul", "it takes the loss scale off a gradient, in f32") in outside
    program = open_pte(done.path)
    steps = random_steps(6, program.manifest, lr=LR, pool=6)
    found = follow_gradients(program, lambda: AutoModelForCausalLM.from_pretrained(wide).eval(), steps)
    assert found.min_cosine > 0.9999 and found.max_rel_gradient_diff <= 2e-2
    assert found.max_rel_loss_diff <= MAX_REL_LOSS_DIFF and found.rel_state_diff < 0.05
    # An HTP has neither infinities nor NaN: what overflows is the largest number of 16 bits, and a step stays one.
    program.write_state({name: np.full_like(b, 3e4) for name, b in program.read_state().items()})
    batch = batch_of(steps[0][0], program.manifest)
    _, factors = program.train(batch, LR)
    assert np.isfinite(factors).all()
    assert all(np.abs(b - 3e4).max() < 1e3 for b in program.read_state().values())


class Unsupported(nn.Module):
    """A model with one op in the middle that no HTP has."""

    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cumprod(x, -1)

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 64)
        self.odd = self.Odd()
        self.head = nn.Linear(64, 16)

    def forward(self, tokens: Tensor) -> Tensor:
        return torch.log_softmax(self.head(self.odd(self.embed(tokens))), -1)[..., 0]


def test_an_op_the_htp_lacks_is_named_with_its_place() -> None:
    program = torch.export.export(Unsupported().eval(), (torch.zeros(4, 8, dtype=torch.int64),))
    expected = r"qnn: the HTP cannot run aten.cumprod, .* \(odd\). Hint: compile it with --backend xnnpack"
    with pytest.raises(BackendError, match=expected) as caught:
        lower(load_backend("qnn"), {"forward": program})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quantize": "8da4w"}, "--backend qnn has no --quantize 8da4w. Hint: it has: none, w4a16, w8a16"),
        ({"quantize_embedding": 4}, "--backend qnn has no --quantize-embedding. Hint: leave it out"),
        ({"backend": "xnnpack", "settings": {"soc": "SM8650"}}, "--soc is for --backend qnn; xnnpack has none"),
        ({"settings": {"soc": "SM1"}}, "--soc names no known chip: 'SM1'"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, Any], message: str, wide: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        compile_model(_options(wide, tmp_path / "no.pte", **options))


def test_too_little_memory_is_reported_before_the_hour_is_spent(
    wide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "available_memory_bytes", lambda: 0)
    monkeypatch.setattr(preflight, "resident_memory_bytes", lambda: 10**9)
    stages: list[str] = []
    with pytest.raises(
        BackendError, match=r"compiling wide for qnn takes about 1\.\d+ GB of memory, and 1\.00 GB are f"
    ):
        compile_model(_options(wide, tmp_path / "no.pte"), lambda progress: stages.append(progress.stage))
    assert stages == ["load"]


def _prgec(*arguments: str) -> dict[str, Any]:
    """Run the command line without a Qualcomm SDK in sight; return the one JSON document it prints."""
    environment = {k: v for k, v in os.environ.items() if k not in ("QNN_SDK_ROOT", "LD_LIBRARY_PATH", "PRGEC_DEBUG")}
    done = subprocess.run(
        [sys.executable, "-m", "prgec", *arguments, "--json"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=1800,
    )
    assert done.returncode == 0, done.stderr
    assert "Qnn" not in done.stderr and "LIBNATIVE" not in done.stderr, "the libraries were heard"
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@pytest.mark.slow
def test_demo_from_the_command_line(tmp_path: Path) -> None:
    path, run = tmp_path / "q.pte", tmp_path / "run"
    made = _prgec(
        "compile",
        "demo",
        "--backend",
        "qnn",
        "--soc",
        "SM8650",
        "--q",
        "1",
        "--batch-size",
        "2",
        "--seq-len",
        "24",
        "--layers",
        "last:1",
        "-o",
        str(path),
    )
    assert made["soc"] == "SM8650" and len(made["delegates"]) == 1
    trained = _prgec("run", str(path), "--data", str(data_file("train")), "--steps", "3", "--out", str(run))
    assert trained["steps"] == 3
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert all(row["g"] != 0 for row in rows if isinstance(row["g"], float))


@pytest.mark.slow
def test_the_demo_task_is_learnt_on_the_simulator(tmp_path: Path) -> None:
    """Sixty steps bring the bundled model's loss from 1.5 to 1.1, as they do on a CPU."""
    path, run = tmp_path / "q.pte", tmp_path / "run"
    rows = str(data_file("train"))
    _prgec("compile", "demo", "--backend", "qnn", "--batch-size", "2", "--data", rows, "-o", str(path))
    _prgec(
        "run",
        str(path),
        "--data",
        rows,
        "--estimator",
        "std",
        "--lr",
        "1e-2",
        "--lr-schedule",
        "constant",
        "--steps",
        "60",
        "--out",
        str(run),
    )
    losses = [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert len(losses) == 60
    assert sum(losses[-20:]) / 20 < sum(losses[:20]) / 20 - 0.25
