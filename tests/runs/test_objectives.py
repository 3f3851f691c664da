"""Runs of objectives: they learn which answers are better, go on bit for bit, and refuse what teaches nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prgec.core.formats.journal import read_journal
from prgec.core.formats.tensor_file import unpack_tensors
from prgec.errors import PrgecError
from prgec.runtime.engines.executorch.open import open_pte
from prgec.runtime.runs.options import RunOptions
from prgec.runtime.runs.run import run
from prgec.runtime.training.objectives import OBJECTIVES
from tests.runs.killing import assert_same_run, kill, metrics_of
from tests.tiny_program import BAD, FILLER, GOOD

STEPS, REFERENCE = 13, "reference.safetensors"
Make = Callable[..., RunOptions]


def _rows(seed: int, count: int, *, are_pairs: bool) -> list[dict[str, Any]]:
    """Prompts of filler; a good word is the better answer."""
    random, rows = np.random.default_rng(seed), []
    for _ in range(count):
        prompt = " ".join(random.choice(FILLER, 3))
        good, bad = f" {GOOD[0]}", f" {BAD[0]}"
        if are_pairs:
            rows.append({"prompt": prompt, "chosen": good, "rejected": bad})
        else:
            is_good = bool(random.integers(2))
            rows.append({"prompt": prompt, "completion": good if is_good else bad, "label": is_good})
    return rows


@pytest.fixture
def make(weighing_pte: Path, tmp_path: Path) -> Make:
    def options(objective: str, **changes: Any) -> RunOptions:
        paths = [tmp_path / f"{objective}-{name}.jsonl" for name in ("train", "test")]
        for seed, (path, count) in enumerate(zip(paths, (24, 9), strict=True)):
            rows = _rows(seed, count, are_pairs=objective != "kto")
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        made = RunOptions(
            program=weighing_pte,
            data=paths[0],
            eval_data=paths[1],
            objective=objective,
            steps=STEPS,
            lr=0.05,
            eval_every=5,
            snapshot_every=4,
            out=tmp_path / "out",
        )
        return replace(made, **changes)

    return options


@pytest.mark.parametrize("name", OBJECTIVES)
def test_it_learns_which_answers_are_better(make: Make, name: str) -> None:
    result = run(make(name, steps=200, eval_every=0))
    assert result.before is not None and result.after is not None
    assert result.after.num_examples == 9
    assert result.before.loss > result.after.loss
    assert (result.after.accuracy or 0.0) >= 0.75 > (result.before.accuracy or 0.0)
    lines = [line for line in metrics_of(result.run) if "margin" in line]
    assert len(lines) >= 150 and all({"loss", "nll", "accuracy"} <= set(line) for line in lines)
    first, last = lines[0], lines[-1]
    assert isinstance(first["margin"], float) and isinstance(last["margin"], float) and last["margin"] > first["margin"]
    assert ("kl" in last) == (name == "kto")


@pytest.mark.parametrize("name", OBJECTIVES)
def test_measured_losses_teach_it_too(make: Make, tiny_pte: Path, name: str) -> None:
    """Without gradients, the objective of every perturbed copy is what is compared."""
    result = run(make(name, program=tiny_pte, no_eos=True, steps=400, lr=0.05, eval_every=0))
    assert result.before is not None and result.after is not None
    assert result.after.loss < 0.95 * result.before.loss
    journal = read_journal(result.run / "journal.bin")
    assert journal.header.q == 2 and journal.header.estimator == f"norm+{name}"


@pytest.mark.parametrize("name", ["simpo", "kto"])
def test_a_killed_run_of_measured_losses_ends_as_if_never_killed(
    make: Make, tiny_pte: Path, tmp_path: Path, name: str
) -> None:
    options = make(name, program=tiny_pte, no_eos=True)
    whole = run(replace(options, out=tmp_path / "whole")).run
    folder = kill(options, 6)
    run(replace(options, resume=True))
    assert_same_run(folder, whole)


@pytest.mark.parametrize("name", ["dpo", "kto"])
@pytest.mark.parametrize("step", [1, 6, STEPS])
def test_a_killed_run_ends_as_if_never_killed(make: Make, tmp_path: Path, name: str, step: int) -> None:
    whole = run(make(name, out=tmp_path / "whole")).run
    folder = kill(make(name), step)
    kept = (folder / REFERENCE).read_bytes()
    run(make(name, resume=True))
    assert_same_run(folder, whole)
    assert (folder / REFERENCE).read_bytes() == kept == (whole / REFERENCE).read_bytes()


@pytest.mark.parametrize("damage", ["missing", "short", "other"])
def test_a_lost_reference_is_measured_again(make: Make, tmp_path: Path, damage: str) -> None:
    whole = run(make("dpo", out=tmp_path / "whole")).run
    folder = kill(make("dpo"), 6)
    path = folder / REFERENCE
    if damage == "missing":
        path.unlink()
    elif damage == "short":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        other = run(make("dpo", data=make("dpo").eval_data, out=tmp_path / "other")).run
        path.write_bytes((other / REFERENCE).read_bytes())
    run(make("dpo", resume=True))
    assert_same_run(folder, whole)


def test_the_reference_is_the_program_without_an_adapter(make: Make, tmp_path: Path) -> None:
    first = run(make("dpo", out=tmp_path / "first")).run
    again = run(make("dpo", adapter=first / "adapter.safetensors")).run
    tensors = [unpack_tensors((folder / REFERENCE).read_bytes(), folder)[0] for folder in (first, again)]
    np.testing.assert_array_equal(tensors[0]["train.rows"], tensors[1]["train.rows"])
    # It begins where the first one ended: with a margin.
    lines = [[line for line in metrics_of(folder) if "margin" in line] for folder in (first, again)]
    assert abs(float(str(lines[0][0]["margin"]))) < 1e-5 < float(str(lines[1][0]["margin"]))


def test_pairs_stay_together(make: Make) -> None:
    """With answers of two prompts side by side, accuracy would not reach 1."""
    result = run(make("simpo", steps=200, eval_every=0))
    journal = read_journal(result.run / "journal.bin")
    assert journal.header.q == 2 and journal.header.estimator == "adamw+simpo"
    losses = np.stack([step.losses for step in journal.steps])
    assert losses[-1, 1, 1] == 1.0 and (losses[:, 0, 0] != losses[:, 0, 1]).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"beta": 0.2}, "data, --beta, --gamma"),
        ({"objective": "simpo"}, "--objective"),
        ({"objective": "orpo"}, "--objective"),
    ],
)
def test_a_run_goes_on_with_its_own_objective(make: Make, changes: dict[str, Any], message: str) -> None:
    kill(make("dpo"), 6)
    with pytest.raises(PrgecError, match=f"{message}.* differs from the run to resume"):
        run(replace(make("dpo", resume=True), **changes))


def test_it_refuses_what_it_cannot_learn_from(make: Make, gradient_pte: Path, tmp_path: Path) -> None:
    singles = make("kto").data
    for options, message in (
        (make("dpo", program=gradient_pte), "--objective dpo needs a program that weighs labels.*--label-weights"),
        (make("dpo", data=singles), "--objective dpo compares two answers.*--objective kto"),
        (replace(make("dpo"), objective="likelihood"), "need a preference objective.*--objective dpo"),
        (replace(make("kto"), objective="likelihood"), "--objective kto"),
        (make("dpo", beta=float("nan")), "--beta is nan"),
        (replace(make("dpo"), objective="likelihood", beta=0.5), "--beta, --gamma.*are numbers of an objective"),
        (make("dpo", task="sst2"), "leave out --low-volume and --task"),
        (make("dpo", data=None, rows=tmp_path / "rows.bin"), "--objective dpo reads texts"),
    ):
        with pytest.raises(PrgecError, match=message):
            run(options)
    assert not (tmp_path / "out").exists()


def test_of_long_answers_the_first_tokens_are_compared(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A person at a talk does not count tokens, and one long answer of many must not stop the others."""
    plain, runs = make("dpo", eval_data=None, eval_every=0), []
    assert plain.data is not None
    rows = list(map(json.loads, plain.data.read_text().splitlines()))
    for tail in ("", " boring dull clumsy"):
        data = tmp_path / f"rows{len(tail)}.jsonl"
        # K of the program is 3, so that the end of these answers does not fit.
        longer = [{**row, "rejected": f"{row['rejected']} dull dull{tail}"} for row in rows]
        data.write_text("".join(json.dumps(row) + "\n" for row in longer))
        runs.append(run(replace(plain, data=data, out=tmp_path / f"out{len(tail)}")).run)
        assert "24 of 48 answers have more than K = 3 tokens: their first 3 are compared" in caplog.text
        caplog.clear()
    assert len({(folder / "adapter.safetensors").read_bytes() for folder in runs}) == 1


def test_pairs_teach_single_answers_too(make: Make) -> None:
    pairs = make("dpo")
    result = run(make("kto", data=pairs.data, eval_data=pairs.eval_data, steps=200, eval_every=0))
    assert result.after is not None and (result.after.accuracy or 0.0) >= 0.75


def test_nothing_of_the_program_is_moved_by_measuring(make: Make) -> None:
    """A rate of 0 leaves the adapter it began with."""
    first = run(make("dpo")).run
    kept = (first / "adapter.safetensors").read_bytes()
    start = first.parent / "start.safetensors"
    start.write_bytes(kept)
    again = run(make("dpo", adapter=start, lr=0.0, force=True, out=first.parent / "again")).run
    assert (again / "adapter.safetensors").read_bytes() == kept
    assert open_pte(make("dpo").program).manifest.label_weights
