"""How long it takes to put another adapter into a loaded program, beside loading the program: both drivers.

    python tools/swap.py PROGRAM --rows eval.bin [--driver driver/build/host/prge_eval] [--turns 20]

Two adapters of random numbers take turns. Times are medians; loading a program includes comparing its checksums.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from prgec.core.contract.engine import Engine
from prgec.core.formats.adapter import load_adapter, save_adapter
from prgec.core.machine.describe import machine_name
from prgec.runtime.engines.choose import open_program


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("program", type=Path)
    parser.add_argument("--rows", type=Path, help="rows for prge_eval, which scores what it loads")
    parser.add_argument("--driver", type=Path, help="prge_eval; without it, Python alone")
    parser.add_argument("--turns", type=int, default=20)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        for line in measure(arguments, Path(scratch)):
            print(line)


def measure(arguments: argparse.Namespace, scratch: Path) -> Iterator[str]:
    """Yield a report in Markdown."""
    open_program(arguments.program)  # imports are not what is measured
    start = time.perf_counter()
    program = open_program(arguments.program)
    loaded_ms = 1e3 * (time.perf_counter() - start)
    adapters = write_adapters(program, scratch)
    turns = [adapters[turn % 2] for turn in range(arguments.turns)]
    m, size = program.manifest, adapters[0].stat().st_size
    yield f"{machine_name()}. {m.model}, {m.step_text}, quantize {m.quantize}, state {m.state}."
    yield f"An adapter has {len(m.sites)} sites and {size / 1e6:.2f} MB. Medians of {arguments.turns} turns."
    yield ""
    yield "| driver | loads the program | puts an adapter in |"
    yield "|---|---:|---:|"
    yield f"| Python | {loaded_ms:.1f} ms | {statistics.median(swap(program, each) for each in turns):.2f} ms |"
    if arguments.driver is not None:
        yield "| C++ | {:.1f} ms | {:.2f} ms |".format(*measure_driver(arguments, turns))


def write_adapters(program: Engine, folder: Path) -> list[Path]:
    """Write two adapters of random numbers."""
    generator, paths = np.random.default_rng(0), [folder / f"{name}.safetensors" for name in "ab"]
    for path in paths:
        state = program.read_state()
        program.write_state({name: generator.normal(0, 1e-2, b.shape).astype(np.float32) for name, b in state.items()})
        save_adapter(path, program)
    return paths


def swap(program: Engine, adapter: Path) -> float:
    """Return the milliseconds it takes."""
    start = time.perf_counter()
    load_adapter(adapter, program)
    return 1e3 * (time.perf_counter() - start)


def measure_driver(arguments: argparse.Namespace, turns: list[Path]) -> tuple[float, float]:
    """Return milliseconds to load the program and, the median, to put an adapter in."""
    flags = [flag for each in turns for flag in ("--adapter", str(each))]
    command = [str(arguments.driver), str(arguments.program), "--rows", str(arguments.rows), *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    (loaded,) = re.findall(r"^loaded in ([\d.]+) ms$", done.stderr, re.M)
    return float(loaded), statistics.median(json.loads(line)["swap_ms"] for line in done.stdout.splitlines())


if __name__ == "__main__":
    main()
