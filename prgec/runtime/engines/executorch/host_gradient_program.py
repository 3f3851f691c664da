"""A program that computes gradients and whose state the host keeps: the host takes the step, too.

Letters: B examples a step, T tokens, K label positions, r rank, O outputs of a site.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from prgec.core.contract.arrays import FloatArray
from prgec.core.contract.calls import ONLY_CALL, Batch, Call, label_weights
from prgec.core.contract.engine import optimizer_names
from prgec.core.contract.names import (
    EVALUATE_METHOD,
    FORWARD_METHOD,
    OPTIMIZER_STATE,
    STATE_SUFFIX_MEAN,
    STATE_SUFFIX_SQUARE,
)
from prgec.errors import ProgramError
from prgec.runtime.engines.executorch.device_program import zeros_of
from prgec.runtime.engines.executorch.gradient_program import GradientProgram, trained_inputs
from prgec.runtime.engines.executorch.host_program import inputs_of
from prgec.runtime.engines.executorch.runtime import LoadMethod, int_rows
from prgec.runtime_ops.host import SiteState, accumulate, take_step

# Factors of a gradient that is not whole yet: no step is taken.
_NO_STEP = (0.0, np.inf, 1.0, 1.0)


class HostGradientProgram(GradientProgram):
    """A program of contract 2 whose manifest says `state: host`: B goes in, losses and gradients come out."""

    @property
    def _evaluated_inputs(self) -> tuple[str, ...]:
        return inputs_of(self.manifest)

    def _bind_state(self, load_method: LoadMethod) -> None:
        m = self.manifest
        self._evaluate = load_method(EVALUATE_METHOD, (*self._evaluated_inputs, *self._hidden_input))
        inputs = (*inputs_of(m, trained_inputs(m)), *self._hidden_input)
        self._load_forward = functools.cache(lambda: load_method(FORWARD_METHOD, inputs))
        self._state = zeros_of(m)
        shapes = {
            name + suffix: tuple(master.shape)
            for name, master in self._state.items()
            for suffix in (STATE_SUFFIX_MEAN, STATE_SUFFIX_SQUARE)
        }
        shapes[OPTIMIZER_STATE] = (4,)
        self._kept = {name: np.zeros(shapes[name], dtype=np.float32) for name in optimizer_names(m)}
        # Sums over the calls of a step, losses first.
        self._sums: list[FloatArray] = []

    def train(self, batch: Batch, lr: float, call: Call = ONLY_CALL) -> tuple[FloatArray, FloatArray]:
        """Take one training step, or one call of it: the program differentiates, and this updates what it keeps.

        Returns:
            The losses f32[B] of the state before the step, and what became of the gradient f32[4].

        Raises:
            ProgramError: If the runtime reports a failure, or the program does not return one gradient a site.
        """
        self.make_room(batch.tokens_NT.shape[1])
        loss_B, *gradients = self._execute(self._load_forward(), [*self._trained(batch), *self._hidden(batch)])
        if [each.shape for each in gradients] != [tuple(each.shape) for each in self._state.values()]:
            raise ProgramError("the program does not return the gradients its manifest names", where=self.path)
        means = self._gathered([loss_B, *gradients], call)
        if not call.is_last:
            return loss_B, np.array(_NO_STEP, dtype=np.float32)
        m = self.manifest
        running = self._kept[OPTIMIZER_STATE]
        return loss_B, take_step(running, self._sites(), means[1:], means[0], lr, m.optimizer, m.update)

    def _run_longest(self, batch: Batch) -> None:
        self._execute(self._load_forward(), self._trained(batch))

    def _trained(self, batch: Batch) -> list[Any]:
        """Inputs of `forward`, but for the results of a prefix."""
        return [*int_rows(batch), *label_weights(self.manifest, batch.weights_NK), *self._state.values()]

    def _gathered(self, values: Sequence[FloatArray], call: Call) -> Sequence[FloatArray]:
        """Add what a call measured to what its step gathered; in the last one, return the means."""
        if call == ONLY_CALL:
            return values
        if call.before == 0:
            self._sums = [np.empty_like(each) for each in values]
        for total, value in zip(self._sums, values, strict=True):
            accumulate(total, value, call.before, call.is_last)
        return self._sums

    def _sites(self) -> list[SiteState]:
        return [
            SiteState(master, self._kept.get(name + STATE_SUFFIX_MEAN), self._kept.get(name + STATE_SUFFIX_SQUARE))
            for name, master in self._state.items()
        ]

    def _optimizer(self) -> Mapping[str, Any]:
        return self._kept

    def _with_state(self, *rows: Any) -> Sequence[Any]:
        return [*rows, *self._state.values()]
