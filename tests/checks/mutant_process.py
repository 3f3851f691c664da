"""Run tests under a changed module, each time in a fork of a process that has the large packages in memory."""

from __future__ import annotations

import enum
import importlib.abc
import importlib.machinery
import os
import signal
import sys
import time
from collections.abc import Sequence
from importlib.util import spec_from_loader
from pathlib import Path
from types import ModuleType

# The folders are also reached as parts of the package.
_PACKAGES = {"passes": "prgec.passes", "backends": "prgec.backends", "runtime_ops": "prgec.runtime_ops"}


class Outcome(enum.Enum):
    """How the tests of a mutant ended."""

    KILLED = "a test failed"
    TIMEOUT = "the tests did not end"
    SURVIVED = "the tests passed"


class _Changed(importlib.abc.MetaPathFinder):
    """Finds one module, with other text."""

    def __init__(self, name: str, path: Path, code: str) -> None:
        self._name, self._path, self._code = name, path, code

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the module's place, for the one name."""
        if fullname != self._name:
            return None
        code = self._code

        class Loader(importlib.machinery.SourceFileLoader):
            def get_code(self, fullname: str):  # type: ignore[no-untyped-def] # noqa: ANN202
                return compile(code, self.path, "exec", dont_inherit=True)

        loader = Loader(fullname, str(self._path))
        return spec_from_loader(fullname, loader)


def module_name(module: str) -> str:
    """Return the name that a file of the tree is imported by."""
    first, *rest = Path(module).with_suffix("").parts
    return ".".join((_PACKAGES.get(first, first), *rest))


def run_all(
    root: Path, module: str, codes: Sequence[str], tests: Sequence[str], *, jobs: int, limit: float
) -> list[tuple[Outcome, float]]:
    """Return the outcome and the seconds of each text of a module.

    Args:
        root: The tree.
        module: The file in it.
        codes: Texts of the module.
        tests: Files of tests.
        jobs: Processes at a time.
        limit: Seconds after which a process is killed.
    """
    _import_large_packages()
    running: dict[int, tuple[int, float]] = {}
    ended: dict[int, tuple[Outcome, float]] = {}
    waiting = list(enumerate(codes))[::-1]
    while waiting or running:
        while waiting and len(running) < jobs:
            number, code = waiting.pop()
            running[_fork(root, module, code, tests)] = number, time.monotonic()
        for child, (number, begin) in list(running.items()):
            seconds = time.monotonic() - begin
            found, status = os.waitpid(child, os.WNOHANG)
            if found:
                outcome = Outcome.SURVIVED if os.waitstatus_to_exitcode(status) == 0 else Outcome.KILLED
            elif seconds > limit:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                outcome = Outcome.TIMEOUT
            else:
                continue
            ended[number] = outcome, seconds
            del running[child]
        time.sleep(0.02)
    return [ended[number] for number in range(len(codes))]


def _import_large_packages() -> None:
    """Import what every child needs and no mutant changes."""
    import executorch.exir
    import pytest
    import torch
    import transformers

    assert all((executorch.exir, pytest, torch, transformers))
    assert not any(name.split(".")[0] == "prgec" for name in sys.modules), "a mutant would come too late"


def _fork(root: Path, module: str, code: str, tests: Sequence[str]) -> int:
    """Return the id of a process that ends with 0 where the tests pass."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        os.setpgid(0, 0)
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        os.chdir(root)
        sys.meta_path.insert(0, _Changed(module_name(module), root / module, code))
        import pytest

        status = int(pytest.main(["-x", "-q", "-m", "not slow and not gpu", "-p", "no:cacheprovider", *tests]))
    finally:
        os._exit(status)
