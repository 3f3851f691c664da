"""A LoRA adapter over its base: the model with the adapter in its weights computes what PEFT computes with it apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from transformers import AutoModelForCausalLM

from prgec.cli.main import main
from prgec.compiler.frontend.checkpoint import find_checkpoint
from prgec.compiler.frontend.model import load_model
from prgec.errors import CheckpointError
from prgec.runtime.engines.executorch.runtime import read_constants
from tests.models import TinyLlama

VARIANTS: dict[str, dict[str, Any]] = {
    "lora": {"target_modules": ["q_proj", "v_proj"]},
    "all-linear": {"target_modules": "all-linear", "lora_alpha": 3, "rank_pattern": {"q_proj": 2}},
    "rslora": {"target_modules": ["down_proj"], "use_rslora": True},
    "dora": {"target_modules": ["o_proj"], "use_dora": True},
    "embedding": {"target_modules": ["embed_tokens", "lm_head"]},
}


def _adapter(folder: Path, **options: Any) -> Any:
    """Write a base and a random adapter that names it by a path from its own folder; return PEFT's model."""
    TinyLlama().write(folder / "base")
    base = AutoModelForCausalLM.from_pretrained(folder / "base", dtype=torch.float32)
    torch.manual_seed(0)
    model: Any = peft.get_peft_model(base, peft.LoraConfig(r=4, init_lora_weights=False, **options))
    model.save_pretrained(folder / "adapter")
    path = folder / "adapter" / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "base_model_name_or_path": "base"}))
    return model.eval()


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_those_of_the_adapter_apart(tmp_path: Path, variant: str) -> None:
    """Layers, ranks and variants of every kind."""
    theirs = _adapter(tmp_path, **VARIANTS[variant])
    tokens = torch.arange(3, 19)[None]
    found = load_model(find_checkpoint(str(tmp_path / "adapter")))
    with torch.no_grad():
        expected, plain = theirs(tokens).logits, load_model(find_checkpoint(str(tmp_path / "base")))(tokens).logits
        torch.testing.assert_close(found(tokens).logits, expected, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(plain, expected, atol=1e-2)


def test_the_folder_compiles_and_another_adapter_is_another_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache knows adapters by their contents."""
    _adapter(tmp_path, **VARIANTS["lora"])
    command = ["compile", str(tmp_path / "adapter"), "--method", "prge", "--seq-len", "16", "--label-tokens", "1"]
    monkeypatch.setenv("PRGEC_CACHE", str(tmp_path / "cache"))
    hashes = []
    for name in ("a", "b"):
        assert main([*command, "-o", str(tmp_path / f"{name}.pte")]) == 0
        hashes.append(read_constants(tmp_path / f"{name}.pte")[0].base_sha256)
        _adapter(tmp_path, **VARIANTS["rslora"])
    assert hashes[0] != hashes[1]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("adapter_config.json", b"{}", "adapter_config.json names no base model"),
        ("adapter_config.json", b'{"base_model_name_or_path": "adapter"}', "the adapter's base is an adapter, too"),
        ("adapter_model.safetensors", b"\x00" * 64, "the adapter cannot be merged"),
        ("adapter_model.safetensors", None, "the adapter has no adapter_model.safetensors"),
    ],
)
def test_refuses_damaged_adapters(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    """In one line."""
    _adapter(tmp_path, **VARIANTS["lora"])
    path = tmp_path / "adapter" / name
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        load_model(find_checkpoint(str(tmp_path / "adapter")))


def test_refuses_an_adapter_that_adds_to_the_model(tmp_path: Path) -> None:
    """Soft prompts have no place in its weights."""
    TinyLlama().write(tmp_path / "base")
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.float32)
    model = peft.get_peft_model(base, peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4))
    model.save_pretrained(tmp_path / "adapter")
    with pytest.raises(CheckpointError, match="the adapter cannot be merged|adds to the model"):
        load_model(find_checkpoint(str(tmp_path / "adapter")))
