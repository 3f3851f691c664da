"""`prgec cache`: what drivers keep of programs on this machine, and how to be rid of it."""

from __future__ import annotations

from pathlib import Path

import click

from prgec.cli.render import print_json, print_lines
from prgec.errors import UsageError
from prgec.machine.packed_weights import PackedFile, clear_packed, list_packed, packed_folder

_FOLDER = click.option(
    "--folder",
    type=click.Path(path_type=Path),
    help="The folder prge_train was given with --packed-weights [default: the user's cache].",
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")


@click.group()
def cache() -> None:
    """List or clear weights that prge_train keeps in files as XNNPACK packs them (docs/cache.md)."""


@cache.command("list")
@_FOLDER
@_JSON
def list_command(folder: Path | None, as_json: bool) -> int:
    """List packed weights: size, days since their last use, program."""
    place = _place(folder)
    found = list_packed(place)
    total = sum(each.num_bytes for each in found)
    if as_json:
        print_json({"folder": str(place), "bytes": total, "files": [_document(each) for each in found]})
        return 0
    for each in found:
        print_lines(f"{_size(each.num_bytes):>10}  {each.days:6.1f} days  {_named(each)}")
    print_lines(f"{_size(total):>10}  in {place}")
    return 0


@cache.command("clear")
@click.option(
    "--older-than", "days", type=click.FloatRange(min=0), default=0, metavar="DAYS", help="Keep what is newer."
)
@_FOLDER
@_JSON
def clear_command(days: float, folder: Path | None, as_json: bool) -> int:
    """Remove packed weights that no driver uses; the next start of their programs packs them again."""
    place = _place(folder)
    done = clear_packed(place, days)
    if as_json:
        print_json({"folder": str(place), "files": done.files, "bytes": done.num_bytes, "in_use": done.in_use})
        return 0
    kept = f", kept {done.in_use} in use" if done.in_use else ""
    print_lines(f"freed {_size(done.num_bytes)} in {done.files} files{kept}  ({place})")
    return 0


def _place(folder: Path | None) -> Path:
    place = folder or packed_folder()
    if place is None:
        raise UsageError(
            "there is no cache: PRGEC_CACHE, XDG_CACHE_HOME and HOME are empty", hint="name it with --folder"
        )
    return place


def _named(each: PackedFile) -> str:
    if each.in_use:
        return f"{each.program or 'unknown'} (in use)"
    if not each.program:
        return "unknown, not whole or of an earlier driver"
    return each.program if Path(each.program).is_file() else f"{each.program} (gone)"


def _document(each: PackedFile) -> dict[str, object]:
    return {
        "path": str(each.path),
        "program": each.program or None,
        "bytes": each.num_bytes,
        "days": round(each.days, 3),
        "in_use": each.in_use,
    }


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:.1f} MB"
