"""The scoreboard can be made again, and has of every method what dev chose among what memory admits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from prgec.lab.study.results import Point, Result, append_result, read_results
from prgec.lab.study.spec import Study, read_study

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def scoreboard(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import scoreboard

    return scoreboard


@pytest.fixture(scope="module")
def study() -> Study:
    return read_study(ROOT / "studies" / "budgets.toml")


def _result(method: str, task: str, lr: float, dev: float, test: float, megabytes: int, seed: int = 0) -> Result:
    curve = (
        Point(forward_rows=0, accuracy=0.5, loss=1.0, wall_s=0.0, cpu_s=0.0),
        Point(forward_rows=4, accuracy=0.7, loss=0.8, wall_s=1.0, cpu_s=1.5),
        Point(forward_rows=8, accuracy=dev, loss=0.9, wall_s=2.0, cpu_s=3.0),
    )
    key = f"{method}{task}{lr}{seed}"
    return Result(
        key=key,
        method=method,
        task=task,
        options={"kind": "fo", "lr": lr},
        seed=seed,
        steps=8,
        curve=curve,
        test_accuracy=test,
        test_loss=0.9,
        memory_bytes=megabytes * 10**6,
    )


def test_the_page_is_what_the_files_say(scoreboard: ModuleType, tmp_path: Path) -> None:
    scoreboard.write(ROOT / "studies", ROOT / "studies" / "results", tmp_path / "page.md")
    assert (tmp_path / "page.md").read_text() == (ROOT / "docs" / "scoreboard.md").read_text()
    assert (tmp_path / "scoreboard.png").read_bytes()[:4] == b"\x89PNG"


def test_dev_chooses_and_memory_admits(scoreboard: ModuleType, study: Study) -> None:
    """The budget of the study is 16 MB."""
    runs = [
        _result("a", "sentiment", 0.1, dev=0.6, test=0.9, megabytes=5),
        _result("a", "sentiment", 0.2, dev=0.8, test=0.7, megabytes=6),
        _result("a", "sentiment", 0.2, dev=0.8, test=0.5, megabytes=8, seed=1),
        _result("a", "sentiment", 0.3, dev=0.9, test=1.0, megabytes=17),
        _result("b", "sentiment", 0.1, dev=0.9, test=1.0, megabytes=17),
        _result("c", "sentiment", 0.1, dev=0.9, test=0.95, megabytes=1),
        _result("d", "sentiment", 0.1, dev=0.7, test=0.1, megabytes=1),
        _result("d", "sentiment", 0.2, dev=0.8, test=0.3, megabytes=1),
        _result("d", "sentiment", 0.2, dev=0.5, test=0.5, megabytes=1, seed=1),
        _result("c", "pairs", 0.1, dev=0.9, test=0.85, megabytes=20),
    ]
    found = {score.method: score for score in scoreboard.scores_of(study, runs)}
    assert found.keys() == {"a", "c", "d"}
    assert (found["d"].options, found["d"].accuracy) == ("lr 0.2", 0.4), "seeds that tried both choose"
    assert (found["a"].options, found["a"].accuracy, found["a"].memory_mb) == ("lr 0.2", pytest.approx(0.6), 7.0)
    assert found["c"].by_task == {"sentiment": 0.95} and found["c"].cpu_s == 3.0
    page = scoreboard.section(study, list(found.values()))
    assert "| c | - | PyTorch | 50.0 | 95.0 | 95.0 |  |  | 1.0 | 3.0 | 1 |" in page


def test_kept_results_are_read_as_a_study_reads_its_own(scoreboard: ModuleType, tmp_path: Path) -> None:
    result = _result("a", "pairs", 0.1, dev=0.6, test=0.9, megabytes=5)
    append_result(tmp_path / "study-budgets" / "results.jsonl", result)
    kept = scoreboard.keep(tmp_path / "study-budgets", tmp_path / "kept")
    assert kept == tmp_path / "kept" / "budgets.jsonl"
    assert read_results(kept) == {result.key: replace(result, curve=(result.curve[0], result.curve[-1]))}
