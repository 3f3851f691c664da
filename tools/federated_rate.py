"""How many messages of devices a second the core of many devices takes, without a network or a model.

    python tools/federated_rate.py [--devices D] [--steps N] [--q Q] [--merge mean|median|trimmed]

Every step takes a report of each device, merges them, and has its record on the disk before the next one opens.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from prgec.core.formats.journal_records import Header
from prgec.core.machine.describe import machine_name
from prgec.runtime.federated.coordinator import Coordinator
from prgec.runtime.federated.merge import MERGES, Report
from prgec.runtime.training.schedules import Rates


def measure(path: Path, *, devices: int, steps: int, q: int, merge: str) -> float:
    """Seconds of a run whose reports are ready before it begins."""
    header = Header(
        q=q,
        batch_size=8,
        seed=0,
        steps=steps,
        lr=1e-3,
        eps=1e-2,
        schedule="linear",
        estimator="norm",
        num_examples=0,
        rows_crc=0,
        program_sha256="0" * 64,
        start_sha256="0" * 64,
    )
    numbers = np.random.default_rng(0).normal(size=(steps, devices, q))
    reports = [
        [
            Report(device=f"device {n:04}", step=step, num_rows=8, differences=numbers[step - 1, n])
            for n in range(devices)
        ]
        for step in range(1, steps + 1)
    ]
    start = time.perf_counter()
    with Coordinator(path, header, Rates(steps, 1e-3), merge=merge) as server:
        for of_step in reports:
            for report in of_step:
                server.submit(report)
            server.close_step()
    return time.perf_counter() - start


def main() -> None:
    """Print one line for each merge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--devices", type=int, default=16)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--q", type=int, default=4)
    parser.add_argument("--merge", choices=MERGES, action="append")
    options = parser.parse_args()
    for merge in options.merge or MERGES:
        with tempfile.TemporaryDirectory() as folder:
            seconds = measure(
                Path(folder) / "journal.bin", devices=options.devices, steps=options.steps, q=options.q, merge=merge
            )
        messages = options.devices * options.steps
        print(
            f"{merge:8} {options.devices} devices, q = {options.q}: {messages / seconds:,.0f} messages a second, "
            f"{1000 * seconds / options.steps:.2f} ms a step"
        )
    print(machine_name())


if __name__ == "__main__":
    main()
