"""Runs of another commit are done again, one line after another; runs of this one and options not chosen stay."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from prgec.lab.study.results import Result, append_result, read_results
from prgec.lab.study.spec import read_study
from tests.study.conftest import result_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def remeasure(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import remeasure

    return remeasure


@pytest.fixture
def board(remeasure: ModuleType, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two seeds of a method by an older commit, and a rate that dev did not choose."""
    for name, value in {"STUDIES": path.parent, "KEPT": tmp_path, "PAGE": tmp_path / "page.md"}.items():
        monkeypatch.setattr(remeasure.scoreboard, name, value)
    options = read_study(path).methods[1].grid[0]
    results = tmp_path / "study.jsonl"
    for seed, lr, dev in ((0, 0.01, 0.9), (1, 0.01, 0.9), (0, 0.5, 0.1)):
        found = result_of(f"{seed} {lr}", method="fixed", seed=seed, dev=dev, test=0.123)
        append_result(results, replace(found, options={**options, "lr": lr}))
    return results


def _lines(board: Path) -> list[Result]:
    return list(read_results(board).values())


def test_runs_of_another_commit_are_done_again(remeasure: ModuleType, board: Path) -> None:
    remeasure.remeasure("study", "abc", ())
    *again, other = _lines(board)
    assert [(each.seed, each.commit, len(each.curve)) for each in again] == [(0, "abc", 2), (1, "abc", 2)]
    assert all(each.test_accuracy != 0.123 and each.steps == 4 for each in again)
    assert (other.commit, other.test_accuracy) == ("", 0.123)
    assert "Runs: 2 by the code of abc." in (board.parent / "page.md").read_text()
    before = board.read_bytes()
    remeasure.remeasure("study", "abc", ())
    assert board.read_bytes() == before


def test_a_run_that_was_done_before_a_kill_is_not_done_again(remeasure: ModuleType, board: Path) -> None:
    first, *rest = _lines(board)
    board.unlink()
    for each in (replace(first, commit="abc"), *rest):
        append_result(board, each)
    remeasure.remeasure("study", "abc", ["fixed"])
    assert [(each.commit, each.test_accuracy == 0.123) for each in _lines(board)] == [
        ("abc", True),
        ("abc", False),
        ("", True),
    ]


def test_other_methods_are_left(remeasure: ModuleType, board: Path) -> None:
    before = board.read_bytes()
    remeasure.remeasure("study", "abc", ["searched"])
    assert board.read_bytes() == before
