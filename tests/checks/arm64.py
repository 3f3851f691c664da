"""Cross-build the C++ driver for 64-bit ARM and train the bundled model with it under qemu, beside this machine's.

Prints the noise of both, how far losses and states are apart, and the same of a run that begins here, is killed, and
goes on there; on a processor with SME and on one without. The exit code is 1 if noise differs in a bit, or losses or
states by more than 1e-6.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from prgec.compiler.compile import compile_model
from prgec.compiler.options import CompileOptions
from prgec.core.machine.cross import COMPILER, WITH_SME, WITHOUT_SME, arm64_missing, arm64_wheel, emulated
from prgec.core.machine.quiet import quiet_libraries
from prgec.device.emit import emit_driver
from prgec.runtime_ops import native
from tests.tiny_inputs import write_rows

_TOLERANCE = 1e-6
_STEPS, _KILL_AFTER = 8, 4
_TRIES = 20
_STEP = re.compile(r"step (\d+)/")
_INSTRUCTION_SETS = Path(__file__).parents[1] / "runtime_ops" / "instruction_sets.cpp"
# Flags that decide the bits, as in runtime_ops/CMakeLists.txt.
_FLAGS = ("-std=c++17", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-Wall", "-Werror")


@dataclass(frozen=True)
class Comparison:
    """A run there beside the same run here.

    Attributes:
        method: How the program trains.
        processor: Emulated processor.
        loss_error: Largest relative difference of a loss.
        state_error: Largest difference of a trained weight, of `state_size`.
        state_size: Largest trained weight.
        resumed_at: Steps that were made here before the run went on there; 0 for none.
    """

    method: str
    processor: str
    loss_error: float
    state_error: float
    state_size: float
    resumed_at: int

    @property
    def is_good(self) -> bool:
        """Whether both are apart by rounding only, and something was trained."""
        return self.loss_error < _TOLERANCE and self.state_error < _TOLERANCE < self.state_size

    def __str__(self) -> str:
        where = f"steps 1 to {self.resumed_at} here, the others there" if self.resumed_at else "all steps there"
        state = f"{self.state_error:.1e} of {self.state_size:.2f}"
        return f"{self.method:9} {self.processor:11} {where:35} losses {self.loss_error:.1e}   state {state}"


def noise_of_arm64(work: Path, wheel: Path) -> str:
    """Compare the NEON lanes of Philox with its scalar form and return what was printed: sets and a checksum.

    Raises:
        CalledProcessError: If they differ.
    """
    program = work / "instruction_sets"
    _build_noise(COMPILER, program)
    return subprocess.run(emulated(program, wheel), check=True, capture_output=True, text=True).stdout.strip()


def noise_of_host(work: Path) -> str:
    """The same of this machine."""
    program = work / "instruction_sets_host"
    _build_noise("c++", program)
    return subprocess.run([program], check=True, capture_output=True, text=True).stdout.strip()


def _build_noise(compiler: str, program: Path) -> None:
    include = Path(native.__file__).parent / "csrc"
    subprocess.run([compiler, *_FLAGS, f"-I{include}", str(_INSTRUCTION_SETS), "-o", str(program)], check=True)


def build(folder: Path, preset: str) -> Path:
    """Build prge_train in an emitted driver."""
    for command in (["cmake", "--preset", preset], ["cmake", "--build", "--preset", preset, "--target", "prge_train"]):
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return folder / "build" / preset / "prge_train"


def compare(program: Path, method: str, here: Path, there: Path, wheel: Path, work: Path) -> list[Comparison]:
    """Train `program` here, there, and begun here and ended there, on every processor; each driver is a prge_train."""
    rows = work / f"{method}.rows"
    write_rows(rows, program, 16)
    arguments = [str(program), "--rows", str(rows), "--steps", str(_STEPS), "--snapshot-every", "2"]
    own = work / f"{method}-here"
    subprocess.run([here, *arguments, "--out", own], check=True, capture_output=True)
    found = []
    for processor in (WITH_SME, WITHOUT_SME):
        train, out = [*emulated(there, wheel, processor), *arguments], work / f"{method}-{processor}"
        # Packed weights of one processor are nothing to another, and all say that they are the same.
        flags = ["--packed-weights", str(work / f"packed-{processor}")]
        subprocess.run([*train, *flags, "--out", str(out)], check=True, capture_output=True)
        both = work / f"{method}-{processor}-both"
        begun = _begin([str(here), *arguments, "--out", str(both), "--force"])
        subprocess.run([*train, *flags, "--out", str(both), "--resume"], check=True, capture_output=True)
        found += [_comparison((method, processor), own, each, at) for each, at in ((out, 0), (both, begun))]
    return found


def _begin(command: Sequence[str]) -> int:
    """Start a run, kill it (SIGKILL) as soon as it reports step `_KILL_AFTER`, and return the last reported step."""
    for _ in range(_TRIES):
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            told = 0
            for line in process.stderr:
                step = _STEP.match(line)
                told = int(step[1]) if step else told
                if told == _KILL_AFTER:
                    process.kill()
        if process.returncode == -signal.SIGKILL and told < _STEPS:
            return told
    raise RuntimeError(f"{_TRIES} runs ended before they could be killed")


def _comparison(what: tuple[str, str], one: Path, other: Path, resumed_at: int) -> Comparison:
    losses = [
        np.array([json.loads(line)["loss"] for line in (each / "metrics.jsonl").read_text().splitlines()])
        for each in (one, other)
    ]
    states = [load_file(each / "adapter.safetensors") for each in (one, other)]
    apart = max(float(np.abs(states[0][name] - states[1][name]).max()) for name in states[0])
    size = max(float(np.abs(each).max()) for each in states[0].values())
    return Comparison(*what, float(np.max(np.abs(losses[1] / losses[0] - 1.0))), apart, size, resumed_at)


def main() -> int:
    """Compare and print."""
    quiet_libraries()
    parser = argparse.ArgumentParser(prog="arm64.py", description=__doc__)
    parser.add_argument("--work", type=Path, help="folder that keeps drivers and programs for the next time")
    options = parser.parse_args()
    missing, wheel = arm64_missing(), arm64_wheel()
    if missing or wheel is None:
        sys.stderr.write(f"arm64: missing {'; '.join(missing)}\n")
        return 1
    with tempfile.TemporaryDirectory() as scratch:
        return run(options.work or Path(scratch), wheel)


def run(work: Path, wheel: Path) -> int:
    """Do everything in `work` and return the exit code."""
    work.mkdir(parents=True, exist_ok=True)
    noise = noise_of_host(work), noise_of_arm64(work, wheel)
    is_equal = noise[0].split()[1] == noise[1].split()[1]
    print(f"noise     here {noise[0]}, there {noise[1]} (sets, checksum): {'equal' if is_equal else 'DIFFERENT'}")
    emit_driver(work / "driver")
    here, there = (build(work / "driver", preset) for preset in ("host", "arm64"))
    found = []
    for method in ("exact", "prge"):
        program = work / f"{method}.pte"
        if not program.exists():
            q = 2 if method == "prge" else 1
            compile_model(CompileOptions(model="demo", output=program, method=method, q=q, batch_size=4, seq_len=32))
        found += compare(program, method, here, there, wheel, work)
    print(*found, sep="\n")
    return 0 if is_equal and all(each.is_good for each in found) else 1


if __name__ == "__main__":
    sys.exit(main())
