"""The display of a run while it trains."""

from __future__ import annotations

import math

import pytest

from prgec.cli.progress import RunDisplay
from prgec.runtime.training.step import StepResult


def _shown(capsys: pytest.CaptureFixture[str], *steps: tuple[int, float]) -> list[str]:
    with RunDisplay(10) as display:
        for step, loss in steps:
            display.on_step(StepResult(step, loss, 1e-3))
    return [line.split("loss ")[1].split()[0] for line in capsys.readouterr().err.splitlines()]


def test_the_loss_is_a_running_mean(capsys: pytest.CaptureFixture[str]) -> None:
    assert _shown(capsys, (1, 8.0), (2, 6.0)) == ["8.0000", "7.9000"]


def test_a_run_that_goes_on_begins_with_its_own_loss(capsys: pytest.CaptureFixture[str]) -> None:
    assert _shown(capsys, (7, 8.0), (8, 6.0)) == ["8.0000", "7.9000"]


def test_a_loss_that_is_no_number_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert _shown(capsys, (1, 8.0), (2, math.inf), (3, 6.0)) == ["8.0000", "inf", "6.0000"]
