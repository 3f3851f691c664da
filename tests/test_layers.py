"""Data falls from the command line to the machine: which room imports which is the table of CONTRIBUTING.md."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# Links inside prgec/ lead to every folder of the package. All rooms may import these two.
EVERYONES = {"errors", "version"}
# Folders whose rooms are the folders in them. `compiler` has files of its own besides.
WINGS = ("lab", "serve", "compiler", "runtime", "core")
_ROW = re.compile(r"^\| `(?P<folder>[a-z_/]+)` \|[^|]*\|(?P<below>[^|]*)\|$", re.M)


def read_table() -> dict[str, set[str]]:
    """Room -> rooms it may import, top floor first."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = {row["folder"].strip("/").rpartition("/")[2]: row["below"] for row in _ROW.finditer(text)}
    return {room: set(re.findall(r"`([a-z_]+)`", below)) for room, below in rows.items()}


def imports_of(source: str) -> Iterator[str]:
    """Modules of prgec that a file names in its imports, wherever they stand in it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module == "prgec":
            yield from (f"prgec.{each.name}" for each in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("prgec."):
            yield str(node.module)
        elif isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name.startswith("prgec."))


def room_of(module: str, rooms: Collection[str]) -> str:
    """The room of a module such as `prgec.core.data.row`: `data`."""
    _, name, *inner = module.split(".")
    return inner[0] if name in WINGS and inner and inner[0] in rooms else name


def read_rooms() -> dict[str, tuple[Path, ...]]:
    """Room -> its files."""
    found: dict[str, tuple[Path, ...]] = {}
    for folder in (path for path in (ROOT / "prgec").iterdir() if path.is_dir()):
        inner = [path for path in folder.iterdir() if path.is_dir()] if folder.name in WINGS else []
        for room in inner:
            found[room.name] = tuple(room.rglob("*.py"))
        own = tuple(path for path in folder.glob("*.py") if path.name != "__init__.py")
        if folder.name not in WINGS:
            found[folder.name] = tuple(folder.rglob("*.py"))
        elif own:
            found[folder.name] = own
    return {room: paths for room, paths in found.items() if paths}


def read_imports() -> dict[str, dict[str, str]]:
    """Room -> imported room -> a file that does it."""
    rooms = read_rooms()
    found: dict[str, dict[str, str]] = {room: {} for room in rooms}
    for room, paths in rooms.items():
        for path in paths:
            named = {room_of(module, rooms) for module in imports_of(path.read_text(encoding="utf-8"))}
            for other in named - EVERYONES - {room}:
                found[room][other] = str(path.relative_to(ROOT))
    return found


def climbing(imports: dict[str, dict[str, str]], table: dict[str, set[str]]) -> list[str]:
    """Imports the table does not have."""
    return [
        f"{path} imports prgec.{other}: the row of `{room}` in CONTRIBUTING.md does not allow it"
        for room, others in imports.items()
        for other, path in others.items()
        if other not in table.get(room, set())
    ]


def test_no_room_imports_what_its_row_does_not_name() -> None:
    assert climbing(read_imports(), read_table()) == []


def test_the_table_has_every_room_and_no_more() -> None:
    assert set(read_table()) == set(read_imports())


def test_rooms_only_name_rooms_below_them() -> None:
    table = read_table()
    floor = {room: number for number, room in enumerate(table)}
    assert [(room, other) for room, others in table.items() for other in others if floor[other] <= floor[room]] == []


def test_the_table_allows_nothing_that_nobody_uses() -> None:
    imports = read_imports()
    assert {
        room: others - set(imports[room]) for room, others in read_table().items() if others - set(imports[room])
    } == {}


def test_an_upward_import_is_reported() -> None:
    imports = {"machine": {"cli": "prgec/core/machine/memory.py"}}
    (told,) = climbing(imports, read_table())
    assert told.startswith("prgec/core/machine/memory.py imports prgec.cli")


@pytest.mark.parametrize("line", ["from prgec.cli import main", "import prgec.cli.main", "from prgec import cli"])
def test_every_way_to_import_is_seen(line: str) -> None:
    assert [module.split(".")[1] for module in imports_of(f"def f():\n    {line}\n")] == ["cli"]


def test_the_runtime_imports_core_and_the_operators_alone() -> None:
    rooms = read_rooms()
    allowed = {path.name for wing in ("runtime", "core") for path in (ROOT / "prgec" / wing).iterdir()} | {
        "runtime_ops"
    }
    imports = read_imports()
    wings = {room: paths[0].relative_to(ROOT).parts[1] for room, paths in rooms.items()}
    assert {room: set(imports[room]) - allowed for room, wing in wings.items() if wing in ("runtime", "core")} == {
        room: set() for room, wing in wings.items() if wing in ("runtime", "core")
    }


# Imports every module of the two packages where nothing of the compiler can be imported.
_ALONE = """
import importlib, pkgutil, sys
for name in ("torch", "transformers", "torchao", "prgec.compiler", "prgec.passes", "prgec.backends", "prgec.lab"):
    sys.modules[name] = None
for wing in ("runtime", "core"):
    package = importlib.import_module(f"prgec.{wing}")
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            # Optional: the ends of an app that only Flower starts.
            if error.name != "flwr":
                raise
"""


def test_the_runtime_needs_no_compiler() -> None:
    subprocess.run([sys.executable, "-c", _ALONE], check=True)
