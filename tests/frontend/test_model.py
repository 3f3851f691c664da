"""Weights load as they were saved, whatever the layout, or not at all; the exported loss is the model's loss."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from prgec.compiler.frontend.checkpoint import find_checkpoint
from prgec.compiler.frontend.model import LossModel, export_loss, label_loss, load_model, weights_sha256
from prgec.errors import CheckpointError
from tests.architectures import ARCHITECTURES, Architecture
from tests.models import VOCAB_SIZE, TinyLlama, write_tokenizer

Q_PROJ = "model.layers.0.self_attn.q_proj.weight"


def _load(folder: Path) -> nn.Module:
    return load_model(find_checkpoint(str(folder)))


def _edit_weights(folder: Path, edit: Callable[[dict[str, Tensor]], object]) -> None:
    path = folder / "model.safetensors"
    weights = load_file(path)
    edit(weights)
    save_file(weights, path, metadata={"format": "pt"})


def test_layout_does_not_change_the_weights(tmp_path: Path) -> None:
    layouts = {"single": "5GB", "four": "20KB", "many": "1KB"}
    models = {name: _load(TinyLlama().write(tmp_path / name, max_shard_size=size)) for name, size in layouts.items()}
    num_files = {name: len(list((tmp_path / name).glob("*.safetensors"))) for name in layouts}
    assert num_files["single"] == 1 < num_files["four"] < num_files["many"]
    assert len({weights_sha256(model) for model in models.values()}) == 1
    tokens = torch.arange(12).reshape(2, 6)
    expected = TinyLlama().build()(input_ids=tokens).logits
    for model in models.values():
        torch.testing.assert_close(model(input_ids=tokens).logits, expected, rtol=0, atol=0)


def test_hash_tells_weights_apart(tmp_path: Path) -> None:
    folder = TinyLlama().write(tmp_path / "a")
    before = weights_sha256(_load(folder))
    assert weights_sha256(_load(TinyLlama(seed=1).write(tmp_path / "b"))) != before
    _edit_weights(folder, lambda weights: weights[Q_PROJ].view(torch.int32)[0, 0].bitwise_xor_(1))
    assert weights_sha256(_load(folder)) != before


def test_tied_head_is_not_missing(tmp_path: Path) -> None:
    folder = TinyLlama(is_tied=True).write(tmp_path / "tied")
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")
    model = _load(folder)
    assert model.get_parameter("lm_head.weight") is model.get_parameter("model.embed_tokens.weight")


def test_weights_are_f32_and_frozen(tmp_path: Path) -> None:
    folder = tmp_path / "bf16"
    TinyLlama().build().bfloat16().save_pretrained(folder)
    write_tokenizer(folder, "json")
    assert load_file(folder / "model.safetensors")[Q_PROJ].dtype == torch.bfloat16
    model = _load(folder)
    assert {(p.dtype, p.requires_grad) for p in model.parameters()} == {(torch.float32, False)}
    assert not model.training


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda w: w.pop(Q_PROJ), f"lacks 1 of the model's weights, first {re.escape(Q_PROJ)}"),
        (lambda w: w.update({Q_PROJ: torch.zeros(4, 32)}), r"q_proj\.weight is \[4, 32\]; config.json expects"),
    ],
)
def test_weights_that_do_not_fit(tmp_path: Path, edit: Callable[[dict[str, Tensor]], object], message: str) -> None:
    folder = TinyLlama().write(tmp_path / "odd")
    _edit_weights(folder, edit)
    with pytest.raises(CheckpointError, match=message):
        _load(folder)


def test_configuration_of_a_deeper_model(tmp_path: Path) -> None:
    folder = TinyLlama().write(tmp_path / "deep")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 2}))
    with pytest.raises(
        CheckpointError, match=r"lacks 9 of the model's weights.*config\.json may belong to another model"
    ):
        _load(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "no_such_model"}, "has model type `no_such_model` but Transformers does not recognize"),
        ({"num_attention_heads": "four"}, "'num_attention_heads' expected int, got str"),
    ],
)
def test_configuration_transformers_refuses(tmp_path: Path, change: dict[str, object], message: str) -> None:
    folder = TinyLlama().write(tmp_path / "odd")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(CheckpointError, match=message) as caught:
        _load(folder)
    assert "\n" not in str(caught.value)


def test_an_encoder_is_refused(tmp_path: Path) -> None:
    checkpoint = TinyLlama().write(tmp_path / "checkpoint")
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(
        json.dumps({**config, "model_type": "bert", "architectures": ["BertModel"]})
    )
    with pytest.raises(CheckpointError, match="BertModel is not a causal language model .*ForCausalLM"):
        load_model(find_checkpoint(str(checkpoint)))


def test_code_of_a_checkpoint_never_runs(tmp_path: Path) -> None:
    folder = TinyLlama().write(tmp_path / "code")
    config = json.loads((folder / "config.json").read_text())
    auto_map = {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "custom", "auto_map": auto_map}))
    (folder / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(CheckpointError, match="contains custom code"):
        _load(folder)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "header too small"), (b"\xff" * 999, "header too large"), (None, "not fully covered")],
)
def test_damaged_safetensors(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = TinyLlama().write(tmp_path / "damaged") / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4] if content is None else content)
    with pytest.raises(CheckpointError, match=f"cannot load the checkpoint: .*{message}") as caught:
        _load(tmp_path / "damaged")
    assert "\n" not in str(caught.value)


def test_label_loss_is_the_mean_over_a_rows_own_targets() -> None:
    logits = torch.randn(3, 4, 9, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([[1, 2, 3, 4], [8, -100, 0, -100], [-100, -100, -100, 5]])
    expected = [nn.functional.cross_entropy(row, target) for row, target in zip(logits, targets, strict=True)]
    torch.testing.assert_close(label_loss(logits, targets), torch.stack(expected))
    assert label_loss(logits, torch.full((3, 4), -100)).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("lengths", [(12,), (12, 2, 7)], ids=["static", "dynamic"])
def test_exported_loss_is_the_models_loss(tmp_path: Path, lengths: tuple[int, ...]) -> None:
    model = _load(TinyLlama(has_bias=True).write(tmp_path / "m"))
    program = export_loss(model, num_rows=4, seq_len=12, num_labels=2, dynamic=len(lengths) > 1)
    names = {str(node.target) for node in program.graph.find_nodes(op="get_attr")}
    assert {Q_PROJ, Q_PROJ.replace("weight", "bias"), "lm_head.weight"} <= names
    generator = torch.Generator().manual_seed(0)
    for length in lengths:
        tokens = torch.randint(VOCAB_SIZE, (4, length), generator=generator)
        label_pos = torch.randint(length, (4, 2), generator=generator)
        targets = torch.tensor([[5, 6], [7, -100], [-100, 8], [9, 9]])
        logits = model(input_ids=tokens).logits
        picked = torch.stack([logits[n, label_pos[n]] for n in range(4)])
        expected = [nn.functional.cross_entropy(row, target) for row, target in zip(picked, targets, strict=True)]
        (loss_N,) = program.module(tokens, label_pos, targets)
        torch.testing.assert_close(loss_N, torch.stack(expected))


def test_code_that_differs_by_the_number_of_tokens() -> None:
    class Halves(torch.nn.Module):
        """Adds the halves of a row, which only an even number of tokens has."""

        def forward(self, input_ids: Tensor, use_cache: bool) -> SimpleNamespace:
            values = input_ids.unsqueeze(-1).to(torch.float32)
            first, second = values.chunk(2, dim=1)
            return SimpleNamespace(logits=torch.cat((first + second, values), 1))

    with pytest.raises(CheckpointError, match="computes otherwise for other numbers of tokens") as refusal:
        export_loss(Halves(), num_rows=1, seq_len=9, num_labels=1, dynamic=True)
    assert refusal.value.hint is not None and "--static" in refusal.value.hint


def test_model_that_cannot_be_traced() -> None:
    class Undecided(nn.Module):
        def forward(self, input_ids: Tensor, use_cache: bool) -> Tensor:
            return input_ids if input_ids.sum() > 0 else -input_ids

    with pytest.raises(CheckpointError, match="torch.export cannot trace Undecided: ") as caught:
        export_loss(Undecided(), num_rows=2, seq_len=4, num_labels=1, dynamic=False)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("one", ARCHITECTURES, ids=lambda one: one.name)
def test_a_score_makes_logits_at_labels_alone(one: Architecture) -> None:
    """Labels after twelve tokens, before two, and none in the unused slot: the loss is the model's own, row by row."""
    model, widths = one.build(), []
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(3, VOCAB_SIZE, (2, 12), generator=generator)
    label_pos, targets = torch.tensor([[9, 4, 0], [4, 7, 0]]), torch.tensor([[5, 6, -100], [7, -100, -100]])
    with torch.no_grad():
        expected = []
        for row in range(2):
            terms = [
                cross_entropy(model(input_ids=tokens[row : row + 1, : at + 1]).logits[0, -1], target)
                for at, target in zip(label_pos[row], targets[row], strict=True)
                if target >= 0
            ]
            expected.append(torch.stack(terms).mean())
        model.get_output_embeddings().register_forward_hook(lambda _, __, logits: widths.append(logits.shape[1]))
        found = LossModel(model).score(tokens, label_pos, targets)
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-4, atol=1e-5)
    assert widths == [2]
