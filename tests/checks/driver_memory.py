"""The memory both drivers take to train a program: `python tools/driver_memory.py model.pte...`.

Every figure is of a process of its own that trains a few steps on random rows as long as the program takes. The C++
driver runs three times: with packed weights in memory, with a file that it packs, and with that file found; the Python
driver twice: in memory, and with that file found. Anonymous memory is sampled every 10 ms from outside; pages of mapped
files are not in it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from prgec.lab.bench.memory import watch
from prgec.runtime.engines.executorch.runtime import manifest_of
from tests.checks.faults import build_driver
from tests.tiny_inputs import write_rows

_HEADER = (
    "program",
    "method",
    "sites",
    "B",
    "T",
    "file",
    "in memory",
    "packs a file",
    "file found",
    "Python",
    "Python, file",
)


@dataclass(frozen=True)
class Measured:
    """Peaks of anonymous memory of one program, in bytes.

    Attributes:
        program: Name of the file.
        method: How it trains.
        sites: Trained layers.
        batch_size: Examples a step.
        seq_len: Tokens a row.
        file_bytes: Size of the program.
        in_memory: C++ driver without a file of packed weights.
        packing: C++ driver that makes the file.
        mapped: C++ driver that finds it.
        python: Python driver without a file.
        python_mapped: Python driver that finds the file; as `python` where the program is too small for one.
    """

    program: str
    method: str
    sites: int
    batch_size: int
    seq_len: int
    file_bytes: int
    in_memory: int
    packing: int
    mapped: int
    python: int
    python_mapped: int


def measure_program(program: Path, executable: Path, work: Path, steps: int) -> Measured:
    """Train `program` five times, each run in a process of its own."""
    manifest = manifest_of(program)
    rows = write_rows(work / f"{program.stem}.rows", program, 8)
    cache = work / program.stem
    cpp = [executable, program, "--rows", rows, "--steps", steps, "--snapshot-every", 0, "--packed-weights"]
    python = [sys.executable, "-m", "prgec", "run", program, "--rows", rows, "--steps", steps]
    return Measured(
        program.name,
        manifest.method,
        len(manifest.sites),
        manifest.batch_size,
        manifest.seq_len,
        program.stat().st_size,
        _peak([*cpp, "off"]),
        _peak([*cpp, cache / "packed"]),
        _peak([*cpp, cache / "packed"]),
        # A folder that cannot be made.
        _peak(python, "/dev/null"),
        _peak(python, str(cache)),
    )


def _peak(command: Sequence[object], cache: str = "") -> int:
    """Return the largest anonymous memory of a run; what it wrote to stderr is shown if it fails."""
    with tempfile.TemporaryFile() as errors, tempfile.TemporaryDirectory() as parent:
        words = [*map(str, command), "--out", str(Path(parent) / "run")]
        environment = {**os.environ, "PRGEC_CACHE": cache} if cache else None
        with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=errors, env=environment) as process:
            peak = watch(process)
        if process.returncode:
            errors.seek(0)
            raise SystemExit(f"{' '.join(words)}\n{errors.read().decode(errors='replace')}")
    return peak.anon_bytes


def to_markdown(found: Sequence[Measured]) -> str:
    """A table in MB of 10^6 bytes."""
    lines = [f"| {' | '.join(_HEADER)} |", "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"]
    for each in found:
        sizes = (each.file_bytes, each.in_memory, each.packing, each.mapped, each.python, each.python_mapped)
        cells = [each.program, each.method, str(each.sites), str(each.batch_size), str(each.seq_len)]
        lines.append(f"| {' | '.join([*cells, *(f'{size / 1e6:.1f}' for size in sizes)])} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="driver_memory.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("programs", nargs="+", type=Path, metavar="PROGRAM", help="programs of prgec compile")
    parser.add_argument("--driver", type=Path, help="a built prge_train [build one]")
    parser.add_argument("--steps", type=int, default=3, help="steps of each run [3]")
    parser.add_argument("--json", type=Path, help="also write what was measured to this file")
    options = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        executable = options.driver or build_driver(work)
        for program in options.programs:
            found.append(measure_program(program, executable, work, options.steps))
            print(to_markdown(found[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
            if options.json is not None:
                options.json.write_text(json.dumps([asdict(each) for each in found], indent=2) + "\n", encoding="utf-8")
    print(to_markdown(found), end="")


if __name__ == "__main__":
    main()
