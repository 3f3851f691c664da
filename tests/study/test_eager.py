"""Rows and models that baselines in PyTorch take."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from prgec.data.batches import training_batch
from prgec.data.encode import Row
from prgec.errors import UsageError
from prgec.study.first_order import FirstOrder
from prgec.study.method import build_method
from tests.classifiers import Encoder, said_by_transformers
from tests.models import TinyLlama


@pytest.mark.parametrize("kind", ["fo", "mezo", "side"])
def test_rows_are_cut_where_the_study_says(kind: str, tmp_path: Path) -> None:
    checkpoint = str(TinyLlama(has_bias=True).write(tmp_path / "checkpoint", tokenizer="json"))
    method = build_method(checkpoint, {"kind": kind, "seq_len": 24}, 0, Path())
    assert method.program.manifest.seq_len == 24


def test_an_encoder_is_trained_by_its_classes(tmp_path: Path) -> None:
    """Its loss is that of transformers, row by row, without padding; a step moves it, and a side network is refused."""
    encoder = Encoder("bert", 3)
    folder = str(encoder.write(tmp_path / "encoder"))
    method = FirstOrder(folder, seed=0, space="lora-fa", batch_size=2)
    program = method.program
    assert program.manifest.num_labels == 1 and len(program.tokenizer.classes) == 3
    tokens, classes = [(2, 5, 9, 7, 3), (2, 8, 3)], [2, 0]
    rows = [Row(row, (0,), (target,)) for row, target in zip(tokens, classes, strict=True)]
    batch = training_batch(rows, np.arange(2), program.manifest)
    _, logits = said_by_transformers(encoder.build(), tokens, [[0] * len(row) for row in tokens])
    expected = torch.nn.functional.cross_entropy(logits, torch.tensor(classes), reduction="none")
    before = program.losses(batch).detach()
    assert before.tolist() == pytest.approx(expected.tolist(), rel=1e-5)
    method.step(batch, 1e-3)
    assert program.losses(batch).detach().sum() < before.sum()
    with pytest.raises(UsageError, match="kind side is for language models"):
        build_method(folder, {"kind": "side"}, 0, Path())
