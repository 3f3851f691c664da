"""Compile and train ten programs with this tree and with an earlier commit, and compare every byte they write.

    python tools/equal_bytes.py 84a0b9a              # exits 1 where anything differs

A change of structure proves itself by this: programs, journals and adapters are those of before. Versions that a file
names are part of it, so both commits need the same packages. Parts of a program that differ are named. It takes some
minutes.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from prgec.compiler.reproduce import compare as compare_programs

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = "model.pte"
MODEL = ("demo", "--batch-size", "4")
PROGRAMS: dict[str, tuple[str, ...]] = {
    "exact": (),
    "exact-8da4w": ("--quantize", "8da4w", "--group-size", "32"),
    "exact-momentum": ("--optimizer", "momentum"),
    "exact-accumulate": ("--accumulate",),
    "exact-recompute": ("--recompute", "layers"),
    "exact-chat": ("--generate", "--context", "128"),
    "exact-weights": ("--label-weights",),
    "shortcut": ("--method", "shortcut"),
    "prge": ("--method", "prge", "--q", "2"),
    "prge-portable": ("--method", "prge", "--q", "2", "--backend", "portable"),
}
RUN = ("--steps", "5", "--seed", "3")
# Files of a run whose content follows from the program and the data.
COMPARED = ("adapter.safetensors", "journal.bin")


def main() -> int:
    """Print a line for each program; return 1 where one differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", help="the earlier commit")
    parser.add_argument("--only", action="append", choices=PROGRAMS, help="a program; repeat for more [default: all]")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        before = Path(scratch) / "tree"
        subprocess.run(
            ["git", "-C", str(ROOT), "worktree", "add", "-q", "--detach", str(before), arguments.commit], check=True
        )
        try:
            return compare(before, Path(scratch), arguments.only or list(PROGRAMS))
        finally:
            subprocess.run(["git", "-C", str(ROOT), "worktree", "remove", "--force", str(before)], check=True)


def compare(before: Path, scratch: Path, names: list[str]) -> int:
    """Make every program twice; print and count those that differ."""
    num_different = 0
    for name in names:
        found = [hashes(tree, scratch / f"{name}-{which}", PROGRAMS[name]) for which, tree in enumerate((before, ROOT))]
        different = [file for file in found[0] if found[0][file] != found[1][file]]
        num_different += bool(different)
        shown = "  ".join(f"{file} {digest[:12]}" for file, digest in found[1].items())
        print(f"{name:17} {'DIFFERS: ' + ', '.join(different) if different else 'equal'}  {shown}", flush=True)
        if PROGRAM in different:
            parts = compare_programs(scratch / f"{name}-0" / PROGRAM, scratch / f"{name}-1" / PROGRAM)
            print(*(f"    {part}" for part in parts.differences), sep="\n", flush=True)
    return 1 if num_different else 0


def hashes(tree: Path, folder: Path, options: tuple[str, ...]) -> dict[str, str]:
    """Compile and train by the code of a tree; return the hashes of what was written."""
    folder.mkdir()
    data = ROOT / "prgec" / "demo" / "data" / "train.jsonl"
    program, run = folder / PROGRAM, folder / "run"
    prgec(tree, "compile", *MODEL, "--data", data, *options, "--no-cache", "-o", program)
    prgec(tree, "run", program, "--data", data, *RUN, "--out", run)
    paths = (program, *(run / name for name in COMPARED))
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def prgec(tree: Path, *arguments: object) -> None:
    """Run the command line of a tree."""
    # Without the site module an editable installation has no effect, and with -P the working directory has none, which
    # may be another tree.
    paths = (str(tree / "src"), sysconfig.get_path("purelib"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-S", "-P", "-m", "prgec", *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip()}")


if __name__ == "__main__":
    sys.exit(main())
