"""A program that keeps its state on a device: it returns it after the losses, and nothing can be written into it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from prgec.core.contract.arrays import FloatArray, State
from prgec.core.contract.calls import StepInputs
from prgec.core.contract.manifest import Manifest
from prgec.core.contract.names import FORWARD_INPUTS, FORWARD_METHOD
from prgec.errors import ProgramError
from prgec.runtime.engines.executorch.pte_program import PteProgram
from prgec.runtime.engines.executorch.reserve import rows_of_nothing
from prgec.runtime.engines.executorch.runtime import LoadMethod


class DeviceProgram(PteProgram):
    """A program whose manifest says `state_access: outputs`.

    It has one method. `apply` is a `forward` that perturbs nothing and whose losses nobody reads: as dear as a step.
    """

    def _bind_state(self, load_method: LoadMethod) -> None:
        self._forward = load_method(FORWARD_METHOD, (*FORWARD_INPUTS, *self._hidden_input))
        self._masters = zeros_of(self.manifest)

    def _keep(self, outputs: Sequence[Any]) -> None:
        self._masters = masters_behind(outputs, self._masters, self.path)

    def apply(self, step: StepInputs) -> None:
        """Perform only the update that `forward` of the step performs on entry.

        Raises:
            ProgramError: If the runtime reports a failure.
        """
        self.forward(rows_of_nothing(self.manifest), replace(step, eps=0.0))

    def read_state(self) -> State:
        """Return copies of the masters after the last call, in site order; zeros before the first."""
        return {name: master.copy() for name, master in self._masters.items()}

    def write_state(self, state: Mapping[str, FloatArray]) -> None:
        """Refuse: the delegate owns its state.

        Raises:
            ProgramError: Always, unless the program is in that state already.
        """
        check_is_state(state, self._masters, self.manifest, self.path, hint="replay its journal with --resume")


def zeros_of(manifest: Manifest) -> State:
    """Return the masters of a program before its first call."""
    return {site.state_name: np.zeros((manifest.rank, site.out_features), dtype=np.float32) for site in manifest.sites}


def masters_behind(outputs: Sequence[Any], masters: State, path: Path) -> State:
    """Return the masters that a call returned, by the names of those before it.

    Raises:
        ProgramError: If there are more or fewer.
    """
    if len(outputs) != len(masters):
        raise ProgramError(f"the program returns {len(outputs)} masters; its manifest names {len(masters)}", where=path)
    return dict(zip(masters, outputs, strict=True))


def check_is_state(
    state: Mapping[str, FloatArray], masters: State, manifest: Manifest, path: Path, *, hint: str
) -> None:
    """Refuse a state other than `masters`, to the bit: nothing can be written into a device.

    Raises:
        ProgramError: With `hint`, the way to the state.
    """
    if set(state) != set(masters) or not all(np.array_equal(state[name], masters[name]) for name in masters):
        raise ProgramError(
            f"a program for {manifest.backend} keeps its state on the device; no adapter can be put into it",
            where=path,
            hint=hint,
        )
