"""The report of the demo; the demo itself is a run like any other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from prgec.cli.demo_run import DemoResult
from prgec.runtime.runs.result import RunResult
from prgec.runtime.training.evaluate import Evaluation

BEFORE = Evaluation(loss=1.5, accuracy=0.5, num_examples=10, num_calls=1, seconds=0.1)
RUN = RunResult(
    run=Path("runs/demo-1"),
    steps=20,
    loss=0.6,
    before=BEFORE,
    after=replace(BEFORE, loss=0.4, accuracy=0.9),
    seconds=3.0,
    steps_per_second=10.0,
    state_sha256="ab" * 32,
    interrupted=False,
)


def test_json_has_the_keys_others_rely_on() -> None:
    document = DemoResult(RUN, compile_seconds=4.0, seconds=7.25).to_json()
    expected = {"accuracy_before": 0.5, "accuracy_after": 0.9, "seconds": 7.25, "run": "runs/demo-1"}
    assert {key: document[key] for key in expected} == expected


def test_json_of_an_interrupted_demo() -> None:
    run = replace(RUN, steps=3, after=None, interrupted=True)
    assert DemoResult(run, 4.0, 7.25).to_json()["accuracy_after"] is None
