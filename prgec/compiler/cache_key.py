"""The name of a compilation in the cache: a hash of all that its program depends on."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from prgec.compiler.frontend.checkpoint import Checkpoint
from prgec.compiler.options import CompileOptions
from prgec.core.data.folders import files_of
from prgec.core.data.records import NO_FILE
from prgec.core.machine.files import sha256_of
from prgec.core.machine.versions import version_of
from prgec.errors import DataError

# Fields that no byte of a program depends on. --memory stays: it decides whether there is a program.
_IRRELEVANT = ("model", "data", "lora_a", "output", "force", "dump_passes", "save_program")
_PACKAGES = ("torch", "torchao", "executorch", "transformers", "tokenizers", "numpy")
_IGNORED = ("README.md", ".gitattributes")


def cache_key(options: CompileOptions, checkpoint: Checkpoint) -> str | None:
    """Return the key of a compilation, 64 hexadecimal digits; None where nothing of it can be reused.

    Files go by their contents, so a changed checkpoint or data file is another compilation, and a copied one is not.
    A compilation that also writes files beside its program, or reads data from a hub or standard input, has no key.

    Raises:
        OSError: If a file of the checkpoint or the data cannot be read.
    """
    if options.dump_passes or options.save_program or any(str(path).startswith(NO_FILE) for path in options.data):
        return None
    values = {name: value for name, value in dataclasses.asdict(options).items() if name not in _IRRELEVANT}
    parts = {
        "options": values,
        "checkpoint": [checkpoint.name, *_hashes(_files_of(checkpoint.path))],
        "merged": [*_hashes(_files_of(checkpoint.adapter))] if checkpoint.adapter else [],
        "data": [[path.name, *_hashes(_data_files(path))] for path in options.data],
        "lora_a": _of_adapter(options),
        "prgec": [version_of("prgec"), *_code()],
        "packages": [[name, version_of(name)] for name in _PACKAGES],
        "machine": [platform.machine(), platform.python_version()],
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def _of_adapter(options: CompileOptions) -> list[str]:
    if options.lora_a is None or options.is_calibrated:
        return [str(options.lora_a)]
    return [options.lora_a.resolve().name, *_hashes(_files_of(options.lora_a))]


def _data_files(path: Path) -> Sequence[Path]:
    """Files that hold the rows of a path; the path itself where that has none, which reading will say."""
    try:
        return files_of(path)
    except DataError:
        return [path]


def _files_of(path: Path) -> Iterator[Path]:
    """Files that a checkpoint or an adapter consists of, in the order of their names."""
    if path.is_dir():
        yield from sorted(each for each in path.iterdir() if each.is_file() and each.name not in _IGNORED)
    else:
        yield path


def _hashes(paths: Iterable[Path]) -> Iterator[str]:
    for path in paths:
        yield f"{path.name} {sha256_of(path)}"


def _code() -> Iterator[str]:
    """Hashes of the compiler's own modules: between two versions they change with every edit."""
    for folder, folders, names in os.walk(Path(__file__).parents[1], followlinks=True):
        folders.sort()
        yield from _hashes(Path(folder, name) for name in sorted(names) if name.endswith(".py"))
