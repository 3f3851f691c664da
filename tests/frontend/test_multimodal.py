"""Models of text and pictures, as which alone Gemma 3 and 4 and Qwen3.5 are published: their text trains."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from prgec.compiler.frontend.limits import read_limits
from prgec.compiler.frontend.model import export_loss
from prgec.compiler.options import CompileOptions
from prgec.compiler.source import load_source
from tests.architectures import random_rows, transformers_losses
from tests.models import VOCAB_SIZE, write_tokenizer

SEQ_LEN = 9
_TEXT = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_LOCAL = {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]}
_PICTURES = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}


def _gemma3() -> Any:
    import transformers

    pictures = {**_PICTURES, "num_hidden_layers": 1, "image_size": 28, "patch_size": 14}
    config = transformers.Gemma3Config(text_config={**_TEXT, **_LOCAL}, vision_config=pictures, mm_tokens_per_image=1)
    return transformers.Gemma3ForConditionalGeneration(config)


def _gemma4() -> Any:
    import transformers

    text = {
        **_TEXT,
        **_LOCAL,
        "global_head_dim": 8,
        "vocab_size_per_layer_input": VOCAB_SIZE,
        "hidden_size_per_layer_input": 8,
        "num_kv_shared_layers": 1,
        "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "full_attention", "full_attention"],
    }
    pictures = {**_PICTURES, "num_hidden_layers": 1, "num_key_value_heads": 2, "head_dim": 8}
    config = transformers.Gemma4Config(text_config=text, vision_config=pictures, audio_config=None)
    return transformers.Gemma4ForConditionalGeneration(config)


def _qwen35() -> Any:
    import transformers

    text = {
        **_TEXT,
        "layer_types": ["linear_attention", "full_attention"],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
    }
    pictures = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 32}
    config = transformers.Qwen3_5Config(text_config=text, vision_config={**pictures, "num_position_embeddings": 16})
    return transformers.Qwen3_5ForConditionalGeneration(config)


@pytest.mark.parametrize("make", [_gemma3, _gemma4, _qwen35])
def test_text_is_computed_as_transformers_computes_it(make: Callable[[], Any], tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng():
        torch.manual_seed(1)
        make().save_pretrained(tmp_path)
    write_tokenizer(tmp_path, "json")
    options = CompileOptions(model=str(tmp_path), output=tmp_path / "m.pte", seq_len=SEQ_LEN, num_labels=2)
    source, model = load_source(options)
    limits = read_limits(str(tmp_path))
    assert (source.vocab_size, source.max_positions) == (limits.vocab_size, limits.max_positions) == (VOCAB_SIZE, 64)
    program = export_loss(model, num_rows=2, seq_len=SEQ_LEN, num_labels=2, dynamic=True)
    whole = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    for length in (2, 6, SEQ_LEN):
        rows = random_rows(2, length)
        with torch.no_grad():
            (found,) = program.module(*rows)
        torch.testing.assert_close(found, transformers_losses(whole, *rows), rtol=1e-4, atol=1e-5)
