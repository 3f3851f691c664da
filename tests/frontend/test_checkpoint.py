"""Checkpoint folders of every layout are found; each kind of damage is refused with one line that says what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from prgec.compiler.compile import compile_model
from prgec.compiler.frontend.checkpoint import ALIASES, find_checkpoint
from prgec.compiler.options import CompileOptions
from prgec.errors import CheckpointError, UsageError
from tests.models import TinyLlama

Damage = Callable[[Path], object]
SHARD = "model-00002-of-00004.safetensors"
INDEX = "model.safetensors.index.json"


@pytest.fixture
def single(tmp_path: Path) -> Path:
    return TinyLlama().write(tmp_path / "single")


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    folder = TinyLlama().write(tmp_path / "sharded", max_shard_size="20KB")
    assert (folder / SHARD).is_file() and not (folder / "model.safetensors").exists()
    return folder


def _edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def _name_a_shard(name: str) -> Damage:
    return lambda folder: _edit_json(folder / INDEX, weight_map={"lm_head.weight": name})


def test_single_file(single: Path) -> None:
    found = find_checkpoint(str(single))
    assert (found.path, found.name, found.architecture) == (single, "single", "LlamaForCausalLM")
    assert found.shards == (single / "model.safetensors",)
    assert found.config["num_key_value_heads"] == 2


def test_shards_come_in_order(sharded: Path) -> None:
    names = [path.name for path in find_checkpoint(str(sharded)).shards]
    assert names == [f"model-0000{i}-of-00004.safetensors" for i in range(1, 5)]


def test_tokenizer_json_will_do(tmp_path: Path) -> None:
    folder = TinyLlama().write(tmp_path / "json", tokenizer="json")
    assert not (folder / "tokenizer.model").exists()
    assert find_checkpoint(str(folder)).path == folder


def test_name_of_a_folder_is_never_a_path(single: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(single)
    assert find_checkpoint(".").name == "single"
    assert find_checkpoint(f"{single}/").name == "single"


def test_demo_is_always_there() -> None:
    found = find_checkpoint("demo")
    assert found.name == "demo" and found.architecture == "LlamaForCausalLM"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "config.json").unlink(), r"no config\.json, so it is not a Hugging Face checkpoint"),
        (lambda f: (f / "config.json").write_text('{"a": '), r"cannot read the model's configuration: Expecting value"),
        (lambda f: (f / "config.json").write_text("[1]"), "the model's configuration is not a JSON object"),
        (lambda f: (f / "config.json").write_bytes(b"\xff\xfe"), "cannot read the model's config.*: 'utf-8' codec"),
        (lambda f: _edit_json(f / "config.json", model_type=None), "does not say which model this is"),
        (lambda f: (f / "tokenizer.model").unlink(), r"has no tokenizer .*tokenizer\.json or tokenizer\.model"),
        (lambda f: (f / SHARD).unlink(), f"1 of 4 weight files are missing, first {SHARD} .*download .* again"),
        (lambda f: (f / INDEX).unlink(), r"neither model\.safetensors nor model\.safetensors\.index\.json"),
        (lambda f: (f / INDEX).write_text("{}"), "has no weight_map"),
        (lambda f: _edit_json(f / INDEX, weight_map=["a"]), "has no weight_map"),
        (_name_a_shard("../other.safetensors"), r"names a file outside the folder: '\.\./other\.safetensors'"),
        (_name_a_shard("/etc/passwd"), "names a file outside the folder: '/etc/passwd'"),
        (_name_a_shard(".."), "1 of 1 weight files are missing"),
    ],
)
def test_damaged_folder(sharded: Path, damage: Damage, message: str) -> None:
    damage(sharded)
    with pytest.raises(CheckpointError, match=message) as caught:
        find_checkpoint(str(sharded))
    assert str(sharded) in str(caught.value) and "\n" not in str(caught.value)


def test_pickled_weights_are_refused(single: Path) -> None:
    torch.save(load_file(single / "model.safetensors"), single / "pytorch_model.bin")
    (single / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="pickled weights are never loaded: convert them"):
        find_checkpoint(str(single))


def test_file_instead_of_a_folder(single: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"expected the folder of a checkpoint or a \.gguf, found a file .*model\.safetensors"
    ):
        find_checkpoint(str(single / "model.safetensors"))


@pytest.mark.parametrize("name", ["nothing-of-that-name", "./no/folder", "~/model", "/no/folder", "a/b/c"])
def test_no_such_model(name: str) -> None:
    with pytest.raises(CheckpointError, match="there is no folder, alias or hub id") as caught:
        find_checkpoint(name)
    assert f"aliases: demo, {', '.join(ALIASES)}" in str(caught.value)


def test_compile_leaves_nothing(sharded: Path, tmp_path: Path) -> None:
    (sharded / SHARD).write_bytes((sharded / SHARD).read_bytes()[:-100])
    out = tmp_path / "out"
    out.mkdir()
    options = CompileOptions(model=str(sharded), output=out / "m.pte", seq_len=8, num_labels=1)
    with pytest.raises(CheckpointError, match="cannot load the checkpoint"):
        compile_model(options)
    assert not list(out.iterdir())


def test_longer_rows_than_the_model_knows(single: Path, tmp_path: Path) -> None:
    options = CompileOptions(model=str(single), output=tmp_path / "m.pte", seq_len=65)
    with pytest.raises(UsageError, match="--seq-len is 65, but the model supports 64 positions"):
        compile_model(options)
