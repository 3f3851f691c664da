"""Batches follow the contract's row order, and the order of examples depends on seed and step only."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from prgec.core.contract.manifest import Manifest
from prgec.core.contract.names import IGNORE_TARGET
from prgec.core.data.batches import epoch_order, evaluation_batches, step_indices, training_batch, warn_of_padding
from prgec.core.data.encode import Row


def _manifest(*, q: int = 2, batch_size: int = 3, dynamic: bool = True) -> Manifest:
    return Manifest(
        model="m",
        architecture="A",
        backend="portable",
        q=q,
        batch_size=batch_size,
        seq_len=16,
        dynamic_seq_len=dynamic,
        num_labels=2,
        vocab_size=99,
        rank=1,
        alpha=1.0,
        a_seed=0,
        state="seeded",
        quantize="none",
        sites=(),
        pipeline="",
        base_sha256="",
        pad_token_id=7,
    )


def _rows(count: int) -> list[Row]:
    """Return row i with i + 1 tokens, each of them 10 + i."""
    return [Row((10 + i,) * (i + 1), (i,), (20 + i,)) for i in range(count)]


@pytest.mark.parametrize(("num_rows", "batch_size"), [(10, 4), (10, 5), (3, 4), (1, 2), (7, 1)])
def test_every_epoch_sees_every_row_once(num_rows: int, batch_size: int) -> None:
    stream = np.concatenate([step_indices(num_rows, batch_size, 5, step) for step in range(1, 3 * num_rows + 1)])
    for epoch in range(len(stream) // num_rows):
        assert Counter(stream[epoch * num_rows : (epoch + 1) * num_rows].tolist()) == Counter(range(num_rows))


def test_order_is_pinned_across_versions_and_machines() -> None:
    assert epoch_order(8, 0, 0).tolist() == [2, 3, 6, 5, 4, 7, 1, 0]
    assert epoch_order(8, 1, 2).tolist() == [7, 0, 5, 1, 4, 3, 6, 2]


def test_order_depends_on_seed_and_epoch() -> None:
    orders = {tuple(epoch_order(50, seed, epoch).tolist()) for seed in (0, 1, -1) for epoch in range(3)}
    assert len(orders) == 9


def test_training_rows_are_replicated_in_contract_order() -> None:
    manifest = _manifest(q=2, batch_size=3)
    batch = training_batch(_rows(5), np.array([4, 0, 2]), manifest)
    assert batch.indices.tolist() == [4, 0, 2] * 4
    assert batch.tokens_NT[:, 0].tolist() == [14, 10, 12] * 4
    assert batch.targets_NK[:, 0].tolist() == [24, 20, 22] * 4


def test_padding_to_the_batch_maximum() -> None:
    batch = training_batch(_rows(5), np.array([3, 0, 1]), _manifest())
    assert batch.tokens_NT.shape == (12, 4)
    assert batch.tokens_NT[1].tolist() == [10, 7, 7, 7]
    assert batch.targets_NK[0].tolist() == [23, IGNORE_TARGET]
    assert batch.label_pos_NK[0].tolist() == [3, 0]
    assert {array.dtype for array in (batch.tokens_NT, batch.label_pos_NK, batch.targets_NK)} == {np.dtype(np.int64)}


def test_a_target_that_equals_the_padding_counts() -> None:
    pad = _manifest().pad_token_id
    batch = training_batch([Row((5, pad), (0, 1), (pad, pad)), Row((5,), (0,), (6,))], np.array([0, 1, 1]), _manifest())
    assert batch.targets_NK[0].tolist() == [pad, pad]
    assert batch.targets_NK[1].tolist() == [6, IGNORE_TARGET]


def test_padding_to_the_compiled_length_when_static() -> None:
    assert training_batch(_rows(5), np.array([0, 1, 2]), _manifest(dynamic=False)).tokens_NT.shape == (12, 16)


def test_dynamic_length_has_a_lower_bound() -> None:
    assert training_batch(_rows(1), np.array([0, 0, 0]), _manifest()).tokens_NT.shape == (12, 2)


@pytest.mark.parametrize("count", [1, 11, 12, 13, 30])
def test_evaluation_covers_every_row_once(count: int) -> None:
    rows = _rows(count)[::-1] if count <= 16 else [Row((5,) * (1 + i % 9), (0,), (i,)) for i in range(count)]
    batches = list(evaluation_batches(rows, _manifest()))
    assert sorted(np.concatenate([batch.indices for batch in batches]).tolist()) == list(range(count))
    for batch in batches:
        assert batch.tokens_NT.shape[0] == 12
        assert batch.targets_NK[: len(batch.indices), 0].tolist() == [rows[i].targets[0] for i in batch.indices]
        # Filling repeats a real row: no row may be without a target, its loss would be 0 / 0.
        assert (batch.targets_NK[:, 0] != IGNORE_TARGET).all()


def test_evaluation_groups_rows_of_like_length() -> None:
    rows = [Row((5,) * (15 if i % 2 else 3), (0,), (i,)) for i in range(24)]
    assert [batch.tokens_NT.shape[1] for batch in evaluation_batches(rows, _manifest())] == [3, 15]


@pytest.mark.parametrize(("num_rows", "dynamic", "is_said"), [(8, False, True), (9, False, False), (8, True, False)])
def test_a_fixed_length_that_is_mostly_padding_is_said(
    num_rows: int, dynamic: bool, is_said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_padding(_rows(num_rows), _manifest(dynamic=dynamic))
    said = "the program computes 16 tokens of every row, and the longest has 8: compile with --data to save it"
    assert [record.message for record in caplog.records] == [said] * is_said
