"""Quantised checkpoints: their weights are what the packages that wrote them say, and a folder of them trains."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torchao.quantization import Int8DynamicActivationIntxWeightConfig, Int8WeightOnlyConfig
from torchao.quantization.granularity import PerGroup
from transformers import AutoModelForCausalLM, FineGrainedFP8Config, TorchAoConfig

from prgec.cli.main import main
from prgec.compiler.frontend import narrow
from prgec.compiler.frontend.checkpoint import find_checkpoint
from prgec.compiler.frontend.model import load_model
from prgec.compiler.plan.source import shape_of_checkpoint
from prgec.errors import CheckpointError
from tests.models import TinyLlama, write_tokenizer

# Written by tools/make_quantized.py with the packages themselves.
GOLDEN = Path(__file__).parents[1] / "golden" / "quantized"
FORMATS = sorted(each.stem for each in GOLDEN.glob("*.safetensors"))
METHODS = {"gptq": "gptq", "awq": "awq", "bnb": "bitsandbytes", "compressed": "compressed-tensors"}
LAYER = "model.layers.0.self_attn.o_proj"
WIDTH = 64


def _checkpoint(folder: Path, parts: dict[str, Tensor], quantization: dict[str, Any]) -> Path:
    """Write a tiny random model with one layer quantised."""
    TinyLlama(hidden_size=WIDTH).write(folder)
    weights = load_file(folder / "model.safetensors")
    del weights[f"{LAYER}.weight"]
    weights |= {f"{LAYER}.{name}": tensor for name, tensor in parts.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": quantization}))
    return folder


def _stored(name: str) -> tuple[dict[str, Tensor], Tensor, dict[str, Any]]:
    parts = load_file(GOLDEN / f"{name}.safetensors")
    expected = parts.pop("expected")
    return parts, expected, {"quant_method": METHODS[name.split("-")[0]]}


def _loaded(folder: Path) -> dict[str, Tensor]:
    return load_model(find_checkpoint(str(folder))).state_dict()


@pytest.mark.parametrize("name", FORMATS)
def test_weights_are_those_of_the_package(tmp_path: Path, name: str) -> None:
    """To the last bit of f32; layers that are not quantised are read as they are."""
    parts, expected, quantization = _stored(name)
    found = _loaded(_checkpoint(tmp_path, parts, quantization))
    torch.testing.assert_close(found.pop(f"{LAYER}.weight"), expected, rtol=3e-7, atol=1e-9)
    plain = _loaded(TinyLlama(hidden_size=WIDTH).write(tmp_path / "plain"))
    assert all(torch.equal(found[each], plain[each]) for each in found)


def test_every_format_is_there() -> None:
    """A missing file would be a test that is not run."""
    assert len(FORMATS) == 13


def test_inputs_in_another_order(tmp_path: Path) -> None:
    """GPTQ of `desc_act` says by `g_idx` which group an input is in."""
    parts, expected, quantization = _stored("gptq-4")
    order = torch.randperm(WIDTH, generator=torch.Generator().manual_seed(0))
    unpacked = narrow.unpacked(parts["qweight"], 4)[order]
    words = sum(unpacked[place::8].to(torch.int64) << (4 * place) for place in range(8))
    assert isinstance(words, Tensor)
    parts |= {"qweight": words.to(torch.uint32).view(torch.int32), "g_idx": parts["g_idx"][order]}
    found = _loaded(_checkpoint(tmp_path, parts, quantization))[f"{LAYER}.weight"]
    torch.testing.assert_close(found, expected[:, order], rtol=3e-7, atol=1e-9)


def test_the_second_format_of_gptq_stores_zeros_as_they_are(tmp_path: Path) -> None:
    """One less than the first would take."""
    parts, expected, quantization = _stored("gptq-8")
    found = _loaded(_checkpoint(tmp_path, parts, {**quantization, "checkpoint_format": "gptq_v2"}))
    steps = (found[f"{LAYER}.weight"] - expected) / parts["scales"].to(torch.float32)[parts["g_idx"].long()].T
    assert torch.allclose(steps, torch.ones(()), atol=1e-3)


@pytest.mark.parametrize("block", [(32, 32), (48, 40), (64, 64)])
def test_fp8_in_blocks_is_what_transformers_reads(tmp_path: Path, block: tuple[int, int]) -> None:
    """DeepSeek's and Qwen's FP8; blocks that do not divide the sizes, too."""
    weight = torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(0)).to(torch.float8_e4m3fn)
    counts = [-(-WIDTH // size) for size in block]
    scale = torch.rand(counts, generator=torch.Generator().manual_seed(1)) + 0.5
    quantization = {"quant_method": "fp8", "weight_block_size": list(block), "activation_scheme": "dynamic"}
    folder = _checkpoint(tmp_path, {"weight": weight, "weight_scale_inv": scale}, quantization)
    found = _loaded(folder)[f"{LAYER}.weight"]
    rows, columns = (torch.arange(WIDTH) // size for size in block)
    torch.testing.assert_close(found, weight.to(torch.float32) * scale[rows][:, columns], rtol=0, atol=0)
    if WIDTH % block[0] == 0:
        reader = FineGrainedFP8Config(weight_block_size=block, dequantize=True)
        theirs = AutoModelForCausalLM.from_pretrained(folder, quantization_config=reader, dtype=torch.float32)
        torch.testing.assert_close(found, theirs.state_dict()[f"{LAYER}.weight"], rtol=0, atol=0)


def test_blocks_of_a_weight_that_is_no_square() -> None:
    """Rows and columns are not mixed up."""
    weight, scale = torch.ones(6, 10), torch.arange(1.0, 7.0).reshape(2, 3)
    found = narrow.scaled({"weight": weight, "weight_scale_inv": scale}, (4, 4))
    assert torch.equal(found, scale[torch.arange(6) // 4][:, torch.arange(10) // 4])


@pytest.mark.parametrize("shape", [(), (1,), (WIDTH,), (WIDTH, 1), (WIDTH, 4)])
def test_fp8_scales_of_any_shape(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """One for the tensor, for each row, or for each group of a row; scales of activations are left out."""
    weight = torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(0)).to(torch.float8_e4m3fn)
    scale = torch.rand(shape, generator=torch.Generator().manual_seed(1)) + 0.5
    parts = {"weight": weight, "weight_scale": scale, "input_scale": torch.ones(())}
    found = _loaded(_checkpoint(tmp_path, parts, {"quant_method": "compressed-tensors", "format": "float-quantized"}))
    width = shape[1] if len(shape) == 2 else 1
    spread = scale.reshape(-1, width).repeat_interleave(WIDTH // width, 1)
    torch.testing.assert_close(found[f"{LAYER}.weight"], weight.to(torch.float32) * spread, rtol=0, atol=0)


@pytest.mark.parametrize(
    "configuration",
    [Int8WeightOnlyConfig(), Int8DynamicActivationIntxWeightConfig(weight_granularity=PerGroup(32))],
    ids=lambda each: type(each).__name__,
)
def test_torchaos_tensors_are_what_torchao_says(tmp_path: Path, configuration: Any) -> None:
    """Saved by transformers, and compared with the tensors before they were saved."""
    TinyLlama(hidden_size=WIDTH).write(tmp_path / "plain")
    model = AutoModelForCausalLM.from_pretrained(
        tmp_path / "plain", quantization_config=TorchAoConfig(configuration), dtype=torch.float32
    )
    model.save_pretrained(tmp_path / "narrow")
    write_tokenizer(tmp_path / "narrow", "sentencepiece")
    expected = model.get_submodule(LAYER).weight.dequantize()
    found = _loaded(tmp_path / "narrow")[f"{LAYER}.weight"]
    assert type(found) is Tensor and found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_a_plan_counts_the_weights_of_the_model(tmp_path: Path) -> None:
    """And not the words that they are packed in."""
    parts, _, quantization = _stored("gptq-4")
    planned = shape_of_checkpoint(_checkpoint(tmp_path / "a", parts, quantization), "m")
    plain = shape_of_checkpoint(TinyLlama(hidden_size=WIDTH).write(tmp_path / "b"), "m")
    assert planned.num_weights == pytest.approx(plain.num_weights, rel=0.01)


def test_a_quantised_checkpoint_compiles_and_says_what_that_costs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its weights are rounded twice where the program's are narrow, too."""
    parts, _, quantization = _stored("gptq-4")
    folder = _checkpoint(tmp_path / "model", parts, {**quantization, "bits": 4})
    command = ["compile", str(folder), "--method", "prge", "--seq-len", "16", "--label-tokens", "1", "--no-cache"]
    assert main([*command, "-o", str(tmp_path / "a.pte")]) == 0
    plain = capsys.readouterr().err
    assert "the checkpoint's weights are quantised (gptq, 4 bits) and read as f32" in plain
    assert "moves" not in plain
    assert main([*command, "--quantize", "4", "-o", str(tmp_path / "b.pte")]) == 0
    assert "; 8da4w rounds them once more, which moves them by" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("quantization", "parts", "message"),
    [
        ({"quant_method": "hqq"}, {}, "weights quantised by 'hqq' are not read .* known: gptq, awq"),
        ({}, {}, "weights quantised by 'None' are not read"),
        ({"quant_method": "awq", "version": "gemv"}, {}, "AWQ weights of the layout 'gemv' are not read; gemm is"),
        ({"quant_method": "gptq"}, {"qzeros": None}, f"the quantised layer {LAYER} is damaged: it lacks 'qzeros'"),
        ({"quant_method": "gptq"}, {"scales": torch.ones(2, 63)}, "is damaged: 256 is not a multiple of 63"),
        ({"quant_method": "gptq"}, {"g_idx": torch.full((64,), 7)}, "is damaged: index 7 is out of bounds"),
        ({"quant_method": "compressed-tensors"}, {"weight_packed": torch.ones(64, 32, dtype=torch.uint8)}, "NVFP4"),
    ],
)
def test_refuses_what_it_cannot_read(
    tmp_path: Path, quantization: dict[str, Any], parts: dict[str, Tensor | None], message: str
) -> None:
    """In one line that names the layer or the method; damaged shapes never end the process."""
    stored, _, _ = _stored("gptq-4")
    changed = {name: tensor for name, tensor in {**stored, **parts}.items() if tensor is not None}
    if "weight_packed" in parts:
        del changed["qweight"]
    with pytest.raises(CheckpointError, match=message):
        _loaded(_checkpoint(tmp_path, changed, quantization))


def test_refuses_models_whose_layers_lie_the_other_way_round(tmp_path: Path) -> None:
    """A square layer would be read wrong without a word."""
    parts, _, quantization = _stored("gptq-4")
    folder = _checkpoint(tmp_path, parts, quantization)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "gpt2"}))
    with pytest.raises(CheckpointError, match="gpt2 lie the other way round"):
        load_model(find_checkpoint(str(folder)))
