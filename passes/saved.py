"""Graphs on disk: torch.export's own .pt2 format."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from prgec.errors import ProgramError
from prgec.passes.program import GraphProgram


def save_program(program: GraphProgram, path: Path) -> None:
    """Save a graph; the file is complete or not there."""
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.pt2")
    try:
        torch.export.save(program.to_exported(), temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def load_program(path: Path) -> GraphProgram:
    """Load a graph saved by `save_program`.

    Raises:
        ProgramError: If the file is not a saved graph.
    """
    from prgec.runtime_ops import library as _registers_prge_ops  # noqa: F401 - graphs may hold prge ops

    try:
        return GraphProgram.from_exported(torch.export.load(path))
    except Exception as error:  # torch.export.load raises whatever its zip and JSON readers do
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
        raise ProgramError(
            f"cannot read the graph: {reason}", where=path, hint="expected a .pt2 made by prgec compile --save-program"
        ) from error
