"""The reference engine: the graphs that the passes produce, run by PyTorch on a CPU or a GPU.

It answers the protocol of `prgec.core.contract.engine.Engine`, so that the same trainer drives either, step for step
with the same noise. Losses agree with the .pte to rounding.

Letters: q queries, B examples a step, N = 2qB rows, T tokens, K label positions.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.fx import GraphModule

from prgec.compiler.compile import Graphs, build_graphs
from prgec.compiler.options import CompileOptions
from prgec.core.contract.arrays import FloatArray, IntArray, State
from prgec.core.contract.calls import ONLY_CALL, Batch, Call, StepInputs, label_weights
from prgec.core.contract.engine import optimizer_names, state_names, state_sha256
from prgec.core.contract.names import (
    APPLY_METHOD,
    CALL_INPUT,
    EVALUATE_METHOD,
    FORWARD_METHOD,
    NEXT_TOKENS_METHOD,
    PREFIX_METHOD,
    WEIGHTS_INPUT,
)
from prgec.core.contract.tokenizer import Tokenizer
from prgec.errors import ProgramError
from prgec.lab.torch.cache import TorchTextCache
from prgec.lab.torch.device import find_device
from prgec.lab.torch.noise import NoiseSource
from prgec.passes.program import GraphProgram
from prgec.runtime.engines.prefix import PrefixRunner, keep_prefix

# Read on the host: they key the noise, and a copy from a GPU would wait for it.
_HOST_INPUTS = frozenset({"seed", "step"})


class TorchProgram:
    """A compilation that runs in PyTorch.

    Args:
        graphs: Results of the passes; taken over.
        path: Name of it in messages.
        device: `cpu`, `cuda`, or one of several, such as `cuda:1`.
        compiled: Whether `torch.compile` generates code for the forward, which pays off on long runs.

    Attributes:
        path: Name of it in messages.
        manifest: Manifest of the program.
        tokenizer: The tokenizer it carries.
        prefix: Runs the blocks before the first trained one, where they are a method of their own.
        cache: Reads texts and writes on, where the manifest's `context` says so.

    Raises:
        UsageError: If the device is not there.
    """

    def __init__(self, graphs: Graphs, path: Path, *, device: str = "cpu", compiled: bool = False) -> None:
        self.path = path
        self.manifest = graphs.manifest
        self._given_a = graphs.lora_a
        self.tokenizer = Tokenizer.unpack(graphs.tokenizer)
        self._device = find_device(device)
        self._noise = NoiseSource(self._device)
        self._inputs = {
            name: [str(node.target) for node in method.placeholders()] for name, method in graphs.methods.items()
        }
        self._methods: dict[str, Any] = {name: self._prepared(method) for name, method in graphs.methods.items()}
        forward = graphs.methods[FORWARD_METHOD].module
        self._state = {name: operator.attrgetter(name)(forward) for name in state_names(self.manifest)}
        self._optimizer = {name: operator.attrgetter(name)(forward) for name in optimizer_names(self.manifest)}
        for method in graphs.methods.values():
            _share(method.module, self._state)
        if compiled:
            self._methods[FORWARD_METHOD] = torch.compile(self._methods[FORWARD_METHOD])
        self.cache = TorchTextCache(graphs.methods, self.manifest, self._device, self._call)
        engine = f"torch {self._device.type}"
        self.prefix = (
            PrefixRunner(self.compute_prefix, self.manifest, engine) if PREFIX_METHOD in self._methods else None
        )

    @classmethod
    def build(cls, options: CompileOptions, *, device: str = "cpu", compiled: bool = False) -> TorchProgram:
        """Run the passes over a checkpoint, and keep the graphs.

        Args:
            options: Options of the compilation; `output` is not written.
            device: Where to run.
            compiled: Whether to use `torch.compile`.
        """
        return cls(build_graphs(options), Path(options.model), device=device, compiled=compiled)

    @torch.no_grad()
    def forward(self, batch: Batch, step: StepInputs) -> FloatArray:
        """Apply the update of the step before, then return the loss of every row under the noise of `step`: f32[N]."""
        (loss_N,) = self._call(FORWARD_METHOD, self._rows(batch) | _numbers(step))
        result: FloatArray = loss_N.cpu().numpy()
        return result

    @torch.no_grad()
    def train(self, batch: Batch, lr: float, call: Call = ONLY_CALL) -> tuple[FloatArray, FloatArray]:
        """Take one call of a program that computes gradients: losses f32[B], and what became of the gradient f32[4]."""
        values = self._rows(batch) | {"lr": lr, CALL_INPUT: np.array(call, dtype=np.int64)}
        for found in label_weights(self.manifest, batch.weights_NK):
            values[WEIGHTS_INPUT] = found
        loss_B, factors = self._call(FORWARD_METHOD, values)
        return loss_B.cpu().numpy(), factors.cpu().numpy()

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> FloatArray:
        """Return the loss of every row under the present state, without changing it: f32[N]."""
        if not self.manifest.has_gradients:
            return self.forward(batch, StepInputs.none(self.manifest.q))
        (loss_B,) = self._call(EVALUATE_METHOD, self._rows(batch))
        result: FloatArray = loss_B.cpu().numpy()
        return result

    @torch.no_grad()
    def apply(self, step: StepInputs) -> None:
        """Perform only the update that `forward` of the step performs on entry."""
        self._call(APPLY_METHOD, _numbers(step))

    @torch.no_grad()
    def compute_prefix(self, tokens_BT: IntArray) -> FloatArray:
        """Run the blocks before the first trained one: f32[B, T, D]; only where they are a method of their own."""
        (hidden_BTD,) = self._call(PREFIX_METHOD, {"tokens": tokens_BT})
        result: FloatArray = hidden_BTD.cpu().numpy()
        return result

    @torch.no_grad()
    def next_tokens(self, batch: Batch) -> IntArray:
        """Return the most likely token after each label position: i64[N, K]; only of a program that generates."""
        values = self._rows(batch) | _numbers(StepInputs.none(self.manifest.q))
        (ids_NK,) = self._call(NEXT_TOKENS_METHOD, values)
        result: IntArray = ids_NK.cpu().numpy()
        return result

    def make_room(self) -> None:
        """Nothing to take: PyTorch gives the memory of a call back after it."""

    def keep_prefix_in(self, folder: Path) -> None:
        """Keep results of the prefix in `folder`, and compute none that is there already.

        Raises:
            UsageError: If the program has no prefix method, or the folder cannot be used.
        """
        keep_prefix(self.prefix, folder, self.path)

    def read_state(self) -> State:
        """Return copies of the trainable buffers by name, in site order."""
        return {name: tensor.cpu().numpy().copy() for name, tensor in self._state.items()}

    def read_optimizer(self) -> State:
        """Return copies of the optimiser's state by name; empty where the host makes the steps."""
        return {name: tensor.cpu().numpy().copy() for name, tensor in self._optimizer.items()}

    def write_optimizer(self, state: Mapping[str, FloatArray]) -> None:
        """Overwrite the optimiser's state; nothing is written if any name or shape is wrong.

        Raises:
            ProgramError: If names or shapes differ from the program's.
        """
        self._overwrite(self._optimizer, state)

    def forget_steps(self) -> None:
        """Make the optimiser's state what it is before the first step."""
        for tensor in self._optimizer.values():
            tensor.zero_()

    def stored_lora_a(self) -> State:
        """Return the A matrices of every site where they were given; empty where they follow from the seed."""
        return self._given_a

    def write_state(self, state: Mapping[str, FloatArray]) -> None:
        """Overwrite the trainable buffers; nothing is written if any name or shape is wrong.

        Raises:
            ProgramError: If names or shapes differ from the program's.
        """
        self._overwrite(self._state, state)

    def _overwrite(self, tensors: Mapping[str, Tensor], state: Mapping[str, FloatArray]) -> None:
        found = {name: (array.shape, str(array.dtype)) for name, array in state.items()}
        expected = {name: (tuple(tensor.shape), "float32") for name, tensor in tensors.items()}
        if found != expected:
            odd = next(name for name in sorted({*found, *expected}) if found.get(name) != expected.get(name))
            raise ProgramError(
                f"the state does not fit the program: {odd} is {found.get(odd)}; expected {expected.get(odd)}",
                where=self.path,
            )
        for name, tensor in tensors.items():
            tensor.copy_(torch.from_numpy(np.ascontiguousarray(state[name])))

    def state_sha256(self) -> str:
        """Return the hash of the state's names and bytes."""
        return state_sha256(self.read_state())

    def _rows(self, batch: Batch) -> dict[str, Any]:
        """Return the inputs of a method that have a value for each row."""
        values: dict[str, Any] = {
            "tokens": batch.tokens_NT,
            "label_pos": batch.label_pos_NK,
            "targets": batch.targets_NK,
        }
        if self.prefix is not None:
            values["hidden"] = self.prefix.hidden(batch.tokens_NT, batch.label_pos_NK)
        return values

    def _call(self, method: str, values: Mapping[str, Any]) -> Any:
        module = self._methods[method]
        names = self._inputs[method]
        return module(*(self._tensor(name, values[name]) for name in names))

    def _tensor(self, name: str, value: Any) -> Tensor:
        if isinstance(value, Tensor):
            return value
        device = "cpu" if name in _HOST_INPUTS else self._device
        if isinstance(value, np.ndarray):
            return torch.from_numpy(np.ascontiguousarray(value)).to(device)
        dtype = torch.int64 if isinstance(value, int) else torch.float32
        return torch.tensor(value, dtype=dtype, device=device)

    def _prepared(self, program: GraphProgram) -> GraphModule:
        """Give a graph the engine's noise, and put it where it runs."""
        stand_ins = {
            torch.ops.prge.randn.default: self._noise.randn,
            torch.ops.prge.dual_update.default: self._noise.dual_update,
            torch.ops.prge.perturbation.default: self._noise.perturbation,
        }
        for node in program.graph.nodes:
            if node.op != "call_function":
                continue
            node.target = stand_ins.get(node.target, node.target)
            if "device" in node.kwargs:  # traced on the CPU
                node.kwargs = {**node.kwargs, "device": self._device}
        program.module.recompile()
        return program.module.to(self._device)


def _numbers(step: StepInputs) -> dict[str, Any]:
    return {"g": step.g_q, "lr": step.lr, "eps": step.eps, "seed": step.seed, "step": step.step}


def _share(module: GraphModule, state: Mapping[str, Tensor]) -> None:
    """Make the state of a method that of all: moving modules to a device copies their buffers."""
    for name, tensor in state.items():
        owner_name, _, leaf = name.rpartition(".")
        try:
            owner = module.get_submodule(owner_name)
        except AttributeError:  # the prefix has no state
            continue
        if hasattr(owner, leaf):
            setattr(owner, leaf, tensor)
