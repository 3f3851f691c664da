"""A compiled program in the ExecuTorch Python runtime: open, run its two methods, read and write its state.

Letters: q queries, B examples a step, N = 2qB rows, T tokens, K label positions, r rank.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from prgec.core.contract.arrays import FloatArray, IntArray, State
from prgec.core.contract.calls import ONLY_CALL, Batch, Call, StepInputs
from prgec.core.contract.engine import state_names, state_sha256
from prgec.core.contract.manifest import Manifest
from prgec.core.contract.names import (
    APPLY_INPUTS,
    APPLY_METHOD,
    FORWARD_INPUTS,
    FORWARD_METHOD,
    HIDDEN_INPUT,
    NEXT_TOKENS_METHOD,
    PREFIX_INPUTS,
    PREFIX_METHOD,
    TARGETS_INPUT,
)
from prgec.core.contract.tokenizer import Tokenizer
from prgec.errors import InternalError, ProgramError
from prgec.runtime.engines.executorch.reserve import needs_room, rows_of_nothing
from prgec.runtime.engines.executorch.runtime import (
    NOT_OURS,
    LoadMethod,
    float_array,
    int_arrays,
    int_rows,
    keys,
    scalars,
)
from prgec.runtime.engines.executorch.text_cache import PteTextCache
from prgec.runtime.engines.prefix import PrefixRunner, keep_prefix


class PteProgram:
    """A .pte that follows the graph contract, loaded and ready to train.

    Attributes:
        path: File it was opened from.
        manifest: Manifest of the program.
        tokenizer: The tokenizer it carries.
        prefix: Runs the blocks before the first trained one, where they are a method of their own.
        cache: Reads texts and writes on, where the manifest's `context` says so.
    """

    def __init__(
        self,
        path: Path,
        manifest: Manifest,
        tokenizer: Tokenizer,
        load_method: LoadMethod,
        read_a: Callable[[], State] = dict,
    ) -> None:
        self.path = path
        self._read_a = functools.cache(read_a)
        self.manifest = manifest
        self.tokenizer = tokenizer
        self._has_room = False
        self._bind_state(load_method)
        # Loading packs weights into memory, for nothing where every result is kept already.
        self._load_prefix = functools.cache(lambda: load_method(PREFIX_METHOD, PREFIX_INPUTS))
        # Most programs never generate.
        inputs = (*(name for name in self._evaluated_inputs if name != TARGETS_INPUT), *self._hidden_input)
        self._load_next_tokens = functools.cache(lambda: load_method(NEXT_TOKENS_METHOD, inputs))
        self.cache = PteTextCache(path, load_method, self._execute)
        self.prefix = PrefixRunner(self.compute_prefix, manifest, "executorch") if self._hidden_input else None

    @property
    def _evaluated_inputs(self) -> tuple[str, ...]:
        """Inputs of a method that measures the losses of rows and trains on none."""
        return FORWARD_INPUTS

    @property
    def _hidden_input(self) -> tuple[str, ...]:
        """The last input of a method, where the first blocks are a method of their own."""
        return (HIDDEN_INPUT,) if self.manifest.prefix == "method" else ()

    def _bind_state(self, load_method: LoadMethod) -> None:
        self._forward = load_method(FORWARD_METHOD, (*FORWARD_INPUTS, *self._hidden_input))
        self._apply = load_method(APPLY_METHOD, APPLY_INPUTS)
        self._state = {name: self._attribute(self._forward, name) for name in state_names(self.manifest)}

    def forward(self, batch: Batch, step: StepInputs) -> FloatArray:
        """Apply the update of the step before, then return the loss of every row under the noise of `step`.

        Returns:
            f32[N], mean negative log-likelihood over each row's own targets.

        Raises:
            ProgramError: If the runtime reports a failure.
        """
        if step.eps:
            self.make_room(batch.tokens_NT.shape[1])
        loss_N, *others = self._execute(self._forward, [*int_rows(batch), *self._of_step(step), *self._hidden(batch)])
        self._keep(others)
        result: FloatArray = loss_N
        return result

    def _of_step(self, step: StepInputs) -> Sequence[Any]:
        """The inputs of `forward` after its rows: the numbers by which it updates and perturbs its weights."""
        return [*scalars(step.g_q, step.lr, step.eps), *keys(step.seed, step.step)]

    def _hidden(self, batch: Batch) -> Sequence[Any]:
        """The last input, where blocks before the first trained one are a method of their own."""
        return [] if self.prefix is None else [float_array(self.prefix.hidden(batch.tokens_NT, batch.label_pos_NK))]

    def _keep(self, outputs: Sequence[Any]) -> None:
        """Keep the results of `forward` that follow the losses; there are none where the state is in buffers."""

    def make_room(self, num_tokens: int = 0) -> None:
        """Run the longest call there is once, before the first one, of so many tokens (`reserve.py` has the reason)."""
        had_room, self._has_room = self._has_room, True
        if not had_room and needs_room(self.manifest, num_tokens):
            self._run_longest(rows_of_nothing(self.manifest))

    def _run_longest(self, batch: Batch) -> None:
        self.evaluate(batch)

    def apply(self, step: StepInputs) -> None:
        """Perform only the update that `forward` of the step performs on entry.

        Raises:
            ProgramError: If the runtime reports a failure.
        """
        self._execute(self._apply, (*scalars(step.g_q, step.lr), *keys(step.seed, step.step)))

    def train(self, batch: Batch, lr: float, call: Call = ONLY_CALL) -> tuple[FloatArray, FloatArray]:
        """Nothing to call: this program trains by the losses that `forward` measures.

        Raises:
            InternalError: Always.
        """
        raise InternalError("a program that measures losses has no gradients")

    def evaluate(self, batch: Batch) -> FloatArray:
        """Return the loss of every row under the present state, without changing it: f32[N]. Rows are N texts.

        Raises:
            ProgramError: If the runtime reports a failure.
        """
        return self.forward(batch, StepInputs.none(self.manifest.q))

    def read_optimizer(self) -> State:
        """Return the optimiser's state by name: nothing, where the host makes the steps."""
        return {}

    def write_optimizer(self, state: Mapping[str, FloatArray]) -> None:
        """Overwrite the optimiser's state.

        Raises:
            ProgramError: If there is any in `state`.
        """
        self._overwrite({}, state)

    def forget_steps(self) -> None:
        """Nothing is remembered of steps, where the host makes them."""

    def next_tokens(self, batch: Batch) -> IntArray:
        """Return the most likely token after each label position under the present state: i64[N, K].

        Only where the manifest's `generate` says so. Rows are N different texts, as in evaluation, without targets.

        Raises:
            ProgramError: If the runtime reports a failure.
        """
        inputs = [*self._inputs_of_next_tokens(batch), *self._hidden(batch)]
        (tokens_NK,) = self._execute(self._load_next_tokens(), inputs)
        result: IntArray = tokens_NK
        return result

    def _inputs_of_next_tokens(self, batch: Batch) -> Sequence[Any]:
        no_step = self._of_step(StepInputs.none(self.manifest.q))
        return [*int_arrays(batch.tokens_NT, batch.label_pos_NK), *no_step]

    def compute_prefix(self, tokens_BT: IntArray) -> FloatArray:
        """Run the blocks before the first trained one: f32[B, T, D]; only where they are a method of their own.

        Raises:
            ProgramError: If the runtime reports a failure.
        """
        (hidden_BTD,) = self._execute(self._load_prefix(), int_arrays(tokens_BT))
        result: FloatArray = hidden_BTD
        return result

    def keep_prefix_in(self, folder: Path) -> None:
        """Keep results of the prefix in `folder`, and compute none that is there already.

        Raises:
            UsageError: If the program has no prefix method, or the folder cannot be used.
        """
        keep_prefix(self.prefix, folder, self.path)

    def read_state(self) -> State:
        """Return copies of the trainable buffers by name, in site order."""
        return {name: tensor.copy() for name, tensor in self._state.items()}

    def write_state(self, state: Mapping[str, FloatArray]) -> None:
        """Overwrite the trainable buffers; nothing is written if any name or shape is wrong.

        Raises:
            ProgramError: If names or shapes differ from the program's.
        """
        self._overwrite(self._state, state)

    def _overwrite(self, tensors: Mapping[str, Any], state: Mapping[str, FloatArray]) -> None:
        if set(state) != set(tensors):
            odd = sorted(set(state) ^ set(tensors))
            raise ProgramError(f"the state does not fit the program: {odd[0]} is in only one of them", where=self.path)
        for name, tensor in tensors.items():
            if state[name].shape != tuple(tensor.shape) or state[name].dtype != np.float32:
                raise ProgramError(
                    f"the state of {name} is {state[name].dtype}{list(state[name].shape)}; expected "
                    f"float32{list(tensor.shape)}",
                    where=self.path,
                )
        for name, tensor in tensors.items():
            tensor[...] = state[name]

    def stored_lora_a(self) -> State:
        """Return `<site>.lora_A`, f32[r, D], of every site; empty where they follow from the manifest's seed.

        Raises:
            ProgramError: If the program should carry them and they are damaged.
        """
        return self._read_a()

    def state_sha256(self) -> str:
        """Return the hash of the state's names and bytes."""
        return state_sha256(self.read_state())

    def _attribute(self, method: Any, name: str) -> Any:
        try:
            return method.get_attribute(name)
        except RuntimeError as error:
            raise ProgramError(f"the program has no state named {name}", where=self.path, hint=NOT_OURS) from error

    def _execute(self, call: Any, *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except RuntimeError as error:
            raise ProgramError(f"the program failed to run: {error}", where=self.path) from error
