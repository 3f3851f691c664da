"""The C++ readers under libFuzzer, which keeps the inputs that take new branches and changes those."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.checks.fuzz_readers import MAX_SECONDS, NATIVE_KINDS, Reader, build_native

MAX_MEGABYTES = 2048
HEAD = f"{'file':12}{'inputs':>10}{'kept':>10}{'crashes':>9}"
_RUNS = re.compile(r"^stat::number_of_executed_units: (\d+)$", re.MULTILINE)


def build_guided(build: Path) -> Path:
    """Build the readers with libFuzzer in the folder `build`, by Clang."""
    return build_native(build, "guided", ["-DCMAKE_CXX_COMPILER=clang++"])


def guide_native(executable: Path, program: Path, readers: Sequence[Reader], inputs: int, kept: Path) -> int:
    """Try inputs of every kind that C++ reads, print a table, and return how many kinds broke a reader.

    Args:
        executable: The program that `build_guided` built.
        program: A .pte that adapters are loaded into.
        readers: The Python readers, for their good files.
        inputs: Inputs of each kind.
        kept: Folder of inputs that break a reader.
    """
    print(HEAD, flush=True)
    return sum(_guide(executable, program, reader, inputs, kept) for reader in readers)


def _guide(executable: Path, program: Path, reader: Reader, inputs: int, kept: Path) -> bool:
    kept.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        corpus = Path(name)
        write_seeds(reader, corpus)
        ended = subprocess.run(
            [
                executable,
                f"-runs={inputs}",
                f"-timeout={MAX_SECONDS}",
                f"-rss_limit_mb={MAX_MEGABYTES}",
                f"-artifact_prefix={kept}/{reader.kind}-",
                "-print_final_stats=1",
                corpus,
            ],
            env={**os.environ, "PRGE_PROGRAM": str(program), "PRGE_KIND": str(NATIVE_KINDS[reader.kind])},
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            check=False,
        )
        found = len(list(corpus.iterdir()))
    match = _RUNS.search(ended.stderr)
    tried = int(match[1]) if match else 0
    return report(reader, tried, found, ended.stderr, is_broken=ended.returncode != 0 or tried < inputs)


def write_seeds(reader: Reader, corpus: Path) -> None:
    """Write the good files of a reader into a folder that libFuzzer begins with."""
    for number, seed in enumerate(reader.seeds):
        (corpus / f"seed-{number}").write_bytes(seed)


def report(reader: Reader, tried: int, kept: int, log: str, *, is_broken: bool) -> bool:
    """Print the row of a kind, with the end of the log where its reader broke; return whether it did."""
    print(f"{reader.kind:12}{tried:>10}{kept:>10}{is_broken:>9}", flush=True)
    if is_broken:
        print(log[-2000:])
    return is_broken
