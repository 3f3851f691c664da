"""Compiled graphs that runs of a study share: run by PyTorch, or compiled to a file and run as they ship.

Exporting takes longer than training a small model, so runs of equal options share what it made. PyTorch keeps it in the
process that starts the runs; files lie in a folder of that process and are made in a process of their own, whose memory
is none of the run's.
"""

from __future__ import annotations

import functools
import hashlib
import multiprocessing
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from prgec.compiler.options import CompileOptions
from prgec.core.contract.pte import read_pte
from prgec.core.machine.apart import call_apart
from prgec.core.machine.memory import settled_memory
from prgec.core.machine.native_log import captured_stderr
from prgec.errors import UsageError
from prgec.lab.study.spec import EXECUTORCH, TORCH
from prgec.lab.torch.program import TorchProgram
from prgec.runtime.engines.executorch.pte_program import PteProgram

# Without legality passes that exist for delegates alone: they cost time in PyTorch.
_BACKENDS = {TORCH: "portable", EXECUTORCH: "xnnpack"}

_Options: TypeAlias = tuple[tuple[str, Any], ...]


def shared_program(model: str, options: Mapping[str, Any]) -> tuple[TorchProgram | PteProgram, int]:
    """Return the program of a compilation with its state at zero; equal options share it, one run at a time.

    Beside it stands what it holds in memory when it is open, in bytes: of a compiled file the room for what it
    computes, while weights and tokenizer are left out. 0 in PyTorch, which makes that room when it computes.

    Args:
        model: Checkpoint folder, alias or hub id.
        options: `engine`, by default torch, and fields of `CompileOptions`; targets, layers and data may be
            texts with commas.

    Raises:
        UsageError: If there is no such engine.
    """
    engine, chosen = _chosen(model, options)
    program, held_bytes = (_graph(chosen), 0) if engine == TORCH else _open(_file(chosen))
    program.write_state({name: 0.0 * array for name, array in program.read_state().items()})
    return program, held_bytes


def prepare_program(model: str, options: Mapping[str, Any]) -> None:
    """Make what `shared_program` returns of the same arguments, so that processes forked later find it made.

    Raises:
        UsageError: If there is no such engine.
    """
    engine, chosen = _chosen(model, options)
    if engine == TORCH:
        _graph(chosen)
    else:
        # Not opened: XNNPACK's threads would not survive the fork.
        _file(chosen)


def _chosen(model: str, options: Mapping[str, Any]) -> tuple[str, _Options]:
    engine = str(options.get("engine", TORCH))
    if engine not in _BACKENDS:
        raise UsageError(f"unknown engine {engine!r}", hint=f"known: {', '.join(_BACKENDS)}")
    chosen = {"backend": _BACKENDS[engine], "seq_len": 64, **options, "model": model}
    chosen.pop("engine", None)
    for name, kind in {"targets": str, "layers": str, "data": Path}.items():
        if isinstance(chosen.get(name), str):
            chosen[name] = tuple(map(kind, chosen[name].split(",")))
    if "lora_a" in chosen:
        chosen["lora_a"] = Path(chosen["lora_a"])
    return engine, tuple(sorted(chosen.items()))


@functools.lru_cache(maxsize=4)
def _graph(options: _Options) -> TorchProgram:
    return TorchProgram.build(CompileOptions(**dict(options), output=Path("unused.pte")))


def _file(options: _Options) -> Path:
    path = Path(_folder().name) / f"{hashlib.sha256(repr(options).encode()).hexdigest()[:16]}.pte"
    if not path.exists():
        chosen = CompileOptions(**dict(options), output=path)
        # Not a fork: a run may have threads already.
        call_apart(multiprocessing.get_context("spawn"), f"compiling {chosen.model}", _compile, chosen)
    return path


@functools.lru_cache(maxsize=1)
def _folder() -> tempfile.TemporaryDirectory[str]:
    """The folder of compiled programs: it ends with the first process that needs it, and not with forks of that one."""
    return tempfile.TemporaryDirectory(prefix="prgec-study-")


def _open(path: Path) -> tuple[PteProgram, int]:
    import torch
    from executorch.extension.pybindings import _C as bindings

    from prgec.runtime.engines.executorch.open import load_program
    from prgec.runtime.engines.executorch.runtime import load_runtime
    from prgec.runtime.engines.executorch.verified import open_verified

    # A study says how many threads PyTorch has; the delegate gets as many.
    with captured_stderr():
        bindings._unsafe_reset_threadpool(torch.get_num_threads())
    opened = open_verified(path, verify=True)
    load_runtime(opened[1].backend)
    before = settled_memory().anon_bytes
    program = load_program(path, *opened)
    # Made by the call that gave the manifest, for the largest method: the runtime's Python bindings have one for all.
    # Not measured by opening the file again: pieces of the first would stay in the heap, and count.
    planned_bytes = max(method.planned_bytes for method in read_pte(path).methods.values())
    return program, planned_bytes + settled_memory().anon_bytes - before


def _compile(options: CompileOptions) -> None:
    from prgec.compiler.compile import compile_model

    compile_model(options)
