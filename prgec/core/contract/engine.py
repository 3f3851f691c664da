"""The interface between drivers and engines, and how the state of a program is named and hashed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import numpy as np

from prgec.core.contract.arrays import FloatArray, IntArray, State
from prgec.core.contract.calls import ONLY_CALL, Batch, Call, StepInputs
from prgec.core.contract.manifest import Manifest
from prgec.core.contract.names import DUAL_EPS_STATE, OPTIMIZER_STATE, STATE_SUFFIX_MEAN, STATE_SUFFIX_SQUARE
from prgec.core.contract.tokenizer import Tokenizer


class TrainableProgram(Protocol):
    """The part of an engine that the trainer uses; `Program` is the one on the ExecuTorch Python runtime."""

    @property
    def manifest(self) -> Manifest:
        """The manifest of the program."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer the program carries."""

    def forward(self, batch: Batch, step: StepInputs) -> FloatArray:
        """Apply the update of the step before, then return the loss of every row under the noise of `step`: f32[N]."""

    def train(self, batch: Batch, lr: float, call: Call = ONLY_CALL) -> tuple[FloatArray, FloatArray]:
        """Take one call of a program that computes gradients: losses f32[B], and what became of the gradient f32[4].

        Only programs with label weights take a batch that has some.
        """

    def evaluate(self, batch: Batch) -> FloatArray:
        """Return the loss of every row under the present state, without changing it: f32[N]."""

    def apply(self, step: StepInputs) -> None:
        """Perform only the update that `forward` of the step performs on entry."""

    def read_state(self) -> State:
        """Return copies of the trainable buffers by name, in site order."""

    def write_state(self, state: Mapping[str, FloatArray]) -> None:
        """Overwrite the trainable buffers."""

    def read_optimizer(self) -> State:
        """Return copies of the optimiser's state by name; empty where the host makes the steps."""

    def write_optimizer(self, state: Mapping[str, FloatArray]) -> None:
        """Overwrite the optimiser's state."""

    def forget_steps(self) -> None:
        """Make the optimiser's state what it is before the first step."""

    def stored_lora_a(self) -> State:
        """Return `<site>.lora_A`, f32[r, D], of every site; empty where they follow from the manifest's seed."""


class TextCache(Protocol):
    """Texts that a program has read, and goes on with."""

    def extend(self, tokens_T: IntArray, start: int) -> FloatArray:
        """Read tokens at the positions from `start` on, after those in the cache: logits f32[V].

        At most `EXTEND_CHUNK` tokens a call.
        """

    def fork(self, row: int, count: int) -> None:
        """Let text `row` of `decode` be the first `count` tokens that `extend` has read, whatever it was before."""

    def decode(self, tokens_R: IntArray, starts_R: IntArray) -> FloatArray:
        """Read one token of each of R texts at the positions i64[R]: logits f32[R, V]; where the manifest has R."""

    def clear(self) -> None:
        """Clear what `extend` has read. A NaN left in it would poison every attention sum, even at weight 0."""


class GeneratingProgram(TrainableProgram, Protocol):
    """The part of an engine that evaluation and generation use as well."""

    @property
    def cache(self) -> TextCache:
        """The texts that it reads and writes; only where the manifest's `context` says so."""

    def next_tokens(self, batch: Batch) -> IntArray:
        """Return the most likely token after each label position: i64[N, K]; targets are not read."""


class Engine(GeneratingProgram, Protocol):
    """The part of an engine that a run uses besides training and evaluation."""

    def keep_prefix_in(self, folder: Path) -> None:
        """Keep results of the prefix in `folder`, and compute none that is there already."""

    def make_room(self) -> None:
        """Take the memory of the longest step, once; only before the first step, which does it otherwise."""

    def state_sha256(self) -> str:
        """Return the hash of the state's names and bytes."""


def state_names(manifest: Manifest) -> tuple[str, ...]:
    """Return the names of a program's trainable buffers, in site order; `dual` also keeps the eps of its copies."""
    names = tuple(site.state_name for site in manifest.sites)
    return (*names, DUAL_EPS_STATE) if manifest.state == "dual" else names


def optimizer_names(manifest: Manifest) -> tuple[str, ...]:
    """Return the names of what an optimiser keeps beside the trainable buffers: first what all sites share."""
    if not manifest.has_gradients:
        return ()
    suffixes = {"norm": (), "momentum": (STATE_SUFFIX_MEAN,), "adamw": (STATE_SUFFIX_MEAN, STATE_SUFFIX_SQUARE)}
    kept = (site.state_name + suffix for site in manifest.sites for suffix in suffixes[manifest.optimizer])
    return (OPTIMIZER_STATE, *kept)


def state_sha256(state: Mapping[str, FloatArray]) -> str:
    """Return one hash over names, shapes and little-endian bytes, in the order of the mapping."""
    digest = hashlib.sha256()
    for name, array in state.items():
        digest.update(f"{name} {list(array.shape)}\n".encode())
        digest.update(np.ascontiguousarray(array, dtype="<f4").tobytes())
    return digest.hexdigest()
