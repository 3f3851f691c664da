"""`prgec cache`: list and clear what this machine keeps: compiled programs, and weights that drivers packed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click

from prgec.cli.render import print_json, print_lines
from prgec.compiler.program_cache import CachedProgram, ProgramCache
from prgec.core.machine.packed_weights import PackedFile, clear_packed, list_packed, packed_folder
from prgec.errors import UsageError

_FOLDER = click.option(
    "--folder",
    type=click.Path(path_type=Path),
    help="Packed weights alone, in the folder that prge_train had as --packed-weights.",
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
_MISSING = "there is no cache: PRGEC_CACHE, XDG_CACHE_HOME and HOME are empty"


@click.group()
def cache() -> None:
    """List or clear compiled programs, and weights that prge_train keeps as XNNPACK packs them (docs/cache.md)."""


@cache.command("list")
@_FOLDER
@_JSON
def list_command(folder: Path | None, as_json: bool) -> int:
    """List each kind, last used first: size, days since the last use, name."""
    programs, packed = _programs(folder), _packed(folder)
    kept = programs.programs() if programs is not None else []
    found = list_packed(packed)
    if as_json:
        document = {"packed": _total(packed, [each.num_bytes for each in found], "files", map(_of_packed, found))}
        if programs is not None:
            sizes = [each.num_bytes for each in kept]
            document["programs"] = _total(programs.folder, sizes, "programs", map(_of_program, kept))
        print_json(document)
        return 0
    if programs is not None:
        print_lines(*(_row(each.num_bytes, each.days, each.title) for each in kept))
        print_lines(f"{_size(sum(each.num_bytes for each in kept)):>10}  of programs in {programs.folder}")
    print_lines(*(_row(each.num_bytes, each.days, _named(each)) for each in found))
    print_lines(f"{_size(sum(each.num_bytes for each in found)):>10}  of packed weights in {packed}")
    return 0


@cache.command("clear")
@click.option(
    "--older-than", "days", type=click.FloatRange(min=0), default=0, metavar="DAYS", help="Keep what is newer."
)
@_FOLDER
@_JSON
def clear_command(days: float, folder: Path | None, as_json: bool) -> int:
    """Remove programs, and packed weights that no driver uses; both are made again when they are needed."""
    programs, packed = _programs(folder), _packed(folder)
    num_programs, program_bytes = programs.clear(days) if programs is not None else (0, 0)
    done = clear_packed(packed, days)
    if as_json:
        document = {
            "packed": {"folder": str(packed), "files": done.files, "bytes": done.num_bytes, "in_use": done.in_use}
        }
        if programs is not None:
            document["programs"] = {"folder": str(programs.folder), "programs": num_programs, "bytes": program_bytes}
        print_json(document)
        return 0
    if programs is not None:
        print_lines(f"freed {_size(program_bytes)} in {num_programs} programs  ({programs.folder})")
    kept = f", kept {done.in_use} in use" if done.in_use else ""
    print_lines(f"freed {_size(done.num_bytes)} in {done.files} packed files{kept}  ({packed})")
    return 0


def _programs(folder: Path | None) -> ProgramCache | None:
    """The user's programs; none where packed weights of another folder are requested."""
    return ProgramCache.of_user() if folder is None else None


def _packed(folder: Path | None) -> Path:
    place = folder or packed_folder()
    if place is None:
        raise UsageError(_MISSING, hint="set one of them, or name packed weights with --folder")
    return place


def _row(num_bytes: int, days: float, name: str) -> str:
    return f"{_size(num_bytes):>10}  {days:6.1f} days  {name}"


def _named(each: PackedFile) -> str:
    if each.in_use:
        return f"{each.program or 'unknown'} (in use)"
    if not each.program:
        return "unknown, not whole or of an earlier driver"
    return each.program if Path(each.program).is_file() else f"{each.program} (gone)"


def _total(folder: Path, sizes: list[int], name: str, documents: Iterable[dict[str, object]]) -> dict[str, object]:
    return {"folder": str(folder), "bytes": sum(sizes), name: list(documents)}


def _of_packed(each: PackedFile) -> dict[str, object]:
    return {
        "path": str(each.path),
        "program": each.program or None,
        "bytes": each.num_bytes,
        "days": round(each.days, 3),
        "in_use": each.in_use,
    }


def _of_program(each: CachedProgram) -> dict[str, object]:
    return {"path": str(each.folder), "title": each.title, "bytes": each.num_bytes, "days": round(each.days, 3)}


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:.1f} MB"
