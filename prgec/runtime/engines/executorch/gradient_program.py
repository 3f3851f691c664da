"""A program that computes its own gradients: a call measures, differentiates and updates, and nothing is pending.

Letters: B examples a step, T tokens, K label positions.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from prgec.core.contract.arrays import FloatArray, IntArray, State
from prgec.core.contract.engine import ONLY_CALL, Call, label_weights, optimizer_names, state_names
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
from prgec.runtime.engines.executorch.runtime import LoadMethod, float_scalar, int_arrays


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

    def train(
        self,
        tokens_BT: IntArray,
        label_pos_BK: IntArray,
        targets_BK: IntArray,
        lr: float,
        call: Call = ONLY_CALL,
        weights_BK: FloatArray | None = None,
    ) -> tuple[FloatArray, FloatArray]:
        """Take one training step, or one call of it.

        Args:
            tokens_BT: i64[B, T], B different rows.
            label_pos_BK: i64[B, K].
            targets_BK: i64[B, K], -100 to ignore.
            lr: Learning rate of this step.
            call: Which call of its step this is; more than one only where the manifest says `accumulates`.
            weights_BK: f32[B, K], what each label counts in the loss that is differentiated; None for 1.

        Returns:
            The losses f32[B] of the state before the step, and what became of the gradient f32[4]: its scale, 0 where
            it was not finite and changed nothing, its norm, and the corrections of running means.

        Raises:
            ProgramError: If the runtime reports a failure, or the program takes no label weights.
        """
        self._make_room(tokens_BT.shape[1])
        inputs = [*int_arrays(tokens_BT, label_pos_BK, targets_BK), *label_weights(self.manifest, weights_BK)]
        inputs.append(float_scalar(lr))
        inputs += int_arrays(np.array(call)) if self.manifest.accumulates else []
        inputs += self._hidden(tokens_BT, label_pos_BK)
        loss_B, factors = self._execute(self._load_forward(), inputs)
        return loss_B, factors

    def _run_longest(self, tokens_NT: IntArray, label_pos_NK: IntArray, targets_NK: IntArray) -> None:
        self._load_forward()
        # Memory freed after scoring and loading would otherwise add to the peak.
        give_back_freed()
        # A rate of 0 leaves the weights as they are, and the optimiser has no earlier step to remember. So nothing
        # needs to be kept meanwhile, at what may be the peak of memory.
        self.train(tokens_NT, label_pos_NK, targets_NK, 0.0)
        self.forget_steps()

    def evaluate(self, tokens_NT: IntArray, label_pos_NK: IntArray, targets_NK: IntArray) -> FloatArray:
        """Return the loss of every row under the present state: f32[B]; rows are B different texts.

        Raises:
            ProgramError: If the runtime reports a failure.
        """
        inputs = [*self._with_state(tokens_NT, label_pos_NK, targets_NK), *self._hidden(tokens_NT, label_pos_NK)]
        (loss_B,) = self._execute(self._evaluate, inputs)
        result: FloatArray = loss_B
        return result

    def forward(self, *arguments: Any, **named: Any) -> FloatArray:
        """Nothing to call: this program trains by `train`.

        Raises:
            InternalError: Always.
        """
        raise InternalError("a program that computes gradients cannot measure losses")

    def apply(self, g_q: FloatArray, lr: float, seed: int, step: int) -> None:
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
        self._make_room(num_tokens=0)
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

    def _inputs_of_next_tokens(self, tokens_NT: IntArray, label_pos_NK: IntArray) -> Sequence[Any]:
        return self._with_state(tokens_NT, label_pos_NK)

    def _with_state(self, *rows: IntArray) -> Sequence[Any]:
        """Rows as inputs, followed by the state where it is not a buffer."""
        return int_arrays(*rows)


def trained_inputs(manifest: Manifest) -> tuple[str, ...]:
    """Names of the inputs of `forward` that have a value for each row."""
    return (*ROW_INPUTS, WEIGHTS_INPUT) if manifest.label_weights else ROW_INPUTS
