"""The probe tries every rate from the same state and says which to take."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prgec.cli.main import main
from prgec.runtime.runs.options import RunOptions
from prgec.runtime.runs.probe import FACTORS, Probe, ProbeResult, probe_rates
from prgec.runtime.runs.result import Listener
from prgec.runtime.runs.run import run


@pytest.fixture
def options(tiny_pte: Path, train_jsonl: Path, dev_jsonl: Path, tmp_path: Path) -> RunOptions:
    return RunOptions(
        program=tiny_pte,
        data=train_jsonl,
        eval_data=dev_jsonl,
        lr=0.1,
        steps=20,
        schedule="constant",
        out=tmp_path / "out",
    )


def _probe(options: RunOptions, steps: int) -> ProbeResult:
    return probe_rates(replace(options, steps=steps), Listener(), lambda probe: None)


@pytest.mark.parametrize("kind", ["tiny_pte", "gradient_pte"])
def test_each_rate_is_a_run_of_its_own(options: RunOptions, kind: str, request: pytest.FixtureRequest) -> None:
    """Also of the optimiser's state, where a program keeps one."""
    options = replace(options, program=request.getfixturevalue(kind))
    result = _probe(options, steps=20)
    assert [probe.lr for probe in result.probes] == pytest.approx([0.1 * factor for factor in FACTORS])
    # The third rate after three others is what a run at that rate alone gives.
    alone = run(replace(options, lr=result.probes[2].lr))
    assert alone.before and alone.after
    assert result.before == pytest.approx(alone.before.loss, rel=1e-12)
    assert result.probes[2].loss == pytest.approx(alone.after.loss, rel=1e-12)


def test_divergence_is_an_answer(options: RunOptions) -> None:
    result = _probe(replace(options, lr=1e38), steps=3)
    assert result.probes[-1].loss is None
    assert result.to_json()["probes"][-1] == {"lr": 1e39, "loss": None, "accuracy": None}


@pytest.mark.parametrize("changes", [{"max_g": 0.3}, {"max_g": 0.5, "over_limit": "skip", "estimator": "plain"}])
def test_limits_hold_as_in_a_run(options: RunOptions, changes: dict[str, Any]) -> None:
    limited = _probe(replace(options, **changes), steps=20)
    alone = run(replace(options, lr=limited.probes[3].lr, **changes))
    free = run(replace(options, lr=limited.probes[3].lr, force=True, **{**changes, "max_g": 0.0}))
    assert alone.after and free.after
    assert limited.probes[3].loss == pytest.approx(alone.after.loss, rel=1e-12)
    assert alone.after.loss != free.after.loss


def test_steps_without_numbers_can_be_skipped(options: RunOptions) -> None:
    nowhere = _probe(replace(options, eps=1e38, not_finite="skip"), steps=2)
    assert {probe.loss for probe in nowhere.probes} == {nowhere.before}


@pytest.mark.parametrize(
    ("losses", "lr", "advice"),
    [
        ((0.7, 0.5, 0.9), 2.0, "take --lr 2; the best after 5 steps"),
        ((0.4, 0.5, None), 1.0, "take --lr 1, and probe again around it"),
        ((0.7, 0.6, 0.5), 3.0, "take --lr 3, and probe again"),
        ((0.9, 0.95, None), None, "no rate lowered the loss"),
        ((None, None, None), None, "no rate lowered the loss"),
    ],
)
def test_advice(losses: tuple[float | None, ...], lr: float | None, advice: str) -> None:
    probes = tuple(Probe(float(index), loss, None) for index, loss in enumerate(losses, start=1))
    result = ProbeResult(5, 0.8, probes)
    assert result.advice().startswith(advice)
    assert result.to_json()["lr"] == lr


@pytest.fixture
def arguments(options: RunOptions) -> list[str]:
    return [str(options.program), "--data", str(options.data), "--eval-data", str(options.eval_data), "--lr", "0.1"]


def test_command_writes_nothing(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert main(["probe", *arguments, "--steps", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["lr", "loss", "accuracy"]
    assert len(lines) == 2 + len(FACTORS) + 1
    assert list(Path().iterdir()) == []
    assert main(["probe", *arguments, "--steps", "2", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["probes"]) == len(FACTORS)


@pytest.mark.parametrize(("given", "named"), [(["--lr-probe"], ""), (["--lr-probe", "20"], " --steps 20")])
def test_the_old_flag_says_where_it_went(
    arguments: list[str], given: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *arguments, *given]) == 2
    found = capsys.readouterr().err
    assert found.startswith("error: --lr-probe is a command of its own")
    assert f"prgec probe PROGRAM{named}, and the other flags" in found


def test_steps_are_positive(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", *arguments, "--steps", "0"]) == 2
    assert capsys.readouterr().err == "error: --steps is 0; expected at least 1\n"
