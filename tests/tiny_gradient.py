"""The tiny program's sister that computes its gradient, written out by hand, and steps with AdamW."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from prgec.core.contract import names as contract
from prgec.core.contract.manifest import Manifest
from tests.shared import Shared
from tests.tiny_program import MANIFEST, RANK, VOCAB, WIDTH, BagOfWords

GRADIENT_MANIFEST = replace(MANIFEST, q=1, batch_size=4, method="exact", optimizer="adamw")
# A program of half the rows a call, two of which are a step.
GATHERING_MANIFEST = replace(GRADIENT_MANIFEST, batch_size=2, accumulates=True)
# One whose labels count what the host says.
WEIGHING_MANIFEST = replace(GRADIENT_MANIFEST, label_weights=True, num_labels=3)
BETA1, BETA2, EPS, DECAY = 0.9, 0.999, 1e-8, 0.01


class Evaluated(BagOfWords):
    """The losses of the present state."""

    def forward(self, tokens: Tensor, label_pos: Tensor, targets: Tensor) -> Tensor:  # type: ignore[override]
        return self.losses(self.low_rank(tokens, label_pos), tokens, label_pos, targets)[0]

    def hidden(self, tokens: Tensor, label_pos: Tensor) -> Tensor:
        """Mean of the embeddings up to each label position, f32[B, K, D]."""
        index = label_pos.unsqueeze(-1).expand(-1, -1, WIDTH)
        return self.embedding(tokens).cumsum(1).gather(1, index) / (label_pos + 1).unsqueeze(-1)

    def low_rank(self, tokens: Tensor, label_pos: Tensor) -> Tensor:
        """The other factor of B, f32[B, K, r]."""
        x_BKD = self.hidden(tokens, label_pos)
        return self.manifest.alpha / RANK * (x_BKD @ self.head.lora_A.T)

    def losses(self, low_rank: Tensor, tokens: Tensor, label_pos: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Mean negative log-likelihood by row, f32[B], and logits f32[B, K, V]."""
        logits = self.head(self.hidden(tokens, label_pos)) + low_rank @ self.head.lora_B
        nll = -torch.log_softmax(logits, -1).gather(-1, targets.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        used = (targets >= 0).to(torch.float32)
        return (nll * used).sum(1) / used.sum(1), logits


class Trained(Evaluated):
    """One step: the losses before it, and what became of the gradient."""

    def __init__(self) -> None:
        super().__init__(GRADIENT_MANIFEST)
        self.register_buffer(contract.OPTIMIZER_STATE, torch.zeros(4))
        for suffix in (contract.STATE_SUFFIX_MEAN, contract.STATE_SUFFIX_SQUARE):
            self.head.register_buffer(f"lora_B{suffix}", torch.zeros(RANK, VOCAB))

    def forward(  # type: ignore[override]
        self, tokens: Tensor, label_pos: Tensor, targets: Tensor, lr: Tensor
    ) -> tuple[Tensor, Tensor]:
        losses, gradient = self.measured(tokens, label_pos, targets)
        return losses, self.update(losses, gradient, lr)

    def measured(
        self, tokens: Tensor, label_pos: Tensor, targets: Tensor, counts: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Losses f32[B], and the gradient of their mean f32[r, V], of labels that count something f32[B, K]."""
        low_rank = self.low_rank(tokens, label_pos)
        losses, logits = self.losses(low_rank, tokens, label_pos, targets)
        used = (targets >= 0).to(torch.float32)
        weights = used / (used.sum(1, keepdim=True) * targets.shape[0])
        weights = weights if counts is None else weights * counts
        one_hot = (targets.unsqueeze(-1) == torch.arange(VOCAB)).to(torch.float32)
        excess = (torch.softmax(logits, -1) - one_hot) * weights.unsqueeze(-1)
        return losses, low_rank.reshape(-1, RANK).T @ excess.reshape(-1, VOCAB)

    def update(self, losses: Tensor, gradient: Tensor, lr: Tensor) -> Tensor:
        """Take the step; return what became of the gradient."""
        factors = torch.ops.prge.step_scale(self.prge_optimizer, [gradient], losses, lr, 0.0, BETA1, BETA2, False, 0.0)
        state = self.head.lora_B, self.head.lora_B_mean, self.head.lora_B_square
        torch.ops.prge.adamw_update(*state, gradient, lr, factors, BETA1, BETA2, EPS, DECAY)
        return factors


class Gathering(Trained):
    """One call of a step that may be several."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer(contract.LOSS_SUM_STATE, torch.zeros(GATHERING_MANIFEST.batch_size))
        self.head.register_buffer(f"lora_B{contract.STATE_SUFFIX_SUM}", torch.zeros(RANK, VOCAB))

    def forward(  # type: ignore[override]
        self, tokens: Tensor, label_pos: Tensor, targets: Tensor, lr: Tensor, call: Tensor
    ) -> tuple[Tensor, Tensor]:
        losses, gradient = self.measured(tokens, label_pos, targets)
        mean_losses = torch.ops.prge.accumulate(self.prge_loss_sum, losses, call)
        mean_gradient = torch.ops.prge.accumulate(self.head.lora_B_sum, gradient, call)
        return losses, self.update(mean_losses, mean_gradient, lr)


class Weighing(Trained):
    """One step of a weighted loss."""

    def forward(  # type: ignore[override]
        self, tokens: Tensor, label_pos: Tensor, targets: Tensor, weights: Tensor, lr: Tensor
    ) -> tuple[Tensor, Tensor]:
        losses, gradient = self.measured(tokens, label_pos, targets, weights)
        return losses, self.update(losses, gradient, lr)


KINDS: dict[str, tuple[type[Trained], Manifest]] = {
    "trained": (Trained, GRADIENT_MANIFEST),
    "gathering": (Gathering, GATHERING_MANIFEST),
    "weighing": (Weighing, WEIGHING_MANIFEST),
}


def build_gradient_pte(path: Path, tokenizer: bytes, *, kind: str = "trained") -> Path:
    """Export and lower one of KINDS."""
    from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
    from executorch.exir.passes import MemoryPlanningPass

    trained_type, m = KINDS[kind]
    rows = tuple(torch.zeros(m.num_rows, size, dtype=torch.int64) for size in (m.seq_len, m.num_labels, m.num_labels))
    dynamic = {1: torch.export.Dim("T", min=2, max=m.seq_len)}
    shapes = (dynamic, None, None)
    trained = trained_type()
    others: tuple[Tensor, ...] = (torch.tensor(0.0),)
    others += (torch.tensor([0, 1]),) if m.accumulates else ()
    others = (torch.ones(m.num_rows, m.num_labels), *others) if m.label_weights else others
    methods = {
        contract.FORWARD_METHOD: torch.export.export(
            trained, (*rows, *others), dynamic_shapes=(*shapes, *(None for _ in others)), strict=False
        ),
        contract.EVALUATE_METHOD: torch.export.export(Evaluated(m), rows, dynamic_shapes=shapes, strict=False),
    }
    constants = {
        contract.VERSION_METHOD: contract.GRADIENT_CONTRACT_VERSION,
        contract.MANIFEST_METHOD: m.to_json(),
        contract.TOKENIZER_METHOD: torch.frombuffer(bytearray(tokenizer), dtype=torch.uint8),
    }
    config = ExecutorchBackendConfig(
        memory_planning_pass=MemoryPlanningPass(share_mutable_buffers=True), emit_mutable_buffer_names=True
    )
    path.write_bytes(to_edge_transform_and_lower(methods, constant_methods=constants).to_executorch(config).buffer)
    return path


@pytest.fixture(scope="session")
def gradient_pte(shared: Shared, tokenizer_blob: bytes) -> Path:
    """The program that tests of gradient training run."""
    return shared.once("gradient.pte", lambda path: build_gradient_pte(path, tokenizer_blob))


@pytest.fixture(scope="session")
def gathering_pte(shared: Shared, tokenizer_blob: bytes) -> Path:
    """The same program with half the rows a call, whose steps may be several calls."""
    return shared.once("gathering.pte", lambda path: build_gradient_pte(path, tokenizer_blob, kind="gathering"))


@pytest.fixture(scope="session")
def weighing_pte(shared: Shared, tokenizer_blob: bytes) -> Path:
    """The same program, with label weights."""
    return shared.once("weighing.pte", lambda path: build_gradient_pte(path, tokenizer_blob, kind="weighing"))
