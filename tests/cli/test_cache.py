"""`prgec cache` lists and clears both kinds, and asks nothing."""

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


@pytest.fixture
def program(cache: Path) -> Path:
    """One compiled program, 2.5 MB."""
    folder = cache.parent / "programs" / ("d" * 64)
    folder.mkdir(parents=True)
    (folder / "record.json").write_text(json.dumps({"title": "demo, exact, xnnpack"}))
    (folder / "program.pte").write_bytes(bytes(2_500_000))
    return folder


def test_lists_for_people(cache: Path, program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    root = cache.parent
    assert lines[:2] == [
        "    2.5 MB     0.0 days  demo, exact, xnnpack",
        f"    2.5 MB  of programs in {program.parent}",
    ]
    assert sorted(lines[2:5]) == [
        "    0.5 MB     0.0 days  unknown, not whole or of an earlier driver",
        f"    1.5 MB     0.0 days  {root}/away.pte (gone)",
        f"    1.5 MB     0.0 days  {root}/here.pte",
    ]
    assert lines[5:] == [f"    3.5 MB  of packed weights in {cache}"]


def test_lists_for_programs(cache: Path, program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "list", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    packed = document["packed"]
    assert packed["folder"] == str(cache)
    assert packed["bytes"] == sum(path.stat().st_size for path in cache.iterdir())
    assert {each["program"] for each in packed["files"]} == {
        None,
        *(str(cache.parent / name) for name in ("here.pte", "away.pte")),
    }
    assert all(each.keys() == {"path", "program", "bytes", "days", "in_use"} for each in packed["files"])
    (kept,) = document["programs"]["programs"]
    assert kept["path"] == str(program) and kept["title"] == "demo, exact, xnnpack"
    assert document["programs"]["bytes"] == kept["bytes"] == sum(each.stat().st_size for each in program.iterdir())


def test_clears_both_and_prints_what_was_freed(cache: Path, program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    programs = program.parent
    assert main(["cache", "clear", "--older-than", "1"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"freed 0.0 MB in 0 programs  ({programs})",
        f"freed 0.0 MB in 0 packed files  ({cache})",
    ]
    assert main(["cache", "clear"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"freed 2.5 MB in 1 programs  ({programs})",
        f"freed 3.5 MB in 3 packed files  ({cache})",
    ]
    assert main(["cache", "clear", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "packed": {"folder": str(cache), "files": 0, "bytes": 0, "in_use": 0},
        "programs": {"folder": str(programs), "programs": 0, "bytes": 0},
    }
    assert not list(cache.iterdir()) and not list(programs.iterdir())


def test_another_folder_is_of_packed_weights_alone(
    cache: Path, program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cache", "list", "--folder", str(tmp_path / "none")]) == 0
    assert capsys.readouterr().out == f"    0.0 MB  of packed weights in {tmp_path}/none\n"
    assert main(["cache", "clear", "--folder", str(cache)]) == 0
    assert program.is_dir()


@pytest.mark.parametrize("arguments", [["clear", "--older-than", "-1"], ["clear", "--older-than", "x"], ["burn"]])
def test_wrong_usage(arguments: list[str], cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", *arguments]) == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert len(list(cache.iterdir())) == 5


def test_no_cache_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for variable in ("PRGEC_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(variable, raising=False)
    assert main(["cache", "list"]) == 2
    assert "name packed weights with --folder" in capsys.readouterr().err
