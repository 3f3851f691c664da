"""Measure whole compilations: seconds of each phase and peak memory, by both routes, as a model grows.

Each compilation is a process of its own, `prgec compile --json`, without the cache.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from prgec.core.machine.describe import describe_machine
from prgec.demo import checkpoint_dir
from prgec.errors import BackendError

_HIDDEN, _HEADS, _KV_HEADS = 64, 4, 2
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json")


@dataclass(frozen=True, kw_only=True)
class Compilation:
    """One measured compilation.

    Attributes:
        model: Name of the checkpoint.
        num_layers: Its blocks; 0 where not given.
        route: Value of `--lowering`.
        seconds: Seconds of each phase.
        wall_s: Seconds of the whole process, imports included.
        cpu_s: Seconds of processor time of the whole process.
        peak_rss_bytes: The most memory it held, mapped files included.
        file_bytes: Size of the program.
        sha256: Hash of the program.
    """

    model: str
    num_layers: int
    route: str
    seconds: Mapping[str, float]
    wall_s: float
    cpu_s: float
    peak_rss_bytes: int
    file_bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class CompilationTable:
    """All that one command measured.

    Attributes:
        command: Makes the table again.
        machine: Where it was measured.
        rows: In the order of measuring.
    """

    command: str
    machine: Mapping[str, Any]
    rows: Sequence[Compilation]

    def to_json(self) -> dict[str, Any]:
        """Return a JSON document."""
        return {"command": self.command, "machine": dict(self.machine), "rows": [asdict(row) for row in self.rows]}


def measure_compilations(
    model: str,
    layers: Sequence[int],
    routes: Sequence[str],
    flags: Sequence[str],
    command: str,
    progress: Callable[[str], None],
) -> CompilationTable:
    """Compile by each route in turn.

    Args:
        model: Checkpoint; empty for random Llamas of hidden size 64.
        layers: How many blocks these have.
        routes: Values of `--lowering`.
        flags: Further arguments of `prgec compile`.
        command: Command in the table that repeats it.
        progress: Called with a line before each compilation.

    Raises:
        BackendError: If one fails, with the last line that it printed.
    """
    rows = []
    with tempfile.TemporaryDirectory(prefix="prgec-bench-") as scratch:
        for count in layers if not model else [0]:
            name = model or f"Llama of {_HIDDEN}, {count} layers"
            checkpoint = model or str(_random_llama(Path(scratch) / f"llama-{count}", count))
            for route in routes:
                progress(f"compiling {name}, {route}")
                rows.append(_compile(name, count, checkpoint, route, flags, Path(scratch)))
    return CompilationTable(command=command, machine=describe_machine(), rows=rows)


def _random_llama(folder: Path, num_layers: int) -> Path:
    """Write a random Llama with the tokenizer of the bundled model."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    source = checkpoint_dir()
    vocab = json.loads((source / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    torch.manual_seed(0)
    LlamaForCausalLM(
        LlamaConfig(
            hidden_size=_HIDDEN,
            intermediate_size=2 * _HIDDEN,
            num_hidden_layers=num_layers,
            num_attention_heads=_HEADS,
            num_key_value_heads=_KV_HEADS,
            vocab_size=vocab,
            max_position_embeddings=256,
        )
    ).save_pretrained(folder)
    for name in _TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copy(source / name, folder / name)
    return folder


def _compile(
    name: str, num_layers: int, checkpoint: str, route: str, flags: Sequence[str], scratch: Path
) -> Compilation:
    output = scratch / "program.pte"
    command = [sys.executable, "-m", "prgec", "compile", checkpoint, "--no-cache", "--lowering", route, *flags]
    start = time.perf_counter()
    printed, usage = _run([*command, "--json", "-o", str(output)], scratch)
    wall_s = time.perf_counter() - start
    data = output.read_bytes()
    output.unlink()
    return Compilation(
        model=name,
        num_layers=num_layers,
        route=route,
        seconds=json.loads(printed)["seconds"],
        wall_s=wall_s,
        cpu_s=usage.ru_utime + usage.ru_stime,
        peak_rss_bytes=usage.ru_maxrss * 1024,
        file_bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
    )


def _run(command: Sequence[str], scratch: Path) -> tuple[str, resource.struct_rusage]:
    """Run a compilation; return its output and its use of the machine."""
    printed, complaints = scratch / "stdout", scratch / "stderr"
    with printed.open("wb") as out, complaints.open("wb") as err:
        process = subprocess.Popen(command, stdout=out, stderr=err)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        lines = complaints.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise BackendError(f"{' '.join(command[3:])} failed: {lines[-1] if lines else 'it printed nothing'}")
    return printed.read_text(encoding="utf-8"), usage
