"""Makes a program again from what it says of itself, and names the parts that come out otherwise."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from prgec.compiler.options import CompileOptions, compile_table
from prgec.compiler.options_from import options_from
from prgec.compiler.progress import Listener, ignore
from prgec.core.config.toml_file import read_options
from prgec.core.contract.inspection import inspect_program
from prgec.core.contract.manifest import Manifest
from prgec.core.contract.sections import read_sections
from prgec.core.machine.files import sha256_of
from prgec.errors import ProgramError, UsageError


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How a program compares with one that was compiled again.

    Attributes:
        differences: Parts that differ, each with what is known of it; empty where every byte is equal.
        parts: Parts that were compared.
        sha256: Hash of the first file.
    """

    differences: tuple[str, ...]
    parts: int
    sha256: str


def options_again(program: Path, changes: Mapping[str, Any]) -> CompileOptions:
    """Return options that compile a program again.

    Args:
        program: The .pte.
        changes: Its checkpoint and its data by name of the option, which a program does not contain, if they have no
            name that finds them.

    Raises:
        ProgramError: If the program does not say how it was compiled.
        UsageError: If rows decided something and none are given.
    """
    manifest = inspect_program(program).manifest
    if not manifest.config:
        raise ProgramError("the program carries no configuration", where=program)
    if manifest.prompts_sha256 and not changes.get("data"):
        raise UsageError("prompts of its data decided how its weights were rounded", hint="name the same files: --data")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "again.toml"
        path.write_text(manifest.config, encoding="utf-8")
        said = read_options(path, compile_table())
    missing = {each.name: None for each in fields(CompileOptions) if each.name in ("method", "q", "optimizer")}
    given = {name: value for name, value in changes.items() if value}
    return options_from({**missing, **said, **given})


def compare_again(program: Path, changes: Mapping[str, Any], listener: Listener = ignore) -> Comparison:
    """Compile a program again and compare every part of both files.

    Args:
        program: The .pte.
        changes: As `options_again` takes them.
        listener: Called with the progress of the compilation.

    Raises:
        PrgecError: One of its subclasses, of the compilation too.
    """
    from prgec.compiler.compile import compile_model

    # Folders of one file system are the same to a program; this one goes away with what it holds.
    with tempfile.TemporaryDirectory() as folder:
        again = Path(folder) / "again.pte"
        options = options_again(program, {**changes, "output": again})
        compile_model(options, listener)
        return compare(program, again)


def compare(program: Path, again: Path) -> Comparison:
    """Compare two programs part by part.

    Raises:
        ProgramError: If one cannot be read.
    """
    ours, theirs = read_sections(program), read_sections(again)
    named = _facts(inspect_program(program).manifest, inspect_program(again).manifest)
    parts = list(dict.fromkeys((*ours, *theirs)))
    differing = [name for name in parts if ours.get(name) != theirs.get(name)]
    return Comparison(
        differences=(*named, *(_line(name, ours.get(name), theirs.get(name)) for name in differing)),
        parts=len(parts),
        sha256=sha256_of(program),
    )


def _facts(ours: Manifest, theirs: Manifest) -> list[str]:
    """Fields of the manifests that differ."""
    mine, others = asdict(ours), asdict(theirs)
    return [
        f"{name}: {_short(mine[name])} in the file, {_short(others[name])} again"
        for name in mine
        if mine[name] != others[name]
    ]


def _line(name: str, ours: str | None, theirs: str | None) -> str:
    if ours is None or theirs is None:
        return f"{name}: only in {'the new one' if ours is None else 'the file'}"
    return f"{name}: sha256 {ours[:12]} in the file, {theirs[:12]} again"


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
