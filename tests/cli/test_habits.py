"""Words that users of other tools type lead to the words of this one."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from prgec.cli import main as cli_main
from prgec.cli.habits import EVERYWHERE, HERE
from prgec.cli.main import main
from prgec.compiler.options_from import options_from
from prgec.errors import UsageError


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (
            ["run", "m.pte", "--epochs", "3"],
            "Hint: use --steps, the number of training steps: rows x epochs / batch size",
        ),
        (["train", "m.pte", "--num_train_epochs", "3"], "Hint: use --steps, the number"),
        (["run", "m.pte", "--batch-size", "4"], "Hint: use prgec compile --batch-size, which fixes it in the program"),
        (["run", "m.pte", "--learning-rate", "1e-3"], "Hint: use --lr"),
        (["compile", "demo", "--max-seq-length", "64"], "Hint: use --seq-len"),
        (["compile", "demo", "--lora-alpha", "64"], "Hint: use --alpha"),
        (["plan", "SmolLM2-135M", "--memory", "4"], "--memory is '4', which is bytes. Hint: write 4G for gigabytes"),
        (["inspect", "/"], "a folder, not a program (/). Hint: name the .pte"),
    ],
)
def test_a_word_of_another_tool(arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) != 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and hint in line


def test_hints_name_options_that_exist() -> None:
    known = set()
    for name in cli_main.COMMANDS:
        command = cli_main.cli.get_command(click.Context(cli_main.cli), name)
        assert command is not None
        known |= {flag for p in command.params if isinstance(p, click.Option) for flag in p.opts}
    for hint in [*EVERYWHERE.values(), *HERE.values()]:
        named = {word.strip(",;:") for word in hint.split() if word.startswith("--")}
        assert named and named <= known, hint


@pytest.mark.parametrize(
    ("bits", "backend", "scheme"),
    [
        ("4", "xnnpack", "8da4w"),
        ("8", "xnnpack", "8da8w"),
        ("4", "qnn", "w4a16"),
        ("8", "openvino", "w8a16"),
        ("4", "cuda", "int4"),
    ],
)
def test_bits_are_a_scheme_of_the_backend(bits: str, backend: str, scheme: str) -> None:
    options = options_from({"model": "demo", "quantize": bits, "backend": backend, "output": Path("m.pte")})
    assert options.quantize == scheme


def test_a_plan_takes_the_memory_of_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "SmolLM2-135M"]) == 0
    assert "SmolLM2-135M: 134M weights" in capsys.readouterr().out


def test_a_text_needs_no_flag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(tmp_path / "none.pte"), "a film of rare warmth", "--task", "sst2"]) != 0
    assert "no such program" in capsys.readouterr().err


def test_a_size_of_many_bytes_needs_no_unit() -> None:
    from prgec.compiler.plan.units import parse_bytes

    assert parse_bytes("4000000000") == 4_000_000_000
    with pytest.raises(UsageError, match="which is bytes"):
        parse_bytes("512")


@pytest.mark.parametrize("command", ["compile", "run"])
def test_help_shows_the_common_options_and_help_all_the_rest(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    def options(flag: str) -> set[str]:
        assert main([command, flag]) == 0
        lines = capsys.readouterr().out.splitlines()
        return {line.split()[0].rstrip(",") for line in lines if line.startswith("  -")}

    short, everything = options("--help"), options("--help-all")
    assert short < everything
    assert len(short) <= 17 and len(everything) > 30
    assert {"--data", "--help-all"} <= short
