"""The targets that this machine can compile for and run, and what is missing for the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from prgec.backends import BACKENDS, load_backend
from prgec.compiler.plan.memory import memory_of
from prgec.compiler.plan.options import CALIBRATED
from prgec.compiler.plan.source import read_shape
from prgec.compiler.plan.workload import Workload
from prgec.core.machine.cross import arm64_missing
from prgec.core.machine.describe import describe_machine
from prgec.core.machine.extras import check_compiler
from prgec.core.machine.memory import available_memory_bytes
from prgec.core.machine.versions import version_of
from prgec.errors import PrgecError

# The largest model the reports have figures for.
REFERENCE_MODEL = "tinyllama"
REFERENCE_WEIGHTS = 1_100_000_000
_REFERENCE_SHAPE = "TinyLlama-1.1B"
_REFERENCE_WORK = Workload(quantize="8da4w")
_OPTIONAL = ("onnxruntime-qnn", "openvino", "sentencepiece", "tokenizers")


@dataclass(frozen=True, kw_only=True)
class BackendHealth:
    """One row of the backend table on this machine.

    Attributes:
        name: Row of the backend table.
        is_available: Whether `prgec compile --backend <name>` can work here.
        reason: Missing parts, and how to get them; empty where nothing is missing.
        memory_bytes: Memory that compiling a model of 1.1B parameters takes, as far as it was measured; else 0.
        training_bytes: Memory that training it takes in 4-bit weights, where that can be planned; else 0.
        found: Notable things on this machine for it, by name.
    """

    name: str
    is_available: bool
    reason: str
    memory_bytes: int
    training_bytes: int = 0
    found: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Health:
    """Everything `prgec doctor` reports.

    Attributes:
        machine: Processor, cores, memory, system and versions.
        memory_available_bytes: Memory that a compilation could have now.
        kernels: Path of the compiled prge kernels, or why there are none.
        has_kernels: Whether they loaded.
        backends: One entry for each row of the backend table; none where the compiler is not installed.
        compiler_missing: The reason for that; empty where it is installed.
        arm64_missing: Missing parts for building the C++ driver for 64-bit ARM and running it emulated.
    """

    machine: dict[str, Any]
    memory_available_bytes: int
    kernels: str
    has_kernels: bool
    backends: tuple[BackendHealth, ...]
    compiler_missing: str
    arm64_missing: tuple[str, ...] = ()

    @property
    def is_fit(self) -> bool:
        """Whether programs of the default backend can be run, and compiled where the compiler is installed."""
        return self.has_kernels and all(each.is_available for each in self.backends[:1])

    def to_json(self) -> dict[str, Any]:
        """The document `--json` prints."""
        return {"fit": self.is_fit, **asdict(self)}


def examine() -> Health:
    """Examine this machine; whatever is wrong ends up in the result, never in an exception."""
    machine = describe_machine()
    machine["versions"].update({name: version for name in _OPTIONAL if (version := version_of(name))})
    kernels, has_kernels = _kernels()
    missing = _compiler_missing()
    backends = () if missing else tuple(_backend(name) for name in BACKENDS)
    return Health(
        machine=machine,
        memory_available_bytes=available_memory_bytes(),
        kernels=kernels,
        has_kernels=has_kernels,
        backends=backends,
        compiler_missing=missing,
        arm64_missing=tuple(arm64_missing()),
    )


def _compiler_missing() -> str:
    try:
        check_compiler()
    except PrgecError as error:
        return str(error)
    return ""


def _backend(name: str) -> BackendHealth:
    backend = load_backend(name)
    memory_bytes = backend.memory_bytes(REFERENCE_WEIGHTS, "none", _REFERENCE_WORK.rows * _REFERENCE_WORK.seq_len)
    training = memory_of(read_shape(_REFERENCE_SHAPE), _REFERENCE_WORK).total if name == CALIBRATED else 0
    try:
        backend.check()
    except PrgecError as error:
        return BackendHealth(
            name=name, is_available=False, reason=str(error), memory_bytes=memory_bytes, training_bytes=training
        )
    return BackendHealth(
        name=name,
        is_available=True,
        reason="",
        memory_bytes=memory_bytes,
        training_bytes=training,
        found=backend.found(),
    )


def _kernels() -> tuple[str, bool]:
    from prgec.runtime_ops.native import kernel_library, load_kernels

    try:
        load_kernels()
        return str(kernel_library()), True
    except PrgecError as error:
        return str(error), False
