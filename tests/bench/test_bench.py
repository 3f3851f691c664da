"""`prgec bench` on a tiny model: real programs, real processes; nothing here depends on how fast they are."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from prgec.cli.main import main
from prgec.errors import ProgramError
from prgec.lab.bench import run
from prgec.lab.bench.variants import VARIANTS
from prgec.runtime.engines.executorch.open import open_pte
from tests.models import TinyLlama

KEYS = [
    "variant",
    "backend",
    "quantize",
    "q",
    "B",
    "T",
    "layers",
    "step_s",
    "peak_anon_bytes",
    "peak_rss_bytes",
    "planned_anon_bytes",
    "file_bytes",
    "compile_s",
    "delegates",
]
VARIANT_NAMES = ["prgec", "inference"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TinyLlama().write(tmp_path_factory.mktemp("bench") / "tiny")


@pytest.fixture(scope="module")
def out(checkpoint: Path) -> Path:
    """Results of one run."""
    folder = checkpoint.parent / "out"
    assert _bench(checkpoint, "--out", folder) == 0
    return folder


def _bench(checkpoint: Path, *more: object, variants: list[str] = VARIANT_NAMES) -> int:
    return main(
        [
            "bench",
            str(checkpoint),
            "--q",
            "1",
            "--seq-len",
            "8",
            "--repeats",
            "2",
            "--variants",
            ",".join(variants),
            *map(str, more),
        ]
    )


def _programs(out: Path) -> dict[str, Path]:
    """Programs by whether they were made to train."""
    notes = {path: json.loads(path.read_text()) for path in (out / "programs").glob("*.json")}
    return {
        "prgec" if "dualize" in note["recipe"]["pipeline"] else "inference": path.with_suffix(".pte")
        for path, note in notes.items()
    }


@pytest.mark.slow
def test_document(out: Path) -> None:
    document = json.loads((out / "bench.json").read_text())
    assert list(document) == ["rows", "machine", "ratios"]
    assert [list(row) for row in document["rows"]] == [KEYS, KEYS]
    assert [row["variant"] for row in document["rows"]] == VARIANT_NAMES
    for row in document["rows"]:
        assert (row["backend"], row["quantize"], row["layers"]) == ("xnnpack", "none", "all")
        assert (row["q"], row["B"], row["T"], row["delegates"]) == (1, 1, 8, 1)
        assert 0 < row["step_s"] < row["compile_s"]
        assert (row["planned_anon_bytes"] > 0) == (row["variant"] == "prgec")
        assert 10e6 < row["peak_anon_bytes"] < row["peak_rss_bytes"] < 2e9
        assert row["file_bytes"] == _programs(out)[row["variant"]].stat().st_size
    assert document["machine"]["cores"] == len(os.sched_getaffinity(0))
    assert document["machine"]["model"] == "tiny"
    assert document["machine"]["num_layers"] == 1


@pytest.mark.slow
def test_ratios(out: Path) -> None:
    ratios = json.loads((out / "bench.json").read_text())["ratios"]
    assert [(r["variant"], r["reference"]) for r in ratios] == [("prgec", "inference"), ("inference", "prgec")]
    for ratio in ratios:
        assert ratio["low"] <= ratio["ratio"] <= ratio["high"]
        assert ratio["rounds"] == 2


@pytest.mark.slow
def test_report(out: Path) -> None:
    text = (out / "bench.md").read_text()
    assert text.startswith("# tiny, 1 layers\n")
    tables = [line for line in text.splitlines() if line.startswith("| ")]
    assert [line.split(" | ")[0] for line in tables] == ["| variant", "| prgec", "| inference"]
    assert (out / "bench.png").read_bytes().startswith(b"\x89PNG")


def test_programs_are_built_once(checkpoint: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in (out / "programs").iterdir()}
    assert len(before) == 4
    assert _bench(checkpoint, "--out", out, "--json") == 0
    assert {path: path.stat().st_mtime_ns for path in (out / "programs").iterdir()} == before
    captured = capsys.readouterr()
    assert list(json.loads(captured.out)) == ["rows", "machine", "ratios"]
    assert "none q=1 B=1 T=8: timing prgec, inference" in captured.err


def test_only_a_training_program_is_taken_for_one(out: Path) -> None:
    programs = _programs(out)
    assert open_pte(programs["prgec"]).manifest.q == 1
    with pytest.raises(ProgramError, match="not made by prgec compile"):
        open_pte(programs["inference"])


def test_variants_that_do_not_fit_are_not_loaded(
    checkpoint: Path, out: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    size = sum(path.stat().st_size for path in _programs(out).values())
    monkeypatch.setattr(run, "available_memory_bytes", lambda: size - 1)
    assert _bench(checkpoint, "--out", out) == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith("Hint: measure two at a time, with the same --out")


@pytest.mark.slow
@pytest.mark.parametrize("quantize", ["none", "8da4w"])
def test_every_variant(checkpoint: Path, tmp_path: Path, quantize: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _bench(checkpoint, "--quantize", quantize, "--json", variants=list(VARIANTS)) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    rows = {row["variant"]: row for row in document["rows"]}
    assert list(rows) == list(VARIANTS)
    ours = ["prgec", "inner", "outer", "sequential", "inference"]
    assert {name: rows[name]["delegates"] for name in ours} == dict.fromkeys(ours, 1)
    # Before a quantised head, selecting labels is a cut of its own.
    most = rows["paper"]["delegates"] + (quantize != "none")
    assert most >= rows["paper-at-labels"]["delegates"] > 5 and rows["paper"]["delegates"] > 5
    assert (rows["eager"]["backend"], rows["eager"]["quantize"]) == ("torch", "none")
    assert all(row["step_s"] > 0 for row in rows.values())


def test_more_tokens_than_a_model_has_positions_for(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", str(checkpoint), "--seq-len", "100000"]) == 2
    assert "--seq-len is 100000; tiny supports " in capsys.readouterr().err
