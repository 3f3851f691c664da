"""An adapter means the same in other tools as in the program that trained it.

Letters: N rows of a forward call, V vocabulary.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from prgec.api.program import load
from prgec.api.rows import read_rows
from prgec.cli.main import main
from prgec.core.contract.calls import Batch, StepInputs
from prgec.core.formats.adapter import load_adapter, save_adapter
from prgec.runtime.engines.executorch.open import open_pte
from prgec.runtime.engines.executorch.pte_program import PteProgram
from tests.gguf_model import write_gguf_llama
from tests.models import TinyLlama

MODEL = TinyLlama(num_layers=2, seed=6)
TOKENS = [1, 45, 80, 120, 33, 200]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint, a program, and a run folder with an adapter that is not zero."""
    folder = tmp_path_factory.mktemp("export")
    MODEL.write(folder / "base")
    data = folder / "rows.jsonl"
    data.write_text("".join(json.dumps({"sentence": f"the film {i}", "label": i % 2}) + "\n" for i in range(4)))
    _compile(folder, "model.pte")
    arguments = ["run", folder / "model.pte", "--data", data, "--steps", 2, "--out", folder / "run"]
    assert main([*map(str, arguments)]) == 0
    program = open_pte(folder / "model.pte")
    _randomise(program)
    save_adapter(folder / "run" / "adapter.safetensors", program)
    return folder


def _compile(folder: Path, name: str, *more: str) -> None:
    assert (
        main(
            [
                "compile",
                str(folder / "base"),
                "--backend",
                "portable",
                "--q",
                "2",
                "--batch-size",
                "2",
                "--data",
                str(folder / "rows.jsonl"),
                "--rank",
                "4",
                "--alpha",
                "6",
                "-o",
                str(folder / name),
                *more,
            ]
        )
        == 0
    )


def _randomise(program: PteProgram) -> None:
    rng = np.random.default_rng(1)
    state = program.read_state()
    program.write_state({name: rng.normal(0, 0.2, array.shape).astype(np.float32) for name, array in state.items()})


def _log_probs(program: PteProgram) -> np.ndarray:
    """Log-probability of every token after `TOKENS`: f64[V], read off the losses, one target a row."""
    m = program.manifest
    rows = []
    for first in range(0, m.vocab_size, m.num_rows):
        targets = np.full((m.num_rows, m.num_labels), -100)
        targets[:, 0] = np.minimum(first + np.arange(m.num_rows), m.vocab_size - 1)
        positions = np.zeros((m.num_rows, m.num_labels), np.int64)
        positions[:, 0] = len(TOKENS) - 1
        batch = Batch(np.tile(TOKENS, (m.num_rows, 1)), positions, targets)
        rows.append(program.forward(batch, StepInputs.none(m.q)))
    return -np.concatenate(rows)[: m.vocab_size]


def _model_log_probs(model: Any) -> np.ndarray:
    with torch.no_grad():
        logits = model(torch.tensor([TOKENS])).logits[0, -1]
    return torch.log_softmax(logits.double(), -1).numpy()


@pytest.fixture(scope="module")
def expected(folder: Path) -> np.ndarray:
    program = open_pte(folder / "model.pte")
    untrained = _log_probs(program)
    _randomise(program)
    trained = _log_probs(program)
    assert np.abs(trained - untrained).max() > 0.5, "the adapter matters"
    return trained


def _export(folder: Path, kind: str, output: Path, *more: object) -> int:
    return main(
        [*map(str, ["export", folder / "run", "--format", kind, "--base", folder / "base", "-o", output, *more])]
    )


