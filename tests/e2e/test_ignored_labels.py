"""Ignored labels and padding leave no trace in gradients, whatever XNNPACK makes of a row of zeros."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from prgec.compiler.options import CompileOptions
from prgec.core.contract.arrays import FloatArray, IntArray, State
from prgec.core.contract.calls import Batch
from prgec.core.contract.names import IGNORE_TARGET
from prgec.runtime.engines.executorch.open import open_pte
from prgec.runtime.engines.executorch.pte_program import PteProgram
from tests.models import write_tokenizer
from tests.shared import Shared

# Products of zeros round once a group of 32, and cancel where the weights of a column do.
VOCAB_SIZE, HEAD_MEAN, DOWN_HIGH = 8192, 0.02, 16.0
SIZES = {"hidden_size": 256, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 2}


def _checkpoint(folder: Path) -> Path:
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=VOCAB_SIZE, num_key_value_heads=1, max_position_embeddings=64, **SIZES)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight += HEAD_MEAN
        model.model.layers[0].mlp.down_proj.weight.uniform_(0, DOWN_HIGH)
    model.save_pretrained(folder)
    write_tokenizer(folder, "sentencepiece")
    return folder


@pytest.fixture(scope="module")
def program(shared: Shared) -> PteProgram:
    """A program that trains, with a state that is not zeros."""
    checkpoint = shared.once("wide-vocabulary", _checkpoint)
    sizes = {"batch_size": 2, "seq_len": 16, "num_labels": 4, "rank": 4, "alpha": 8.0}
    options = CompileOptions(model=str(checkpoint), output=Path("model.pte"), method="exact", quantize="8da4w", **sizes)
    return open_pte(shared.program(options))


def _step(
    program: PteProgram, tokens: IntArray, label_pos: IntArray, targets: IntArray
) -> tuple[FloatArray, State, State]:
    """Losses of one step, and the state before and after it."""
    random = np.random.default_rng(1)
    before = {name: random.normal(0, 0.1, b.shape).astype(np.float32) for name, b in program.read_state().items()}
    program.write_state(before)
    program.forget_steps()
    losses, _ = program.train(Batch(tokens, label_pos, targets), 0.01)
    return losses, before, program.read_state()


def _row(num_counted: int) -> tuple[IntArray, IntArray]:
    """Tokens, and targets of which some count."""
    tokens = np.random.default_rng(2).integers(3, VOCAB_SIZE, (2, 9))
    targets = tokens[:, -4:].copy()
    targets[:, num_counted:] = IGNORE_TARGET
    return tokens, targets


@pytest.mark.slow
def test_gradients_do_not_ask_where_ignored_labels_are(program: PteProgram) -> None:
    tokens, targets = _row(num_counted=1)
    found = []
    for place in (0, 5):
        label_pos = np.full_like(targets, place)
        label_pos[:, 0] = 7
        found.append(_step(program, tokens, label_pos, targets))
    (one, before, after), (other, _, again) = found
    np.testing.assert_array_equal(one, other)
    for name, b in after.items():
        assert not np.array_equal(b, before[name])
        np.testing.assert_array_equal(b, again[name])


@pytest.mark.slow
def test_gradients_do_not_ask_how_much_padding_there_is(program: PteProgram) -> None:
    tokens, targets = _row(num_counted=4)
    label_pos = np.tile(np.arange(4, 8), (2, 1))
    _, before, after = _step(program, tokens, label_pos, targets)
    _, _, padded = _step(program, np.pad(tokens, ((0, 0), (0, 7))), label_pos, targets)
    for name, b in after.items():
        np.testing.assert_allclose(padded[name] - before[name], b - before[name], atol=1e-6)
