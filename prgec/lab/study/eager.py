"""The base of baselines: the unmodified Hugging Face model with a choice of trainable parameters.

Letters: N rows, B examples a step, T tokens, K label positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from prgec.compiler.frontend.checkpoint import find_checkpoint
from prgec.compiler.frontend.classifier import with_classes
from prgec.compiler.frontend.model import LossModel, label_loss, load_model, loss_of, used_labels
from prgec.compiler.frontend.tokenizer import pack_tokenizer
from prgec.core.contract.arrays import FloatArray, IntArray, State
from prgec.core.contract.calls import Batch
from prgec.core.contract.engine import TextCache
from prgec.core.contract.manifest import Manifest
from prgec.core.contract.tokenizer import Tokenizer
from prgec.errors import InternalError, UsageError
from prgec.lab.study.spaces import SPACES, Settings


class EagerProgram:
    """A model in PyTorch that evaluates like a program; its training is somebody else's business.

    Args:
        model: Checkpoint folder, alias or hub id.
        space: Row of `SPACES`: which parameters are trained.
        seed: Seed of what the space adds at random.
        batch_size: B.
        seq_len: T, the largest number of tokens of a row.
        num_labels: K; 1 where an encoder has a classification head.
        settings: Rank and scale of low-rank spaces.

    Attributes:
        manifest: Shapes, as a program with q = 1 has them.
        tokenizer: The checkpoint's tokenizer.
        trained: The trainable parameters.

    Raises:
        UsageError: If there is no such space.
    """

    def __init__(
        self,
        model: str,
        *,
        space: str,
        seed: int,
        batch_size: int,
        seq_len: int = 64,
        num_labels: int = 8,
        settings: Settings | None = None,
    ) -> None:
        if space not in SPACES:
            raise UsageError(f"unknown space {space!r}", hint=f"known: {', '.join(SPACES)}")
        checkpoint = find_checkpoint(model)
        loaded = load_model(checkpoint)
        packed, head = with_classes(checkpoint, loaded, pack_tokenizer(checkpoint.path))
        self.tokenizer = Tokenizer.unpack(packed)
        num_labels = num_labels if head is None else 1
        self.manifest = _manifest(checkpoint.name, loaded, self.tokenizer, batch_size, seq_len, num_labels)
        self.trained: list[nn.Parameter] = SPACES[space](loaded, settings or Settings(), seed)
        self._loss = loss_of(loaded, head)
        self._score = self._loss.score if isinstance(self._loss, LossModel) else self._loss

    def losses(self, batch: Batch) -> Tensor:
        """Return the loss of each of the B examples of a training batch, with its graph: f32[B]."""
        size = self.manifest.batch_size  # later rows are the same examples under another sign
        tokens, label_pos, targets = (
            torch.from_numpy(array[:size]) for array in (batch.tokens_NT, batch.label_pos_NK, batch.targets_NK)
        )
        loss: Tensor = self._score(tokens, label_pos, targets)
        return loss

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> FloatArray:
        """Return the loss of every row under the present weights: f32[N]."""
        rows = (batch.tokens_NT, batch.label_pos_NK, batch.targets_NK)
        tokens, label_pos, targets = map(torch.from_numpy, rows)
        if not isinstance(self._loss, LossModel):
            found: FloatArray = self._loss(tokens, label_pos, targets).numpy()
            return found
        label_pos, targets = used_labels(label_pos, targets)
        first, again = read_once(batch.tokens_NT, label_pos.numpy())
        logits_NKV = self.logits_at(tokens[first], label_pos[first])[again]
        result: FloatArray = label_loss(logits_NKV, targets).numpy()
        return result

    def logits_at(self, tokens: Tensor, label_pos: Tensor) -> Tensor:
        """Return a language model's logits at labels alone: f32[N, K, V]."""
        assert isinstance(self._loss, LossModel), "an encoder computes losses alone"
        return self._loss.logits_at(tokens, label_pos)

    @torch.no_grad()
    def next_tokens(self, tokens_NT: IntArray, label_pos_NK: IntArray) -> IntArray:
        """Return the most likely token after each label position: i64[N, K]."""
        found: IntArray = self.logits_at(torch.from_numpy(tokens_NT), torch.from_numpy(label_pos_NK)).argmax(-1).numpy()
        return found

    @property
    def cache(self) -> TextCache:
        """Nothing to read with: this model has no cache, as its manifest says.

        Raises:
            InternalError: Always.
        """
        raise InternalError("a model without a cache cannot read on")

    def apply(self, g_q: FloatArray, lr: float, seed: int, step: int) -> None:
        """Do nothing: no update is ever pending."""

    def read_state(self) -> State:
        """Return copies of the trained parameters."""
        return {str(index): np.array(each.detach()) for index, each in enumerate(self.trained)}

    def stored_lora_a(self) -> State:
        """Return nothing: what is trained here is not an adapter of a program."""
        return {}

    @torch.no_grad()
    def write_state(self, state: Mapping[str, FloatArray]) -> None:
        """Overwrite the trained parameters."""
        for index, parameter in enumerate(self.trained):
            parameter.copy_(torch.from_numpy(state[str(index)]))


def read_once(tokens_NT: IntArray, label_pos_NK: IntArray) -> tuple[IntArray, IntArray]:
    """Return a row for all that read the same, as the candidates of an example do whose answers are single tokens.

    Args:
        tokens_NT: i64[N, T].
        label_pos_NK: i64[N, K].

    Returns:
        Indices of the different rows, i64[M], and which of these each row is, i64[N].
    """
    read = np.concatenate((label_pos_NK, tokens_NT), axis=1)
    _, first, again = np.unique(read, axis=0, return_index=True, return_inverse=True)
    return first, again.reshape(-1)


def _manifest(
    name: str, model: nn.Module, tokenizer: Tokenizer, batch_size: int, seq_len: int, num_labels: int
) -> Manifest:
    vocab_size = int(model.config.get_text_config().vocab_size)  # type: ignore[operator, union-attr]
    blank = Manifest(
        model=name,
        architecture=type(model).__name__,
        backend="eager",
        q=1,
        batch_size=batch_size,
        seq_len=seq_len,
        dynamic_seq_len=True,
        num_labels=num_labels,
        vocab_size=vocab_size,
        rank=1,
        alpha=1.0,
        a_seed=0,
        state="seeded",
        quantize="none",
        sites=(),
        pipeline="",
        base_sha256="",
    )
    return replace(blank, pad_token_id=tokenizer.pad_id)
