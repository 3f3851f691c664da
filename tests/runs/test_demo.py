"""The report of the demo; the demo itself is a run like any other."""

from __future__ import annotations

from pathlib import Path

from prgec.cli.demo_run import DemoResult
from prgec.runtime.runs.result import RunResult
from prgec.runtime.training.evaluate import Evaluation


def test_json_has_the_keys_others_rely_on() -> None:
    before, after = Evaluation(1.5, 0.5, 10, 1, 0.1), Evaluation(0.4, 0.9, 10, 1, 0.1)
    run = RunResult(Path("runs/demo-1"), 20, 0.6, before, after, 3.0, 10.0, "ab" * 32, False)
    document = DemoResult(run, compile_seconds=4.0, seconds=7.25).to_json()
    expected = {"accuracy_before": 0.5, "accuracy_after": 0.9, "seconds": 7.25, "run": "runs/demo-1"}
    assert {key: document[key] for key in expected} == expected


def test_json_of_an_interrupted_demo() -> None:
    before = Evaluation(1.5, 0.5, 10, 1, 0.1)
    run = RunResult(Path("runs/demo-1"), 3, 0.6, before, None, 3.0, 10.0, "ab" * 32, True)
    assert DemoResult(run, 4.0, 7.25).to_json()["accuracy_after"] is None
