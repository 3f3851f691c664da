"""Checks of the CUDA backend that need a GPU: does it lower, run, agree and pay?

    python tools/gpu_check.py --out docs/reports/gpu            # on the machine with the GPU
    python tools/gpu_check.py --device cpu --quick --out /tmp/x  # the same script without one, tiny

1. Lowers a small Llama for each format to .pte and .ptd (skipped, with the reason, where the preflight refuses).
2. Runs the .pte where this ExecuTorch has a CUDA runtime; everywhere the same exported step as an AOTInductor package.
   Twenty steps of either are compared with eager PyTorch running the same graph on the same device.
3. Times the step at TinyLlama-1.1B shapes (generated weights) against eager sequential MeZO and a plain forward of the
   same rows, over T, B and q: the shape of the paper's Tables 4, 6, 12 and 13.

Writes report.json and report.md. Letters: q queries, B examples a step, T tokens.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from make_random_model import SHAPES, Shape, write_checkpoint

from prgec.backends.cuda.backend import CudaBackend, exact_integers
from prgec.compiler.compile import compile_model
from prgec.compiler.frontend.checkpoint import find_checkpoint
from prgec.compiler.frontend.model import LossModel, export_loss, load_model
from prgec.compiler.options import CompileOptions
from prgec.compiler.pipelines import default_pipeline
from prgec.core.contract.calls import Batch, StepInputs
from prgec.core.contract.names import STATE_SUFFIX
from prgec.core.machine.describe import describe_machine
from prgec.core.machine.quiet import quiet_libraries
from prgec.errors import PrgecError
from prgec.lab.bench.eager import EagerMezo
from prgec.passes.pipeline import run_pipeline
from prgec.passes.program import GraphProgram
from prgec.runtime.engines.executorch.open import open_pte

SMALL = Shape(
    hidden_size=256,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=512,
    vocab_size=2048,
)
FORMATS: dict[str, dict[str, Any]] = {
    "f32": {"dtype": "f32"},
    "bf16": {},
    "int8": {"quantize": "int8"},
    "int4": {"quantize": "int4"},
}
STEPS, EPS, LR, SEED = 20, 1e-2, 1e-3, 2**40 + 5
REPEATS = 10


@dataclass(frozen=True)
class Cell:
    """One point of the benchmark."""

    format: str
    q: int
    batch_size: int
    seq_len: int


def main() -> None:
    """Check, then measure, then write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="Folder of the report.")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--quick", action="store_true", help="One small cell instead of the tables.")
    arguments = parser.parse_args()
    quiet_libraries()
    with tempfile.TemporaryDirectory() as folder:
        report = {"date": datetime.date.today().isoformat(), "machine": _machine(arguments.device)}
        small = _checkpoint(Path(folder) / "small", SMALL)
        report["agreement"] = [_agree(small, name, arguments.device, Path(folder)) for name in FORMATS]
        scale = small if arguments.quick else _checkpoint(Path(folder) / "tinyllama", SHAPES["tinyllama"])
        report["speed"] = [_measure(scale, cell, arguments.device, Path(folder)) for cell in _cells(arguments.quick)]
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    (arguments.out / "report.md").write_text(_markdown(report))
    print(_markdown(report))


def _cells(quick: bool) -> Iterator[Cell]:
    if quick:
        yield Cell("bf16", 2, 1, 16)
        return
    for name, q, batch_size, seq_len in product(("bf16", "int4"), (1, 4, 16), (1, 8, 16), (64, 128, 256)):
        # 2qB rows of T tokens: beyond this a 24 GB card has no room for the logits and activations.
        if 2 * q * batch_size * seq_len <= 65536:
            yield Cell(name, q, batch_size, seq_len)


def _machine(device: str) -> dict[str, Any]:
    versions = dict(CudaBackend().versions()) if device == "cuda" else {}
    return {**describe_machine(), **versions, "device": device}


def _checkpoint(folder: Path, shape: Shape) -> Path:
    write_checkpoint(shape, folder, seed=0)
    return folder


def _options(checkpoint: Path, cell: Cell, output: Path) -> CompileOptions:
    return CompileOptions(
        model=str(checkpoint),
        output=output,
        backend="cuda",
        q=cell.q,
        batch_size=cell.batch_size,
        seq_len=cell.seq_len,
        **FORMATS[cell.format],
    )


def _step_graph(checkpoint: Path, options: CompileOptions) -> GraphProgram:
    """The graph the backend would lower."""
    model = load_model(find_checkpoint(str(checkpoint)))
    program = export_loss(
        model, num_rows=options.num_rows, seq_len=options.seq_len, num_labels=options.num_labels, dynamic=False
    )
    run_pipeline(program, default_pipeline(options, CudaBackend()))
    return program


def _package(program: GraphProgram, device: str, path: Path) -> Callable[..., Any]:
    """The step compiled by AOTInductor for `device`, without ExecuTorch around it."""
    from torch.export.passes import move_to_device_pass

    with exact_integers(), torch.no_grad():
        package = torch._inductor.aoti_compile_and_package(
            move_to_device_pass(program.to_exported(), device), package_path=str(path)
        )
    loaded: Callable[..., Any] = torch._inductor.aoti_load_package(package)
    return loaded


