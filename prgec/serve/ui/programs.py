"""Programs the page knows: below its folder, of its runs, and the one it was opened with."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from prgec.serve.ui.run_list import RunList

SUFFIX = ".pte"
# Folder beside a program with the graph after each pass, if requested.
_PASSES_SUFFIX = ".passes"
_PASS = re.compile(r"\d\d-[a-z0-9-]+\.txt")
_MOST_BYTES = 8 << 20
_CONTEXT, _MOST_LINES = 2, 4000


@dataclass(frozen=True)
class KnownProgram:
    """A program, which may be gone.

    Attributes:
        id: Its id in requests.
        name: Its name for people.
        path: Where it is, or was.
    """

    id: str
    name: str
    path: Path

    @property
    def is_there(self) -> bool:
        """Whether it is still where it was."""
        return self.path.is_file()

    @property
    def passes(self) -> Path:
        """The folder of its graphs."""
        return passes_of(self.path)


def passes_of(program: Path) -> Path:
    """Return where the page keeps the graphs of a program's passes."""
    return program.with_suffix(_PASSES_SUFFIX)


def known(run_list: RunList, named: Iterable[Path]) -> list[KnownProgram]:
    """Return all programs, those that are there first.

    Args:
        run_list: Runs, and the folder they are in.
        named: Further programs.
    """
    below = (path for depth in ("*", "*/*") for path in sorted(run_list.root.glob(depth + SUFFIX)))
    paths = [*named, *(path for path in below if path.is_file())]
    for run in run_list.runs():
        program = run.fact("options", "program")
        if isinstance(program, str) and program:
            # A run that was started in this folder says it from there.
            paths.append(Path(program))
    unique = dict.fromkeys(Path(os.path.abspath(path)) for path in paths)
    found = [KnownProgram(run_list.id_of(path), _name(path, run_list.root), path) for path in unique]
    return sorted(found, key=lambda program: not program.is_there)


def _name(path: Path, root: Path) -> str:
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def pass_names(program: KnownProgram) -> list[str]:
    """Return the passes there are graphs of, in order."""
    try:
        return sorted(entry.name for entry in os.scandir(program.passes) if _PASS.fullmatch(entry.name))
    except OSError:
        return []


@dataclass(frozen=True)
class GraphLine:
    """A line of a graph."""

    number: int
    text: str
    is_hit: bool


def graph_rows(program: KnownProgram, name: str, wanted: str) -> tuple[list[GraphLine], int]:
    """Return lines of a graph, and how many were found.

    Args:
        program: The program.
        name: A pass; one there is no graph of has no lines.
        wanted: Text to find, with lines around it; empty for the whole graph.
    """
    if name not in pass_names(program):
        return [], 0
    with (program.passes / name).open("rb") as file:
        lines = file.read(_MOST_BYTES).decode("utf-8", "replace").splitlines()
    hits = {number for number, line in enumerate(lines) if wanted and wanted.lower() in line.lower()}
    near = {number + offset for number in hits for offset in range(-_CONTEXT, _CONTEXT + 1)}
    shown = [n for n in range(len(lines)) if not wanted or n in near][:_MOST_LINES]
    return [GraphLine(n + 1, lines[n], n in hits) for n in shown], len(hits)
