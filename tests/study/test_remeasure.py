"""One run of a method is done again, and the others if it differs; options that were not chosen stay."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from prgec.lab.study.isolated import train_alone
from prgec.lab.study.results import Result, append_result, read_results
from prgec.lab.study.spec import Run, Study, read_study
from tests.study.conftest import result_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def remeasure(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import remeasure

    # A process that begins anew imports all libraries again.
    monkeypatch.setattr(remeasure, "_fresh", lambda: nullcontext(train_alone))
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


def _keep(board: Path, *results: Result) -> None:
    board.unlink()
    for each in results:
        append_result(board, each)


def test_every_seed_is_done_again_where_the_first_gives_another_accuracy(remeasure: ModuleType, board: Path) -> None:
    remeasure.remeasure("study", "abc")
    *again, other = _lines(board)
    assert [(each.seed, each.commit, len(each.curve)) for each in again] == [(0, "abc", 2), (1, "abc", 2)]
    assert all(each.test_accuracy != 0.123 and each.steps == 4 for each in again)
    assert (other.commit, other.test_accuracy) == ("", 0.123)
    assert "Runs: 2 by the code of abc." in (board.parent / "page.md").read_text()


def test_a_seed_that_gives_the_same_ends_nothing(remeasure: ModuleType, board: Path) -> None:
    # The first and the third differ, and the second does not.
    first, second, _ = _lines(board)
    _keep(board, first, replace(second, test_accuracy=0.5), replace(first, key="2 0.01", seed=2))
    remeasure.remeasure("study", "abc")
    assert [(each.seed, each.commit, each.test_accuracy) for each in _lines(board)] == [
        (0, "abc", 0.5),
        (1, "abc", 0.5),
        (2, "abc", 0.5),
    ]


def test_a_first_seed_that_is_due_counts(remeasure: ModuleType, board: Path) -> None:
    first, second, *rest = _lines(board)
    _keep(board, first, replace(second, commit="abc"), *rest)
    remeasure.remeasure("study", "abc")
    assert [each.commit for each in _lines(board)] == ["abc", "abc", ""]


def test_a_run_that_ends_at_the_same_weights_is_not_tested_again(
    remeasure: ModuleType, board: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remeasure.remeasure("study", "abc")
    first, second, other = _lines(board)
    tested: list[bool] = []
    test = read_study(remeasure.scoreboard.STUDIES / "study.toml").tasks[0].test

    def noted(run: Run, study: Study) -> Result:
        tested.append(run.task.test == test)
        return train_alone(run, study)

    monkeypatch.setattr(remeasure, "_fresh", lambda: nullcontext(noted))
    # The score is one that no test gives.
    _keep(board, replace(first, test_accuracy=0.321, commit=""), second, other)
    remeasure.remeasure("study", "def", every_seed=True)
    assert tested == [False, False]
    assert [(each.test_accuracy, each.commit) for each in _lines(board)][0] == (0.321, "def")
    assert [each.key for each in _lines(board)] == [first.key, second.key, other.key]
    tested.clear()
    remeasure.remeasure("study", "ghi", tests=True)
    assert tested == [True, True]  # the second one since the first gave another accuracy
    assert [(each.test_accuracy, each.commit) for each in _lines(board)][0] == (first.test_accuracy, "ghi")
    tested.clear()
    end = replace(first.curve[-1], loss=first.curve[-1].loss + 1e-15)
    _keep(board, replace(first, curve=(first.curve[0], end), test_accuracy=0.321, commit=""))
    remeasure.remeasure("study", "def")
    assert tested == [False, True]
    assert _lines(board)[0].test_accuracy == first.test_accuracy


@pytest.mark.slow
def test_a_run_in_a_fresh_process_gives_the_same(
    remeasure: ModuleType, path: Path, board: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remeasure.remeasure("study", "abc")
    forked = [replace(each, memory_bytes=None, curve=()) for each in _lines(board)]
    monkeypatch.undo()
    study = read_study(path)
    with remeasure._fresh() as train:
        found = train(Run("fixed", study.tasks[0], forked[0].options, 0), study)
    assert replace(found, memory_bytes=None, curve=(), commit="abc") == forked[0]


def test_the_first_seed_confirms_the_others_where_its_accuracy_is_the_same(remeasure: ModuleType, board: Path) -> None:
    remeasure.remeasure("study", "abc")
    remeasure.remeasure("study", "def")
    assert [each.commit for each in _lines(board)] == ["def", "abc", ""]
    page = (board.parent / "page.md").read_text()
    assert "Runs: 1 by the code of def, 1 older ones that these confirm." in page


def test_memory_is_that_of_the_new_run(remeasure: ModuleType, board: Path) -> None:
    first, second, _ = _lines(board)
    _keep(board, replace(first, commit="abc", memory_bytes=7_000_000), replace(second, memory_bytes=999_000_000))
    remeasure.scoreboard.write(remeasure.scoreboard.STUDIES, remeasure.scoreboard.KEPT, remeasure.scoreboard.PAGE)
    assert "| 7.0 |" in (board.parent / "page.md").read_text()


def test_what_is_of_this_commit_is_not_done_again(remeasure: ModuleType, board: Path) -> None:
    remeasure.remeasure("study", "abc", every_seed=True)
    before = board.read_bytes()
    remeasure.remeasure("study", "abc", every_seed=True)
    assert board.read_bytes() == before


def test_seeds_that_are_left_are_done_with_all(remeasure: ModuleType, board: Path) -> None:
    first, *rest = _lines(board)
    _keep(board, replace(first, commit="abc"), *rest)
    remeasure.remeasure("study", "abc", ["fixed"])
    assert [each.commit for each in _lines(board)] == ["abc", "", ""]
    remeasure.remeasure("study", "abc", ["fixed"], every_seed=True)
    assert [(each.commit, each.test_accuracy == 0.123) for each in _lines(board)] == [
        ("abc", True),
        ("abc", False),
        ("", True),
    ]


def test_other_methods_are_left(remeasure: ModuleType, board: Path) -> None:
    before = board.read_bytes()
    remeasure.remeasure("study", "abc", ["searched"])
    assert board.read_bytes() == before
