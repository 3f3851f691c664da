"""The trained state as a file: one f32 master per site in safetensors, tied to the weights it belongs to.

Tensors are named `<site>.lora_B`, f32[r, out]. The frozen A matrices follow from `a_seed`; where they were given at
compile time instead, they are stored too (`<site>.lora_A`, f32[r, in]), so that an adapter never loses its A.
Letters: q queries, r rank.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from prgec.core.contract.arrays import FloatArray, State
from prgec.core.contract.engine import TrainableProgram, optimizer_names, state_sha256
from prgec.core.contract.manifest import Manifest
from prgec.core.contract.names import CONTRACT_VERSION, DUAL_EPS_STATE
from prgec.core.contract.sums import ordered_mean
from prgec.core.formats.lora_a import frozen_a
from prgec.core.formats.peft import is_peft_folder, read_peft
from prgec.core.formats.run_folder import ADAPTER_NAME
from prgec.core.machine.files import write_atomic
from prgec.errors import ProgramError

ADAPTER_FORMAT = "prgec-lora-fa"
# One state-mode independent [r, out] array per site has this many axes; `dual` keeps [q, 2, r, out].
_MASTER_RANK = 2
# Tensors begin at a multiple of this many bytes.
_ALIGNMENT = 8
# Further metadata of a snapshot.
_OPTIMIZER_SHA256, _STEP = "optimizer_sha256", "step"
# Letters of a value that an error has room for: a SHA-256 fits.
_SHOWN = 64
# Fields that must be equal in an adapter and a program.
_BONDS = ("format", "contract", "base_sha256", "a_seed", "a_sha256", "rank", "alpha", "targets")


def masters(state: Mapping[str, FloatArray], manifest: Manifest) -> State:
    """Return the master of every site: f32[r, out].

    In `dual` state the copies are M + eps z_i and M - eps z_i, so their mean over queries and signs is M.
    """
    result: State = {}
    for site in manifest.sites:
        array = state[site.state_name]
        copies = array.reshape(-1, *array.shape[-_MASTER_RANK:])
        mean = ordered_mean(np.moveaxis(copies, 0, -1).astype(np.float64))
        result[site.state_name] = mean.astype(np.float32)
    return result


def adapter_metadata(manifest: Manifest) -> dict[str, str]:
    """Return what ties an adapter to its base model, as safetensors metadata (text values only)."""
    given = {"a_sha256": manifest.a_sha256} if manifest.a_sha256 else {}
    return {
        **given,
        "format": ADAPTER_FORMAT,
        "contract": str(CONTRACT_VERSION),
        "model": manifest.model,
        "base_sha256": manifest.base_sha256,
        "a_seed": str(manifest.a_seed),
        "rank": str(manifest.rank),
        "alpha": repr(float(manifest.alpha)),
        "targets": json.dumps([[site.name, site.index] for site in manifest.sites], ensure_ascii=False),
    }


def identity(manifest: Manifest) -> str:
    """Return a hash of what an adapter belongs to; a journal names its program by it.

    A program that computes gradients has the rules of its steps in its pipeline.
    """
    bonds = {key: value for key, value in adapter_metadata(manifest).items() if key != "model"}
    rules = manifest.pipeline if manifest.has_gradients else ""
    return hashlib.sha256(_compact_json(dict(sorted(bonds.items()))) + rules.encode()).hexdigest()


def masters_sha256(program: TrainableProgram) -> str:
    """Return the hash of the program's present masters."""
    return state_sha256(masters(program.read_state(), program.manifest))


def save_adapter(path: Path, program: TrainableProgram) -> None:
    """Write the program's present state as an adapter, atomically. Flush pending updates first."""
    tensors = {**masters(program.read_state(), program.manifest), **program.stored_lora_a()}
    write_atomic(path, pack_adapter(tensors, adapter_metadata(program.manifest)))


def save_snapshot(path: Path, program: TrainableProgram, step: int) -> None:
    """Write everything a program that computes gradients needs to go on after `step` steps: adapter and optimiser."""
    optimizer = program.read_optimizer()
    tensors = {**masters(program.read_state(), program.manifest), **optimizer}
    # A journal has the hash of the masters alone, which may be those of several steps.
    own = {_OPTIMIZER_SHA256: state_sha256(optimizer), _STEP: str(step)}
    metadata = {**adapter_metadata(program.manifest), **own}
    write_atomic(path, pack_adapter(tensors, metadata))


def load_snapshot(path: Path, program: TrainableProgram) -> int:
    """Put a snapshot back; return after how many steps it was taken, 0 where it does not say.

    Raises:
        ProgramError: If the file is missing or damaged, or belongs to another program or optimiser.
    """
    tensors, metadata = read_adapter(path)
    _check_metadata(path, metadata, program.manifest, _BONDS)
    try:
        optimizer = {name: tensors.pop(name) for name in optimizer_names(program.manifest)}
    except KeyError as error:
        raise ProgramError(f"the snapshot has no {error.args[0]}: it is of another optimiser", where=path) from error
    if metadata.get(_OPTIMIZER_SHA256) != state_sha256(optimizer):
        raise ProgramError("the optimiser's state is damaged", where=path)
    program.write_state(tensors)
    program.write_optimizer(optimizer)
    step = metadata.get(_STEP, "")
    return int(step) if step.isascii() and step.isdecimal() else 0


