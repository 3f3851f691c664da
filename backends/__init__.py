"""Backends: one explicit table, resolved lazily."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from prgec.errors import UsageError

if TYPE_CHECKING:
    from prgec.backends.base import Backend

BACKENDS: dict[str, str] = {
    "xnnpack": "prgec.backends.xnnpack:XnnpackBackend",
    "cuda": "prgec.backends.cuda.backend:CudaBackend",
    "portable": "prgec.backends.portable:PortableBackend",
}


def load_backend(name: str) -> Backend:
    """Return the backend called `name`.

    Raises:
        UsageError: If there is none.
    """
    if name not in BACKENDS:
        raise UsageError(f"there is no backend called {name!r}", hint=f"backends: {', '.join(BACKENDS)}")
    module, _, attribute = BACKENDS[name].partition(":")
    backend: Backend = getattr(importlib.import_module(module), attribute)()
    return backend