def _inputs(options: CompileOptions, device: str, step: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    rows, length, labels = options.num_rows, options.seq_len, options.num_labels
    tokens = torch.randint(3, 2000, (rows, length), generator=generator)
    positions = torch.arange(length - labels - 1, length - 1).expand(rows, -1).contiguous()
    g = torch.randn(options.q, generator=generator) if step else torch.zeros(options.q)
    scalars = [torch.tensor(LR), torch.tensor(EPS), torch.tensor(SEED), torch.tensor(step)]
    return [each.to(device) for each in (tokens, positions, tokens.gather(1, positions + 1), g, *scalars)]


def _agree(checkpoint: Path, name: str, device: str, folder: Path) -> dict[str, Any]:
    """Lower, run and compare one format."""
    print(f"agreement of {name}", flush=True)
    cell = Cell(name, 4, 2, 32)
    options = _options(checkpoint, cell, folder / f"{name}.pte")
    found: dict[str, Any] = {"format": name}
    program = _step_graph(checkpoint, options)
    packaged = _package(program, device, folder / f"{name}.pt2")
    module = program.module.to(device)
    losses, masters = [], []
    with torch.no_grad():
        for step in range(STEPS):
            ours, theirs = packaged(*_inputs(options, device, step)), module(*_inputs(options, device, step))
            losses.append(float(((ours[0] - theirs[0]).abs() / theirs[0].abs()).max()))
            masters.append(max(float((a - b).abs().max()) for a, b in zip(ours[1:], theirs[1:], strict=True)))
    found["aoti"] = {"steps": STEPS, "max_rel_loss_diff": max(losses), "max_abs_state_diff": max(masters)}
    found["pte"] = _run_pte(options, module, device)
    return found


def _run_pte(options: CompileOptions, module: torch.nn.Module, device: str) -> str | dict[str, Any]:
    """Lower for real and run where a runtime is present; else say what stood in the way."""
    try:
        result = compile_model(options)
    except PrgecError as error:
        return f"not lowered: {error}"
    size = {
        "pte_mb": result.file_bytes / 1e6,
        "delegates": len(result.delegation.delegates),
        "cpu_ops": sum(op.count for op in result.delegation.cpu_ops),
        "seconds": sum(result.seconds.values()),
    }
    try:
        program = open_pte(result.path)
    except PrgecError as error:
        return {**size, "run": f"lowered, not run: {error}"}
    for name, buffer in module.named_buffers():
        if name.endswith(STATE_SUFFIX):
            buffer.zero_()
    worst = 0.0
    with torch.no_grad():
        for step in range(STEPS):
            tensors = _inputs(options, device, step)
            tokens, positions, targets, g = (each.cpu().numpy() for each in tensors[:4])
            inputs = StepInputs(g_q=g, lr=LR, eps=EPS, seed=SEED, step=step)
            loss = program.forward(Batch(tokens, positions, targets), inputs)
            expected = module(*tensors)[0].cpu()
            worst = max(worst, float(((torch.from_numpy(loss) - expected).abs() / expected.abs()).max()))
    return {**size, "run": {"steps": STEPS, "max_rel_loss_diff": worst}}


def _measure(checkpoint: Path, cell: Cell, device: str, folder: Path) -> dict[str, Any]:
    """Seconds a step of one cell, side by side."""
    print(f"speed of {cell}", flush=True)
    options = _options(checkpoint, cell, folder / "bench.pte")
    found: dict[str, Any] = vars(cell).copy()
    found["step_s"] = _step_seconds(checkpoint, options, device, folder / "bench.pt2")
    gc.collect()
    model = load_model(find_checkpoint(str(checkpoint))).to(torch.bfloat16).to(device)
    rows = _inputs(options, device, 1)[:3]
    with torch.no_grad():
        forward = LossModel(model)
        found["forward_s"] = _median(lambda: forward(*rows), device)
        one = [each[: cell.batch_size] for each in rows]
        mezo = EagerMezo(model, one, cell.q)
        found["eager_mezo_s"] = _median(mezo.step, device)
    found["vs_eager_mezo"] = found["eager_mezo_s"] / found["step_s"]
    found["vs_forward"] = found["step_s"] / found["forward_s"]
    return found


def _step_seconds(checkpoint: Path, options: CompileOptions, device: str, package: Path) -> float:
    step = _package(_step_graph(checkpoint, options), device, package)
    inputs = _inputs(options, device, 1)
    return _median(lambda: step(*inputs), device)


def _median(run: Callable[[], Any], device: str) -> float:
    seconds = []
    for _ in range(REPEATS + 2):
        _wait(device)
        started = time.perf_counter()
        run()
        _wait(device)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[2:])


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _markdown(report: dict[str, Any]) -> str:
    m = report["machine"]
    lines = [
        f"# CUDA backend on {m.get('gpu', 'this CPU')}, {report['date']}",
        "",
        f"```\n{json.dumps(m, indent=1)}\n```",
        "",
    ]
    lines += ["| format | AOTI loss diff | AOTI state diff | .pte |", "|---|---:|---:|---|"]
    for row in report["agreement"]:
        aoti = row["aoti"]
        lines.append(
            f"| {row['format']} | {aoti['max_rel_loss_diff']:.1e} | {aoti['max_abs_state_diff']:.1e} "
            f"| {row['pte'] if isinstance(row['pte'], str) else json.dumps(row['pte'])} |"
        )
    lines += [
        "",
        "| format | q | B | T | step s | eager MeZO / step | step / forward |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in report["speed"]:
        lines.append(
            f"| {row['format']} | {row['q']} | {row['batch_size']} | {row['seq_len']} | {row['step_s']:.4g} "
            f"| {row['vs_eager_mezo']:.2f} | {row['vs_forward']:.2f} |"
        )
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
