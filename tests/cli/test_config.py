"""`--config`: what a run or a program says of itself repeats it, flags win, and help and files come from one table."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest

from prgec.cli.main import COMMANDS, main
from prgec.cli.main import cli as group
from prgec.compiler.options import CompileOptions, compile_table
from prgec.compiler.options_from import options_from
from prgec.core.config.option import Item
from prgec.core.contract.inspection import inspect_program
from prgec.core.contract.manifest import Manifest
from prgec.errors import ProgramError
from prgec.runtime.runs.options import RUN_TABLE, RunOptions
from tests.models import TinyLlama


def _json(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    code = main([*map(str, arguments), "--json"])
    out, err = capsys.readouterr()
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


@pytest.fixture
def first(tiny_pte: Path, train_jsonl: Path, dev_jsonl: Path, tmp_path: Path) -> list[object]:
    """Arguments of a run that is like the defaults in as little as possible."""
    flags = "--steps 9 --lr 0.03 --lr-schedule cosine --warmup 2 --eps 0.02 --seed 5 --estimator plain --eval-every 4"
    limits = "--max-g 7 --over-limit skip --not-finite skip --window 5 --snapshot-every 3"
    files = ["--data", train_jsonl, "--eval-data", dev_jsonl, "--out", tmp_path / "first"]
    return ["run", tiny_pte, *flags.split(), *limits.split(), *files]


def test_a_run_is_repeated_by_its_folder(
    first: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state = _json(capsys, *first)["state_sha256"]
    # Paths are relative to the file, not to where the command runs.
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    again = _json(capsys, "run", "-c", tmp_path / "first" / "run.toml")
    assert again["state_sha256"] == state
    assert Path(again["run"]).resolve() == tmp_path / "elsewhere" / "runs" / "tiny-1"
    texts = [(folder / "run.toml").read_text() for folder in (tmp_path / "first", Path(again["run"]))]
    assert _places_apart(texts[0]) == _places_apart(texts[1])


def _places_apart(text: str) -> dict[str, Any]:
    found = tomllib.loads(text)
    return {**found, "program": Path(found["program"]).name, "data": {"task": found["data"]["task"]}}


def test_flags_win(first: list[object], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _json(capsys, *first)
    config = tmp_path / "first" / "run.toml"
    again = _json(capsys, "run", "--config", config, "--steps", "4", "--out", tmp_path / "second")
    options = json.loads((tmp_path / "second" / "run.json").read_text())["options"]
    assert again["steps"] == options["steps"] == 4
    assert (options["lr"], options["estimator"]) == (0.03, "plain")


def test_a_probe_takes_the_file_of_a_run(
    first: list[object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _json(capsys, *first)
    arguments = ["probe", "-c", tmp_path / "first" / "run.toml", "--steps", "2"]
    assert 0.03 in [pytest.approx(each["lr"]) for each in _json(capsys, *arguments)["probes"]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[trainign]\nlr = 1", "there is no section [trainign] ({path}). Hint: did you mean training?"),
        ("[training]\nlearning-rate = 1", "there is no option 'learning-rate' in [training] ({path})"),
        ("[training]\nlr = 'fast'", "lr is 'fast'; expected a number ({path})"),
        ("[training]\nlr = -1.0", "--lr is -1.0; expected a finite number, 0 or more"),
        ("[data]\ntask = 'sst3'", "Invalid value for '--task': 'sst3' is none of"),
    ],
)
def test_what_a_file_says_wrongly(text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.toml"
    path.write_text(text)
    assert main(["run", "m.pte", "--data", "x", "-c", str(path)]) == 2
    assert capsys.readouterr().err.startswith("error: " + message.format(path=path))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program whose checkpoint is the folder beside it."""
    folder = tmp_path_factory.mktemp("compiled")
    checkpoint = TinyLlama(num_layers=2).write(folder / "checkpoint")
    rows, program = folder / "rows.jsonl", folder / "first.pte"
    rows.write_text('{"prompt": "the film is great", "completion": " it"}\n')
    flags = "--backend portable --static --q 1 --batch-size 2 --rank 3 --alpha 5 --a-seed 9 --state dual"
    trained = ["--layers", "last:1", "--targets", "q_proj,up_proj"]
    files = ["--data", str(rows), "-o", str(program)]
    assert main(["compile", str(checkpoint), *flags.split(), *trained, *files]) == 0
    return program


