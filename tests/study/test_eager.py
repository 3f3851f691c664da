"""Rows and models that baselines in PyTorch take."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from prgec.compiler.frontend.checkpoint import find_checkpoint
from prgec.compiler.frontend.model import load_model
from prgec.core.contract.calls import Batch
from prgec.core.data.batches import training_batch
from prgec.core.data.encode import Row
from prgec.errors import UsageError
from prgec.lab.study.eager import EagerProgram
from prgec.lab.study.first_order import FirstOrder
from prgec.lab.study.method import build_method
from tests.classifiers import Encoder, said_by_transformers
from tests.models import TinyLlama


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(TinyLlama(has_bias=True).write(tmp_path_factory.mktemp("eager") / "checkpoint", tokenizer="json"))


@pytest.mark.parametrize("kind", ["fo", "mezo", "side"])
def test_rows_are_cut_where_the_study_says(kind: str, checkpoint: str) -> None:
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


def test_candidates_that_read_the_same_are_computed_once(checkpoint: str) -> None:
    """Logits of three rows are computed, at the one slot in use, for five that differ in their targets as well."""
    program, shapes = EagerProgram(checkpoint, space="frozen", seed=0, batch_size=2, seq_len=16, num_labels=2), []
    model = load_model(find_checkpoint(checkpoint))
    read, at, said = [[5, 6, 7, 8], [5, 6, 7, 9], [5, 6, 7, 8]], [2, 3, 3], [40, 11]
    chosen = [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]
    tokens = np.array([read[row] for row, _ in chosen])
    label_pos = np.array([[at[row], 0] for row, _ in chosen])
    targets = np.array([[said[answer], -100] for _, answer in chosen])
    with torch.no_grad():
        logits = model(input_ids=torch.tensor(read)).logits
    expected = [float(torch.nn.functional.cross_entropy(logits[n, at[n]], torch.tensor(said[m]))) for n, m in chosen]
    program._loss.hf.get_output_embeddings().register_forward_hook(lambda *given: shapes.append(given[2].shape[:2]))
    np.testing.assert_allclose(program.evaluate(Batch(tokens, label_pos, targets)), expected, rtol=1e-5)
    assert shapes == [(3, 1)]


def test_a_step_makes_logits_at_labels_alone(checkpoint: str) -> None:
    method, shapes = FirstOrder(checkpoint, seed=0, space="lora-fa", batch_size=2), []
    loss = method.program._loss
    loss.hf.get_output_embeddings().register_forward_hook(lambda *given: shapes.append(given[2].shape[:2]))
    rows = [Row((1, 5, 9, 30), (3,), (40,)), Row((1, 7, 8), (1, 2), (11, 12))]
    batch = training_batch(rows, np.arange(2), method.program.manifest)
    inputs = [torch.from_numpy(each[:2]) for each in (batch.tokens_NT, batch.label_pos_NK, batch.targets_NK)]
    with torch.no_grad():
        expected = float(loss(*inputs).mean())
    shapes.clear()
    assert method.step(batch, 1e-3).loss == pytest.approx(expected, rel=1e-5)
    (shape,) = shapes
    assert shape[1] < batch.tokens_NT.shape[1]
