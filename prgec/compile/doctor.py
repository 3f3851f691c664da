"""What this machine can compile for and run, and what is missing for the rest."""

from __future__ import annotations

import importlib.metadata
from dataclasses import asdict, dataclass
from typing import Any

from prgec.backends import BACKENDS, load_backend
from prgec.errors import PrgecError
from prgec.machine.describe import describe_machine
from prgec.machine.memory import available_memory_bytes

# The largest model the reports have figures for.
REFERENCE_MODEL = "tinyllama"
REFERENCE_WEIGHTS = 1_100_000_000
_OPTIONAL = ("onnxruntime-qnn", "sentencepiece", "tokenizers")


@dataclass(frozen=True)
class BackendHealth:
    """One row of the backend table on this machine.

    Attributes:
        name: Row of the backend table.
        is_available: Whether `prgec compile --backend <name>` can work here.
        reason: What is missing, and how to get it; empty where nothing is.
        memory_bytes: Memory that compiling a model of 1.1B parameters takes, as far as it was measured; else 0.
    """

    name: str
    is_available: bool
    reason: str
    memory_bytes: int


@dataclass(frozen=True)
class QnnHealth:
    """Qualcomm's libraries as a compilation would find them.

    Attributes:
        origin: `QNN_SDK_ROOT`, or the package that brought them.
        folder: Where they are.
        build: What they say of themselves.
        licence: The text that governs their use; empty if none came with them.
    """

    origin: str
    folder: str
    build: str
    licence: str


@dataclass(frozen=True)
class Health:
    """Everything `prgec doctor` reports.

    Attributes:
        machine: Processor, cores, memory, system and versions.
        memory_available_bytes: What a compilation could have now.
        kernels: Path of the compiled prge kernels, or why there are none.
        has_kernels: Whether they loaded.
        backends: One entry for each row of the backend table.
        qnn: None where there are no usable libraries.
    """

    machine: dict[str, Any]
    memory_available_bytes: int
    kernels: str
    has_kernels: bool
    backends: tuple[BackendHealth, ...]
    qnn: QnnHealth | None

    @property
    def is_fit(self) -> bool:
        """Whether programs of the default backend can be compiled and run."""
        return self.has_kernels and self.backends[0].is_available

    def to_json(self) -> dict[str, Any]:
        """The document `--json` prints."""
        return {"fit": self.is_fit, **asdict(self)}


def examine() -> Health:
    """Examine this machine; whatever is wrong ends up in the result, never in an exception."""
    machine = describe_machine()
    machine["versions"].update({name: version for name in _OPTIONAL if (version := _version(name))})
    kernels, has_kernels = _kernels()
    backends = tuple(_backend(name) for name in BACKENDS)
    return Health(machine, available_memory_bytes(), kernels, has_kernels, backends, _qnn())


def _backend(name: str) -> BackendHealth:
    backend = load_backend(name)
    try:
        backend.check()
    except PrgecError as error:
        return BackendHealth(name, False, str(error), backend.memory_bytes(REFERENCE_WEIGHTS, "none"))
    return BackendHealth(name, True, "", backend.memory_bytes(REFERENCE_WEIGHTS, "none"))


def _kernels() -> tuple[str, bool]:
    from prgec.runtime_ops.native import kernel_library, load_kernels

    try:
        load_kernels()
        return str(kernel_library()), True
    except PrgecError as error:
        return str(error), False


def _qnn() -> QnnHealth | None:
    from prgec.backends.qnn.loading import load_libraries

    try:
        loaded = load_libraries()
    except PrgecError:
        return None
    licence = str(loaded.libraries.licence or "")
    return QnnHealth(loaded.libraries.origin, str(loaded.libraries.folder), loaded.build, licence)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
