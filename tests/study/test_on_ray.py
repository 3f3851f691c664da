"""A study's runs as tasks of Ray: the results of one process after the other."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from prgec.cli.main import main
from prgec.errors import UsageError
from prgec.lab.study.on_ray import do_run
from prgec.lab.study.results import read_results
from prgec.lab.study.runner import RESULTS_NAME, run_study
from prgec.lab.study.spec import Run, read_study
from tests.study.conftest import TEXT


def _of_ray(path: Path, out: Path, *more: str) -> int:
    return main(["study", str(path), "--out", str(out), "--on", "ray", *more])


@pytest.mark.slow
def test_ray_gives_the_results_of_one_process(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two workers, a method whose rate dev chooses, and a study that goes on with what is done."""
    pytest.importorskip("ray")
    few = path.with_name("few.toml")
    few.write_text(TEXT.replace("seeds = [0, 1, 2]\ntune_seeds = 2", "seeds = [0, 1]\ntune_seeds = 1"))
    alone = run_study(read_study(few), tmp_path / "alone")
    monkeypatch.chdir(path.parent)
    assert _of_ray(Path(few.name), tmp_path / "ray", "--only", "fixed") == 0
    half = (tmp_path / "ray" / RESULTS_NAME).read_text()
    assert half.count("\n") == 2
    assert _of_ray(Path(few.name), tmp_path / "ray") == 0
    assert (tmp_path / "ray" / RESULTS_NAME).read_text().startswith(half)
    assert "5/5 " in capsys.readouterr().err
    there, here = (read_results(tmp_path / name / RESULTS_NAME) for name in ("ray", "alone"))
    assert there.keys() == here.keys() and len(here) == 5
    for key, one in here.items():
        other = there[key]
        assert all(0 < (found.memory_bytes or 0) < 1e9 for found in (one, other))
        assert (other.method, other.seed, other.steps, other.test_loss) == (
            one.method,
            one.seed,
            one.steps,
            one.test_loss,
        )
        assert [(p.accuracy, p.loss) for p in other.curve] == [(p.accuracy, p.loss) for p in one.curve]
    again = run_study(read_study(few), tmp_path / "ray", train=lambda run, study: pytest.fail("all is done"))
    assert [each.key for each in again] == [each.key for each in alone]


def test_what_a_run_raises_in_a_worker_comes_back(path: Path) -> None:
    study = read_study(path)
    found = do_run(Run("fixed", study.tasks[0], {"kind": "fo", "optimizer": "lion", "lr": 0.1}, 0), study)
    assert isinstance(found, UsageError) and "unknown optimizer 'lion'" in str(pickle.loads(pickle.dumps(found)))


def test_places_that_are_none(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", str(path), "--out", str(tmp_path), "--on", "slurm"]) == 2
    assert "--on is 'slurm'; expected ray or ray://HOST:PORT" in capsys.readouterr().err
