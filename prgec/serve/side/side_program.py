"""A side network on the device: a second small .pte whose result is added to what the model says.

Letters: n rows, B rows a call, L blocks, K label positions, D width, C candidates.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from prgec.core.contract.arrays import FloatArray
from prgec.core.contract.names import SIDE_CONTRACT_VERSION, SIDE_METHOD, SIDE_NETWORK_METHOD, VERSION_METHOD
from prgec.errors import ProgramError
from prgec.runtime.engines.executorch.pte_file import compare
from prgec.runtime.engines.executorch.runtime import (
    check_signature,
    constant,
    float_array,
    load_method_of,
    load_raw,
    load_runtime,
)
from prgec.runtime.engines.executorch.verified import check_table
from prgec.serve.side.description import SideDescription


class SideProgram:
    """A .pte of `prgec side build`, loaded.

    Attributes:
        path: File it was opened from.
        description: Its description.
    """

    def __init__(self, path: Path, description: SideDescription, method: Any) -> None:
        self.path = path
        self.description = description
        self._side = method

    def run(self, acts: FloatArray) -> FloatArray:
        """Return what to add to the scores of the candidates: f32[n, K, C] of f32[n, L, K, D].

        Raises:
            ProgramError: If the runtime reports a failure.
        """
        size = self.description.batch_size
        found = []
        for at in range(0, len(acts), size):
            part = acts[at : at + size]
            filled = np.zeros((size, *acts.shape[1:]), dtype=np.float32)
            filled[: len(part)] = part
            try:
                (y_side,) = self._side([float_array(filled)])
            except RuntimeError as error:
                raise ProgramError(f"the side network failed to run: {error}", where=self.path) from error
            found.append(y_side[: len(part)])
        return np.concatenate(found)


def open_side(path: Path, *, verify: bool = True) -> SideProgram:
    """Map the program of a side network and load its method.

    Args:
        path: The .pte.
        verify: Whether to compare its bytes with its checksums, before the runtime sees any of them.

    Raises:
        ProgramError: If the file is missing, damaged, or of another kind or version.
        BackendError: If what its backend needs cannot be loaded.
    """
    checksums = compare(path, verify=verify)
    raw = load_raw(path)
    version = constant(raw, VERSION_METHOD, path)
    if version != SIDE_CONTRACT_VERSION:
        raise ProgramError(
            f"the program speaks contract version {version}; a side network speaks {SIDE_CONTRACT_VERSION}",
            where=path,
            hint="--side takes what prgec side build writes",
        )
    description = SideDescription.from_json(constant(raw, SIDE_NETWORK_METHOD, path), path)
    check_table(checksums, description.has_checksums, path, verify=verify)
    load_runtime(description.backend)
    method = load_method_of(raw, SIDE_METHOD, path, description.backend)
    check_signature(method, ("acts",), path)
    return SideProgram(path, description, method)
