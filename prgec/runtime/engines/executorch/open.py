"""Opens a .pte as the kind of program its manifest says it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prgec.core.contract.arrays import State
from prgec.core.contract.manifest import Manifest
from prgec.core.contract.tokenizer import Tokenizer
from prgec.runtime.engines.executorch.device_gradient_program import DeviceGradientProgram
from prgec.runtime.engines.executorch.device_program import DeviceProgram
from prgec.runtime.engines.executorch.gradient_program import GradientProgram
from prgec.runtime.engines.executorch.host_gradient_program import HostGradientProgram
from prgec.runtime.engines.executorch.host_program import HostProgram
from prgec.runtime.engines.executorch.methods import Methods
from prgec.runtime.engines.executorch.pte_program import PteProgram
from prgec.runtime.engines.executorch.runtime import (
    check_signature,
    check_trains,
    keep_packed,
    load_method_of,
    load_raw,
    load_runtime,
    stored_lora_a,
)
from prgec.runtime.engines.executorch.verified import open_verified


def open_pte(path: Path, *, verify: bool = True) -> PteProgram:
    """Map a .pte, and the data file beside it where it has one, and load its methods; `prefix` when first needed.

    Args:
        path: The .pte.
        verify: Whether to compare its bytes with its checksums, before the runtime sees any of them.

    Raises:
        ProgramError: If a file is missing, damaged, not made by prgec, of another program or contract version, or the
            program's backend does not run here.
        BackendError: If the prge kernels, or what the backend needs, cannot be loaded.
    """
    return load_program(path, *open_verified(path, verify=verify))


def load_program(path: Path, raw: Methods, manifest: Manifest, tokenizer: Tokenizer) -> PteProgram:
    """Load the methods of a program that `open_verified` has mapped.

    Raises:
        ProgramError: If it does not train, or its backend does not run here.
        BackendError: If the prge kernels, or what the backend needs, cannot be loaded.
    """
    check_trains(manifest, path)
    load_runtime(manifest.backend)
    keep_packed(raw, manifest)

    def load(name: str, inputs: Sequence[str] | None) -> Any:
        method = load_method_of(raw, name, path, manifest.backend)
        check_signature(method, inputs, path)
        return method

    def read_a() -> State:
        return stored_lora_a(load_raw(path), manifest, path) if manifest.a_sha256 else {}

    kinds = _BY_GRADIENTS if manifest.has_gradients else _BY_LOSSES
    return kinds[manifest.state_access](path, manifest, tokenizer, load, read_a)


_BY_LOSSES: Mapping[str, type[PteProgram]] = {"buffers": PteProgram, "outputs": DeviceProgram, "inputs": HostProgram}
_BY_GRADIENTS: Mapping[str, type[PteProgram]] = {
    "buffers": GradientProgram,
    "outputs": DeviceGradientProgram,
    "inputs": HostGradientProgram,
}
