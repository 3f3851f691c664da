"""Side-tuning as a method of a study: the network of `prgec.serve.side` beside the unmodified model.

A step counts as the forward passes of its rows, as if nothing were kept: a device runs each row once, however often the
network sees it. Answers are distinguished by the first token of their completions, and are those of the training rows
so far; the network adds to the model's scores of them.

Letters: N rows, B examples a step, L blocks, D width, C answers, V vocabulary.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from prgec.core.contract.arrays import FloatArray, IntArray
from prgec.core.contract.calls import Batch
from prgec.core.formats.shards import ShardShape
from prgec.errors import NumericsError, UsageError
from prgec.lab.study.baseline import Baseline
from prgec.lab.study.eager import EagerProgram, read_once
from prgec.serve.side.network import AdditiveNetwork
from prgec.serve.side.targets import centred, difference

_MOST_ANSWERS = 16
_NO_PROGRAM = "0" * 64


class AssistedModel(EagerProgram):
    """A frozen model in PyTorch with a side network.

    Args:
        model: Checkpoint folder, alias or hub id.
        seed: Seed of the network.
        batch_size: B.
        seq_len: T, the largest number of tokens of a row.
        rank: r of the network.

    Raises:
        UsageError: If the model has no list of blocks, or is an encoder.
    """

    def __init__(self, model: str, *, seed: int, batch_size: int, seq_len: int, rank: int) -> None:
        super().__init__(model, space="frozen", seed=seed, batch_size=batch_size, seq_len=seq_len)
        if self.tokenizer.classes:
            raise UsageError(
                "kind side is for language models in a study", hint="an encoder: prgec side (docs/side.md)"
            )
        blocks = _blocks(self._loss.hf)
        self._caught: list[Tensor] = []
        for block in blocks:
            block.register_forward_hook(self._catch)
        config = self._loss.hf.config
        width = int(getattr(config, "hidden_size"))  # noqa: B009
        shape = ShardShape(
            program=_NO_PROGRAM, num_blocks=len(blocks), num_labels=1, width=width, num_classes=_MOST_ANSWERS
        )
        self.network = AdditiveNetwork.new(shape, rank, "rms", seed)
        self.trained = list(self.network.parameters())
        # Tokens that answers begin with, in the order they were met.
        self.answers: list[int] = []

    def emitted(self, tokens_NT: IntArray, label_pos_NK: IntArray) -> tuple[Tensor, FloatArray]:
        """Return the blocks' outputs right before the answers, f32[N, L, 1, D], and the logits there, f32[N, V]."""
        self._caught.clear()
        at = torch.from_numpy(label_pos_NK[:, 0])
        rows = torch.arange(len(at))
        with torch.no_grad():
            logits_NKV = self.logits_at(torch.from_numpy(tokens_NT), at.unsqueeze(1))
        acts = torch.stack([output[rows, at] for output in self._caught], 1)
        values: FloatArray = logits_NKV[:, 0].numpy()
        return acts.unsqueeze(2), values

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> FloatArray:
        """Return the loss of every row's first target under the scores of both, among the answers known: f32[N]."""
        first, again = read_once(batch.tokens_NT, batch.label_pos_NK[:, :1])
        acts, logits = self.emitted(batch.tokens_NT[first], batch.label_pos_NK[first])
        targets_N = batch.targets_NK[:, 0].tolist()
        acts, logits = acts[again], logits[again]
        known = [*self.answers, *(set(targets_N) - set(self.answers))]
        scores = centred(logits[:, known])
        scores[:, : len(self.answers)] += self.network(acts)[:, 0, : len(self.answers)].numpy()
        place = [known.index(token) for token in targets_N]
        log_probs = torch.log_softmax(torch.from_numpy(scores), -1)
        result: FloatArray = -log_probs.numpy()[np.arange(len(place)), place]
        return result

    def _catch(self, block: nn.Module, inputs: object, output: Tensor | tuple[Tensor, ...]) -> None:
        self._caught.append(output[0] if isinstance(output, tuple) else output)


class Side(Baseline):
    """One run of side-tuning.

    Args:
        model: Checkpoint folder, alias or hub id.
        seed: Seed of the network.
        batch_size: Examples a step.
        seq_len: T, the largest number of tokens of a row.
        rank: r of the network.
        weight_decay: Weight decay of AdamW.
    """

    program: AssistedModel

    def __init__(
        self,
        model: str,
        *,
        seed: int,
        batch_size: int = 8,
        seq_len: int = 64,
        rank: int = 64,
        weight_decay: float = 0.01,
    ) -> None:
        program = AssistedModel(model, seed=seed, batch_size=batch_size, seq_len=seq_len, rank=rank)
        super().__init__(program, batch_size)
        self._optimizer = torch.optim.AdamW(program.trained, lr=0.0, weight_decay=weight_decay)

    def _train(self, batch: Batch, lr: float) -> float:
        """Run one forward of B rows, then learn what is missing between it and the answers."""
        program, size = self.program, self.program.manifest.batch_size
        first = batch.targets_NK[:size, 0].tolist()
        program.answers += sorted(set(first) - set(program.answers))
        if len(program.answers) > _MOST_ANSWERS:
            raise UsageError(f"a side network chooses between {_MOST_ANSWERS} answers here; the rows have more")
        acts, logits = program.emitted(batch.tokens_NT[:size], batch.label_pos_NK[:size])
        places = [program.answers.index(token) for token in first]
        wanted = torch.from_numpy(difference(logits[:, program.answers], places))
        found = program.network(acts)[:, 0, : len(program.answers)]
        loss = torch.nn.functional.mse_loss(found, wanted)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise NumericsError("the loss is not finite", hint="lower lr")
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._optimizer.step()
        return value


def _blocks(model: nn.Module) -> list[nn.Module]:
    """The blocks of a model: its list of as many modules as the configuration has layers."""
    count = getattr(model.config, "num_hidden_layers", None)
    lists = [each for each in model.modules() if isinstance(each, nn.ModuleList) and len(each) == count]
    if not lists:
        raise UsageError("the model has no list of blocks to learn beside")
    return list(lists[0])
