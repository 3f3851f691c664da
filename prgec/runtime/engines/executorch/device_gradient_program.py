"""A program that computes its own gradients and keeps its state on a device, which returns it after the losses.

Letters: B examples a step, T tokens, K label positions.
"""

from __future__ import annotations

from collections.abc import Mapping

from prgec.core.contract.arrays import FloatArray, State
from prgec.core.contract.calls import ONLY_CALL, Batch, Call, label_weights
from prgec.core.contract.names import FORWARD_METHOD
from prgec.runtime.engines.executorch.device_program import check_is_state, masters_behind, zeros_of
from prgec.runtime.engines.executorch.gradient_program import GradientProgram, trained_inputs
from prgec.runtime.engines.executorch.runtime import LoadMethod, float_scalar, int_rows


class DeviceGradientProgram(GradientProgram):
    """A program of contract 2 whose manifest says `state_access: outputs`.

    It has one method. Evaluating is a step with a learning rate of 0, which changes nothing and costs as much as a
    step. The optimiser's state beside the masters never leaves the device.
    """

    def _bind_state(self, load_method: LoadMethod) -> None:
        self._forward = load_method(FORWARD_METHOD, (*trained_inputs(self.manifest), "lr"))
        self._masters = zeros_of(self.manifest)

    def train(self, batch: Batch, lr: float, call: Call = ONLY_CALL) -> tuple[FloatArray, FloatArray]:
        """Take one training step, always in one call; with a learning rate of 0, none.

        Returns:
            The losses f32[B] of the state before the step, and what became of the gradient f32[4].

        Raises:
            ProgramError: If the runtime reports a failure.
        """
        del call
        inputs = [*int_rows(batch), *label_weights(self.manifest, batch.weights_NK), float_scalar(lr)]
        loss_B, factors, *masters = self._execute(self._forward, inputs)
        self._masters = masters_behind(masters, self._masters, self.path)
        return loss_B, factors

    def evaluate(self, batch: Batch) -> FloatArray:
        """Return the loss of every row under the present state: f32[B]; rows are B different texts.

        Raises:
            ProgramError: If the runtime reports a failure.
        """
        return self.train(batch, 0.0)[0]

    def read_state(self) -> State:
        """Return copies of the masters after the last call, in site order; zeros before the first."""
        return {name: master.copy() for name, master in self._masters.items()}

    def write_state(self, state: Mapping[str, FloatArray]) -> None:
        """Refuse: the delegate owns its state.

        Raises:
            ProgramError: Always, unless the program is in that state already.
        """
        check_is_state(state, self._masters, self.manifest, self.path, hint="take its steps again with --resume")

    def read_optimizer(self) -> State:
        """Return nothing: no host reads it."""
        return {}

    def forget_steps(self) -> None:
        """Nothing to do: nothing can be put into such a program, so nothing is ever to be forgotten."""

    def write_optimizer(self, state: Mapping[str, FloatArray]) -> None:
        """Refuse: the delegate owns its state.

        Raises:
            ProgramError: If there is any in `state`.
        """
        self._overwrite({}, state)
