"""A from activations: the directions that hooks on the unmodified model find, in every program that is made of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from prgec.cli.main import main
from prgec.compiler.options import CompileOptions
from prgec.core.contract.calls import Batch
from prgec.core.contract.tokenizer import Tokenizer
from prgec.core.data.dataset import load_dataset
from prgec.core.data.task import Example
from prgec.errors import UsageError
from prgec.lab.torch.program import TorchProgram
from tests.architectures import random_rows
from tests.models import TinyLlama
from tests.tiny_program import write_reviews

RANK, ALPHA, MODEL = 4, 8.0, TinyLlama(num_layers=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("calibrated")
    MODEL.write(folder / "checkpoint")
    write_reviews(folder / "rows.jsonl", 200, seed=1)
    return folder


def _program(folder: Path, **changes: Any) -> TorchProgram:
    options = CompileOptions(
        model=str(folder / "checkpoint"),
        output=Path("unused.pte"),
        backend="portable",
        batch_size=3,
        q=1,
        rank=RANK,
        alpha=ALPHA,
        targets=("q_proj", "k_proj", "o_proj", "down_proj", "lm_head"),
        data=(folder / "rows.jsonl",),
        seq_len=0,
        num_labels=0,
        lora_a=Path("calibrated"),
    )
    return TorchProgram.build(replace(options, **changes))


@pytest.fixture(scope="module")
def program(folder: Path) -> TorchProgram:
    return _program(folder)


def _inputs(folder: Path, tokenizer: Tokenizer, names: list[str], num_labels: int) -> dict[str, Tensor]:
    """Inputs of layers of the unmodified model for 64 prompts, one after the other."""
    examples = load_dataset(folder / "rows.jsonl").examples
    model, seen = MODEL.build(), {name: [] for name in names}
    for name in names:
        # The head reads only the last tokens of a prompt.
        last = -num_labels if name == "lm_head" else None
        model.get_submodule(name).register_forward_pre_hook(
            lambda _, args, name=name, last=last: seen[name].append(args[0][0, last:])
        )
    with torch.no_grad():
        for number in range(64):
            item = examples[number * len(examples) // 64]
            assert isinstance(item, Example)
            model(input_ids=torch.tensor([tokenizer.encode(item.prompt)]))
    return {name: torch.cat(values) for name, values in seen.items()}


@pytest.mark.slow
def test_spans_what_layers_read_most(folder: Path, program: TorchProgram) -> None:
    """The same subspace as NumPy's SVD of hooked inputs; rows of length 1, as drawn ones have in the mean."""
    names = [site.name for site in program.manifest.sites]
    inputs = _inputs(folder, program.tokenizer, names, program.manifest.num_labels)
    assert len(names) == 9 and sum(map(len, inputs.values())) < 9 * 1024
    for name in names:
        found = program.stored_lora_a()[f"{name}.lora_A"].astype(np.float64)
        np.testing.assert_allclose(found @ found.T, np.eye(RANK), atol=1e-6)
        _, sizes, directions = np.linalg.svd(inputs[name].double().numpy(), full_matrices=False)
        assert sizes[RANK - 1] > 1.02 * sizes[RANK], "no gap to tell subspaces apart by"
        expected = directions[:RANK]
        np.testing.assert_allclose(found.T @ found, expected.T @ expected, atol=2e-4, err_msg=name)
        # More of the inputs than any drawn A holds.
        held = np.linalg.norm(inputs[name].double().numpy() @ found.T) / np.linalg.norm(sizes)
        assert held > 0.5, name


def test_equal_compilations_are_equal_bytes(folder: Path, program: TorchProgram) -> None:
    again = _program(folder)
    assert again.manifest.a_sha256 == program.manifest.a_sha256 != ""
    assert _program(folder, lora_a=None).manifest.a_sha256 == ""


def test_gradients_are_those_of_the_given_a(folder: Path) -> None:
    """In exact programs too, which multiply with a transposed copy: against autograd with hooks on the model."""
    program = _program(folder, method="exact", targets=("q_proj", "down_proj"), polyak=0.0)
    m, given = program.manifest, program.stored_lora_a()
    generator = torch.Generator().manual_seed(0)
    start = {name: torch.randn(b.shape, generator=generator).numpy() for name, b in program.read_state().items()}
    program.write_state(start)
    model, leaves = MODEL.build().requires_grad_(False), {}
    for site in m.sites:
        leaf = leaves[site.state_name] = torch.from_numpy(start[site.state_name].copy()).requires_grad_()
        a_RD = torch.from_numpy(given[f"{site.name}.lora_A"]) * (ALPHA / RANK)
        model.get_submodule(site.name).register_forward_hook(
            lambda _, args, output, a_RD=a_RD, leaf=leaf: output + args[0] @ a_RD.T @ leaf
        )
    tokens, label_pos, targets = random_rows(m.batch_size, 12)
    unused = m.num_labels - label_pos.shape[1]
    label_pos, targets = (
        torch.nn.functional.pad(each, (0, unused), value=fill) for each, fill in ((label_pos, 0), (targets, -100))
    )
    logits = model(input_ids=tokens).logits
    losses = [
        torch.nn.functional.cross_entropy(row[at], wanted, ignore_index=-100)
        for row, at, wanted in zip(logits, label_pos, targets, strict=True)
    ]
    torch.stack(losses).mean().backward()
    norm = torch.cat([leaf.grad.flatten() for leaf in leaves.values()]).norm()
    lr = 1e-2
    found, factors = program.train(Batch(tokens.numpy(), label_pos.numpy(), targets.numpy()), lr)
    np.testing.assert_allclose(found, torch.stack(losses).detach().numpy(), rtol=1e-4)
    assert float(factors[1]) == pytest.approx(float(norm), rel=1e-4)
    for name, leaf in leaves.items():
        moved = (start[name] - program.read_state()[name]) / (lr * float(factors[0]))
        assert np.linalg.norm(moved - leaf.grad.numpy()) < 2e-3 * float(leaf.grad.norm()), name


def test_refuses_what_it_cannot_calibrate(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["compile", str(folder / "checkpoint"), "--lora-a", "calibrated", "-o", str(tmp_path / "m.pte")]
    assert main(arguments) == UsageError.exit_code
    assert capsys.readouterr().err == (
        "error: --lora-a calibrated needs prompts. Hint: name a file of them with --data\n"
    )
    few = tmp_path / "few.jsonl"
    few.write_text(json.dumps({"prompt": "the film", "completion": " great"}) + "\n")
    with pytest.raises(UsageError) as error:
        _program(folder, data=(few,), rank=16)
    assert str(error.value).startswith("the prompts of --data span ")
    assert str(error.value).endswith("; --rank is 16. Hint: name data with more prompts, or lower --rank")
    assert not (tmp_path / "m.pte").exists()
