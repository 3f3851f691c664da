"""Finds OpenVINO's libraries and loads them into this process, set to compute in f32.

Where the processor has bfloat16, OpenVINO's CPU plug-in computes in it by itself: losses move in steps of a hundredth,
and training sees nothing but differences of losses. Neither what a program says nor ExecuTorch's delegate can ask for
f32: the plug-in exports models without their settings. It does read `plugins.xml` beside its library, so the library
is loaded from a folder of links that has one.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import importlib.metadata
import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from prgec.core.machine.extras import extra_hint
from prgec.core.machine.native_log import captured_stderr
from prgec.errors import BackendError

PACKAGE = "openvino"
LIBRARY_VARIABLE = "OPENVINO_LIB_PATH"
DELEGATE = "OpenvinoBackend"

_LIBRARY = "libopenvino_c.so*"
# Apart from f32, this turns off the rounding of activations to int8 before int8 weights, another default of the
# plug-in.
_PLUGINS = """<ie><plugins><plugin name="CPU" location="{folder}/libopenvino_intel_cpu_plugin.so"><properties>
<property key="INFERENCE_PRECISION_HINT" value="f32"/>
<property key="DYNAMIC_QUANTIZATION_GROUP_SIZE" value="0"/>
</properties></plugin></plugins></ie>
"""
_TELEMETRY = "openvino_telemetry"


def library_folder() -> Path:
    """Return the folder of the package's libraries, without importing it.

    Raises:
        BackendError: If it is not installed, or has none for this system.
    """
    found = importlib.util.find_spec(PACKAGE)
    places = list(found.submodule_search_locations or ()) if found else []
    if not places:
        raise BackendError("OpenVINO is not on this machine", hint=extra_hint(PACKAGE))
    folder = Path(places[0]) / "libs"
    if not list(folder.glob(_LIBRARY)):
        raise BackendError(f"OpenVINO has no {_LIBRARY.rstrip('*')} for this system", where=folder)
    return folder


@cache
def load_libraries() -> ctypes.CDLL:
    """Load OpenVINO's C library once, and let ExecuTorch's delegate find it.

    `OPENVINO_LIB_PATH` names another library, as it does to the delegate.

    Raises:
        BackendError: If there is none, or it or the delegate cannot load it.
    """
    chosen = _chosen()
    path = Path(chosen) if chosen else next(_links(library_folder()).glob(_LIBRARY))
    # The delegate's exporter and OpenVINO's modules bring torch's C++ runtime along; it has to be there first.
    importlib.import_module("torch")
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        hint = f"unset {LIBRARY_VARIABLE} to use the package {PACKAGE}" if chosen else extra_hint(PACKAGE)
        raise BackendError(f"cannot load OpenVINO: {error}", where=path, hint=hint) from error
    _wake_delegate(path)
    return library


def import_module(name: str) -> Any:
    """Import a module of OpenVINO, from the libraries above, without its telemetry: importing it reports to its maker.

    Args:
        name: Such as `openvino.frontend`.
    """
    load_libraries()
    with _no_telemetry():
        return importlib.import_module(name)


def version() -> str:
    """Version of the package."""
    return importlib.metadata.version(PACKAGE)


def _chosen() -> str:
    """The library the user named; empty for that of the package, which ExecuTorch names where nobody has."""
    named = os.environ.get(LIBRARY_VARIABLE, "")
    found = importlib.util.find_spec(PACKAGE)
    places = [Path(place) / "libs" for place in (found.submodule_search_locations or ())] if found else []
    return "" if named and Path(named).parent in places else named


def _links(folder: Path) -> Path:
    """Return a folder that has the libraries and settings for the CPU plug-in, for as long as the process lives."""
    kept = tempfile.TemporaryDirectory(prefix="prgec-openvino-")
    atexit.register(kept.cleanup)
    links = Path(kept.name)
    for each in folder.iterdir():
        (links / each.name).symlink_to(each.resolve())
    (links / "plugins.xml").write_text(_PLUGINS.format(folder=links))
    return links


def _wake_delegate(path: Path) -> None:
    """Have the delegate load the library now, so that no process started by this one inherits its name."""
    from executorch.extension.pybindings import _C as bindings

    before = os.environ.get(LIBRARY_VARIABLE)
    os.environ[LIBRARY_VARIABLE] = str(path)
    try:
        with captured_stderr() as log:
            is_there = DELEGATE in bindings._get_registered_backend_names() and bindings._is_available(DELEGATE)
    finally:
        if before is None:
            del os.environ[LIBRARY_VARIABLE]
    if not is_there:
        reason = log.last_error() or "it was built without it"
        raise BackendError(f"ExecuTorch cannot use OpenVINO here: {reason}", hint="pip install executorch==1.5.1")


@contextmanager
def _no_telemetry() -> Iterator[None]:
    """Hide the module that reports; OpenVINO then does without."""
    modules: dict[str, ModuleType | None] = sys.modules  # type: ignore[assignment]
    hidden: Sequence[tuple[str, ModuleType]] = [(_TELEMETRY, sys.modules[_TELEMETRY])] if _TELEMETRY in modules else []
    modules[_TELEMETRY] = None
    try:
        yield
    finally:
        del modules[_TELEMETRY]
        modules.update(hidden)
