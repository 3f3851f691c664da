"""Which engine runs a program; imports nothing heavy before it is known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from prgec.core.contract.engine import Engine
from prgec.core.contract.plugins import load_plugin, plugins_of
from prgec.errors import UsageError

EXECUTORCH, TORCH = "executorch", "torch"
ENGINES = (EXECUTORCH, TORCH)
# Group of entry points: functions of a path, a base, a device and whether to compile, which return an engine.
ENTRY_POINTS = "prgec.engines"


def check_engine(engine: str, base: str | None, device: str, compiled: bool) -> None:
    """Refuse options of one engine with the other.

    Raises:
        UsageError: Naming the option.
    """
    if engine not in ENGINES:
        raise UsageError(f"unknown engine {engine!r}", hint=f"known: {', '.join(ENGINES)}")
    given = {"--base": base is not None, "--device": device != "cpu", "--torch-compile": compiled}
    misplaced = [flag for flag, is_given in given.items() if is_given]
    if engine != TORCH and misplaced:
        raise UsageError(f"{misplaced[0]} needs --engine {TORCH}")


def open_program(
    path: Path,
    engine: str = EXECUTORCH,
    *,
    base: str | None = None,
    device: str = "cpu",
    compiled: bool = False,
    verify: bool = True,
) -> Engine:
    """Open a .pte in the ExecuTorch runtime, or build its graphs again for PyTorch.

    Args:
        path: The .pte.
        engine: Row of `ENGINES`.
        base: For `torch`, the checkpoint the .pte was compiled from; where None, the one it names.
        device: For `torch`, where to run.
        compiled: For `torch`, whether to use `torch.compile`.
        verify: For `executorch`, whether to compare the .pte with its checksums.

    Raises:
        PrgecError: If the program, the checkpoint or the device cannot be used.
    """
    if engine == TORCH:
        rebuild = _installed(TORCH)
        program: Engine = rebuild(path, base, device=device, compiled=compiled)
        return program
    from prgec.runtime.engines.executorch.open import open_pte

    return open_pte(path, verify=verify)


def _installed(engine: str) -> Callable[..., Engine]:
    """Load an engine that the runtime does not bring: an installed package names it by an entry point.

    Raises:
        UsageError: If none does.
    """
    point = plugins_of(ENTRY_POINTS).get(engine)
    if point is None:
        raise UsageError(f"--engine {engine} is not installed", hint=f"leave it out: {EXECUTORCH} runs every program")
    found: Callable[..., Engine] = load_plugin(point)
    return found
