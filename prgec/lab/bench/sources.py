"""The source files that a module of prgec reaches through imports, found by reading them, and their hash."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[2]
_PUBLIC = "prgec.api"
# Rows of the lazy tables, of backends and passes, name modules in strings.
_ROW = re.compile(r"(prgec(?:\.\w+)+)(?::\w+)?")


@cache
def sources_sha256(module: str) -> str:
    """Hash of everything `module` reaches, itself included."""
    digest = hashlib.sha256()
    for name, path in sorted(reached_files(module).items()):
        digest.update(f"{name}\n{path.stat().st_size}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def reached_files(module: str) -> dict[str, Path]:
    """Files by module name: `module`, what it imports anywhere in its text, what that imports, and so on."""
    found: dict[str, Path] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        path = _file_of(name)
        # A name from an import or a string may be that of a class. Public names are imported by callers alone.
        if name not in found and path is not None and not name.startswith(_PUBLIC):
            found[name] = path
            waiting += named_modules(path.read_text(encoding="utf-8"))
            # Importing a module runs the packages around it.
            waiting += [name.rpartition(".")[0]]
    return found


def named_modules(source: str) -> Iterator[str]:
    """Names below prgec that a file imports or has in a table; some are of classes and functions."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            row = _ROW.fullmatch(node.value)
            if row:
                yield row[1]


def _file_of(module: str) -> Path | None:
    """The file of a module of prgec; None for others, and for names that are not modules."""
    first, *rest = module.split(".")
    if first != _PACKAGE.name:
        return None
    path = _PACKAGE.joinpath(*rest)
    return next((each for each in (path.with_suffix(".py"), path / "__init__.py") if each.is_file()), None)
