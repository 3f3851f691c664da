"""Each instruction set has its own vectorised Philox; a processor only ever runs one of them by itself."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from prgec.runtime_ops import native

_SOURCE = Path(__file__).with_name("instruction_sets.cpp")
# Flags that decide the bits, as in runtime_ops/CMakeLists.txt.
_FLAGS = (
    "-std=c++17",
    "-O3",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-Wall",
    "-Wextra",
    "-Werror",
)


def test_every_instruction_set_gives_the_same_bits(tmp_path: Path) -> None:
    program = tmp_path / "instruction_sets"
    compiler = os.environ.get("CXX", "c++")
    include = Path(native.__file__).parent / "csrc"
    subprocess.run([compiler, *_FLAGS, f"-I{include}", str(_SOURCE), "-o", str(program)], check=True)
    done = subprocess.run([program], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    if "avx512f" in Path("/proc/cpuinfo").read_text():
        assert int(done.stdout.split()[0]) == 3
    elif os.uname().machine != "x86_64":
        pytest.skip("only the portable form runs here")
