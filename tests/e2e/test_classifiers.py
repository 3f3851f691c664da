"""BERT and RoBERTa with heads of their own: what programs compute, beside the untouched models on unpadded rows."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from prgec.cli.main import main
from prgec.compiler.compile import build_graphs, compile_model
from prgec.compiler.options import CompileOptions
from prgec.core.contract.names import EMIT_METHOD, FORWARD_METHOD
from prgec.core.contract.tokenizer import Tokenizer
from prgec.errors import CheckpointError, UsageError
from prgec.runtime.engines.executorch.emitting_program import open_emitting
from prgec.runtime.engines.executorch.open import open_pte
from tests.classifiers import ENCODERS, Encoder, said_by_transformers

# A pair and a single text: the second row ends in padding.
TEXTS = (("the film was great", "a dull movie"), ("lovely plot",))
OPTIONS = CompileOptions(model="m", output=Path("m.pte"), method="side", batch_size=2, seq_len=16, num_labels=1)
BOTH = (Encoder("bert"), Encoder("roberta", 3))


def _padded(tokenizer: Tokenizer, extra: int) -> tuple[np.ndarray, list[list[int]], list[list[int]]]:
    """Rows of `TEXTS` padded beyond the longer one, and their tokens and types without padding."""
    encoded = [tokenizer.backend.encode(*texts) for texts in TEXTS]
    rows = [each.ids for each in encoded]
    padded = np.full((2, max(map(len, rows)) + extra), tokenizer.pad_id, dtype=np.int64)
    for row, ids in zip(padded, rows, strict=True):
        row[: len(ids)] = ids
    return padded, rows, [each.type_ids for each in encoded]


def _difference(found: object, expected: torch.Tensor) -> float:
    wanted = expected.numpy()
    return float(np.abs(np.asarray(found) - wanted).max() / np.abs(wanted).max())


@pytest.mark.parametrize("encoder", BOTH, ids=str)
def test_the_rewritten_graph_emits_what_hooks_see(encoder: Encoder, tmp_path: Path) -> None:
    """Padding changes nothing, whatever its length."""
    graphs = build_graphs(replace(OPTIONS, model=str(encoder.write(tmp_path / "checkpoint"))))
    tokenizer, model = Tokenizer.unpack(graphs.tokenizer), encoder.build()
    for extra in (0, 2):
        tokens, *unpadded = _padded(tokenizer, extra)
        rows = torch.from_numpy(tokens), torch.zeros(2, 1, dtype=torch.int64)
        acts, logits = graphs.methods[EMIT_METHOD].module(*rows)
        expected_acts, expected_logits = said_by_transformers(model, *unpadded)
        assert _difference(acts[:, :, 0], expected_acts) < 1e-5
        assert _difference(logits[:, 0], expected_logits) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("encoder", ENCODERS, ids=str)
def test_the_program_is_one_delegate_and_emits_what_hooks_see(encoder: Encoder, tmp_path: Path) -> None:
    checkpoint = encoder.write(tmp_path / "checkpoint")
    done = compile_model(replace(OPTIONS, model=str(checkpoint), output=tmp_path / "m.pte"))
    assert len(done.delegation.delegates) == 1
    program = open_emitting(done.path)
    assert len(program.tokenizer.classes) == encoder.num_classes
    tokens, *unpadded = _padded(program.tokenizer, 2)
    acts, logits = program.emit(tokens, np.zeros((2, 1), dtype=np.int64))
    expected_acts, expected_logits = said_by_transformers(encoder.build(), *unpadded)
    assert _difference(acts[:, :, 0], expected_acts) < 1e-5
    assert _difference(logits[:, 0], expected_logits) < 1e-5


@pytest.mark.parametrize("encoder", [Encoder("bert"), Encoder("roberta", 1)], ids=str)
def test_losses_of_the_methods_that_train(encoder: Encoder, tmp_path: Path) -> None:
    """Before a step, those of the untouched model: of classes and of a score."""
    options = replace(OPTIONS, model=str(encoder.write(tmp_path / "c")), method="prge", q=1, batch_size=1)
    graphs = build_graphs(options)
    tokenizer = Tokenizer.unpack(graphs.tokenizer)
    tokens, *unpadded = _padded(tokenizer, 1)
    logits = said_by_transformers(encoder.build(), *unpadded)[1]
    if encoder.num_classes == 1:
        targets = torch.tensor([[3800], [250]])
        expected = (logits[:, 0] - torch.tensor([3.8, 0.25])).square()
    else:
        targets = torch.tensor([[1], [0]])
        expected = torch.nn.functional.cross_entropy(logits, targets[:, 0], reduction="none")
    # Both rows under both signs.
    step = (torch.zeros(1), torch.tensor(0.0), torch.tensor(0.0), torch.tensor(0), torch.tensor(0))
    for row in range(2):
        rows = torch.from_numpy(tokens[[row, row]]), torch.zeros(2, 1, dtype=torch.int64), targets[[row, row]]
        found = graphs.methods[FORWARD_METHOD].module(*rows, *step)
        found = found[0] if isinstance(found, (tuple, list)) else found
        np.testing.assert_allclose(found.numpy(), expected[[row, row]].numpy(), rtol=1e-4)


@pytest.fixture(scope="module")
def glue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Acceptability of word orders, and alikeness of two sentences, judged by their words."""
    folder = tmp_path_factory.mktemp("glue")
    rng = np.random.default_rng(0)
    words = "film movie plot acting bright dull".split()
    rows = [" ".join(rng.choice(words, 4)) for _ in range(48)]
    (folder / "cola.jsonl").write_text(
        "".join(json.dumps({"sentence": row, "label": int("dull" in row)}) + "\n" for row in rows)
    )
    pairs = [
        (row, other, len(set(row.split()) & set(other.split()))) for row, other in zip(rows, rows[::-1], strict=True)
    ]
    (folder / "stsb.jsonl").write_text(
        "".join(json.dumps({"sentence1": a, "sentence2": b, "score": n / 3}) + "\n" for a, b, n in pairs)
    )
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("task", "num_classes", "measure"), [("cola", 2, "matthews"), ("stsb", 1, "pearson")])
def test_side_learns_a_task(
    task: str, num_classes: int, measure: str, glue: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, key = str(glue / f"{task}.jsonl"), str(tmp_path / "key")
    checkpoint = Encoder("bert", num_classes).write(tmp_path / "c")
    files = {name: str(tmp_path / name) for name in ("m.pte", "acts", "side.safetensors", "side.pte")}
    commands = [
        ["compile", str(checkpoint), "--method", "side", "--data", data, "-o", files["m.pte"]],
        ["side", "emit", files["m.pte"], "--data", data, "-o", files["acts"], "--key", key],
        [
            "side",
            "fit",
            files["acts"],
            "-o",
            files["side.safetensors"],
            "--epochs",
            "200",
            "--lr",
            "3e-3",
            "--held-out",
            "0",
        ],
        ["side", "build", files["side.safetensors"], "-o", files["side.pte"]],
        ["eval", files["m.pte"], "--data", data],
        ["eval", files["m.pte"], "--data", data, "--side", files["side.pte"]],
    ]
    documents = []
    for command in commands:
        assert main([*command, "--json"]) == 0
        documents.append(json.loads(capsys.readouterr().out))
    assert main(commands[-1]) == 0 and measure in capsys.readouterr().out
    assert documents[-1][measure] > max(0.8, documents[-2][measure] + 0.2)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["prge", "exact"])
