"""The Python interface does what its page shows, imports nothing heavy, and keeps its names."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import prgec
from prgec import Adapter, LoraConfig, PrgecError, Program, TrainConfig, Trainer, TrainerCallback
from prgec.cli.main import main
from prgec.compiler.options import CompileOptions
from prgec.runtime.runs.options import RunOptions

PAGE = Path(__file__).resolve().parents[2] / "docs" / "python.md"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The names that the code of the page leaves, run in order in a folder of its own."""
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("page"))
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S):
        exec(compile(block, str(PAGE), "exec"), names)
    yield names
    os.chdir(before)


def test_the_page_trains(page: dict[str, Any]) -> None:
    result = page["result"]
    assert result.accuracy == 1.0 and result.loss < 7
    assert result.run.steps == 20 and result.run.before.loss > result.run.after.loss
    assert len(page["losses"]) == page["short"].run.steps == 5 and page["short"].run.interrupted
    assert Path("my-peft/adapter_config.json").exists() and Path("my-model/config.json").exists()


def test_it_is_the_same_run_as_that_of_the_command(page: dict[str, Any]) -> None:
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in page["rows"]))
    arguments = ["--data", "rows.jsonl", "--eval-data", "rows.jsonl", "--steps", "20", "--out", "runs/command"]
    assert main(["run", "demo.pte", *arguments]) == 0
    names = ("adapter.safetensors", "journal.bin")
    for name in names:
        assert (Path("runs/command") / name).read_bytes() == (Path("runs/first") / name).read_bytes()


def test_losses_and_evaluation_agree(page: dict[str, Any]) -> None:
    program = page["program"]
    losses = program.losses(page["encoded"], adapter="runs/first")
    assert losses.shape == (16,) and losses.mean() == pytest.approx(program.evaluate(page["rows"]).loss)
    assert program.losses(page["encoded"], adapter=page["mine"]).mean() != pytest.approx(losses.mean())


def test_rows_show_what_is_learned(page: dict[str, Any]) -> None:
    assert page["encoded"].show(1).endswith("a film of rare warmth. it is⟦ good⟧")
    assert len(page["encoded"][:3]) == 3


def test_a_step_takes_a_batch(page: dict[str, Any]) -> None:
    with pytest.raises(PrgecError, match="a step takes 4 rows, and got 3"):
        page["program"].step(page["encoded"][:3])


def test_coefficients_are_for_measured_losses(page: dict[str, Any]) -> None:
    with pytest.raises(PrgecError, match="coefficients are for programs of method prge"):
        page["program"].apply(np.zeros(4, np.float32), learning_rate=1.0, seed=0, step=1)


def test_nothing_is_replaced_unasked(page: dict[str, Any]) -> None:
    with pytest.raises(PrgecError, match=r"the output exists \(demo.pte\)"):
        prgec.compile("demo", output="demo.pte")
    with pytest.raises(PrgecError, match="the output exists"):
        page["result"].adapter.save("mine.safetensors")
    with pytest.raises(PrgecError, match="--out holds a finished run of 20 steps"):
        Trainer(page["program"], TrainConfig(output_dir="runs/first"), train_dataset=page["rows"]).train()