def pack_adapter(tensors: Mapping[str, FloatArray], metadata: Mapping[str, str]) -> bytes:
    """Return a safetensors file whose bytes follow from its content (docs/decisions/006-one-order.md).

    Args:
        tensors: f32 arrays by name.
        metadata: Text values by name.
    """
    header: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))}
    parts, end = [], 0
    for name, array in sorted(tensors.items()):
        parts.append(np.ascontiguousarray(array, dtype="<f4").tobytes())
        start, end = end, end + len(parts[-1])
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [start, end]}
    text = _compact_json(header)
    text += b" " * (-len(text) % _ALIGNMENT)
    return b"".join([len(text).to_bytes(8, "little"), text, *parts])


def _compact_json(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def load_adapter(path: Path, program: TrainableProgram) -> None:
    """Put an adapter's masters into the program's state; nothing of the program is loaded again.

    The optimiser starts afresh: it keeps nothing of steps that were taken before.

    Args:
        path: A run folder, its `adapter.safetensors`, or the folder of a PEFT adapter with the program's A.
        program: The program.

    Raises:
        ProgramError: If the file is missing or damaged, or belongs to another base model, A or set of sites; the
            state is then unchanged.
    """
    tensors = _peft_tensors(path, program) if is_peft_folder(path) else _own_tensors(path, program)
    state = program.read_state()
    for site in program.manifest.sites:
        state[site.state_name] = _expand(tensors.get(site.state_name), state[site.state_name], site.state_name, path)
    program.write_state({DUAL_EPS_STATE: state[DUAL_EPS_STATE], **state} if DUAL_EPS_STATE in state else state)
    program.forget_steps()


def _own_tensors(path: Path, program: TrainableProgram) -> State:
    tensors, metadata = read_adapter(path / ADAPTER_NAME if path.is_dir() else path)
    _check_metadata(path, metadata, program.manifest, _BONDS)
    return tensors


def _peft_tensors(path: Path, program: TrainableProgram) -> State:
    adapter, manifest = read_peft(path), program.manifest
    # An adapter we wrote says what it belongs to; PEFT itself keeps the name of the base model alone.
    if "base_sha256" in adapter.metadata:
        _check_metadata(path, adapter.metadata, manifest, ("base_sha256",))
    for key, found, expected in (
        ("rank", adapter.rank, manifest.rank),
        ("alpha", adapter.alpha, manifest.alpha),
        ("sites", adapter.sites, tuple(sorted(s.name for s in manifest.sites))),
    ):
        if found != expected:
            theirs, ours = _where_they_part(str(found), str(expected))
            raise ProgramError(
                f"the PEFT adapter does not fit the program: its {key} is {theirs}, the program's is {ours}",
                where=path,
                hint=f"compile with --lora-a {path}",
            )
    for name, matrix in frozen_a(manifest, program.stored_lora_a()).items():
        if not np.array_equal(adapter.tensors[name], matrix):
            raise ProgramError(
                f"the PEFT adapter's {name} is not the program's", where=path, hint=f"compile with --lora-a {path}"
            )
    return adapter.tensors


def _check_metadata(path: Path, metadata: Mapping[str, str], manifest: Manifest, keys: Sequence[str]) -> None:
    expected = adapter_metadata(manifest)
    for key in keys:
        if metadata.get(key) != expected.get(key):
            theirs, ours = _where_they_part(str(metadata.get(key)), str(expected.get(key)))
            raise ProgramError(
                f"the adapter does not fit the program: its {key} is {theirs}, the program's is {ours}", where=path
            )


def _where_they_part(theirs: str, ours: str) -> tuple[str, str]:
    """Two texts that differ, as much of them as a line has room for: names of layers take thousands of letters."""
    start = max(0, len(os.path.commonprefix((theirs, ours))) - _SHOWN // 3)
    return _piece(theirs, start), _piece(ours, start)


def _piece(text: str, start: int) -> str:
    if len(text) <= _SHOWN:
        return text
    rest = text[start:]
    return f"{'...' if start else ''}{rest[:_SHOWN]}{'...' if len(rest) > _SHOWN else ''}"


def read_adapter(path: Path) -> tuple[State, dict[str, str]]:
    """Return the tensors and the metadata of an adapter file.

    Raises:
        ProgramError: If the file is missing or damaged.
    """
    from safetensors import SafetensorError, safe_open

    try:
        # The stub of safe_open is incomplete in the supported versions.
        with safe_open(path, framework="numpy") as file:
            opened: Any = file
            return {name: opened.get_tensor(name) for name in opened.keys()}, opened.metadata() or {}  # noqa: SIM118
    except FileNotFoundError as error:
        raise ProgramError("no such adapter", where=path) from error
    except (SafetensorError, OSError) as error:
        raise ProgramError(f"not an adapter: {error}", where=path, hint="expected adapter.safetensors") from error


def _expand(master: FloatArray | None, like: FloatArray, name: str, path: Path) -> FloatArray:
    """Return the master, checked and repeated for every copy the state keeps."""
    shape = like.shape[-_MASTER_RANK:]
    if master is None or master.shape != shape or master.dtype != np.float32:
        found = "missing" if master is None else f"{master.dtype}{list(master.shape)}"
        raise ProgramError(f"the adapter's {name} is {found}; expected float32{list(shape)}", where=path)
    if not np.isfinite(master).all():
        raise ProgramError(f"the adapter's {name} holds values that are not finite", where=path)
    return np.broadcast_to(master, like.shape).copy()