def test_trains_its_classifier(method: str, glue: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, program, out = str(glue / "cola.jsonl"), str(tmp_path / "m.pte"), str(tmp_path / "run")
    checkpoint = str(Encoder("bert").write(tmp_path / "c"))
    compiling = [
        "compile",
        checkpoint,
        "--method",
        method,
        "--data",
        data,
        "-o",
        program,
        "--targets",
        r"classifier,.*\.pooler\.dense",
    ]
    assert main(compiling) == 0
    running = ["run", program, "--data", data, "--eval-data", data, "--steps", "60", "--out", out, "--json"]
    capsys.readouterr()
    assert main(running) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["eval_loss"] < document["eval_loss_before"]


def test_what_a_classifier_is_not(tmp_path: Path) -> None:
    checkpoint = str(Encoder("roberta", 1).write(tmp_path / "c"))
    options = replace(OPTIONS, model=checkpoint, method="prge")
    with pytest.raises(UsageError, match="a classifier has one answer a row"):
        build_graphs(replace(options, num_labels=2))
    with pytest.raises(UsageError, match="--generate is for language models"):
        build_graphs(replace(options, generate=True))
    with pytest.raises(UsageError, match="--method exact differentiates a choice between classes"):
        build_graphs(replace(options, method="exact"))
    config = tmp_path / "c" / "config.json"
    config.write_text(config.read_text().replace('"pad_token_id": 1', '"pad_token_id": 5'))
    with pytest.raises(CheckpointError, match="the tokenizer pads with token 1, the model with 5"):
        build_graphs(options)


def test_a_text_given_by_hand_is_read_as_a_row_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An encoder reads texts without a template around them; the losses are those of the untouched model."""
    encoder, text = Encoder("bert"), "the film was great"
    program, rows = tmp_path / "m.pte", tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"sentence": text}) + "\n")
    options = replace(OPTIONS, model=str(encoder.write(tmp_path / "c")), method="exact", batch_size=1, output=program)
    compile_model(options)
    found = []
    for given in (["--data", str(rows)], ["--text", text]):
        assert main(["predict", str(program), *given, "--task", "sst2", "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out)["predictions"][0])
    assert found[0] == found[1] and found[1]["prompt"] == text
    ids = open_pte(program).tokenizer.backend.encode(text)
    logits = said_by_transformers(encoder.build(), [ids.ids], [ids.type_ids])[1]
    expected = torch.nn.functional.cross_entropy(logits.repeat(2, 1), torch.tensor([0, 1]), reduction="none")
    np.testing.assert_allclose(list(found[1]["losses"].values()), expected.numpy(), rtol=1e-4)
