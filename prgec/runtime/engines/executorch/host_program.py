"""A program whose state the host keeps: every call takes the copies of B, and nothing in it is an operator of prgec.

Letters: q queries, r rank, O outputs of a site.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from prgec.core.contract.calls import StepInputs
from prgec.core.contract.manifest import Manifest
from prgec.core.contract.names import FORWARD_METHOD, ROW_INPUTS, STATE_INPUT
from prgec.runtime.engines.executorch.device_program import zeros_of
from prgec.runtime.engines.executorch.pte_program import PteProgram
from prgec.runtime.engines.executorch.runtime import LoadMethod
from prgec.runtime_ops.host import dual_update


class HostProgram(PteProgram):
    """A program of contract 1 whose manifest says `state: host`.

    It has no `apply`: the update happens here, in the arithmetic of the kernels, so that a run is that of `seeded`
    state bit for bit.
    """

    @property
    def _evaluated_inputs(self) -> tuple[str, ...]:
        return inputs_of(self.manifest)

    def _bind_state(self, load_method: LoadMethod) -> None:
        m = self.manifest
        self._forward = load_method(FORWARD_METHOD, (*self._evaluated_inputs, *self._hidden_input))
        self._state = zeros_of(m)
        self._copies = [np.empty((2 * m.q, m.rank, site.out_features), dtype=np.float32) for site in m.sites]

    def _of_step(self, step: StepInputs) -> Sequence[Any]:
        for site, master, copies in zip(self.manifest.sites, self._state.values(), self._copies, strict=True):
            dual_update(master, step.g_q, step.lr, step.eps, step.seed, step.step, site.index, copies)
        return self._copies

    def apply(self, step: StepInputs) -> None:
        """Perform only the update that `forward` of the step performs on entry; nothing of the program runs."""
        for site, master in zip(self.manifest.sites, self._state.values(), strict=True):
            dual_update(master, step.g_q, step.lr, 0.0, step.seed, step.step, site.index)


def inputs_of(manifest: Manifest, rows: Sequence[str] = ROW_INPUTS) -> tuple[str, ...]:
    """Names of what a method takes: rows, those of a method that measures losses by default, and the host's state."""
    return (*rows, *(STATE_INPUT.format(index) for index in range(len(manifest.sites))))
