"""Programs for OpenVINO: one delegate, and training as on any backend that computes in f32."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from prgec.backends.openvino.libraries import import_module
from prgec.backends.openvino.narrow import pack_nibbles
from prgec.cli.main import main
from prgec.core.contract.inspection import inspect_program
from prgec.passes.weights import SCHEMES
from prgec.runtime.engines.executorch.emitting_program import open_emitting
from prgec.runtime.engines.executorch.open import open_pte
from tests.architectures import random_rows
from tests.e2e.conftest import Compile
from tests.gradient_lockstep import follow_gradients
from tests.hooks import hooked
from tests.lockstep import follow, oracle_for, random_steps
from tests.models import TinyLlama, rounded_checkpoint
from tests.shared import Shared
from tests.side_program import OPTIONS as SIDE
from tests.tiny_program import write_reviews

pytestmark = pytest.mark.skipif(importlib.util.find_spec("openvino") is None, reason="needs the extra openvino")

# Few sites and short rows: OpenVINO's frontend takes most of the time.
SMALL: dict[str, Any] = {"backend": "openvino", "targets": ("q_proj", "down_proj"), "seq_len": 8, "num_labels": 1}
EPS, LR, SEED = 1e-2, 2e-3, 7
ROUNDING = 1e-4


def test_measured_losses_follow_the_oracle_in_one_delegate(compile_once: Compile, checkpoint: Path) -> None:
    path = compile_once(**SMALL)
    found = inspect_program(path)
    (delegate,) = found.delegates
    assert delegate["backend"] == "OpenvinoBackend"
    assert {"aten.embedding", "aten._softmax", "aten.bmm"} <= set(delegate["op_counts"])
    reasons = {op["reason"] for op in found.cpu_ops}
    assert reasons == {"the state update, in memory the host reads", "the f32 loss"}
    program = open_pte(path)
    assert program.manifest.versions["openvino"].startswith("2026.")
    steps = random_steps(10, program.manifest, lr=LR, pool=6)
    compared = follow(program, oracle_for(program, checkpoint, eps=EPS, seed=SEED), steps)
    assert compared.max_rel_loss_diff <= ROUNDING and compared.g_sign_agreement == 1.0
    assert compared.max_rel_state_diff <= 1e-3 and compared.max_abs_state > 0.02


@pytest.mark.slow
@pytest.mark.parametrize("method", ["exact", "shortcut"])
def test_gradients_are_those_of_autograd_in_one_delegate(method: str, shared: Shared, compile_once: Compile) -> None:
    checkpoint = shared.once("openvino-deep", TinyLlama(num_layers=2).write)
    path = compile_once(**{**SMALL, "model": str(checkpoint), "method": method})
    assert len(inspect_program(path).delegates) == 1
    program = open_pte(path)
    steps = random_steps(6, program.manifest, lr=LR, pool=6)
    found = follow_gradients(program, lambda: AutoModelForCausalLM.from_pretrained(checkpoint).eval(), steps)
    assert found.min_cosine > 0.999999 and found.max_rel_gradient_diff <= ROUNDING
    assert found.max_rel_loss_diff <= ROUNDING


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["w8a16", "w4a16"])
def test_narrow_weights_train_as_the_rounded_model_does(
    scheme: str, checkpoint: Path, compile_once: Compile, tmp_path: Path
) -> None:
    path = compile_once(**SMALL, quantize=scheme)
    assert len(inspect_program(path).delegates) == 1
    program = open_pte(path)
    rounded = rounded_checkpoint(checkpoint, tmp_path / "rounded", SCHEMES[scheme])
    steps = random_steps(4, program.manifest, lr=LR, pool=6)
    found = follow(program, oracle_for(program, rounded, eps=EPS, seed=SEED), steps)
    assert found.max_rel_loss_diff <= ROUNDING and found.g_sign_agreement == 1.0


def test_weights_of_four_bits_take_half_a_byte() -> None:
    openvino, opset = import_module("openvino"), import_module("openvino.opset13")
    codes = np.arange(-7, 8, dtype=np.int8).repeat(64).reshape(30, 32)
    taken = opset.parameter([1, 32], np.float32)
    for scale, kind in ((1, openvino.Type.i4), (16, openvino.Type.i8)):
        wide = opset.convert(opset.constant(codes * np.int8(scale)), np.float32)
        model = openvino.Model([opset.matmul(taken, wide, False, True)], [taken], "narrow")
        pack_nibbles(model)
        (stored,) = [each for each in model.get_ops() if each.get_type_name() == "Constant"]
        assert stored.get_element_type() == kind
        found = openvino.Core().compile_model(model, "CPU")([np.ones((1, 32), np.float32)])[0]
        assert (found[0] == scale * codes.astype(np.float32).sum(1)).all()


@pytest.mark.slow
def test_side_programs_emit_what_hooks_see(shared: Shared) -> None:
    model = TinyLlama(num_layers=2)
    checkpoint = shared.once("openvino-deep", model.write)
    path = shared.program(replace(SIDE, model=str(checkpoint), backend="openvino"))
    assert len(inspect_program(path).delegates) == 1
    program = open_emitting(path)
    tokens, label_pos, _ = random_rows(program.manifest.batch_size, program.manifest.seq_len)
    emitted = program.emit(tokens.numpy(), label_pos[:, :1].numpy())
    for found, expected in zip(emitted, hooked(model.build(), tokens, label_pos[:, :1]), strict=True):
        assert float((torch.from_numpy(found) - expected).abs().max() / expected.abs().max()) < 1e-5


def test_the_command_line_trains(compile_once: Compile, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = compile_once(**{**SMALL, "seq_len": 32, "num_labels": 8})
    rows = write_reviews(tmp_path / "train.jsonl", 8, seed=1)
    assert main(["run", str(path), "--data", str(rows), "--steps", "2", "--out", str(tmp_path / "run"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)
    assert (tmp_path / "run" / "adapter.safetensors").is_file()
