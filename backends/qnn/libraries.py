"""Finds Qualcomm's libraries on this machine: a genuine SDK first, else those of the package onnxruntime-qnn.

Nothing is loaded here and nothing of torch or executorch is imported.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
from dataclasses import dataclass
from pathlib import Path

from prgec.core.machine.extras import extra_hint
from prgec.errors import BackendError

SDK_VARIABLE = "QNN_SDK_ROOT"
PACKAGE = "onnxruntime-qnn"
INSTALL_HINT = f"{extra_hint('qnn')}, or set {SDK_VARIABLE} to a Qualcomm AI Runtime SDK"
HTP, SYSTEM, PREPARE = "libQnnHtp.so", "libQnnSystem.so", "libHtpPrepare.so"

_SDK_FOLDER = Path("lib") / "x86_64-linux-clang"
_NEEDED = (HTP, SYSTEM, PREPARE)
_SDK_NEEDED = (HTP, SYSTEM)
# Where the two sources keep the text that governs their use, most specific first.
_LICENCES = ("Qualcomm_LICENSE.pdf", "LICENSE.pdf", "LICENSE")


@dataclass(frozen=True)
class QnnLibraries:
    """Where Qualcomm's libraries are.

    Attributes:
        folder: Holds libQnnHtp.so and its companions.
        origin: Source of the libraries: `QNN_SDK_ROOT`, or the package with its version.
        licence: The licence that came with them; None if none did.
    """

    folder: Path
    origin: str
    licence: Path | None


def find_libraries() -> QnnLibraries:
    """Return the libraries a compilation or a simulation will use.

    Raises:
        BackendError: If there are none, some are missing, or this machine cannot run them.
    """
    machine = f"{platform.system()} {platform.machine()}"
    if machine != "Linux x86_64":
        raise BackendError(f"Qualcomm's compiler and simulator run on Linux x86_64; this is {machine}")
    root = os.environ.get(SDK_VARIABLE)
    return _from_sdk(Path(root)) if root else _from_package()


def _from_sdk(root: Path) -> QnnLibraries:
    folder = root / _SDK_FOLDER
    _check_complete(
        folder,
        _SDK_NEEDED,
        f"{SDK_VARIABLE} is not a Qualcomm AI Runtime SDK",
        f"set it to the folder that has {_SDK_FOLDER}, or unset it to use {PACKAGE}",
    )
    return QnnLibraries(folder, SDK_VARIABLE, _licence(root))


def _from_package() -> QnnLibraries:
    # Without importing it: that would start onnxruntime.
    found = importlib.util.find_spec("onnxruntime_qnn")
    if found is None or not found.submodule_search_locations:
        raise BackendError("Qualcomm's libraries are not on this machine", hint=INSTALL_HINT)
    folder = Path(next(iter(found.submodule_search_locations)))
    _check_complete(folder, _NEEDED, f"{PACKAGE} is incomplete", f"pip install --force-reinstall {PACKAGE}")
    return QnnLibraries(folder, f"{PACKAGE} {importlib.metadata.version(PACKAGE)}", _licence(folder))


def _check_complete(folder: Path, names: tuple[str, ...], what: str, hint: str) -> None:
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise BackendError(f"{what}: no {', '.join(missing)}", where=folder, hint=hint)


def _licence(folder: Path) -> Path | None:
    return next((folder / name for name in _LICENCES if (folder / name).is_file()), None)