def test_a_run_resumes(page: dict[str, Any]) -> None:
    class Stop(TrainerCallback):
        def on_step(self, step: Any) -> bool:
            raise KeyboardInterrupt

    config = TrainConfig(output_dir="runs/resumed", max_steps=20)
    trainer = Trainer(page["program"], config, train_dataset=page["rows"], callbacks=[Stop()])
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    result = Trainer(page["program"], config, train_dataset=page["rows"]).train(resume=True)
    assert result.adapter.file.read_bytes() == Path("runs/first/adapter.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": "demo", "batchsize": 4}, "no option 'batchsize'. Hint: did you mean 'batch_size'"),
        ({"model": object()}, "model is a object; expected a checkpoint"),
        ({"model": "demo", "tokenizer": object()}, "a checkpoint has its own tokenizer"),
        ({"model": "demo", "data": [1]}, "row 1 is a int; expected a dict"),
        ({"model": "demo", "data": [{"prompt": object()}]}, "row 1 cannot be written as JSON"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(PrgecError, match=message):
        prgec.compile(**{"output": tmp_path / "m.pte", **arguments})
    assert list(tmp_path.iterdir()) == []


def test_an_adapter_has_the_formats_of_other_tools(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected one of prgec, peft, gguf"):
        Adapter(path=tmp_path).save(tmp_path / "x", format="onnx")


def test_fields_are_those_of_the_commands() -> None:
    assert set(LoraConfig().to_options()) <= {each.name for each in fields(CompileOptions)}
    assert set(TrainConfig(lr_scheduler_type="constant").to_options()) <= {each.name for each in fields(RunOptions)}
    defaults = {each.name: each.default for each in fields(RunOptions)}
    assert all(defaults[name] == value for name, value in TrainConfig().to_options().items())
    compiled = {each.name: each.default for each in fields(CompileOptions)}
    assert all(compiled[name] == value for name, value in LoraConfig().to_options().items())


def test_a_program_prints_its_path() -> None:
    assert repr(Program("m.pte")) == "Program('m.pte')"


def test_names_are_frozen() -> None:
    """A name that disappears breaks programs: change this list only together with the changelog."""
    assert sorted(prgec.__all__) == [
        "Adapter",
        "LoraConfig",
        "PrgecError",
        "Program",
        "TrainConfig",
        "TrainResult",
        "Trainer",
        "TrainerCallback",
        "__version__",
        "compile",
        "load",
        "plan",
        "read_rows",
    ]
    assert all(getattr(prgec, name) is not None for name in prgec.__all__)
    with pytest.raises(AttributeError, match="no attribute 'complie'"):
        prgec.complie  # noqa: B018


def test_only_compiling_imports_torch() -> None:
    script = (
        "import sys, prgec; prgec.load('m.pte'), prgec.Trainer, prgec.read_rows, prgec.compile; "
        "print([name for name in ('torch', 'executorch', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_first_loss_worse_than_guessing_is_reported(page: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    texts = ["I found the sauce dreary and messy."] * 4
    program = prgec.compile("demo", data=rows_of(texts), batch_size=4, output="texts.pte")
    with caplog.at_level("WARNING", "prgec"):
        Trainer(program, TrainConfig(output_dir="runs/texts", max_steps=1), train_dataset=rows_of(texts)).train()
    assert "first loss" not in caplog.text
    # The same letters in an order that no text has.
    wrong = [text[:10][::-1] for text in texts]
    with caplog.at_level("WARNING", "prgec"):
        Trainer(program, TrainConfig(output_dir="runs/wrong", max_steps=1), train_dataset=rows_of(wrong)).train()
    assert re.search(r"the first loss is \d+\.\d+, and guessing would have \d\.\d+: is the tokenizer", caplog.text)


def rows_of(texts: list[str]) -> list[dict[str, str]]:
    return [{"text": text} for text in texts]


def test_functions_reward_answers(page: dict[str, Any]) -> None:
    run = page["rewarded"].run
    assert run.after.reward > run.before.reward + 0.3

    def broken(prompt: Any, answer: str, record: dict[str, Any]) -> float:
        raise KeyError("answer")

    config = TrainConfig(output_dir="runs/broken", max_steps=2)
    trainer = Trainer(page["writer"], config, train_dataset=page["prompts"], reward_funcs=[broken])
    with pytest.raises(PrgecError, match="no reward: broken raised KeyError: 'answer'"):
        trainer.train()
    steps = Trainer(
        page["writer"], TrainConfig(max_steps=2), train_dataset=page["prompts"], reward_funcs=[page["shortness"]]
    ).steps()
    assert [step.metrics()["reward"] < 0 for step in steps] == [True, True]
