"""Fixtures that take long are made once: by the process that comes first, for all others, which wait."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from prgec.compiler.options import CompileOptions


@dataclass(frozen=True)
class Shared:
    """Files and folders that all workers of a test run have in common.

    Attributes:
        root: Their folder, of this run alone.
    """

    root: Path

    def once(self, name: str, make: Callable[[Path], object]) -> Path:
        """Return a path under the folder after `make` has written there, in whichever process."""
        path, done = self.root / name, self.root / f"{name}.done"
        with (self.root / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                make(path)
                done.touch()
        return path

    def program(self, options: CompileOptions) -> Path:
        """Return the program of these options, compiled unless equal options were before, wherever they put it."""
        from prgec.compiler.compile import compile_model

        key = repr(replace(options, output=Path("model.pte")))
        name = f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.pte"
        return self.once(name, lambda path: compile_model(replace(options, output=path)))


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Shared:
    """Fixtures that this test run has made already, in any worker."""
    base = tmp_path_factory.getbasetemp()
    # A worker's own folder is inside that of the run.
    root = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"
    root.mkdir(exist_ok=True)
    return Shared(root)
