"""`prgec cache` says what it found and what it did, and asks nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prgec.cli.main import main


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PRGEC_CACHE", str(tmp_path))
    folder = tmp_path / "packed"
    folder.mkdir()
    (tmp_path / "here.pte").write_text("")
    for name, program in (("a", tmp_path / "here.pte"), ("b", tmp_path / "away.pte")):
        (folder / f"{name * 64}.xnn").write_bytes(bytes(1_500_000))
        (folder / f"{name * 64}.seal").write_text(f"prge-packed 1 1500000 0123abcd\n{program}\n")
    (folder / f"{'c' * 64}.xnn").write_bytes(bytes(500_000))
    return folder


def test_lists_for_people(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    root = cache.parent
    assert sorted(lines[:3]) == [
        "    0.5 MB     0.0 days  unknown, not whole or of an earlier driver",
        f"    1.5 MB     0.0 days  {root}/away.pte (gone)",
        f"    1.5 MB     0.0 days  {root}/here.pte",
    ]
    assert lines[3:] == [f"    3.5 MB  in {cache}"]


def test_lists_for_programs(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "list", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["folder"] == str(cache)
    assert document["bytes"] == sum(path.stat().st_size for path in cache.iterdir())
    assert {each["program"] for each in document["files"]} == {
        None,
        *(str(cache.parent / name) for name in ("here.pte", "away.pte")),
    }
    assert all(each.keys() == {"path", "program", "bytes", "days", "in_use"} for each in document["files"])


def test_clears_and_says_what_it_freed(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "clear", "--older-than", "1"]) == 0
    assert capsys.readouterr().out == f"freed 0.0 MB in 0 files  ({cache})\n"
    assert main(["cache", "clear"]) == 0
    assert capsys.readouterr().out == f"freed 3.5 MB in 3 files  ({cache})\n"
    assert main(["cache", "clear", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"folder": str(cache), "files": 0, "bytes": 0, "in_use": 0}
    assert not list(cache.iterdir())


def test_another_folder(cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "list", "--folder", str(tmp_path / "none")]) == 0
    assert capsys.readouterr().out == f"    0.0 MB  in {tmp_path}/none\n"


@pytest.mark.parametrize("arguments", [["clear", "--older-than", "-1"], ["clear", "--older-than", "x"], ["burn"]])
def test_wrong_usage(arguments: list[str], cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", *arguments]) == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert len(list(cache.iterdir())) == 5


def test_no_cache_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for variable in ("PRGEC_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(variable, raising=False)
    assert main(["cache", "list"]) == 2
    assert "name it with --folder" in capsys.readouterr().err
