"""A run of a study by the compiled file ends where the same run ends by PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prgec.compiler.frontend.checkpoint import find_checkpoint
from prgec.core.contract.pte import read_pte
from prgec.errors import CheckpointError, UsageError
from prgec.lab.study.isolated import train_alone
from prgec.lab.study.method import build_method, prepare
from prgec.lab.study.spec import Run, read_study

EXACT = {"kind": "gradient", "method": "exact", "batch_size": 2, "num_labels": 2, "seq_len": 16, "lr": 0.01}
# Tokens of the shortest prompt of the task.
SHORTEST = 5
PRGE = {"kind": "prge", "q": 2, "batch_size": 2, "num_labels": 2, "seq_len": 16, "lr": 0.01}


@pytest.mark.slow
@pytest.mark.parametrize("options", [EXACT, PRGE], ids=["exact", "prge"])
def test_the_file_says_what_pytorch_says(path: Path, options: dict[str, Any]) -> None:
    study = read_study(path)
    by_torch, by_file = (
        train_alone(Run("each", study.tasks[0], {**options, **more}, 1), study)
        for more in ({}, {"engine": "executorch"})
    )
    assert by_file.steps == by_torch.steps > 1
    assert [each.loss for each in by_file.curve] == pytest.approx([each.loss for each in by_torch.curve], rel=1e-4)
    assert by_file.curve[0].loss != pytest.approx(by_file.curve[-1].loss, rel=1e-3), "it learns something"
    assert by_file.test_loss == pytest.approx(by_torch.test_loss, rel=1e-4)


@pytest.mark.slow
def test_room_for_inference_is_memory_of_steps(path: Path) -> None:
    """A file keeps the room of scores, which is gone in PyTorch: it counts, though steps add little."""
    study, rows = read_study(path), 8192
    options = {**PRGE, "engine": "executorch", "batch_size": rows // (2 * PRGE["q"])}
    found = train_alone(Run("each", study.tasks[0], options, 1), study)
    embedded_bytes = 4 * rows * find_checkpoint(study.model).config["hidden_size"] * SHORTEST
    assert found.memory_bytes is not None and found.memory_bytes > embedded_bytes > 4_000_000


@pytest.mark.slow
def test_planned_memory_is_memory_of_a_run(path: Path) -> None:
    """It is made with the call that reads the manifest, before any step: it counts all the same."""
    study = read_study(path)
    options = {**PRGE, "engine": "executorch", "batch_size": 2048}
    method = build_method(study.model, Run("each", study.tasks[0], options, 0).made_of, 0, path)
    planned_bytes = read_pte(method.program.path).methods["forward"].planned_bytes  # type: ignore[attr-defined]
    assert method.held_bytes >= planned_bytes > 4_000_000


def test_a_compilation_that_fails_is_reported(path: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        prepare(str(tmp_path / "nothing"), {**EXACT, "engine": "executorch"}, path)


def test_rows_of_the_task_round_the_weights(path: Path) -> None:
    """As `prgec compile --data` rounds them: four bits by what layers read."""
    (task, *_), options = read_study(path).tasks, {**EXACT, "quantize": "8da4w"}
    pipelines = [
        build_method(str(path.parent / "model"), Run("a", task, {**options, **more}, 0).made_of, 0, path)
        for more in ({}, {"data": "train"})
    ]
    assert ["rounding=gptq" in each.program.manifest.pipeline for each in pipelines] == [False, True]


def test_an_engine_that_there_is_not(path: Path) -> None:
    with pytest.raises(UsageError, match="^unknown engine 'abacus'. Hint: known: torch, executorch$"):
        prepare("model", {**EXACT, "engine": "abacus"}, path)
