"""The C++ driver, emitted and built once a session as its README says."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prgec.compiler.compile import compile_model
from prgec.compiler.options import CompileOptions
from prgec.core.data.encode import Row
from prgec.core.data.rows_file import RowSet, pack_rows
from prgec.device.emit import emit_driver
from prgec.runtime.engines.executorch.runtime import read_constants
from prgec.runtime.runs.options import RunOptions
from prgec.runtime.runs.run import run
from tests.device_backend import DeviceBackend
from tests.models import TinyLlama
from tests.tiny_program import GOOD

PROGRAMS = {
    "portable": {"backend": "portable"},
    "xnnpack-static": {"backend": "xnnpack", "static": True},
    "dual": {"backend": "portable", "state": "dual"},
    "device": {"backend": "portable"},
    "prefix": {"backend": "portable", "layers": ("last:1",), "prefix": "method"},
    "shared": {"backend": "xnnpack", "layers": ("last:1",), "prefix": "shared", "quantize": "8da8w"},
    # Steps are not bounded by the loss, so that they can be made to diverge. The length is fixed, as below: backward
    # passes compile several times as fast.
    "exact": {"backend": "portable", "method": "exact", "polyak": 0.0, "static": True},
    "exact-prefix": {"backend": "portable", "method": "exact", "layers": ("last:1",), "prefix": "method"},
    "shortcut": {"backend": "xnnpack", "method": "shortcut", "optimizer": "adamw"},
    "calibrated": {"backend": "portable", "lora_a": Path("calibrated")},
    "host": {"backend": "portable", "state": "host"},
    "host-exact": {
        "backend": "portable",
        "state": "host",
        "method": "exact",
        "optimizer": "adamw",
        "layers": ("last:1",),
        "prefix": "method",
        "static": True,
    },
    # More than one call of `extend` reads.
    "talking": {"backend": "portable", "generate": True, "context": 160},
    "talking-exact": {"backend": "portable", "method": "exact", "generate": True, "context": 160},
    "weighing": {"backend": "portable", "method": "exact", "label_weights": True, "static": True},
    "host-weighing": {
        "backend": "portable",
        "method": "exact",
        "label_weights": True,
        "state": "host",
        "layers": ("last:1",),
        "prefix": "method",
        "static": True,
    },
    "gathering": {"backend": "xnnpack", "method": "exact", "optimizer": "momentum", "accumulate": True},
}
# State after the losses, noise in the graph, and weights in a file beside it, as on a GPU.
DEVICE = "device"
# Length of a run by default.
STEPS = 100
# Compiling the others is what makes their test slow.
QUICK = ("portable", "dual", "device", "prefix", "exact", "host", "host-exact")


def build_driver(folder: Path, preset: str, *flags: str) -> Path:
    """Emit and build; return the path of prge_train."""
    emit_driver(folder)
    for arguments in (["--preset", preset, *generator(), *flags], ["--build", "--preset", preset]):
        assert "warning:" not in run_cmake(*arguments, folder=folder)
    return folder / "build" / preset / "prge_train"


def generator() -> list[str]:
    """Flags for ninja, where there is one."""
    return ["-G", "Ninja"] if shutil.which("ninja", path=_tools()) else []


def run_cmake(*arguments: object, folder: Path | None = None) -> str:
    """Run cmake in a folder, the environment's own before the system's; return what it says."""
    cmake = shutil.which("cmake", path=_tools())
    assert cmake is not None
    command, environment = [cmake, *map(str, arguments)], {**os.environ, "PATH": _tools()}
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout + result.stderr


def _tools() -> str:
    return os.pathsep.join((sysconfig.get_path("scripts"), os.environ["PATH"]))


def write_rows(
    path: Path, program: Path, *, examples: int, candidates: int, seed: int, are_weighed: bool = False
) -> Path:
    """Write random rows that use all of T and K, each example's right answer first or last; most weigh something."""
    manifest, tokenizer = read_constants(program)
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(examples * candidates):
        num_labels = int(rng.integers(1, manifest.num_labels + 1))
        num_tokens = int(rng.integers(num_labels, manifest.seq_len + 1))
        ids = rng.integers(0, manifest.vocab_size, num_tokens + num_labels).tolist()
        positions = range(num_tokens - num_labels, num_tokens)
        is_weighed = are_weighed and len(rows) % 4 > 0
        weights = rng.normal(size=num_labels).astype(np.float32).tolist() if is_weighed else ()
        rows.append(Row(tuple(ids[:num_tokens]), tuple(positions), tuple(ids[num_tokens:]), weights=tuple(weights)))
    answers = (rng.integers(0, 2, examples) * (candidates - 1)).tolist()
    path.write_bytes(pack_rows(RowSet(rows, candidates, tuple(answers)), manifest, tokenizer.sha256, "random"))
    return path


