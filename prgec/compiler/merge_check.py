"""A few rows evaluated by a checkpoint before and after an adapter is merged into it.

Letters: N rows, T tokens, K label positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from prgec.compiler.frontend.checkpoint import Checkpoint
from prgec.compiler.frontend.classifier import Head, with_classes
from prgec.compiler.frontend.model import loss_of
from prgec.compiler.frontend.tokenizer import pack_tokenizer
from prgec.compiler.measured_rows import RowsFile
from prgec.core.contract.manifest import Manifest
from prgec.core.contract.names import IGNORE_TARGET
from prgec.core.contract.tokenizer import Tokenizer
from prgec.core.data.dataset import load_dataset
from prgec.core.data.encode import encode_items
from prgec.core.data.row import Row

MAX_ROWS = 16


@dataclass(frozen=True)
class MergeRows:
    """Rows to evaluate.

    Attributes:
        rows: At most 16.
        pad_id: Token to pad with.
        head: Head of a classifier; None for a causal language model.
    """

    rows: Sequence[Row]
    pad_id: int
    head: Head | None

    def loss(self, model: nn.Module) -> float:
        """Return the mean loss of the rows by a model in f32."""
        width = max(len(row.tokens) for row in self.rows)
        num_labels = max(len(row.targets) for row in self.rows)
        tokens_NT = self._padded([row.tokens for row in self.rows], width, self.pad_id)
        label_pos_NK = self._padded([row.label_pos for row in self.rows], num_labels, 0)
        targets_NK = self._padded([row.targets for row in self.rows], num_labels, IGNORE_TARGET)
        with torch.no_grad():
            losses_N: Tensor = loss_of(model, self.head)(tokens_NT, label_pos_NK, targets_NK)
        return float(losses_N.mean())

    @staticmethod
    def _padded(values: Sequence[Sequence[int]], width: int, filling: int) -> Tensor:
        return torch.tensor([[*each, *[filling] * (width - len(each))] for each in values])


def sample_of(data: RowsFile, manifest: Manifest, checkpoint: Checkpoint, model: nn.Module) -> MergeRows:
    """Read the first rows of a data file as a program of the checkpoint would.

    Args:
        data: The rows.
        manifest: Manifest of the program that the adapter was trained with.
        checkpoint: The base.
        model: Its model.

    Raises:
        DataError: If the file is bad, or a row does not fit the program.
    """
    packed, head = with_classes(checkpoint, model, pack_tokenizer(checkpoint.path))
    tokenizer = Tokenizer.unpack(packed)
    dataset = load_dataset(data.path, data.task, columns=data.columns)
    examples = dataset.choosing_from(manifest.answers).examples[:MAX_ROWS]
    rows = encode_items(examples, tokenizer, manifest)[:MAX_ROWS]
    return MergeRows(rows, head.pad_id if head else tokenizer.pad_id, head)
