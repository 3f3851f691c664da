"""Write small quantised layers with the packages that people quantise with, and what these say the weights are.

    python tools/make_quantized.py                   # writes tests/golden/quantized/*.safetensors

Each file holds the tensors of one layer as a checkpoint stores them, and `expected`, the weight in f32 as the package
itself unpacks it. The packages are downloaded for it and not installed: AutoGPTQ and AutoAWQ are no longer maintained
and need old versions of others, so their modules for one layer are loaded alone.
"""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
import tarfile
import tempfile
import types
import zipfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

OUT = Path(__file__).parents[1] / "tests" / "golden" / "quantized"
PACKAGES = ("bitsandbytes==0.50.2", "compressed-tensors==0.20.0", "auto-gptq==0.7.1", "autoawq==0.2.9", "loguru")
OUTPUTS, INPUTS, GROUP = 64, 64, 32


def main() -> None:
    """Download the packages and write all files."""
    OUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        packages = Path(folder)
        for name in PACKAGES:
            command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-build-isolation"]
            subprocess.run([*command, "-d", folder, name], check=False)
        for archive in [*packages.glob("*.whl")]:
            zipfile.ZipFile(archive).extractall(packages)
        for archive in packages.glob("*.tar.gz"):
            tarfile.open(archive).extractall(packages, filter="data")
        sys.path.insert(0, folder)
        _write(packages)


def _write(packages: Path) -> None:
    linear = _linear()
    for bits in (2, 3, 4, 8):
        _save(f"gptq-{bits}", *_gptq(packages, linear, bits))
    _save("awq", *_awq(packages, linear))
    for kind, nested in (("nf4", False), ("nf4", True), ("fp4", False)):
        _save(f"bnb-{kind}{'-nested' if nested else ''}", *_bitsandbytes4(linear, kind, nested))
    _save("bnb-int8", *_bitsandbytes8(linear))
    for bits, symmetric, group in ((4, True, GROUP), (4, False, GROUP), (8, True, None)):
        name = f"compressed-{bits}{'' if symmetric else '-asymmetric'}{'' if group else '-channel'}"
        _save(name, *_compressed(linear, bits, symmetric, group))
    _save("compressed-fp8", *_compressed_float(linear))


def _linear() -> nn.Linear:
    torch.manual_seed(0)
    linear = nn.Linear(INPUTS, OUTPUTS, bias=False, dtype=torch.float16)
    return linear.requires_grad_(False)


def _save(name: str, parts: dict[str, Tensor], expected: Tensor) -> None:
    stored = {part: tensor.contiguous() for part, tensor in parts.items()}
    save_file({**stored, "expected": expected.to(torch.float32).contiguous()}, OUT / f"{name}.safetensors")
    print(f"{name:28} {sum(tensor.nbytes for tensor in stored.values()):6} bytes")


def _grid(weight: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Scales and zeros of groups of inputs, asymmetric: both [O, G]."""
    groups = weight.to(torch.float32).reshape(OUTPUTS, -1, GROUP)
    low, high = groups.amin(2).clamp(max=0), groups.amax(2).clamp(min=0)
    scales = (high - low) / (2**bits - 1)
    # A zero of 0 would be stored as -1.
    return scales.to(torch.float16), (-low / scales).round().clamp(1, 2**bits - 1)


def _gptq(packages: Path, linear: nn.Linear, bits: int) -> tuple[dict[str, Tensor], Tensor]:
    path = packages / "auto_gptq" / "nn_modules" / "qlinear" / "qlinear_cuda_old.py"
    layer = _module("qlinear_cuda_old", path).QuantLinear(bits, GROUP, INPUTS, OUTPUTS, bias=False)
    scales, zeros = _grid(linear.weight, bits)
    layer.pack(linear, scales.to(torch.float32), zeros.to(torch.float32), None)
    parts = {name: getattr(layer, name) for name in ("qweight", "qzeros", "scales", "g_idx")}
    layer.scales = layer.scales.to(torch.float32)
    return parts, layer(torch.eye(INPUTS)).T


def _awq(packages: Path, linear: nn.Linear) -> tuple[dict[str, Tensor], Tensor]:
    root = next(each for each in packages.glob("autoawq-*") if each.is_dir())
    for name in ("awq", "awq.utils", "awq.modules", "awq.modules.linear"):
        package = types.ModuleType(name)
        package.__path__ = [str(root.joinpath(*name.split(".")))]
        sys.modules[name] = package
    gemm = importlib.import_module("awq.modules.linear.gemm")
    scales, zeros = _grid(linear.weight, 4)
    layer = gemm.WQLinear_GEMM.from_linear(linear, 4, GROUP, scales=scales.T, zeros=zeros.T)
    parts = {name: getattr(layer, name) for name in ("qweight", "qzeros", "scales")}
    unpacked = gemm.dequantize_gemm(parts["qweight"], parts["qzeros"], parts["scales"].to(torch.float32), 4, GROUP)
    return parts, unpacked.T


def _bitsandbytes4(linear: nn.Linear, kind: str, nested: bool) -> tuple[dict[str, Tensor], Tensor]:
    functional = importlib.import_module("bitsandbytes.functional")
    weight = linear.weight.to(torch.float32)
    packed, state = functional.quantize_4bit(weight, blocksize=64, quant_type=kind, compress_statistics=nested)
    parts = {"weight": packed, **{f"weight.{name}": tensor for name, tensor in state.as_dict(packed=True).items()}}
    return parts, functional.dequantize_4bit(packed, state)


def _bitsandbytes8(linear: nn.Linear) -> tuple[dict[str, Tensor], Tensor]:
    functional = importlib.import_module("bitsandbytes.functional")
    values, scales, _ = functional.int8_vectorwise_quant(linear.weight)
    parts = {"weight": values, "SCB": scales, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    return parts, functional.int8_vectorwise_dequant(values, scales)


def _compressed(linear: nn.Linear, bits: int, symmetric: bool, group: int | None) -> tuple[dict[str, Tensor], Tensor]:
    quantization = importlib.import_module("compressed_tensors.quantization")
    compressors = importlib.import_module("compressed_tensors.compressors.pack_quantized")
    arguments = quantization.QuantizationArgs(
        num_bits=bits, symmetric=symmetric, strategy="group" if group else "channel", group_size=group
    )
    return _through(compressors.PackedQuantizationCompressor, linear, arguments)


def _compressed_float(linear: nn.Linear) -> tuple[dict[str, Tensor], Tensor]:
    quantization = importlib.import_module("compressed_tensors.quantization")
    compressors = importlib.import_module("compressed_tensors.compressors.naive_quantized")
    arguments = quantization.QuantizationArgs(num_bits=8, type="float", strategy="channel")
    return _through(compressors.FloatQuantizationCompressor, linear, arguments)


def _through(compressor: Any, linear: nn.Linear, arguments: Any) -> tuple[dict[str, Tensor], Tensor]:
    quantization = importlib.import_module("compressed_tensors.quantization")
    calculate = importlib.import_module("compressed_tensors.quantization.utils").calculate_qparams
    weight = linear.weight.to(torch.float32)
    groups = weight.reshape(OUTPUTS, -1, arguments.group_size or INPUTS)
    scale, zero = calculate(groups.amin(2), groups.amax(2), arguments)
    scheme = quantization.QuantizationScheme(targets=["Linear"], weights=arguments)
    state = {"weight": weight, "weight_scale": scale, "weight_zero_point": zero}
    parts = compressor.compress(state, scheme)
    return parts, compressor.decompress(parts, scheme)["weight"]


def _module(name: str, path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None, "a file of Python"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