def run_driver(executable: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run prge_train."""
    return subprocess.run([executable, *map(str, arguments)], capture_output=True, text=True, check=False)


@dataclass(frozen=True)
class Drivers:
    """The same run under either driver."""

    executable: Path
    options: RunOptions

    def cpp(self, **changes: Any) -> subprocess.CompletedProcess[str]:
        return run_driver(self.executable, *self.arguments(**changes))

    def arguments(self, **changes: Any) -> list[object]:
        options = replace(self.options, **changes)
        flags: list[object] = [options.program, "--rows", options.rows, "--out", options.out]
        for name in (
            "eval_rows",
            "steps",
            "lr",
            "accumulate",
            "eps",
            "seed",
            "estimator",
            "eval_every",
            "snapshot_every",
            "warmup",
            "max_g",
            "over_limit",
            "not_finite",
            "diverged",
            "window",
        ):
            value = getattr(options, name)
            if value is not None:
                flags += [f"--{name.replace('_', '-')}", value]
        flags += ["--lr-schedule", options.schedule]
        flags += ["--init-adapter", options.adapter] if options.adapter else []
        switches = ("resume", "force", "no_verify")
        return flags + [f"--{name.replace('_', '-')}" for name in switches if getattr(options, name)]

    def python(self, **changes: Any) -> None:
        run(replace(self.options, **changes))


@pytest.fixture(scope="session")
def executable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # The kernels' loops cost most of the build at -O3, and time is not what these tests measure.
    return build_driver(tmp_path_factory.mktemp("driver") / "d", "host", "-DCMAKE_CXX_FLAGS_RELEASE=-O1")


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TinyLlama(num_layers=2, max_positions=160).write(tmp_path_factory.mktemp("cpp") / "checkpoint")


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Callable[[str], Path]:
    """Compile one of PROGRAMS, or return what was compiled before."""
    folder = tmp_path_factory.mktemp("programs")
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"text": f"the film was {word} and it is {word}"}) + "\n" for word in GOOD))

    def compiled(name: str) -> Path:
        path = folder / f"{name}.pte"
        if not path.exists():
            data = (prompts,) if "lora_a" in PROGRAMS[name] else ()
            compile_model(
                CompileOptions(
                    model=str(checkpoint),
                    output=path,
                    q=3,
                    batch_size=2,
                    seq_len=16,
                    num_labels=2,
                    rank=4,
                    alpha=8.0,
                    targets=("q_proj", "down_proj"),
                    data=data,
                    **PROGRAMS[name],
                ),
                backend=DeviceBackend() if name == DEVICE else None,
            )
        return path

    return compiled


@pytest.fixture
def make(executable: Path, program: Callable[[str], Path], tmp_path: Path) -> Callable[..., Drivers]:
    def drivers(name: str = "portable", **changes: Any) -> Drivers:
        path = program(name)
        rows = write_rows(tmp_path / "rows.bin", path, examples=7, candidates=2, seed=1)
        eval_rows = write_rows(tmp_path / "eval.bin", path, examples=9, candidates=3, seed=2)
        options = RunOptions(
            program=path,
            rows=rows,
            eval_rows=eval_rows,
            steps=STEPS,
            lr=0.02,
            eval_every=40,
            snapshot_every=30,
            seed=-3,
            out=tmp_path / "cpp",
        )
        return Drivers(executable, replace(options, **changes))

    return drivers
