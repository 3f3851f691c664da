"""`prgec bench compile` on a random model of one layer: real processes, both routes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prgec.cli.main import main

FLAGS = ["--", "--method", "exact", "--batch-size", "1", "--seq-len", "8", "--label-tokens", "1", "--rank", "2"]


@pytest.mark.slow
def test_both_routes_write_equal_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "compile", "--layers", "1", "--out", str(tmp_path / "out"), *FLAGS]) == 0
    assert "the files are equal" in capsys.readouterr().out
    table = json.loads((tmp_path / "out" / "compile.json").read_text(encoding="utf-8"))
    routes = [row["route"] for row in table["rows"]]
    assert routes == ["in-place", "stock"]
    assert all(row["peak_rss_bytes"] > 1e8 and row["wall_s"] > sum(row["seconds"].values()) for row in table["rows"])
    assert (tmp_path / "out" / "compile.png").read_bytes().startswith(b"\x89PNG")


def test_a_compilation_that_fails_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "compile", str(tmp_path / "nothing"), "--routes", "in-place", *FLAGS]) != 0
    assert "nothing" in capsys.readouterr().err.splitlines()[-1]
    assert main(["bench", "compile", "--layers", "0", *FLAGS]) == 2
