"""Refuses a compilation that this machine cannot finish, before its long part begins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prgec.errors import BackendError
from prgec.machine.memory import available_memory_bytes, resident_memory_bytes

if TYPE_CHECKING:
    from torch import nn

    from prgec.backends.base import Backend


def check_memory(backend: Backend, name: str, model: nn.Module | None, scheme: str) -> None:
    """Check that the machine has the memory a lowering takes, counting what this process holds already.

    Args:
        backend: Does the lowering.
        name: What the user calls the model.
        model: The model, loaded.
        scheme: How frozen layers are quantised.

    Raises:
        BackendError: If it has not.
    """
    num_weights = sum(parameter.numel() for parameter in model.parameters()) if model is not None else 0
    needed = backend.memory_bytes(num_weights, scheme)
    available = available_memory_bytes() + resident_memory_bytes()
    if needed > available:
        raise BackendError(
            f"compiling {name} for {backend.name} takes about {needed / 1e9:.1f} GB of memory, and "
            f"{available / 1e9:.1f} GB are free",
            hint="free some, or compile on a larger machine",
        )
