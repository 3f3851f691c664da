"""Finds or builds the compiled kernels and loads them into the ExecuTorch runtime of this process.

A wheel carries the libraries. In a source tree without them, or with sources newer than them, CMake builds them once
into a per-user cache folder named after a hash of the sources.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import logging
import os
import shutil
import subprocess
import sysconfig
import tempfile
from functools import cache
from pathlib import Path

from prgec.errors import BackendError
from prgec.runtime_ops.executorch_libraries import QUANTIZED, VERSION, load_executorch, load_library, package_folder
from prgec.runtime_ops.schemas import RANDN

LIBRARY_NAME = "libprgec_ops.so"
QNN_ADAPTER_NAME = "libprgec_qnn.so"
METHODS_NAME = "libprgec_methods.so"

_QUANTIZED_OPERATOR = "quantized_decomposed::embedding_4bit.out"
_SOURCE_DIR = Path(__file__).resolve().parent
# Not resolved: this folder is a link in a source tree, and part of the package in a wheel.
_DRIVER_DIR = Path(__file__).parents[1] / "device" / "csrc"
_SOURCE_SUFFIXES = (".cpp", ".h", ".txt")
_log = logging.getLogger(__name__)


def kernel_library() -> Path:
    """Return the path of the compiled kernels, building them first where no current build exists.

    Raises:
        BackendError: If they have to be built here and cannot be.
    """
    return _library(LIBRARY_NAME)


def qnn_adapter() -> Path:
    """Return the path of the library that stands in for libQnnHtp.so, building it first where needed.

    Raises:
        BackendError: If it has to be built here and cannot be.
    """
    return _library(QNN_ADAPTER_NAME)


def methods_library() -> Path:
    """Return the path of the library that runs programs for Python, building it first where needed.

    Raises:
        BackendError: If it has to be built here and cannot be.
    """
    return _library(METHODS_NAME)


@cache
def load_methods_library() -> ctypes.CDLL:
    """Load that library and the runtime it calls, once.

    Raises:
        BackendError: If it has to be built here and cannot be, or cannot be loaded.
    """
    load_executorch()
    library = _loaded(methods_library())
    library.prgec_has_kernel.restype = ctypes.c_bool
    return library


@cache
def load_kernels() -> None:
    """Register the `prge` operators with the ExecuTorch runtime of this process, once.

    Raises:
        BackendError: If the kernels are missing and cannot be built, or cannot be loaded.
    """
    # The runtime aborts the process when a kernel registers twice.
    if _is_registered(f"{RANDN.qualified_name}.out"):
        return
    library = _loaded(kernel_library())
    if not _is_registered(_QUANTIZED_OPERATOR):
        load_library(QUANTIZED)
    # Methods of one program read the same weights; without this each packs a copy of its own.
    if error_code := library.prgec_share_packed_weights():
        _log.info("XNNPACK does not share packed weights here: ExecuTorch's error %d", error_code)


def _is_registered(operator: str) -> bool:
    return bool(load_methods_library().prgec_has_kernel(operator.encode()))


def _loaded(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise BackendError(
            f"cannot load the prge kernels: {error}",
            where=path,
            hint="they were built against another ExecuTorch; reinstall prgec, or delete that file to build it again",
        ) from error


def _library(name: str) -> Path:
    for candidate in _installed_libraries(name):
        if candidate.is_file() and not _is_stale(candidate):
            return candidate
    cached = _cache_dir() / name
    if not cached.is_file():
        _build(cached)
    return cached


def _installed_libraries(name: str) -> list[Path]:
    candidates = [_SOURCE_DIR / name]
    try:
        files = importlib.metadata.distribution("prgec").files or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    # An editable install keeps the library in site-packages while this module runs from the source tree.
    candidates += [Path(str(file.locate())) for file in files if file.name == name]
    return candidates


def _is_stale(library: Path) -> bool:
    is_packaged = library.resolve().parent == _SOURCE_DIR
    built = library.stat().st_mtime
    return not is_packaged and any(source.stat().st_mtime > built for source in _sources())


def _sources() -> list[Path]:
    folders = (_SOURCE_DIR, _DRIVER_DIR / "src", _DRIVER_DIR / "python")
    return sorted(path for each in folders for path in each.rglob("*") if path.suffix in _SOURCE_SUFFIXES)


def _cache_dir() -> Path:
    digest = hashlib.sha256(VERSION.encode())
    for source in _sources():
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "prgec" / f"ops-{digest.hexdigest()[:16]}"


def _build(target: Path) -> None:
    """Build into a scratch folder, then move into place, so that an interrupted build leaves nothing half-written."""
    cmake = _find_tool("cmake")
    if cmake is None:
        raise _build_error("CMake is not installed")
    package = package_folder()
    if package is None:
        raise _build_error(f"executorch {VERSION} is not installed")
    prefix = package.parent
    _log.info("building the prge kernels into %s", target.parent)
    target.parent.mkdir(parents=True, exist_ok=True)
    ninja = _find_tool("ninja")
    generator = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"] if ninja else []
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        _run([cmake, "-S", str(_SOURCE_DIR), "-B", scratch, f"-DCMAKE_PREFIX_PATH={prefix}", *generator])
        _run([cmake, "--build", scratch, "--target", target.stem.removeprefix("lib")])
        os.replace(Path(scratch) / target.name, target)


def _find_tool(name: str) -> str | None:
    # The environment's own tools come first: those of the machine are often too old.
    scripts = sysconfig.get_path("scripts")
    return shutil.which(name, path=os.pathsep.join((scripts, os.environ.get("PATH", ""))))


def _run(command: list[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        lines = [line.strip() for line in (result.stderr + result.stdout).splitlines() if line.strip()]
        first = next((i for i, line in enumerate(lines) if "error" in line.lower()), 0)
        raise _build_error(" ".join(lines[first : first + 2]) or "no output")


def _build_error(reason: str) -> BackendError:
    return BackendError(
        f"cannot build the prge kernels: {reason}",
        where=_SOURCE_DIR,
        hint="install prgec from a wheel, or install a C++17 compiler and `pip install cmake ninja`",
    )
