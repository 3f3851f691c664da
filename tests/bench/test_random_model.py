"""tools/make_random_model.py writes checkpoints that everything else reads like downloaded ones."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from prgec.compiler.frontend.checkpoint import find_checkpoint
from prgec.compiler.frontend.model import load_model
from prgec.compiler.frontend.tokenizer import pack_tokenizer
from prgec.core.contract.tokenizer import Tokenizer

TOOL = Path(__file__).resolve().parents[2] / "tools" / "make_random_model.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_random_model", TOOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_a_small_shape(tool: ModuleType, tmp_path: Path) -> None:
    for layers in (3, 2):  # the second overwrites the first
        shape = tool.Shape(
            hidden_size=64,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=96,
            vocab_size=1000,
        )
        num_bytes = tool.write_checkpoint(shape, tmp_path, seed=1)
    checkpoint = find_checkpoint(str(tmp_path))
    assert len(checkpoint.shards) == len(list(tmp_path.glob("*.safetensors"))) == 4
    model = load_model(checkpoint)
    assert num_bytes == 2 * sum(parameter.numel() for parameter in model.parameters())
    weights = dict(model.named_parameters())
    assert weights["model.layers.1.self_attn.k_proj.weight"].shape == (32, 64)
    assert torch.equal(weights["model.norm.weight"], torch.ones(64))
    assert weights["lm_head.weight"].std().item() == pytest.approx(0.02, rel=0.05)
    assert not torch.equal(weights["model.layers.0.mlp.up_proj.weight"], weights["model.layers.1.mlp.up_proj.weight"])
    tokenizer = Tokenizer.unpack(pack_tokenizer(checkpoint.path))
    assert tokenizer.decode(tokenizer.encode("the film was great")) == "the film was great"


def test_tinyllama_has_the_size_it_is_known_for(tool: ModuleType) -> None:
    sizes = [size for shard in tool.shards(tool.SHAPES["tinyllama"]) for size in shard.values()]
    assert sum(torch.Size(size).numel() for size in sizes) == 1_100_048_384
