"""Every task trains and evaluates from a published file, on one program whose T and K come from the files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from prgec.cli.main import main
from prgec.core.data.answers import token_f1
from prgec.core.data.dataset import load_dataset
from prgec.core.data.encode import encode_row
from prgec.core.data.eval_set import encode_eval_set
from prgec.core.data.task import Example
from prgec.core.formats.adapter import masters
from prgec.runtime.engines.executorch.open import open_pte
from prgec.runtime.engines.executorch.pte_program import PteProgram
from prgec.runtime.training.evaluate import evaluate
from prgec.runtime.training.generate import generate
from tests.models import TinyLlama
from tests.published import SAMPLES, write_sample

MODEL = TinyLlama(max_positions=512, seed=3)


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("published")
    return {task: write_sample(folder, task) for task in SAMPLES}


@pytest.fixture(scope="module")
def program_path(tmp_path_factory: pytest.TempPathFactory, samples: dict[str, Path]) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    MODEL.write(folder / "checkpoint")
    path = folder / "model.pte"
    data = [part for sample in samples.values() for part in ("--data", str(sample))]
    assert (
        main(
            [
                "compile",
                str(folder / "checkpoint"),
                *data,
                "--generate",
                "--q",
                "2",
                "--batch-size",
                "1",
                "--rank",
                "4",
                "--targets",
                "q_proj,v_proj",
                "-o",
                str(path),
            ]
        )
        == 0
    )
    return path


def test_lengths_are_those_of_the_data(program_path: Path, samples: dict[str, Path]) -> None:
    program = open_pte(program_path)
    longest_row = longest_answer = 0
    for sample in samples.values():
        dataset = load_dataset(sample)
        for example in dataset.examples:
            assert isinstance(example, Example)
            for choice in example.candidates or dataset.candidates() or (str(example.completion),):
                row = encode_row(example, choice, program.tokenizer, program.manifest)
                assert not row.truncated
                longest_row = max(longest_row, len(row.tokens))
                longest_answer = max(longest_answer, len(row.targets))
    assert program.manifest.num_labels == longest_answer
    assert longest_row <= program.manifest.seq_len


@pytest.mark.parametrize("task", SAMPLES)
def test_task_runs(
    task: str, program_path: Path, samples: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "run",
        program_path,
        "--data",
        samples[task],
        "--eval-data",
        samples[task],
        "--steps",
        20,
        "--out",
        tmp_path / "out",
        "--json",
    ]
    assert main([*map(str, arguments)]) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert f"task {task} (from the fields " in err
    assert document["steps"] == 20
    assert document["eval_loss"] != document["eval_loss_before"]
    if task == "squad":
        assert 0 <= document["exact_match"] <= document["f1"] <= 1
    else:
        assert 0 <= document["accuracy"] <= 1


def _trained(program_path: Path) -> PteProgram:
    """A program whose state is not zero."""
    program = open_pte(program_path)
    rng = np.random.default_rng(0)
    program.write_state(
        {name: rng.normal(0, 0.3, array.shape).astype(np.float32) for name, array in program.read_state().items()}
    )
    return program


def _merged(program: PteProgram) -> torch.nn.Module:
    """The untouched model with the adapter added to its weights in PyTorch."""
    from prgec.runtime_ops.lora import lora_a

    model, manifest = MODEL.build(), program.manifest
    for site in manifest.sites:
        a = lora_a(manifest.a_seed, site.index, manifest.rank, site.in_features)
        b = torch.from_numpy(masters(program.read_state(), manifest)[site.state_name])
        with torch.no_grad():
            model.get_submodule(site.name).weight.add_(manifest.alpha / manifest.rank * b.T @ a)
    return model


def test_generation_is_greedy_decoding_of_the_model(program_path: Path) -> None:
    program = _trained(program_path)
    model = _merged(program)
    texts = ["the film was", "It", "a great and lovely movie in the film", "boring dull", "terrible"]
    prompts = [program.tokenizer.encode(text) for text in texts]
    generated = generate(program, prompts, max_tokens=6)
    assert generated is not None
    for prompt, answer in zip(prompts, generated, strict=True):
        with torch.no_grad():
            ids = model.generate(torch.tensor([prompt]), max_new_tokens=6, do_sample=False, eos_token_id=2)
        assert answer == program.tokenizer.decode(ids[0, len(prompt) :].tolist()).strip()


def test_generation_leaves_the_state_alone(program_path: Path) -> None:
    program = _trained(program_path)
    before = program.state_sha256()
    generate(program, [program.tokenizer.encode("the film")], max_tokens=3)
    assert program.state_sha256() == before


def test_answers_are_compared_as_text(program_path: Path, samples: dict[str, Path]) -> None:
    program = _trained(program_path)
    dataset = load_dataset(samples["squad"])
    result = evaluate(program, encode_eval_set(dataset, program))
    assert result is not None and result.f1 is not None
    references = [example.references for example in dataset.examples if isinstance(example, Example)]
    scores = [token_f1(a, r) for a, r in zip(result.answers, references, strict=True)]
    assert result.f1 == pytest.approx(sum(scores) / len(scores))
    assert result.accuracy is None


def test_predict_writes_text(program_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(program_path), "--text", "the film was", "--generate", "4", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    program = open_pte(program_path)
    (expected,) = generate(program, [program.tokenizer.encode("the film was")], max_tokens=4) or [""]
    assert [row["completion"] for row in document["predictions"]] == [expected]


def test_tokenizer_of_another_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    TinyLlama().write(tmp_path / "c")
    config = json.loads((tmp_path / "c" / "config.json").read_text())
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tmp_path / "c")
    model.resize_token_embeddings(300)
    model.save_pretrained(tmp_path / "c")
    assert main(["compile", str(tmp_path / "c"), "--seq-len", "32", "-o", str(tmp_path / "m.pte")]) == 3
    expected = f"error: the tokenizer has {config['vocab_size']} tokens, the checkpoint's vocabulary 300 ("
    assert capsys.readouterr().err.splitlines()[-1].startswith(expected)
    assert not (tmp_path / "m.pte").exists()


def test_conversations_train_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    TinyLlama(max_positions=128).write(tmp_path / "c")
    template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    settings = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "chat_template": template}
    (tmp_path / "c" / "tokenizer_config.json").write_text(json.dumps(settings))
    turns = [{"role": "user", "content": "the film?"}, {"role": "assistant", "content": "great"}]
    (tmp_path / "chat.jsonl").write_text((json.dumps({"messages": turns}) + "\n") * 4)
    data, program = str(tmp_path / "chat.jsonl"), str(tmp_path / "m.pte")
    assert (
        main(
            [
                "compile",
                str(tmp_path / "c"),
                "--data",
                data,
                "--generate",
                "--backend",
                "portable",
                "--static",
                "--q",
                "1",
                "--batch-size",
                "2",
                "-o",
                program,
            ]
        )
        == 0
    )
    assert (
        main(
            [
                "run",
                program,
                "--data",
                data,
                "--eval-data",
                data,
                "--steps",
                "3",
                "--out",
                str(tmp_path / "run"),
                "--json",
            ]
        )
        == 0
    )
    out, err = capsys.readouterr()
    assert "task chat (from the fields messages)" in err
    document = json.loads(out[out.index("{") :])
    assert document["accuracy"] is None and document["eval_loss"] > 0
    assert main(["predict", program, "--data", data, "--generate", "3"]) == 0
