"""A command that writes a file leaves one that exists alone, unless it is forced."""

from __future__ import annotations

from pathlib import Path

import pytest

from prgec.cli.main import main


@pytest.mark.parametrize(
    "arguments",
    [
        ["compile", "demo", "-o"],
        ["replay", "journal.bin", "--program", "m.pte", "-o"],
        ["tokenize", "m.pte", "rows.jsonl", "-o"],
        ["report", "run", "-o"],
        ["opt", "graph.pt2", "-o"],
        ["side", "build", "net.safetensors", "-o"],
        ["side", "fit", "acts", "-o"],
        ["side", "pull", "acts", "--server", "http://127.0.0.1:9", "-o"],
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_what_exists_is_not_replaced(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "graph.pt2").write_bytes(b"")
    mine = tmp_path / "mine"
    mine.write_text("a year of work")
    assert main([*arguments, str(mine)]) == 2
    assert capsys.readouterr().err == (
        f"error: the output exists ({mine}). Hint: name another one with -o, or replace it with --force\n"
    )
    assert mine.read_text() == "a year of work"
    # Forced, the command gets as far as its missing input, and only the compiler has one.
    if arguments[0] != "compile":
        assert main([*arguments, str(mine), "--force"]) != 0
        assert "the output exists" not in capsys.readouterr().err


def test_a_compilation_does_not_replace_the_weights_of_another_program(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "m.ptd").write_text("weights")
    assert main(["compile", "demo", "-o", str(tmp_path / "m.pte")]) == 2
    assert f"the output exists ({tmp_path}/m.ptd)" in capsys.readouterr().err


def test_an_output_that_is_a_folder_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", "demo", "--force", "-o", str(tmp_path)]) == 2
    assert "the output is a folder" in capsys.readouterr().err
