"""ExecuTorch's shared libraries, loaded one by one: its bindings link against torch, which running does not need.

Importing torch takes 2 s and 130 MB that are the process's own, more than a small program needs to train.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import importlib.util
from functools import cache
from pathlib import Path

from prgec.errors import BackendError

# The one that the kernels are built against.
VERSION = "1.5.1"
QUANTIZED = "libexecutorch_kernels_quantized.so"
# Each registers its kernels or its delegate as it is loaded. Those of other delegates come with the bindings.
_LIBRARIES = (
    "libexecutorch.so",
    "libexecutorch_threadpool.so",
    "libexecutorch_kernels_optimized.so",
    "libexecutorch_backend_xnnpack.so",
)

# The libraries as a wheel of prgec has them.
_BUNDLED = Path(__file__).resolve().parent / "executorch"


@cache
def load_executorch() -> None:
    """Load the runtime, its kernels and XNNPACK, once.

    Raises:
        BackendError: If ExecuTorch is not installed, or not as its wheel has it.
    """
    for name in _LIBRARIES:
        load_library(name)


def package_folder() -> Path | None:
    """Return where ExecuTorch is installed; None where it is not, or another version is."""
    try:
        if importlib.metadata.version("executorch") != VERSION:
            return None
    except importlib.metadata.PackageNotFoundError:
        return None
    package = importlib.util.find_spec("executorch")
    places = package.submodule_search_locations if package else None
    return Path(next(iter(places))) if places else None


def load_library(name: str) -> None:
    """Load one of the libraries of ExecuTorch's wheel: from its package, whose bindings would load it again, or ours.

    Raises:
        BackendError: If it is not there or cannot be loaded.
    """
    package = package_folder()
    path = (package / "lib" if package else _BUNDLED) / name
    try:
        ctypes.CDLL(str(path))
    except OSError as error:
        raise BackendError(f"cannot load ExecuTorch: {error}", hint=f"pip install executorch=={VERSION}") from error


def load_bindings() -> None:
    """Import ExecuTorch's bindings for the delegates that they bring along."""
    # portable_lib is the documented door, but it imports the whole exporter: 3 s and 140 MB that running does not
    # need. torch comes first because the extension links against it.
    importlib.import_module("torch")
    importlib.import_module("executorch.extension.pybindings._C")
