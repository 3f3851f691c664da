"""A small study of two methods on one task, and results of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prgec.lab.study.results import Point, Result
from tests.models import TinyLlama

TEXT = """
title = "A study"
model = "model"
forward_rows = 48
eval_every = 16
seeds = [0, 1, 2]
tune_seeds = 2
compare = [["searched", "fixed"]]
target = 0.6
[tasks.film]
folder = "data"
[methods.searched]
kind = "prge"
q = 2
batch_size = 2
num_labels = 2
seq_len = 16
lr = [0.1, 0.2]
[methods.fixed]
kind = "fo"
space = "lora-fa"
batch_size = 4
lr = 0.01
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    TinyLlama().write(folder / "model", tokenizer="json")
    (folder / "data").mkdir()
    words = ("great", "awful")
    for split in ("train", "dev", "test"):
        rows = [{"prompt": f"the {split} film {i} was", "completion": f" {words[i % 2]}"} for i in range(6)]
        (folder / "data" / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "study.toml").write_text(TEXT)
    return folder / "study.toml"


def result_of(
    key: str = "k",
    *,
    method: str = "searched",
    seed: int = 0,
    dev: float = 0.5,
    test: float = 0.5,
    lr: float = 0.1,
    rows: int = 48,
) -> Result:
    curve = (Point(0, 0.5, 1.0, 0.0, 0.0), Point(rows, dev, 0.9, 2.0, 1.0))
    return Result(key, method, "film", {"lr": lr}, seed, 6, curve, test, 0.9, 7_000_000)
