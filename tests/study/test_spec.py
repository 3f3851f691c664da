"""A study file means what it says, and says what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from prgec.errors import DataError, UsageError
from prgec.lab.study.spec import Run, expand, read_study

TEXT = """
title = "t"
model = "demo"
forward_rows = 64
seeds = [0, 1]
[defaults]
eps = 0.01
[tasks.one]
folder = "data"
[methods.a]
lr = [0.1, 0.2]
q = [1, 2]
[methods.b]
eps = 0.1
lr = 1.0
"""


def _write(folder: Path, text: str = TEXT) -> Path:
    path = folder / "study.toml"
    path.write_text(text)
    return path


def test_lists_span_a_grid_and_defaults_fill_it(tmp_path: Path) -> None:
    study = read_study(_write(tmp_path))
    a, b = study.methods
    assert [(each["lr"], each["q"], each["eps"]) for each in a.grid] == [
        (0.1, 1, 0.01),
        (0.1, 2, 0.01),
        (0.2, 1, 0.01),
        (0.2, 2, 0.01),
    ]
    assert b.grid == ({"eps": 0.1, "lr": 1.0},)
    assert expand({"x": 1}) == ({"x": 1},)


def test_files_are_relative_to_the_study(tmp_path: Path) -> None:
    (task,) = read_study(_write(tmp_path)).tasks
    assert (task.train, task.test) == (tmp_path / "data" / "train.jsonl", tmp_path / "data" / "test.jsonl")


def test_a_task_of_its_own_is_relative_too_and_counts_by_its_text(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for name in ("train.jsonl", "dev.jsonl", "test.jsonl"):
        (tmp_path / "data" / name).write_text(name)
    keys = []
    for name, template in (("a.toml", "1"), ("b.toml", "2"), ("c.toml", "1")):
        (tmp_path / name).write_text(template)
        text = TEXT.replace('folder = "data"', f'folder = "data"\ntask = "{name}"')
        study = read_study(_write(tmp_path, text))
        assert study.tasks[0].task == str(tmp_path / name)
        keys.append(Run("a", study.tasks[0], study.methods[0].grid[0], 0).key(study))
    assert keys[0] == keys[2] != keys[1]


def test_a_method_may_be_compiled_with_the_rows_it_trains_on(tmp_path: Path) -> None:
    text = TEXT.replace('folder = "data"', 'folder = "data"\ntask = "a.toml"')
    (task,) = read_study(_write(tmp_path, text)).tasks
    named, own, none = (Run("a", task, {"q": 1, **data}, 0).made_of for data in ({"data": "x"}, {"data": "train"}, {}))
    assert own == {"q": 1, "data": str(tmp_path / "data" / "train.jsonl"), "task": str(tmp_path / "a.toml")}
    assert (named, none) == ({"q": 1, "data": "x"}, {"q": 1})


def test_a_task_may_have_a_target_of_its_own(tmp_path: Path) -> None:
    text = TEXT.replace("[defaults]", "target = 0.7\n[defaults]").replace(
        "[methods.a]",
        """[tasks.two]
folder = "data"
target = 0.9
[methods.a]""",
    )
    assert [task.target for task in read_study(_write(tmp_path, text)).tasks] == [0.7, 0.9]
    assert read_study(_write(tmp_path)).tasks[0].target == 0.0


def test_a_key_changes_with_data_and_options_alone(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for split in ("train", "dev", "test"):
        (tmp_path / "data" / f"{split}.jsonl").write_text(split)
    study = read_study(_write(tmp_path))
    keys = {Run("a", study.tasks[0], options, seed).key(study) for options in study.methods[0].grid for seed in (0, 1)}
    assert len(keys) == 8
    text = TEXT.replace('"t"', '"other"').replace('folder = "data"', 'folder = "data"\ntarget = 0.5')
    again = read_study(_write(tmp_path, text))
    assert Run("x", again.tasks[0], study.methods[0].grid[0], 0).key(again) in keys


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("forward_rows = 64", "", "lacks 'forward_rows'"),
        ("forward_rows = 64", "forward_rows = 0", "forward_rows is 0; expected a positive integer"),
        ("forward_rows = 64", "forward_rows = 64\nseconds = 2", "both forward_rows and seconds"),
        ("forward_rows = 64", "seconds = -1", "seconds is -1; expected a positive number"),
        ("forward_rows = 64", 'seconds = "long"', "value of the wrong kind"),
        ("forward_rows = 64", "seconds = 2\nmemory_mb = 0", "memory_mb is 0; expected a positive number"),
        ("forward_rows = 64", "forward_rows = 64\neval_every = 0.5", "eval_every is 0.5; expected a positive integer"),
        ("forward_rows = 64", "seconds = 2\neval_every = 0", "eval_every is 0; expected a positive number"),
        ("seeds = [0, 1]", "seeds = []", "needs seeds"),
        ("seeds = [0, 1]", "seeds = [0]\nsede = 1", "'sede', which is unknown"),
        ("seeds = [0, 1]", 'seeds = [0]\ncompare = [["a", "c"]]', "compare names 'c'"),
        ("seeds = [0, 1]", "seeds = 1", "value of the wrong kind"),
        ("[methods.a]", "[methods.a]\nclip = []", "method 'a' has an option with no value"),
        ("[methods.a]", "[methods.a.5]", "method 'a' has a table '5'"),
        ('folder = "data"', 'folder = "data"\ntarget = 75', "target of task 'one' is 75.0; expected 0 to 1"),
    ],
)
def test_what_is_wrong(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        read_study(_write(tmp_path, TEXT.replace(old, new)))
    assert "\n" not in str(caught.value)


def test_seconds_name_other_runs_and_memory_does_not(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for split in ("train", "dev", "test"):
        (tmp_path / "data" / f"{split}.jsonl").write_text(split)
    keys = []
    for budget in ("forward_rows = 64", "seconds = 2", "seconds = 2\nmemory_mb = 5", "seconds = 3"):
        study = read_study(_write(tmp_path, TEXT.replace("forward_rows = 64", budget)))
        keys.append(Run("a", study.tasks[0], study.methods[0].grid[0], 0).key(study))
    assert keys[1] == keys[2] and len(set(keys)) == 3
    assert study.budget.eval_every == pytest.approx(0.3)


def test_no_toml(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not TOML"):
        read_study(_write(tmp_path, "title = "))
    with pytest.raises(DataError, match="cannot read the study"):
        read_study(tmp_path / "missing.toml")
