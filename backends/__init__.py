"""Backends: one table, resolved lazily, with rows of our own and of installed packages."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from prgec.core.contract.plugins import load_plugin, plugins_of
from prgec.errors import UsageError

if TYPE_CHECKING:
    from prgec.backends.base import Backend, Setting
    from prgec.core.contract.manifest import Manifest

# How a program is lowered: by edits of its graphs in place, or by ExecuTorch's own traces.
IN_PLACE, STOCK = "in-place", "stock"
# The one that a backend names.
AUTO_ROUTE = "auto"

BACKENDS: dict[str, str] = {
    "xnnpack": "prgec.backends.xnnpack:XnnpackBackend",
    "cuda": "prgec.backends.cuda.backend:CudaBackend",
    "openvino": "prgec.backends.openvino.backend:OpenvinoCpuBackend",
    "qnn": "prgec.backends.qnn.backend:QnnBackend",
    "coreml": "prgec.backends.coreml:CoremlBackend",
    "vulkan": "prgec.backends.vulkan:VulkanBackend",
    "portable": "prgec.backends.portable:PortableBackend",
}
# Packages add rows by entry points of this group; the runtime finds ours there too, and so imports none of them.
ENTRY_POINTS = "prgec.backends"
_PLUGINS = plugins_of(ENTRY_POINTS, BACKENDS)
BACKENDS |= {name: point.value for name, point in _PLUGINS.items()}


def find_backend(name: str) -> type[Backend]:
    """Return the class of the backend called `name`; what lowers is imported only when it does.

    Raises:
        UsageError: If there is none, or its package cannot be imported.
    """
    if name not in BACKENDS:
        raise UsageError(f"there is no backend called {name!r}", hint=f"backends: {', '.join(BACKENDS)}")
    backend: type[Backend]
    if name in _PLUGINS:
        backend = load_plugin(_PLUGINS[name])
    else:
        module, _, attribute = BACKENDS[name].partition(":")
        backend = getattr(importlib.import_module(module), attribute)
    return backend


def load_backend(name: str, **settings: str) -> Backend:
    """Return the backend called `name`.

    Args:
        name: Row of the table.
        settings: Choices of a user that only that backend has.

    Raises:
        UsageError: If there is none, or it has no such setting.
    """
    check_settings(name, settings)
    return find_backend(name)(**settings)


def check_settings(name: str, settings: Iterable[str]) -> None:
    """Refuse settings that the backend called `name` does not have.

    Raises:
        UsageError: Naming the first, and whose it is.
    """
    known = {setting.name for setting in find_backend(name).settings}
    for each in settings:
        if each not in known:
            owners = " and ".join(owner for owner, setting in all_settings() if setting.name == each)
            raise UsageError(
                f"--{each} is for --backend {owners}; {name} has none" if owners else f"there is no --{each}"
            )


def all_settings() -> tuple[tuple[str, Setting], ...]:
    """Every setting of every backend, with the name of the backend."""
    return tuple((name, setting) for name in BACKENDS for setting in find_backend(name).settings)


def details_of(manifest: Manifest) -> Sequence[str]:
    """Remarks on a program for its user, by its backend; none for a backend this prgec does not know."""
    return find_backend(manifest.backend).details(manifest) if manifest.backend in BACKENDS else ()
