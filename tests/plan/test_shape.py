"""Sizes out of a config.json are those of the model that transformers builds from it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D

from prgec.compiler.plan.shape import ModelShape, shape_of_config
from prgec.compiler.plan.source import known_models
from prgec.errors import CheckpointError
from tests.architectures import ARCHITECTURES

_LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "vocab_size": 320,
}
# Millions of parameters as their authors count them.
_PUBLISHED = {
    "TinyLlama-1.1B": 1100,
    "Llama-2-7B": 6738,
    "Llama-3.2-1B": 1236,
    "Qwen2.5-1.5B": 1544,
    "Gemma-3-270M": 268,
    "Gemma-2-2B": 2614,
    "OPT-1.3B": 1316,
    "GPT2": 124,
    "Pythia-1B": 1012,
    "Phi-3-mini": 3821,
}


def _linears(model_type: str, options: dict[str, Any]) -> tuple[int, int]:
    """Elements of the matrices of all blocks, and the outputs of all their layers, as transformers has them."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **options))
    blocks = [
        each.weight.shape if isinstance(each, nn.Linear) else each.weight.shape[::-1]
        for name, each in model.named_modules()
        if isinstance(each, nn.Linear | Conv1D) and "lm_head" not in name and "embed_out" not in name
    ]
    return sum(rows * columns for rows, columns in blocks), sum(rows for rows, _ in blocks)


@pytest.mark.parametrize("each", ARCHITECTURES, ids=lambda each: each.name)
def test_layers_are_those_of_transformers(each: Any) -> None:
    config = AutoConfig.for_model(each.model_type, **each.options).to_dict()
    shape = shape_of_config(config, each.name)
    expected = _linears(each.model_type, each.options)
    assert (shape.layers * shape.block_weights, shape.layers * sum(li.outputs for li in shape.linears)) == expected


@pytest.mark.parametrize("name", _PUBLISHED)
def test_known_models_have_the_published_size(name: str) -> None:
    assert shape_of_config(known_models()[name], name).num_weights / 1e6 == pytest.approx(_PUBLISHED[name], abs=1)


def test_every_known_model_is_modelled() -> None:
    assert all(shape_of_config(config, name).layers for name, config in known_models().items())


def _change(**changes: Any) -> ModelShape:
    config = {key: value for key, value in {**_LLAMA, **changes}.items() if value is not None}
    return shape_of_config(config, "m")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": None}, "config.json of m has no hidden_size, which a plan needs"),
        ({"model_type": None}, "config.json of m has no model_type"),
        ({"vocab_size": "many"}, "config.json of m has vocab_size = 'many'; expected a positive integer"),
        ({"num_hidden_layers": 0}, "config.json of m has num_hidden_layers = 0"),
        ({"num_attention_heads": True}, "num_attention_heads = True"),
        ({"num_local_experts": 8}, "m is a mixture of experts: its routing and the experts a step touches"),
        ({"model_type": "mamba"}, "model_type 'mamba' of m is not modelled. Hint: known: gemma, "),
        ({"word_embed_proj_dim": 32}, "its embedding has another width than its blocks"),
    ],
)
def test_a_bad_configuration_is_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as error:
        _change(**changes)
    assert "\n" not in str(error.value)


def test_a_multimodal_configuration_is_that_of_its_language_model() -> None:
    assert shape_of_config({"model_type": "both", "text_config": _LLAMA}, "m") == shape_of_config(_LLAMA, "m")
