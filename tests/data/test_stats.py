"""`prgec data stats` counts the tokens that batches hold and that a compilation chooses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prgec.cli.main import main
from prgec.compiler.frontend.limits import read_limits
from prgec.compiler.lengths import fit_options
from prgec.compiler.options import CompileOptions
from prgec.core.data.batches import step_indices, training_batch
from prgec.core.data.encode import Row
from prgec.core.data.stats import padding_ratio, spread_of
from prgec.demo import data_file
from tests.data.test_encode import _manifest

PAD = 0


def _padded(lengths: list[int], batch_size: int, num_steps: int) -> float:
    """Share of padding in the arrays that a run of some steps is fed."""
    manifest = replace(_manifest(seq_len=64), batch_size=batch_size, pad_token_id=PAD)
    rows = [Row((7,) * length, (length - 1,), (7,)) for length in lengths]
    arrays = [
        training_batch(rows, step_indices(len(rows), batch_size, 0, step), manifest).tokens_NT
        for step in range(1, num_steps + 1)
    ]
    return sum(int((each == PAD).sum()) for each in arrays) / sum(each.size for each in arrays)


@pytest.mark.parametrize("batch_size", [1, 2, 5, 16])
@pytest.mark.parametrize("num_rows", [3, 16, 37])
def test_padding_is_that_of_the_batches_of_a_run(batch_size: int, num_rows: int) -> None:
    lengths = np.random.default_rng(num_rows).integers(2, 60, num_rows)
    expected = _padded(lengths.tolist(), batch_size, -(-num_rows // batch_size))
    assert padding_ratio(lengths, batch_size) == pytest.approx(expected, abs=1e-12)
    assert (expected > 0.05) == (batch_size > 1)


def test_spread() -> None:
    found = spread_of([*range(1, 101)])
    assert (found.least, found.median, found.mean, found.p90, found.p99, found.most, found.total) == (
        1,
        50,
        50.5,
        90,
        99,
        100,
        5050,
    )
    assert spread_of([4]).p99 == spread_of([4]).least == 4


def _stats(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert main(["data", "stats", *map(str, arguments), "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_t_and_k_are_those_of_a_compilation(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """This holds for a choice whose wrong answer is the longest, too."""
    found = _stats(capsys, data_file("train"), "--model", "demo")
    limits = read_limits("demo")
    options = CompileOptions(model="demo", seq_len=0, num_labels=0, data=(data_file("train"),))
    fitted = fit_options(options, limits.tokenizer, limits.max_positions)
    assert (found["seq_len"], found["label_tokens"]) == (fitted.seq_len, fitted.num_labels)
    assert found["answers"] == {" terrible": 500, " great": 500} and found["num_cut"] == 0
    record = {"premise": "It rained.", "choice1": "a", "choice2": "a wet and long answer", "question": "effect"}
    path = tmp_path / "copa.jsonl"
    path.write_text("".join(json.dumps({**record, "label": label}) + "\n" for label in (0, 0, 1, 0)))
    found = _stats(capsys, path, "--model", "demo")
    assert found["answers"] == {"choice 1": 3, "choice 2": 1}
    path.write_text(json.dumps({**record, "label": 0}))
    assert _stats(capsys, path, "--model", "demo")["label_tokens"] == found["label_tokens"] > found["targets"]["least"]


def test_cuts_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    whole = _stats(capsys, data_file("train"), "--model", "demo")
    cut = _stats(capsys, data_file("train"), "--model", "demo", "--seq-len", 16, "--batch-size", 3)
    assert 0 < cut["num_cut"] < 1000 and cut["tokens"] == whole["tokens"]
    assert list(cut["padding"]) == ["3"] and cut["padding_to_t"] < whole["padding_to_t"]


def test_says_what_a_shorter_t_would_cut(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Where few rows make T; a document is cut to any length and makes none."""
    path = tmp_path / "rows.jsonl"
    path.write_text(data_file("train").read_text() + json.dumps({"sentence": "a great film " * 30, "label": 1}) + "\n")
    assert main(["data", "stats", str(path), "--model", "demo"]) == 0
    assert "; --seq-len 32 would cut 1 of 1001 rows, from the left\n" in capsys.readouterr().out
    assert main(["data", "stats", str(path), "--model", "demo", "--seq-len", "200"]) == 0
    assert "would cut" not in capsys.readouterr().out
    path.write_text(json.dumps({"text": "the film was great and " * 100}) + "\n")
    assert main(["data", "stats", str(path), "--model", "demo"]) == 0
    assert "would cut" not in capsys.readouterr().out


def test_of_a_program(tiny_pte: Path, train_jsonl: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "stats", str(train_jsonl), "--model", str(tiny_pte)]) == 0
    text = capsys.readouterr().out
    assert f"of {tiny_pte}" in text and "padding        B = 1: 0.0%, B = 2: " in text
    assert main(["data", "stats", str(train_jsonl), "--model", str(tiny_pte), "--seq-len", "9"]) == 2
    assert "a program has its T" in capsys.readouterr().err


def test_documents_become_rows(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "text.jsonl"
    path.write_text(json.dumps({"text": "the film was great and " * 100}) + "\n")
    found = _stats(capsys, path, "--model", "demo", "--seq-len", 32)
    assert found["examples"] == 1 and found["num_rows"] == -(-found["targets"]["most"] // 31)
    assert found["num_cut"] == 0 and found["answers"] == {}
