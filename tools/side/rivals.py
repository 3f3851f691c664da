"""Rivals that learn the bundled task from the same rows, and the memory of emitting beside that of answering."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from prgec.backends import load_backend
from prgec.backends.lowering import lower
from prgec.cli.demo_run import DemoOptions, run_demo
from prgec.compiler.compile import build_graphs
from prgec.compiler.options import CompileOptions
from prgec.compiler.write import write_program
from prgec.core.contract.names import EMIT_METHOD
from prgec.core.data.dataset import load_dataset
from prgec.core.data.encode import encode_items
from prgec.core.data.eval_set import encode_row_set
from prgec.demo import BATCH_SIZES, STEPS, data_file
from prgec.lab.bench.memory import Peak, watch
from prgec.lab.study.first_order import FirstOrder
from prgec.passes.differentiate import outputs_of
from prgec.passes.rewrite import copy_returning, erase_dead
from prgec.runtime.training.evaluate import evaluate
from prgec.runtime.training.loop import TrainingLoop
from prgec.runtime.training.schedules import Rates

_CALLS = 40
_LORA_RATE = 1e-3
# Opens a program, and calls its method on the largest rows it takes.
_CHILD = """
import sys
import numpy as np
import torch
from executorch.extension.pybindings import _C as bindings
from prgec.runtime_ops.native import load_kernels
bindings._unsafe_reset_threadpool(1)
load_kernels()
path, size, length, calls = sys.argv[1], *map(int, sys.argv[2:])
method = bindings._load_program(path).load_method("emit")
tokens = torch.full((size, length), 5)
for _ in range(calls):
    outputs = [each.numpy().copy() for each in method([tokens, torch.zeros((size, 1), dtype=torch.int64)])]
"""


@dataclass(frozen=True)
class Rival:
    """The result of a way to train on the device.

    Attributes:
        name: Name of the way.
        accuracy: On the test rows.
        seconds: Time of training.
        rows: Rows of forward passes; a backward pass counts as two forward passes.
    """

    name: str
    accuracy: float
    seconds: float
    rows: int


def rivals(work: Path) -> list[Rival]:
    """Train the demo in the other ways, each with its defaults."""
    return [*(_compiled(method, work) for method in ("prge", "exact")), _first_order()]


def _compiled(method: str, work: Path) -> Rival:
    options = DemoOptions(method=method, out=work / f"demo-{method}")
    done = run_demo(options, lambda stage: None)
    assert done.run.after is not None and done.run.after.accuracy is not None
    rows_of_step = 2 * CompileOptions.q * BATCH_SIZES[method] if method == "prge" else 3 * BATCH_SIZES[method]
    seconds = done.run.steps / done.run.steps_per_second
    return Rival(f"`{method}`", done.run.after.accuracy, seconds, done.run.steps * rows_of_step)


def _first_order() -> Rival:
    """Adam over LoRA in PyTorch, as many steps as `exact` takes."""
    method = FirstOrder("demo", seed=0, space="lora", batch_size=BATCH_SIZES["exact"])
    encoder = (method.program.tokenizer, method.program.manifest)
    rows = encode_items(load_dataset(data_file("train")).examples, *encoder)
    started = time.monotonic()
    for step in TrainingLoop(
        trainer=method,
        rows=rows,
        manifest=method.program.manifest,
        seed=0,
        rates=Rates(STEPS["exact"], _LORA_RATE, "linear"),
    ):
        last = step.step
    seconds = time.monotonic() - started
    found = evaluate(method.program, encode_row_set(load_dataset(data_file("test")), *encoder))
    assert found is not None and found.accuracy is not None
    return Rival("Adam over LoRA, PyTorch", found.accuracy, seconds, last * method.rows_per_step)


def memory(options: CompileOptions, work: Path) -> tuple[Peak, Peak, Peak]:
    """Peaks of a process that emits, of one that answers alone, and of one that opens a program and runs nothing.

    Args:
        options: Options of the backbone; the program that answers alone is its graph without activations.
        work: Folder for the latter.
    """
    graph = build_graphs(options).methods[EMIT_METHOD]
    plain = copy_returning(graph, outputs_of(graph)[1:])
    erase_dead(plain)
    plain.finish()
    lowered = lower(load_backend(options.backend), {EMIT_METHOD: plain.to_exported()})
    write_program(work / "plain.pte", lowered.finish({}))
    size, length = options.batch_size, options.seq_len
    return (
        _peak(options.output, size, length, _CALLS),
        _peak(work / "plain.pte", size, length, _CALLS),
        _peak(work / "plain.pte", size, length, 0),
    )


def _peak(program: Path, *numbers: int) -> Peak:
    command = [sys.executable, "-c", _CHILD, str(program), *map(str, numbers)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        peak = watch(process)
    if process.returncode:
        raise RuntimeError(f"{program} did not run")
    return peak