def test_peft_computes_what_the_program_computes(folder: Path, expected: np.ndarray, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    assert _export(folder, "peft", tmp_path / "peft") == 0
    base = AutoModelForCausalLM.from_pretrained(folder / "base")
    model = peft.PeftModel.from_pretrained(base, tmp_path / "peft")
    np.testing.assert_allclose(_model_log_probs(model), expected, atol=2e-5)
    assert len(model.peft_config["default"].target_modules) == 14


def test_merged_checkpoint_computes_the_same(folder: Path, expected: np.ndarray, tmp_path: Path) -> None:
    assert _export(folder, "merged", tmp_path / "merged") == 0
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    np.testing.assert_allclose(_model_log_probs(model), expected, atol=2e-5)
    # It is a checkpoint like any other: tokenizer included.
    assert (tmp_path / "merged" / "tokenizer.model").read_bytes() == (folder / "base" / "tokenizer.model").read_bytes()


def test_a_merge_measures_rows_before_and_after(
    folder: Path, expected: np.ndarray, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the losses that the program itself has for these rows."""
    del expected  # the adapter of the run is there once it was made
    data = folder / "rows.jsonl"
    assert _export(folder, "merged", tmp_path / "merged", "--data", data, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    rows = read_rows(data, (program := load(folder / "model.pte")))[:16]
    before = program.losses(rows).mean()
    program.use(folder / "run")
    assert found["loss_before"] == pytest.approx(before, rel=1e-4)
    assert found["loss_after"] == pytest.approx(program.losses(rows).mean(), rel=1e-4)
    assert abs(found["loss_after"] - found["loss_before"]) > 0.01
    assert _export(folder, "merged", tmp_path / "again", "--data", data) == 0
    assert "with the adapter merged" in capsys.readouterr().out
    assert _export(folder, "merged", tmp_path / "third", "--data", tmp_path / "none.jsonl") == 4
    assert "no such data file" in capsys.readouterr().err


def test_gguf_holds_what_llama_cpp_reads(folder: Path, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    assert _export(folder, "gguf-lora", tmp_path / "lora.gguf") == 0
    reader = gguf.GGUFReader(tmp_path / "lora.gguf")
    fields = {name: field.contents() for name, field in reader.fields.items()}
    assert fields["general.architecture"] == "llama"
    assert fields["general.type"] == "adapter"
    assert fields["adapter.type"] == "lora"
    assert fields["adapter.lora.alpha"] == 6.0
    tensors = {tensor.name: tensor.data for tensor in reader.tensors}
    assert len(tensors) == 28
    program = open_pte(folder / "model.pte")
    _randomise(program)
    state = program.read_state()
    np.testing.assert_array_equal(
        tensors["blk.1.ffn_down.weight.lora_b"], state["model.layers.1.mlp.down_proj.lora_B"].T
    )
    assert tensors["blk.0.attn_k.weight.lora_a"].shape == (4, 32)
    # Two heads of 8: row 1 of head 0 in llama.cpp is row 4 of the halves.
    k = state["model.layers.0.self_attn.k_proj.lora_B"].T
    np.testing.assert_array_equal(tensors["blk.0.attn_k.weight.lora_b"][:3], k[[0, 4, 1]])


def test_llama_cpp_computes_what_the_program_computes(folder: Path, expected: np.ndarray, tmp_path: Path) -> None:
    llama_cpp = pytest.importorskip("llama_cpp")
    assert _export(folder, "gguf-lora", tmp_path / "lora.gguf") == 0
    write_gguf_llama(tmp_path / "base.gguf", AutoModelForCausalLM.from_pretrained(folder / "base"))
    found = {}
    for lora in (None, str(tmp_path / "lora.gguf")):
        model = llama_cpp.Llama(str(tmp_path / "base.gguf"), lora_path=lora, n_ctx=32, verbose=False, logits_all=True)
        model.eval(TOKENS)
        logits = torch.tensor(np.array(model.scores[len(TOKENS) - 1], dtype=np.float64))
        found[lora is not None] = torch.log_softmax(logits, -1).numpy()
        model.close()
    untouched = _model_log_probs(AutoModelForCausalLM.from_pretrained(folder / "base"))
    # llama.cpp rounds to f16 in attention.
    np.testing.assert_allclose(found[False], untouched, atol=2e-2)
    np.testing.assert_allclose(found[True], expected, atol=2e-2)


def test_exported_adapter_starts_a_run(folder: Path, expected: np.ndarray, tmp_path: Path) -> None:
    assert _export(folder, "peft", tmp_path / "peft") == 0
    arguments = ["predict", folder / "model.pte", "--text", "the film", "--task", "sst2", "--adapter"]
    assert main([*map(str, [*arguments, tmp_path / "peft"])]) == 0
    program = open_pte(folder / "model.pte")
    load_adapter(tmp_path / "peft", program)
    np.testing.assert_array_equal(_log_probs(program), expected)


def test_adapter_trained_by_peft_goes_on_here(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    peft = pytest.importorskip("peft")
    base = AutoModelForCausalLM.from_pretrained(folder / "base")
    config = peft.LoraConfig(r=3, lora_alpha=5, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM")
    model = peft.get_peft_model(base, config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))
    model.save_pretrained(tmp_path / "theirs")
    oracle = _model_log_probs(model.eval())
    # A program with an A of its own refuses it, and says how to compile one that does not.
    assert (
        main(
            [
                "eval",
                str(folder / "model.pte"),
                "--data",
                str(folder / "rows.jsonl"),
                "--adapter",
                str(tmp_path / "theirs"),
            ]
        )
        == 5
    )
    assert "compile with --lora-a" in capsys.readouterr().err
    _compile(folder, "theirs.pte", "--lora-a", str(tmp_path / "theirs"))
    program = open_pte(folder / "theirs.pte")
    assert (program.manifest.rank, program.manifest.alpha, len(program.manifest.sites)) == (3, 5.0, 4)
    arguments = [
        "run",
        folder / "theirs.pte",
        "--data",
        folder / "rows.jsonl",
        "--steps",
        1,
        "--lr",
        0,
        "--init-adapter",
        tmp_path / "theirs",
        "--out",
        tmp_path / "run",
    ]
    assert main([*map(str, arguments)]) == 0
    load_adapter(tmp_path / "run" / "adapter.safetensors", program)
    np.testing.assert_allclose(_log_probs(program), oracle, atol=2e-5)
    # And back: the adapter file carries the A it was given.
    assert main(["export", str(tmp_path / "run"), "--format", "peft", "-o", str(tmp_path / "back")]) == 0
    fresh = AutoModelForCausalLM.from_pretrained(folder / "base")
    again = peft.PeftModel.from_pretrained(fresh, tmp_path / "back")
    np.testing.assert_allclose(_model_log_probs(again), oracle, atol=2e-5)


def test_other_base_is_refused(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    TinyLlama(num_layers=2, seed=7).write(tmp_path / "other")
    assert (
        main(
            [
                "export",
                str(folder / "run"),
                "--format",
                "merged",
                "--base",
                str(tmp_path / "other"),
                "-o",
                str(tmp_path / "out"),
            ]
        )
        == 5
    )
    assert "error: the adapter belongs to other weights than this checkpoint's (" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_adapter_alone_needs_its_program(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lonely = tmp_path / "adapter.safetensors"
    lonely.write_bytes((folder / "run" / "adapter.safetensors").read_bytes())
    assert main(["export", str(lonely), "--format", "peft"]) == 2
    assert "name the .pte with --program" in capsys.readouterr().err
    assert main(["export", str(lonely), "--format", "peft", "--program", str(folder / "model.pte"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sites"] == 14
    assert main(["export", str(lonely), "--format", "peft", "--program", str(folder / "model.pte")]) == 2
    assert "the output exists" in capsys.readouterr().err


def test_gguf_refuses_what_llama_cpp_rearranges(tmp_path: Path) -> None:
    from prgec.core.formats.gguf import write_gguf_lora
    from prgec.core.formats.peft import PeftAdapter
    from prgec.errors import UsageError

    pytest.importorskip("gguf")
    with pytest.raises(UsageError, match="no gguf-lora for models of type gpt2"):
        write_gguf_lora(tmp_path / "x.gguf", PeftAdapter(1, 1.0, {}, {}), {"model_type": "gpt2"})
    assert not (tmp_path / "x.gguf").exists()
