"""ExecuTorch's runtime as the driver uses it: mapped programs, constants, methods and the arrays they take.

Letters: q queries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from prgec.core.contract.arrays import FloatArray, IntArray, State
from prgec.core.contract.calls import Batch
from prgec.core.contract.layout import INSTRUCTIONS, TOKENIZER
from prgec.core.contract.manifest import Manifest
from prgec.core.contract.names import (
    CONTRACT_VERSIONS,
    FORWARD_METHOD,
    LORA_A_METHOD,
    MANIFEST_METHOD,
    TOKENIZER_METHOD,
    VERSION_METHOD,
)
from prgec.core.contract.plugins import load_plugin, plugins_of
from prgec.core.contract.tokenizer import Tokenizer
from prgec.core.machine.memory import give_back_freed
from prgec.core.machine.native_log import captured_stderr
from prgec.errors import ProgramError
from prgec.runtime.engines.executorch.methods import Method, Methods
from prgec.runtime.engines.executorch.pte_file import check_pte_file, compare

# Loads a method by its name, which takes inputs of these names; None for one whose inputs are not compared.
LoadMethod: TypeAlias = Callable[[str, Sequence[str] | None], Any]

_VERSIONS = ", ".join(map(str, CONTRACT_VERSIONS))
# The backend whose delegate makes copies of weights that a file can hold.
_PACKS = "xnnpack"
# Group of entry points: classes of backends, which know what to load.
_BACKENDS = "prgec.backends"
_LARGE_TOKENIZER_BYTES = 1_000_000
NOT_OURS = "this .pte was not made by prgec compile"


def read_constants(path: Path, *, verify: bool = True) -> tuple[Manifest, Tokenizer]:
    """Read a program's manifest and tokenizer, without loading a method or checking its weights.

    Args:
        path: The .pte.
        verify: Whether to compare what is read with its checksums.

    Raises:
        ProgramError: If the file is missing, damaged, not made by prgec, or of another contract version.
    """
    compare(path, verify=verify, only=(INSTRUCTIONS, TOKENIZER))
    _, manifest, tokenizer = open_constants(path)
    return manifest, tokenizer


def manifest_of(path: Path, *, verify: bool = True) -> Manifest:
    """Read what a program says of itself, as `read_constants`; a tokenizer takes a second and ten times its size."""
    compare(path, verify=verify, only=(INSTRUCTIONS,))
    return read_manifest(load_raw(path), path)


def open_forward(path: Path, backend: str) -> Method:
    """Load the forward of any ExecuTorch program, one of ours or not; it takes a sequence of arrays.

    Raises:
        ProgramError: If the file is missing or damaged, or `backend`, which it was lowered for, does not run here.
        BackendError: If the prge kernels cannot be loaded.
    """
    check_pte_file(path)
    raw = load_raw(path)
    load_runtime(backend)
    return load_method_of(raw, FORWARD_METHOD, path, backend)


def read_manifest(raw: Methods, path: Path) -> Manifest:
    """Return the manifest of a loaded ExecuTorch program.

    Raises:
        ProgramError: If it has none, or one of another contract version.
    """
    version = constant(raw, VERSION_METHOD, path)
    if version not in CONTRACT_VERSIONS:
        raise ProgramError(
            f"the program speaks contract version {version}; this prgec speaks {_VERSIONS}",
            where=path,
            hint="compile it again with this prgec",
        )
    text = constant(raw, MANIFEST_METHOD, path)
    if not isinstance(text, str):
        raise ProgramError("the program's manifest is not text", where=path, hint=NOT_OURS)
    return Manifest.from_json(text)


def open_constants(path: Path) -> tuple[Methods, Manifest, Tokenizer]:
    """Map a program and read what it says of itself and its tokenizer.

    Raises:
        ProgramError: As `read_constants`.
    """
    check_pte_file(path)
    raw = load_raw(path)
    manifest = read_manifest(raw, path)
    packed = constant_bytes(raw, TOKENIZER_METHOD, path)
    tokenizer = Tokenizer.unpack(packed)
    # Parsing frees twenty times as much: 300 MB for 262,144 tokens, more than a step may take.
    if len(packed) >= _LARGE_TOKENIZER_BYTES:
        give_back_freed()
    return raw, manifest, tokenizer


def load_raw(path: Path, data: Path | None = None) -> Methods:
    """Map a program, and the file of weights beside it where it has one.

    Raises:
        ProgramError: If the runtime cannot read it.
        BackendError: If the runtime cannot be loaded.
    """
    with captured_stderr() as log:
        try:
            # A path is mapped, not read: weights stay in the page cache.
            return Methods(path, data)
        except RuntimeError as error:
            failure = error
    raise ProgramError(f"the program is damaged: {log.last_error() or failure}", where=path) from failure


def load_runtime(backend: str) -> None:
    """Load our kernels, and what the programs of a backend need; a backend that is not installed may need nothing."""
    from prgec.runtime_ops.native import load_kernels

    with captured_stderr():
        load_kernels()
    if (point := plugins_of(_BACKENDS).get(backend)) is not None:
        load_plugin(point)().load_runtime()


def keep_packed(raw: Methods, manifest: Manifest) -> None:
    """Keep what a backend packs of the weights in a file, before any of its methods is loaded."""
    if manifest.backend == _PACKS:
        raw.keep_packed(manifest.base_sha256)


def load_method_of(raw: Methods, name: str, path: Path, backend: str) -> Method:
    """Load one method of a mapped program.

    Raises:
        ProgramError: If the runtime refuses, as it does for a backend it does not have.
    """
    with captured_stderr() as log:
        try:
            return raw.load_method(name)
        except RuntimeError as error:
            failure = error
    raise ProgramError(
        f"cannot load method {name}: {log.last_error() or failure}",
        where=path,
        hint=f"it was compiled for backend {backend}",
    ) from failure


def check_trains(manifest: Manifest, path: Path) -> None:
    """Check that a program has losses to train and to choose by.

    Raises:
        ProgramError: If it emits activations instead.
    """
    if manifest.emits:
        raise ProgramError(
            "the program has no losses: it emits activations for a side network",
            where=path,
            hint="prgec side emit runs it; eval and predict take the network with --side",
        )


def check_signature(method: Method, names: Sequence[str] | None, path: Path) -> None:
    """Check the number of inputs of a method, where their names are known.

    Raises:
        ProgramError: If it is not that of `names`.
    """
    if names is not None and method.num_inputs != len(names):
        raise ProgramError(
            f"a method takes {method.num_inputs} inputs; the contract has {len(names)}", where=path, hint=NOT_OURS
        )


def constant(raw: Methods, name: str, path: Path) -> Any:
    """Return the value of a constant method.

    Raises:
        ProgramError: If there is none of the name.
    """
    if not raw.has(name):
        raise ProgramError(f"the program has no {name}", where=path, hint=NOT_OURS)
    try:
        with captured_stderr():
            (value,) = raw.load_method(name)([])
    except (RuntimeError, ValueError, KeyError) as error:
        raise ProgramError(f"cannot read {name}: {error}", where=path, hint=NOT_OURS) from error
    return value


def constant_bytes(raw: Methods, name: str, path: Path) -> bytes:
    """Return the bytes of a constant method that holds a tensor of them.

    Raises:
        ProgramError: If there is none of the name.
    """
    value = constant(raw, name, path)
    if not isinstance(value, np.ndarray):
        raise ProgramError(f"{name} is not a tensor of bytes", where=path, hint=NOT_OURS)
    return value.astype(np.uint8).tobytes()


def stored_lora_a(raw: Methods, manifest: Manifest, path: Path) -> State:
    """Return the A matrices a program carries because they were given; empty where they follow from a seed.

    Raises:
        ProgramError: If they are damaged.
    """
    if not manifest.a_sha256:
        return {}
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        matrices: State = load(constant_bytes(raw, LORA_A_METHOD, path))
    except SafetensorError as error:
        raise ProgramError(f"the program's A matrices are damaged: {error}", where=path, hint=NOT_OURS) from error
    return matrices


def int_arrays(*arrays: IntArray) -> list[Any]:
    """Return arrays as a method takes them: i64."""
    return [np.ascontiguousarray(array, dtype=np.int64) for array in arrays]


def int_rows(batch: Batch) -> list[Any]:
    """Return the rows of a batch as a method takes them: tokens, label positions and targets."""
    return int_arrays(batch.tokens_NT, batch.label_pos_NK, batch.targets_NK)


def float_array(array: FloatArray) -> FloatArray:
    """Return an array as a method takes it: f32."""
    return np.ascontiguousarray(array, dtype=np.float32)


def float_scalar(value: float) -> FloatArray:
    """Return an f32[]; infinite where f32 ends, and the losses then say so."""
    with np.errstate(over="ignore"):
        return np.array(value, dtype=np.float32)


def scalars(g_q: FloatArray, *values: float) -> list[Any]:
    """Return g as f32[q], and each value as f32[]."""
    return [float_array(g_q), *map(float_scalar, values)]


def keys(seed: int, step: int) -> list[Any]:
    """Return the key of the noise as two i64[]."""
    return [np.array(value, dtype=np.int64) for value in (seed, step)]
