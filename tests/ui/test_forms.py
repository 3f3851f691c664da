"""A form is the command's own options, and says in TOML what the command line would."""

from __future__ import annotations

from pathlib import Path

import pytest

from prgec.compiler.options import compile_table
from prgec.core.config.toml_file import read_options
from prgec.errors import UsageError
from prgec.runtime.runs.options import RUN_TABLE, RunOptions
from prgec.serve.ui.forms import is_shown, sections, values
from prgec.serve.ui.jobs import options_text


def _fields(table, said: dict[str, str] | None = None):
    return {field.name: field for section in sections(table, said or {}) for field in section.fields}


@pytest.mark.parametrize("table", [RUN_TABLE, compile_table()], ids=["run", "compile"])
def test_every_option_has_a_field(table) -> None:
    assert set(_fields(table)) == {item.name for item in table if is_shown(item)}
    assert all(field.help for name, field in _fields(table).items() if name not in ("program", "model"))


def test_no_option_that_runs_code_reaches_the_page() -> None:
    assert not [name for name in _fields(RUN_TABLE) if "reward" in name]


def test_an_untouched_form_says_the_defaults() -> None:
    said = {name: field.value for name, field in _fields(RUN_TABLE).items()}
    options = RunOptions(**values(RUN_TABLE, {**said, "program": "/m.pte", "data": "/t.jsonl"}))
    assert options == RunOptions(program=Path("/m.pte"), data=Path("/t.jsonl"))


def test_the_file_says_what_the_form_says(tmp_path: Path) -> None:
    said = {
        "program": "/m.pte",
        "data": "hf:glue:sst2:train",
        "steps": "7",
        "lr": "1e-4",
        "low_volume": "true",
        "task": "",
    }
    found = values(RUN_TABLE, {**said, "log_to": "tensorboard, wandb"})
    path = tmp_path / "run.toml"
    path.write_text(options_text(found, RUN_TABLE, "prgec run"))
    read = read_options(path, RUN_TABLE)
    assert {name: str(value) for name, value in read.items()} == {name: str(value) for name, value in found.items()}
    assert read["log_to"] == ("tensorboard", "wandb") and read["low_volume"] is True and read["steps"] == 7


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("steps", "many", "steps is 'many'; expected an integer"),
        ("steps", "1.5", "steps is '1.5'; expected an integer"),
        ("lr", "fast", "lr is 'fast'; expected a number"),
        ("schedule", "zigzag", "lr-schedule is 'zigzag'; expected one of"),
        ("log_to", "notebook", "log-to is 'notebook'; expected one of"),
        ("data", "a\nb", "data is not a line of text"),
        ("data", "a\0b", "data is not a line of text"),
        ("data", "x" * 5000, "data is not a line of text"),
        ("steps", "9" * 4097, "steps is not a line of text"),
    ],
)
def test_what_cannot_be_is_named(name: str, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        values(RUN_TABLE, {name: text})


def test_where_it_writes_is_not_the_forms_to_say() -> None:
    assert values(RUN_TABLE, {"out": "/etc", "force": "true", "resume": "true", "unknown": "x"}) == {}


def test_no_request_chooses_code_to_run() -> None:
    given = {"reward": "command:touch /tmp/owned", "reward_network": "on", "steps": "3"}
    assert values(RUN_TABLE, given) == {"steps": 3}
    assert not {"reward", "reward_network"} & set(_fields(RUN_TABLE))


def test_a_box_that_was_cleared_stays_clear() -> None:
    assert _fields(RUN_TABLE, {"program": "m"})["low_volume"].value == ""
    assert _fields(RUN_TABLE, {"program": "m", "low_volume": "true"})["low_volume"].value == "true"
