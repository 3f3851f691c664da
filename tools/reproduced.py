"""Compile programs as other processors, threads, folders and days would, and say whether they are the same bytes.

    python tools/reproduced.py > docs/reports/reproduced.md        # exits 1 where a row differs

Each column is a process of its own: with vector instructions of older processors, with one thread, and in another
folder with another order of hashes and a clock of another zone. The last rows are adapters after some steps of
training, on all cores and on one.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

MODEL, ROWS = "demo", 40
_MACHINES: dict[str, dict[str, str]] = {
    "this machine": {},
    "SSE": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
    "AVX2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "one thread": {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
    "elsewhere": {"PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo", "LC_ALL": "C"},
}
_METHODS = {"exact": ("--method", "exact"), "prge": ("--method", "prge"), "shortcut": ("--method", "shortcut")}
_WEIGHTS = {"f32": (), "8 bits": ("--quantize", "8da8w"), "4 bits, rounded by data": ("--quantize", "8da4w")}


def main() -> int:
    """Print the report; return the exit code."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print(_HEAD.format(columns=" | ".join(_MACHINES), rule="|".join("---" for _ in _MACHINES)))
    is_same = True
    with tempfile.TemporaryDirectory() as folder:
        data = _rows(Path(folder))
        for method, by in _METHODS.items():
            for weights, stored in _WEIGHTS.items():
                hashes = [_compiled(Path(folder), name, (*by, *stored, "--data", str(data))) for name in _MACHINES]
                is_same &= _print(f"{method}, {weights}", hashes)
        calibrated = ("--method", "exact", "--lora-a", "calibrated", "--data", str(data))
        hashes = [_compiled(Path(folder), name, calibrated) for name in _MACHINES]
        is_same &= _print("exact, f32, A calibrated", hashes)
        print(_TRAINED)
        for method, by in _METHODS.items():
            is_same &= _print(method, _trained(Path(folder), by, data))
    return 0 if is_same else 1


_HEAD = f"""# The same bytes

Programs of the bundled model (`{MODEL}`), compiled by processes that see another machine: SHA-256 of each file, its
first 12 digits. Made by `python tools/reproduced.py`; decision
[035](../decisions/035-the-same-bits.md) says how.

| program | {{columns}} | equal |
|---|{{rule}}|---|"""
_TRAINED = """
Adapters after 20 steps on all cores, and on one. XNNPACK splits a product by rows and columns of its result, never
along a sum, so threads change no bit. Both drivers give the same bits on one processor (`tests/device`).

| method | all cores | one core | equal |
|---|---|---|---|"""


def _print(name: str, hashes: list[str]) -> bool:
    is_same = len(set(hashes)) == 1
    print(f"| {name} | {' | '.join(each[:12] for each in hashes)} | {'yes' if is_same else 'NO'} |", flush=True)
    return is_same


def _rows(folder: Path) -> Path:
    from prgec.demo import data_file

    path = folder / "rows.jsonl"
    lines = data_file("train").read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(lines[:ROWS]), encoding="utf-8")
    return path


def _compiled(folder: Path, machine: str, options: tuple[str, ...]) -> str:
    place = folder / machine.replace(" ", "-")
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    output = place / "m.pte"
    _prgec(("compile", MODEL, *options, "--no-cache", "-o", str(output)), place, _MACHINES[machine])
    return hashlib.sha256(output.read_bytes()).hexdigest()


def _trained(folder: Path, by: tuple[str, ...], data: Path) -> list[str]:
    program = folder / "trained.pte"
    _prgec(("compile", MODEL, *by, "--data", str(data), "--force", "-o", str(program)), folder, {})
    found = []
    for cores in (os.sched_getaffinity(0), {min(os.sched_getaffinity(0))}):
        run = folder / "run"
        shutil.rmtree(run, ignore_errors=True)
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, cores)
        try:
            _prgec(("run", str(program), "--data", str(data), "--steps", "20", "--out", str(run)), folder, {})
        finally:
            os.sched_setaffinity(0, before)
        found.append(hashlib.sha256((run / "adapter.safetensors").read_bytes()).hexdigest())
    return found


def _prgec(arguments: tuple[str, ...], folder: Path, machine: dict[str, str]) -> None:
    command = [sys.executable, "-m", "prgec", *arguments]
    subprocess.run(command, cwd=folder, env={**os.environ, **machine}, check=True, stdout=2, timeout=900)


if __name__ == "__main__":
    sys.exit(main())