def test_a_program_is_compiled_again_by_what_it_says(
    compiled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(compiled), "--config"]) == 0
    config = compiled.with_name("again.toml")
    config.write_text(capsys.readouterr().out)
    assert str(compiled.parent) not in config.read_text()
    monkeypatch.chdir(tmp_path)
    made = _json(capsys, "compile", "-c", config, "-o", "second.pte")
    assert Path("second.pte").read_bytes() == compiled.read_bytes()
    assert made["seq_len"] == inspect_program(compiled).manifest.seq_len < CompileOptions.seq_len


def test_a_program_from_before_programs_said_it(
    compiled: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = inspect_program(compiled)
    raw = json.loads(found.manifest.to_json())
    del raw["config"], raw["prefix_sha256"]
    old = replace(found, manifest=Manifest.from_json(json.dumps(raw)))
    monkeypatch.setattr("prgec.cli.inspect.inspect_program", lambda path: old)
    assert main(["inspect", "old.pte", "--config"]) == ProgramError.exit_code
    assert capsys.readouterr() == (
        "",
        "error: the program carries no configuration: it was compiled by an earlier prgec (old.pte). "
        "Hint: prgec inspect shows its pipeline and sizes\n",
    )


@pytest.mark.parametrize(("name", "table"), [("run", RUN_TABLE), ("compile", compile_table())])
def test_every_row_is_a_flag_with_its_default(name: str, table: tuple[Item, ...]) -> None:
    """A command line without flags asks for what the options class has by default."""
    command = group.get_command(click.Context(group), name)
    assert command is not None
    said = command.make_context(name, ["m"]).params
    assert {item.name for item in table} <= set(said)
    if name == "run":
        found: Any = RunOptions(**{item.name: said[item.name] for item in table})
        assert found == RunOptions(program=Path("m"))
    else:
        found = options_from({item.name: said[item.name] for item in table})
        # docs/decisions/018-default-method.md and 024-default-optimizer.md
        assert found == CompileOptions(model="m", method="exact", optimizer="adamw")


def test_lengths_that_data_say_need_no_number() -> None:
    said = {"model": "m", "data": (Path("x"),), "seq_len": None, "num_labels": 3, "soc": None, "q": 4}
    assert options_from(said) == replace(CompileOptions(model="m"), data=(Path("x"),), seq_len=0, num_labels=3)


@pytest.mark.parametrize(
    ("said", "method"),
    [
        ({}, "exact"),
        ({"backend": "portable", "optimizer": "adamw"}, "exact"),
        ({"backend": "qnn"}, "prge"),
        ({"q": 4}, "prge"),
        ({"state": "dual"}, "prge"),
        ({"prefix": "shared", "layers": ("last:1",)}, "prge"),
        ({"passes": "canonicalize"}, "prge"),
        ({"q": 4, "method": "shortcut"}, "shortcut"),
    ],
)
def test_the_method_of_who_names_none(said: dict[str, Any], method: str) -> None:
    options = options_from({"model": "m", **said})
    assert (options.method, options.q) == (method, 4)


@pytest.mark.parametrize(
    ("said", "optimizer"),
    [
        ({}, "adamw"),
        ({"method": "exact"}, "adamw"),
        ({"method": "exact", "optimizer": "momentum"}, "momentum"),
        ({"method": "shortcut"}, "norm"),
        ({"q": 4}, "norm"),
    ],
)
def test_the_optimizer_of_who_names_none(said: dict[str, Any], optimizer: str) -> None:
    assert options_from({"model": "m", **said}).optimizer == optimizer


@pytest.mark.parametrize(
    ("said", "num_labels"),
    [
        ({}, 4),
        ({"rollouts": 8}, 32),
        ({"rollouts": 8, "seq_len": 32}, 4),
        ({"rollouts": 8, "num_labels": 5}, 5),
        ({"rollouts": 8, "data": (Path("x"),)}, 0),
        ({"method": "side"}, 1),
        ({"method": "side", "data": (Path("x"),)}, 1),
    ],
)
def test_the_longest_answer_of_who_names_none(said: dict[str, Any], num_labels: int) -> None:
    assert options_from({"model": "m", **said}).num_labels == num_labels


@pytest.mark.parametrize("name", ["run", "compile", "probe"])
def test_help_has_a_heading_for_every_section(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert name in COMMANDS
    assert main([name, "--help" if name == "probe" else "--help-all"]) == 0
    out = capsys.readouterr().out
    sections = {item.option.section.capitalize() for item in (compile_table() if name == "compile" else RUN_TABLE)}
    sections -= {""} if name != "probe" else {"", "Evaluation", "Objective", "Reward", "Privacy", "Output"}
    assert {line[:-1] for line in out.splitlines() if line.endswith(":") and line[0] != " "} == {*sections, "Other"}
