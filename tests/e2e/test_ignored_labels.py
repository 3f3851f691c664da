"""Labels that are ignored leave no trace in gradients, whatever XNNPACK makes of a row of zeros."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from prgec.compile.options import CompileOptions
from prgec.contract.names import IGNORE_TARGET
from prgec.engines.executorch.open import open_pte
from tests.models import write_tokenizer
from tests.shared import Shared

# Products of zeros round once a group of 32, and cancel where the weights of a column do.
VOCAB_SIZE, HEAD_MEAN = 8192, 0.02


def _checkpoint(folder: Path) -> Path:
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=VOCAB_SIZE, num_key_value_heads=1, max_position_embeddings=64, **sizes)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight += HEAD_MEAN
    model.save_pretrained(folder)
    write_tokenizer(folder, "sentencepiece")
    return folder


@pytest.mark.slow
def test_gradients_do_not_ask_where_ignored_labels_are(shared: Shared) -> None:
    checkpoint = shared.once("wide-vocabulary", _checkpoint)
    sizes = {"batch_size": 2, "seq_len": 16, "num_labels": 4, "rank": 4, "alpha": 8.0}
    options = CompileOptions(str(checkpoint), output=Path("model.pte"), method="exact", quantize="8da4w", **sizes)
    program = open_pte(shared.program(options))
    random = np.random.default_rng(2)
    before = {name: random.normal(0, 0.1, b.shape).astype(np.float32) for name, b in program.read_state().items()}
    tokens = random.integers(3, VOCAB_SIZE, (2, 9))
    targets = tokens[:, -4:].copy()
    targets[:, 1:] = IGNORE_TARGET
    found = []
    for place in (0, 5):
        program.write_state(before)
        program.forget_steps()
        label_pos = np.full_like(targets, place)
        label_pos[:, 0] = 7
        losses, told = program.train(tokens, label_pos, targets, 0.01)
        found.append((losses, told, program.read_state()))
    for one, other in zip(found[0][:2], found[1][:2], strict=True):
        np.testing.assert_array_equal(one, other)
    for name, b in found[0][2].items():
        assert not np.array_equal(b, before[name])
        np.testing.assert_array_equal(b, found[1][2][name])
