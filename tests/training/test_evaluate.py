"""Evaluation and prediction score every row once, under the present state, without changing it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from prgec.core.contract.calls import Batch, StepInputs
from prgec.core.data.dataset import Dataset, load_dataset
from prgec.core.data.encode import encode_row
from prgec.core.data.eval_set import encode_eval_set
from prgec.core.data.task import Example
from prgec.errors import Cancelled, NumericsError, UsageError
from prgec.runtime.engines.executorch.open import open_pte
from prgec.runtime.engines.executorch.pte_program import PteProgram
from prgec.runtime.training.evaluate import evaluate
from prgec.runtime.training.predict import predict


@pytest.fixture
def program(tiny_pte: Path) -> PteProgram:
    return open_pte(tiny_pte)


@pytest.fixture(scope="module")
def dev_data(dev_jsonl: Path) -> Dataset:
    return load_dataset(dev_jsonl)


def _train_a_little(program: PteProgram) -> None:
    program.apply(StepInputs(g_q=np.array([3.0, -2.0], dtype=np.float32), lr=0.3, seed=1, step=2))


def _one_by_one(program: PteProgram, example: Example, completion: str) -> float:
    """Score one row alone, all N rows of the call being that row."""
    row = encode_row(example, completion, program.tokenizer, program.manifest)
    n, k = program.manifest.num_rows, program.manifest.num_labels
    label_pos, targets = np.zeros((n, k), np.int64), np.full((n, k), -100)
    label_pos[:, : len(row.label_pos)], targets[:, : len(row.targets)] = row.label_pos, row.targets
    batch = Batch(np.tile(row.tokens, (n, 1)), label_pos, targets)
    return float(program.forward(batch, StepInputs.none(program.manifest.q))[n - 1])


def test_equals_scoring_each_row_alone(program: PteProgram, dev_data: Dataset) -> None:
    _train_a_little(program)
    before = program.state_sha256()
    result = evaluate(program, encode_eval_set(dev_data, program))
    assert result is not None
    losses = np.array([[_one_by_one(program, e, c) for c in (" terrible", " great")] for e in dev_data.examples])
    answers = np.array([[" terrible", " great"].index(e.completion or "") for e in dev_data.examples])
    assert result.accuracy == (losses.argmin(1) == answers).mean()
    assert result.loss == pytest.approx(losses[np.arange(37), answers].mean(), rel=1e-6)
    assert (result.num_examples, result.num_calls) == (37, 10)
    assert program.state_sha256() == before


def test_progress_reaches_the_end(program: PteProgram, dev_data: Dataset) -> None:
    seen: list[tuple[int, int]] = []
    evaluate(program, encode_eval_set(dev_data, program), lambda done, total: seen.append((done, total)))
    assert seen[0] == (8, 74)
    assert seen[-1] == (74, 74)


def test_a_listener_ends_it(program: PteProgram, dev_data: Dataset) -> None:
    seen: list[int] = []

    def listen(done: int, total: int) -> None:
        seen.append(done)
        if len(seen) == 2:
            raise Cancelled

    with pytest.raises(Cancelled):
        evaluate(program, encode_eval_set(dev_data, program), listen)
    assert seen == [8, 16]


def _completions(tmp_path: Path, completions: list[str]) -> Dataset:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"prompt": "the film is", "completion": c}) + "\n" for c in completions))
    return load_dataset(path)


def test_free_text_with_few_answers_is_a_choice(program: PteProgram, tmp_path: Path) -> None:
    result = evaluate(program, encode_eval_set(_completions(tmp_path, [" great", " awful", " great"]), program))
    assert result is not None
    assert result.accuracy in (1 / 3, 2 / 3)


def test_open_ended_text_has_no_accuracy(program: PteProgram, tmp_path: Path) -> None:
    result = evaluate(program, encode_eval_set(_completions(tmp_path, [" great"] * 3), program))
    assert result is not None
    assert result.accuracy is None
    assert result.loss > 0


def test_diverged_state_is_an_error(program: PteProgram, dev_data: Dataset) -> None:
    program.write_state({"head.lora_B": np.full((4, 380), np.inf, dtype=np.float32)})
    with pytest.raises(NumericsError, match="evaluation loss is not finite"):
        evaluate(program, encode_eval_set(dev_data, program))


def test_prediction_agrees_with_evaluation(program: PteProgram, dev_data: Dataset) -> None:
    _train_a_little(program)
    predictions = predict(program, dev_data.examples, dev_data.candidates())
    result = evaluate(program, encode_eval_set(dev_data, program))
    assert result is not None
    right = [p.completion == e.completion for p, e in zip(predictions, dev_data.examples, strict=True)]
    assert np.mean(right) == result.accuracy
    assert predictions[0].completion == min(predictions[0].losses, key=lambda c: predictions[0].losses[c])
    assert [p.prompt for p in predictions] == [e.prompt for e in dev_data.examples]


@pytest.mark.parametrize("candidates", [(), (" great",), (" great", " great")])
def test_prediction_needs_a_choice(program: PteProgram, candidates: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="needs at least two"):
        predict(program, [Example("the film", None, "--text 1")], candidates)
