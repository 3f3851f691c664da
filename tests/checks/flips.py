"""Flip bits of a program, and see what the drivers make of it.

    python tools/flips.py [--programs 240] [--driver PRGE_TRAIN] [--seed 0]

Each program is a copy of one tiny XNNPACK program with one to four bits flipped anywhere. Both drivers must refuse all
of them; what the C++ driver does with the same programs under --no-verify says what checksums are for. The exit code is
1 if a driver that verifies takes one, or crashes.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

REFUSED, ROWS_BLAMED, TRAINED, CRASHED = OUTCOMES = "refused", "rows blamed", "trained", "crashed"


def flip(data: bytes, rng: random.Random) -> bytes:
    """Return a copy with one to four other bits."""
    changed = bytearray(data)
    for place in rng.sample(range(len(data) * 8), rng.randint(1, 4)):
        changed[place // 8] ^= 1 << place % 8
    return bytes(changed)


def open_in_python(path: Path) -> str:
    """Open a program; a damaged one must be refused before the runtime sees it, so this process is safe."""
    from prgec.errors import ProgramError
    from prgec.runtime.engines.executorch.open import open_pte

    try:
        open_pte(path)
    except ProgramError as error:
        assert str(error).isprintable(), error
        return REFUSED
    return TRAINED


def train_in_cpp(driver: Path, program: Path, rows: Path, *flags: str) -> str:
    """Take three steps with the C++ driver."""
    with tempfile.TemporaryDirectory(dir=program.parent) as out:
        command = [driver, program, "--rows", rows, "--out", f"{out}/run", "--steps", "3", "--packed-weights", "off"]
        done = subprocess.run([*map(str, command), *flags], capture_output=True, text=True, check=False)
    # Where the name of the tokenizer differs the program passes for good, and good rows for another program's.
    if done.returncode in (4, 5) and done.stderr.count("\n") == 1:
        return REFUSED if done.returncode == 5 else ROWS_BLAMED
    return TRAINED if done.returncode in (0, 8) else CRASHED


def count(good: Path, number: int, seed: int, take: Callable[[Path], str]) -> Counter[str]:
    """Return how many of `number` damaged copies of a program ended how."""
    rng, data = random.Random(seed), good.read_bytes()
    bad, found = good.with_name("flipped.pte"), Counter[str]()
    for _ in range(number):
        bad.write_bytes(flip(data, rng))
        found[take(bad)] += 1
    return found


def main() -> int:
    """Print how many programs each driver refused."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--programs", type=int, default=240, help="damaged copies [240]")
    parser.add_argument("--driver", type=Path, help="a built prge_train [build one]")
    parser.add_argument("--seed", type=int, default=0, help="of the flips [0]")
    options = parser.parse_args()
    from tests.checks.faults import build_driver
    from tests.tiny_inputs import make_inputs

    with tempfile.TemporaryDirectory(prefix="flips-") as name:
        program, rows, _ = make_inputs(Path(name), "exact", backend="xnnpack")
        driver = options.driver or build_driver(Path(name))
        assert train_in_cpp(driver, program, rows) == TRAINED
        ways: dict[str, Callable[[Path], str]] = {
            "Python": open_in_python,
            "C++": lambda path: train_in_cpp(driver, path, rows),
            "C++ --no-verify": lambda path: train_in_cpp(driver, path, rows, "--no-verify"),
        }
        tallies = {way: count(program, options.programs, options.seed, take) for way, take in ways.items()}
    print(f"{'driver':18}{'programs':>9}" + "".join(f"{outcome:>13}" for outcome in OUTCOMES))
    for way, tally in tallies.items():
        print(f"{way:18}{options.programs:>9}" + "".join(f"{tally[outcome]:>13}" for outcome in OUTCOMES))
    return 0 if all(tallies[way][REFUSED] == options.programs for way in ("Python", "C++")) else 1


if __name__ == "__main__":
    sys.exit(main())
