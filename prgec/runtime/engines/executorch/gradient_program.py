"""A program that computes its own gradients: a call measures, differentiates and updates, and nothing is pending.

Letters: B examples a step, T tokens, K label positions.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from prgec.core.contract.arrays import FloatArray, State
from prgec.core.contract.calls import ONLY_CALL, Batch, Call, StepInputs, label_weights
from prgec.core.contract.engine import optimizer_names, state_names
from prgec.core.contract.manifest import Manifest
from prgec.core.contract.names import (
    CALL_INPUT,
    EVALUATE_INPUTS,
    EVALUATE_METHOD,
    FORWARD_METHOD,
    ROW_INPUTS,
    WEIGHTS_INPUT,
)
from prgec.core.machine.memory import give_back_freed
from prgec.errors import InternalError
from prgec.runtime.engines.executorch.pte_program import PteProgram
from prgec.runtime.engines.executorch.runtime import LoadMethod, float_scalar, int_arrays, int_rows


class GradientProgram(PteProgram):
    """A program whose manifest says `method: exact` or `shortcut` (contract 2).

    It evaluates with a method of its own, which is loaded first: who only evaluates never pays for the gradients.
    """

    @property
    def _evaluated_inputs(self) -> tuple[str, ...]:
        return EVALUATE_INPUTS

    def _bind_state(self, load_method: LoadMethod) -> None:
        self._evaluate = load_method(EVALUATE_METHOD, (*EVALUATE_INPUTS, *self._hidden_input))
        self._state = {name: self._attribute(self._evaluate, name) for name in state_names(self.manifest)}
        inputs = (*trained_inputs(self.manifest), "lr", *((CALL_INPUT,) if self.manifest.accumulates else ()))
        self._load_forward = functools.cache(lambda: load_method(FORWARD_METHOD, (*inputs, *self._hidden_input)))

    def train(self, batch: Batch, lr: float, call: Call = ONLY_CALL) -> tuple[FloatArray, FloatArray]:
        """Take one training step, or one call of it.

        Args:
            batch: B different rows.
            lr: Learning rate of this step.
            call: Which call of its step this is; more than one only where the manifest says `accumulates`.

        Returns:
            The losses f32[B] of the state before the step, and what became of the gradient f32[4]: its scale, 0 where
            it was not finite and changed nothing, its norm, and the corrections of running means.

        Raises:
            ProgramError: If the runtime reports a failure, or the batch has label weights and the program takes none.
        """
        self.make_room(batch.tokens_NT.shape[1])
        inputs = [*int_rows(batch), *label_weights(self.manifest, batch.weights_NK), float_scalar(lr)]
        inputs += int_arrays(np.array(call)) if self.manifest.accumulates else []
        loss_B, factors = self._execute(self._load_forward(), [*inputs, *self._hidden(batch)])
        return loss_B, factors

    def _run_longest(self, batch: Batch) -> None:
        self._load_forward()
        # Memory freed after scoring and loading would otherwise add to the peak.
        give_back_freed()
        # A rate of 0 leaves the weights as they are, and the optimiser has no earlier step to remember. So nothing
        # needs to be kept meanwhile, at what may be the peak of memory.
        self.train(batch, 0.0)
        self.forget_steps()

    def evaluate(self, batch: Batch) -> FloatArray:
        """Return the loss of every row under the present state: f32[B]; rows are B different texts.

        Raises:
            ProgramError: If the runtime reports a failure.
        """
        inputs = [*self._with_state(*int_rows(batch)), *self._hidden(batch)]
        (loss_B,) = self._execute(self._evaluate, inputs)
        result: FloatArray = loss_B
        return result

    def forward(self, batch: Batch, step: StepInputs) -> FloatArray:
        """Nothing to call: this program trains by `train`.

        Raises:
            InternalError: Always.
        """
        raise InternalError("a program that computes gradients cannot measure losses")

    def apply(self, step: StepInputs) -> None:
        """Nothing is ever pending.

        Raises:
            InternalError: Always.
        """
        raise InternalError("a program that computes gradients has no update to apply")

    def read_optimizer(self) -> State:
        """Return copies of the optimiser's state by name."""
        return {name: tensor.copy() for name, tensor in self._optimizer().items()}

    def write_optimizer(self, state: Mapping[str, FloatArray]) -> None:
        """Overwrite the optimiser's state; nothing is written if any name or shape is wrong.

        Raises:
            ProgramError: If names or shapes differ from the program's, or the runtime reports a failure.
        """
        # Room is made first: that takes a step, and then forgets it.
        self.make_room()
        self._overwrite(self._optimizer(), state)

    def forget_steps(self) -> None:
        """Make the optimiser's state what it is before the first step."""
        # A forward that was never loaded has taken none.
        if self._load_forward.cache_info().currsize:
            for tensor in self._optimizer().values():
                tensor[...] = 0.0

    def _optimizer(self) -> Mapping[str, Any]:
        forward = self._load_forward()
        return {name: self._attribute(forward, name) for name in optimizer_names(self.manifest)}

    def _inputs_of_next_tokens(self, batch: Batch) -> Sequence[Any]:
        return self._with_state(*int_arrays(batch.tokens_NT, batch.label_pos_NK))

    def _with_state(self, *rows: Any) -> Sequence[Any]:
        """Inputs that are rows, followed by the state where it is not a buffer."""
        return rows


def trained_inputs(manifest: Manifest) -> tuple[str, ...]:
    """Names of the inputs of `forward` that have a value for each row."""
    return (*ROW_INPUTS, WEIGHTS_INPUT) if manifest.label_weights else ROW_INPUTS
