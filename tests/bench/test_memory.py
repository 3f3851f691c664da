"""Memory is measured from outside, in a process that runs one variant alone."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from prgec.errors import BackendError
from prgec.lab.bench.job import Job
from prgec.lab.bench.memory import measure, watch
from prgec.lab.bench.options import Cell
from prgec.lab.bench.variants import VARIANTS

MB = 2**20
JOB = Job(
    variant=VARIANTS["inference"],
    cell=Cell("none", 1, 1, 16),
    backend="xnnpack",
    model="demo",
    vocab_size=320,
    num_labels=4,
    layers=("0", "2-3"),
    program=Path("missing.pte"),
)


def test_the_peak_counts_and_not_the_end() -> None:
    script = "import time; x = b'x' * 300 * 2**20; time.sleep(0.3); del x; time.sleep(0.1)"
    peak = watch(subprocess.Popen([sys.executable, "-c", script]))
    assert 300 * MB < peak.anon_bytes < 350 * MB
    assert peak.rss_bytes >= peak.anon_bytes


def test_mapped_files_are_not_anonymous(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"w" * 200 * MB)
    script = (
        "import mmap, sys, time; f = open(sys.argv[1], 'rb'); m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ);"
        "sum(m[i] for i in range(0, len(m), 4096)); time.sleep(0.3)"
    )
    peak = watch(subprocess.Popen([sys.executable, "-c", script, str(path)]))
    assert peak.anon_bytes < 50 * MB
    assert peak.rss_bytes > 200 * MB


def test_a_failure_is_told() -> None:
    with pytest.raises(BackendError, match=r"cannot measure the memory of inference: no such program \(missing.pte\)"):
        measure(JOB)


@pytest.mark.parametrize("job", [JOB, replace(JOB, variant=VARIANTS["eager"], program=None)])
def test_a_job_survives_the_command_line(job: Job) -> None:
    assert Job.from_json(job.to_json()) == job
