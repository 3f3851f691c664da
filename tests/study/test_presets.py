"""Presets: the papers' tables as studies, also where there is nothing to put in."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from prgec.cli.main import main
from prgec.errors import UsageError
from prgec.lab.study.presets import study_of, table_of
from prgec.lab.study.spec import Study
from tests.study.conftest import result_of


def test_presets_are_the_papers_tables(path: Path, tmp_path: Path) -> None:
    """Methods by tasks, also where there is nothing to put in."""
    data = tmp_path / "data"
    (data / "rte").mkdir(parents=True)
    for split in ("train", "dev", "test"):
        (data / "rte" / f"{split}.jsonl").write_text("{}\n")
    study = study_of("prge-table-1", "demo", data, forward_rows=None, seeds=(0, 1))
    assert [task.name for task in study.tasks] == ["rte"] and study.tasks[0].task == "rte"
    assert [(each.name, len(each.grid)) for each in study.methods] == [
        ("FO-Adam, full", 3),
        ("FO-Adam, LoRA-FA", 3),
        ("MeZO (full)", 3),
        ("MeZO (LoRA-FA)", 4),
        ("P-RGE (q = 4)", 4),
        ("P-RGE (q = 16)", 4),
    ]
    assert study.budget.forward_rows == 20_000 * 2 * 16
    assert {len(each.grid) for each in study_of_7(data).methods} == {8}
    results = [replace(result_of(method="P-RGE (q = 4)", test=score), task="rte") for score in (0.5, 0.75)]
    lines = table_of("prge-table-1", study, results, data, "a command")
    assert lines[0] == "| Methods | sst2 | rte | mrpc | qqp | qnli | wnli |"
    assert "| P-RGE (q = 4) |  | 62.5 |  |  |  |  |" in lines and "| MeZO (full) |  |  |  |  |  |  |" in lines
    assert f"- sst2: {data}/sst2/train.jsonl" in lines and not any(line.startswith("- rte") for line in lines)
    assert lines[-1].startswith("Not run yet: FO-Adam, full, ") and "q = 4" not in lines[-1]
    with pytest.raises(UsageError, match="there are no data of any task of the table"):
        study_of("prge-table-1", "demo", tmp_path, forward_rows=None, seeds=(0,))


def study_of_7(data: Path) -> Study:
    (data / "rte").rename(data / "sst2")
    study = study_of("prge-table-7", "demo", data, forward_rows=None, seeds=(0,))
    (data / "sst2").rename(data / "rte")
    return study


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name a study's file, or a --preset"),
        (["--preset", "prge-table-1"], "--preset prge-table-1 needs --model and --data"),
        (["s.toml", "--model", "demo"], "are of a --preset; a study's file says them"),
        (["--preset", "prge-table-1", "--model", "demo", "--data", ".", "--seeds", "x"], "--seeds is 'x'"),
    ],
)
def test_wrong_presets(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_a_preset_runs_on_a_small_model(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "sst2").mkdir()
    for split in ("train", "dev", "test"):
        rows = [{"sentence": f"film {i}", "label": i % 2} for i in range(4)]
        (tmp_path / "sst2" / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sizes = ["--forward-rows", "64", "--lr", "0.001", "--only", "MeZO (full)", "--out", str(tmp_path / "out")]
    model = str(path.parent / "model")
    assert main(["study", "--preset", "prge-table-1", "--model", model, "--data", str(tmp_path), *sizes]) == 0
    text = capsys.readouterr().out
    # The paper's table comes last; those of any study stand before it.
    table = text[text.rindex("\n## ") :]
    (line,) = [line for line in table.splitlines() if line.startswith("| MeZO (full) |")]
    assert 0.0 <= float(line.split("|")[2]) <= 100.0 and "prge-table-1 --model" in text
