"""Long runs, large files, and two trainers at once: `python tools/load.py --driver PRGE_TRAIN [--steps 10000]`.

Prints what a process holds early and late in a long run of either driver (anonymous memory, open files, time per step,
bytes of journal per step), the same for two of them side by side, and what reading a large jsonl file takes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.checks.fault_drivers import CppDriver, Driver, Process, PythonDriver
from tests.checks.faults import build_driver, workplace
from tests.tiny_inputs import make_inputs

_HEADER_BYTES, _EARLY = 176, 100


@dataclass(frozen=True)
class Sample:
    """A process at some step."""

    step: int
    seconds: float
    rss_kib: int
    files: int


def watch(process: Process, folder: Path, step_bytes: int, at: list[int]) -> list[Sample]:
    """Return samples of a run when its journal has the steps in `at`."""
    samples: list[Sample] = []
    journal = folder / "journal.partial.bin"
    while not process.has_ended():
        try:
            step = (journal.stat().st_size - _HEADER_BYTES) // step_bytes
            sample = Sample(step, time.monotonic(), _anonymous_kib(process.pid), _open_files(process.pid))
        except (OSError, IndexError):
            continue
        if at and step >= at[0]:
            samples.append(sample)
            at = at[1:]
        time.sleep(0.002)
    return samples


def _anonymous_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def _open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def long_runs(drivers: list[Driver], work: Path, inputs: tuple[Path, ...], steps: int) -> None:
    """Run drivers at the same time, and print a line for each."""
    program, rows, _ = inputs
    started = []
    for number, driver in enumerate(drivers):
        folder = work / f"run-{number}"
        flags = [program, "--rows", rows, "--steps", steps, "--snapshot-every", 0, "--lr", 1e-3, "--out", folder]
        started.append((driver, folder, driver.start([str(flag) for flag in flags], work / f"stderr-{number}")))
    # q = 2: 72 bytes a step. The others are watched late only, when the first has ended.
    (driver, folder, process), *others = started
    samples = watch(process, folder, 72, [_EARLY, steps // 10, steps // 2, steps - 1])
    codes = [each.wait() for _, _, each in started]
    size = (folder / "journal.bin").stat().st_size
    print(
        f"{driver.name}{' beside ' + others[0][0].name if others else ''}: exit codes {codes}, "
        f"journal {(size - _HEADER_BYTES) / steps:.1f} bytes a step"
    )
    for before, after in zip(samples, samples[1:], strict=False):
        rate = 1e3 * (after.seconds - before.seconds) / max(1, after.step - before.step)
        print(
            f"  step {before.step:6} -> {after.step:6}: RSS {before.rss_kib} -> {after.rss_kib} KiB anonymous, "
            f"{before.files} -> {after.files} open files, {rate:.2f} ms a step"
        )
    if others:
        same = [(folder / "adapter.safetensors").read_bytes(), (others[0][1] / "adapter.safetensors").read_bytes()]
        print(f"  equal adapters: {same[0] == same[1]}")
    for _, each, _ in started:
        shutil.rmtree(each)


def read_rows(program: Path, data: Path) -> None:
    """Read and encode a jsonl file as a run does, and print the most memory it took."""
    script = (
        "import resource, sys, time\nfrom dataclasses import replace\nfrom pathlib import Path\n"
        "from prgec.core.data.dataset import load_dataset\nfrom prgec.core.data.encode import encode_items\n"
        "from prgec.core.data.rows_file import RowSet, pack_rows\n"
        "from prgec.runtime.engines.executorch.runtime import read_constants\n"
        "m, t = read_constants(Path(sys.argv[1]))\n"
        "m = replace(m, seq_len=64, num_labels=32)\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "before, start = peak(), time.process_time()\n"
        "rows = encode_items(load_dataset(Path(sys.argv[2])).examples, t, m)\n"
        "count, used = len(rows), peak()\n"
        "packed = pack_rows(RowSet(rows, 1, (0,) * count), m, t.sha256, 'load')\n"
        "Path(sys.argv[3]).write_bytes(packed)\n"
        "print(count, before, used, time.process_time() - start)"
    )
    packed = data.with_suffix(".bin")
    run = subprocess.run(
        [sys.executable, "-c", script, program, data, packed], check=True, capture_output=True, text=True
    )
    count, before, after, seconds = run.stdout.split()
    print(
        f"{count} rows of jsonl, {data.stat().st_size >> 10} KiB: peak RSS {int(before) >> 10} -> {int(after) >> 10} "
        f"MiB, {float(seconds):.1f} s of CPU"
    )
    script = (
        "import resource, sys\nfrom dataclasses import replace\nfrom pathlib import Path\n"
        "from prgec.core.data.rows_file import fingerprint, read_rows\n"
        "from prgec.runtime.engines.executorch.runtime import read_constants\n"
        "m, t = read_constants(Path(sys.argv[1]))\n"
        "m = replace(m, seq_len=64, num_labels=32)\n"
        "anonymous = lambda: int(Path('/proc/self/status').read_text().split('RssAnon:')[1].split()[0])\n"
        "before = anonymous()\n"
        "rows = read_rows(Path(sys.argv[2]), m, t.sha256).right_rows()\n"
        "fingerprint(rows)\n"
        "print(before, anonymous())"
    )
    run = subprocess.run([sys.executable, "-c", script, program, packed], check=True, capture_output=True, text=True)
    before, after = run.stdout.split()
    print(
        f"  as a file of rows, {packed.stat().st_size >> 10} KiB: anonymous memory {int(before) >> 10} -> "
        f"{int(after) >> 10} MiB"
    )


def write_jsonl(path: Path, count: int) -> Path:
    """Write rows of some words each."""
    words = "the film was great terrible awful lovely movie plot acting boring bright dull".split()
    with path.open("w") as file:
        for i in range(count):
            text = " ".join(words[(i * k + k * k) % len(words)] for k in range(1, 13))
            file.write(json.dumps({"sentence": f"{text} {i}", "label": i % 2}) + "\n")
    return path


def main() -> int:
    """Print all of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--driver", type=Path, help="a built prge_train [build one]")
    parser.add_argument("--steps", type=int, default=10_000, help="of a long run [10000]")
    parser.add_argument("--rows", type=int, default=100_000, help="of the large file [100000]")
    options = parser.parse_args()
    with workplace() as work, PythonDriver() as python:
        inputs = make_inputs(work)
        cpp = CppDriver(Path(shutil.copy(options.driver or build_driver(work), work / "prge_train")))
        cases: list[Callable[[], None]] = [
            lambda: long_runs([cpp], work, inputs, options.steps),
            lambda: long_runs([python], work, inputs, options.steps),
            lambda: long_runs([cpp, cpp], work, inputs, options.steps),
            lambda: long_runs([python, cpp], work, inputs, options.steps),
        ]
        for case in cases:
            case()
        for count in (options.rows // 4, options.rows):
            read_rows(inputs[0], write_jsonl(work / "large.jsonl", count))
    return 0


if __name__ == "__main__":
    sys.exit(main())
