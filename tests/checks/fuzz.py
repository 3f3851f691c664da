"""Feed damaged files to every reader, in Python and in C++, and damaged requests to the servers: `make fuzz`.

    python tools/fuzz.py [--seconds 120] [--reader BUILT] [--seed 0]
    python tools/fuzz.py --only shard --inputs 100000
    python tools/fuzz.py --guided 100000 [--only KIND]
    python tools/fuzz.py --atheris 100000 [--only KIND]

Inputs are mutations of good files and of those in tests/fuzz/corpus, most with their lengths and checksums put right
again. The Python readers may raise errors of `prgec.errors` and nothing else, and take neither long nor much memory;
the C++ readers run under address and undefined-behaviour sanitisers. Inputs that break one are kept in build/fuzz. The
exit code is 1 if something did. Mutations that are guided by coverage: with --guided N, libFuzzer gives N inputs of
every kind to the C++ readers (needs clang); with --atheris N, Atheris gives as many to the Python readers (the
dev extra has it).
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.util
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from tests.checks.fuzz_guided import build_guided, guide_native
from tests.checks.fuzz_inputs import mutate
from tests.checks.fuzz_readers import MAX_SECONDS, NATIVE_KINDS, NativeReader, Reader, build_reader, make_readers

KEPT = Path(__file__).resolve().parents[2] / "build" / "fuzz"
_MAX_BYTES = 16 << 30
# Files that are written to a disk take most of the time of an input.
_MEMORY = Path("/dev/shm")


@dataclass
class Tally:
    """One row of the table."""

    language: str
    kind: str
    tried: int = 0
    accepted: int = 0
    crashes: list[str] = field(default_factory=list)


def fuzz(
    reader: Reader, rng: random.Random, work: Path, native: NativeReader | None, until: Callable[[int], bool]
) -> list[Tally]:
    """Try mutations; the first inputs are the seeds as they are.

    Args:
        reader: The Python reader.
        rng: Chooses the mutations.
        work: Scratch folder.
        native: The C++ readers, if they are to be tried.
        until: Decides by the number of inputs tried whether to end.
    """
    python, cpp = Tally("Python", reader.kind), Tally("C++", reader.kind)
    path = work / "input"
    while not until(python.tried):
        is_seed = python.tried < len(reader.seeds)
        data = reader.seeds[python.tried] if is_seed else mutate(rng.choice(reader.seeds), rng, reader.kind)
        path.write_bytes(data)
        _try(python, data, lambda: read_python(reader, path))
        if native is not None and reader.kind in NATIVE_KINDS:
            _try(cpp, data, lambda data=data: _read_native(native, reader.kind, data))  # type: ignore[misc]
    return [tally for tally in (python, cpp) if tally.tried]


def _try(tally: Tally, data: bytes, read: Callable[[], bool | str]) -> None:
    tally.tried += 1
    result = read()
    if isinstance(result, str):
        KEPT.mkdir(parents=True, exist_ok=True)
        name = f"{tally.kind}-{hashlib.sha256(data).hexdigest()[:12]}"
        (KEPT / name).write_bytes(data)
        tally.crashes.append(f"{name}: {result}")
    else:
        tally.accepted += result


def read_python(reader: Reader, path: Path) -> bool | str:
    """Return whether the file was accepted, or how the reader failed."""
    from prgec.errors import PrgecError

    signal.signal(signal.SIGALRM, _too_slow)
    signal.alarm(MAX_SECONDS)
    try:
        reader.read(path)
    except PrgecError as error:
        return False if str(error).isprintable() else f"an error that is not one printable line: {error}"
    except BaseException as error:  # the point of the exercise
        if isinstance(error, KeyboardInterrupt):
            raise
        return f"{type(error).__name__}: {error}"
    finally:
        signal.alarm(0)
    return True


def _read_native(native: NativeReader, kind: str, data: bytes) -> bool | str:
    accepted = native.read(kind, data)
    return "the process ended" if accepted is None else accepted


def _too_slow(number: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"longer than {MAX_SECONDS} s")


def table(tallies: list[Tally]) -> str:
    """Return the table people read."""
    lines = [f"{'language':10}{'file':12}{'inputs':>10}{'accepted':>10}{'crashes':>9}"]
    for t in tallies:
        lines.append(f"{t.language:10}{t.kind:12}{t.tried:>10}{t.accepted:>10}{len(t.crashes):>9}")
        lines += [f"    {crash[:160]}" for crash in t.crashes[:3]]
    return "\n".join(lines).encode("ascii", "backslashreplace").decode()


def main() -> int:
    """Fuzz every kind of file for its share of the time."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=120, help="for all kinds of files together [120]")
    parser.add_argument("--reader", type=Path, help="a built read_inputs [build one]")
    parser.add_argument("--seed", type=int, default=0, help="of the mutations [0]")
    parser.add_argument("--only", metavar="KIND", help="one kind of file")
    parser.add_argument("--inputs", type=int, default=0, help="inputs of each kind, however long they take")
    parser.add_argument("--guided", type=int, default=0, metavar="N", help="inputs of each kind for libFuzzer")
    parser.add_argument("--atheris", type=int, default=0, metavar="N", help="inputs of each kind for Atheris")
    options = parser.parse_args()
    if options.guided and shutil.which("clang++") is None:
        parser.error("--guided needs clang++, which brings libFuzzer: install clang")
    if options.atheris and importlib.util.find_spec("atheris") is None:
        parser.error("--atheris needs Atheris, which the dev extra installs on Linux")
    from prgec.compiler.frontend.tokenizer import pack_tokenizer
    from tests.tiny_inputs import make_inputs

    folder = _MEMORY if _MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=folder) as name, contextlib.ExitStack() as stack:
        work = Path(name)
        program, *_ = make_inputs(work)
        readers = make_readers(program, pack_tokenizer(work / "checkpoint"), work)
        if not options.guided and not options.atheris:
            from tests.checks.fuzz_http import http_readers

            readers += http_readers(work, stack)
        readers = choose(readers, options.only, native=options.guided > 0)
        if options.guided:
            return int(guide_native(build_guided(KEPT / "guided"), program, readers, options.guided, KEPT) > 0)
        resource.setrlimit(resource.RLIMIT_AS, (_MAX_BYTES, resource.RLIM_INFINITY))
        if options.atheris:
            from tests.checks.fuzz_python import guide_python

            return int(guide_python(readers, work, options.atheris) > 0)
        native = None
        if any(reader.kind in NATIVE_KINDS for reader in readers):
            executable = options.reader or build_reader(KEPT / "native")
            native = stack.enter_context(NativeReader(executable, program))
        tallies: list[Tally] = []
        for reader in readers:
            tallies += fuzz(reader, random.Random(options.seed), work, native, ends(options, len(readers)))
    return told(tallies)


def choose(readers: Sequence[Reader], only: str | None, *, native: bool = False) -> list[Reader]:
    """Return the readers of one kind of file, or all; with `native`, of kinds that C++ reads.

    Raises:
        SystemExit: If there are none.
    """
    known = [reader for reader in readers if not native or reader.kind in NATIVE_KINDS]
    chosen = [reader for reader in known if only in (None, reader.kind)]
    if not chosen:
        raise SystemExit(f"error: unknown kind {only!r}. Hint: known: {', '.join(reader.kind for reader in known)}")
    return chosen


def ends(options: argparse.Namespace, num_kinds: int) -> Callable[[int], bool]:
    """Decide by the number of inputs of one kind whether to end: by `--inputs`, or by its share of the time."""
    end = time.monotonic() + options.seconds / num_kinds
    return lambda tried: tried >= options.inputs if options.inputs else time.monotonic() > end


def told(tallies: list[Tally]) -> int:
    """Print the table and return the exit code."""
    print(table(tallies))
    print(f"{sum(t.tried for t in tallies)} inputs, {sum(len(t.crashes) for t in tallies)} crashes")
    return 1 if any(t.crashes for t in tallies) else 0


if __name__ == "__main__":
    sys.exit(main())
