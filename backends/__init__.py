"""Backends: one explicit table, resolved lazily."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from prgec.errors import UsageError

if TYPE_CHECKING:
    from prgec.backends.base import Backend

BACKENDS: dict[str, str] = {
    "xnnpack": "prgec.backends.xnnpack:XnnpackBackend",
    "cuda": "prgec.backends.cuda.backend:CudaBackend",
    "qnn": "prgec.backends.qnn.backend:QnnBackend",
    "portable": "prgec.backends.portable:PortableBackend",
}


def load_backend(name: str, **settings: Any) -> Backend:
    """Return the backend called `name`.

    Args:
        name: Row of the table.
        settings: What that backend lets a user choose.

    Raises:
        UsageError: If there is none, or it has no such setting.
    """
    if name not in BACKENDS:
        raise UsageError(f"there is no backend called {name!r}", hint=f"backends: {', '.join(BACKENDS)}")
    module, _, attribute = BACKENDS[name].partition(":")
    backend: Backend = getattr(importlib.import_module(module), attribute)(**settings)
    return backend
