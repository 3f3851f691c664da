"""The Python readers under Atheris, which keeps the inputs that take new branches and changes those."""

from __future__ import annotations

import gc
import os
import random
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FunctionType

import atheris

from tests.checks.fuzz import KEPT, read_python
from tests.checks.fuzz_guided import HEAD, MAX_MEGABYTES, report, write_seeds
from tests.checks.fuzz_inputs import mutate
from tests.checks.fuzz_readers import Reader

# Passes and backends read no files of strangers.
_READERS = ("prgec.core.", "prgec.compiler.frontend.", "prgec.runtime.")
_RUNS = re.compile(r"^Done (\d+) runs", re.MULTILINE)
_CORPUS = re.compile(r" corp: (\d+)/")


def guide_python(readers: Sequence[Reader], work: Path, inputs: int) -> int:
    """Try inputs of every kind, print a table, and return how many kinds broke a reader.

    Args:
        readers: The readers, with good files to start from.
        work: Scratch folder.
        inputs: Inputs of each kind.
    """
    # A reader imports some modules when it reads for the first time.
    for reader in readers:
        for seed in reader.seeds:
            (work / "input").write_bytes(seed)
            read_python(reader, work / "input")
    _instrument()
    print(HEAD, flush=True)
    return sum(_guide(reader, work, inputs) for reader in readers)


def _instrument() -> None:
    """Make the functions of readers report their branches.

    Atheris can do so on import, but leaves modules alone that an editable installation finds.
    """
    for found in gc.get_objects():
        if isinstance(found, FunctionType) and (found.__module__ or "").startswith(_READERS):
            atheris.instrument_func(found)


def _guide(reader: Reader, work: Path, inputs: int) -> bool:
    """Try one kind of file in a process of its own, for Atheris ends the one it is in."""
    folder = work / f"{reader.kind}-corpus"
    folder.mkdir()
    write_seeds(reader, folder)
    log = work / f"{reader.kind}.log"
    process = os.fork()
    if process == 0:
        try:
            with log.open("wb") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            _fuzz(reader, work / "input", [f"-runs={inputs}", str(folder)])
        finally:
            os._exit(1)
    _, status = os.waitpid(process, 0)
    text = log.read_text(encoding="utf-8", errors="replace")
    tried = int(match[1]) if (match := _RUNS.search(text)) else 0
    kept = int(found[-1]) if (found := _CORPUS.findall(text)) else 0
    # Where one input is all it keeps, no branch was seen, and mutations were not guided.
    return report(reader, tried, kept, text, is_broken=status != 0 or tried < inputs or kept < 2)


def _fuzz(reader: Reader, path: Path, arguments: Sequence[str]) -> None:
    def once(data: bytes) -> None:
        path.write_bytes(data)
        if isinstance(result := read_python(reader, path), str):
            raise RuntimeError(result)

    def mutator(data: bytes, max_size: int, seed: int) -> bytes:
        changed = atheris.Mutate(data, max_size) if seed % 2 else data
        return mutate(changed, random.Random(seed), reader.kind)[:max_size]

    KEPT.mkdir(parents=True, exist_ok=True)
    # The time that an input may take is read_python's own limit.
    limits = [f"-rss_limit_mb={MAX_MEGABYTES}", f"-artifact_prefix={KEPT}/{reader.kind}-"]
    atheris.Setup([sys.argv[0], *limits, *arguments], once, custom_mutator=mutator)
    atheris.Fuzz()
