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
    curve = (
        Point(forward_rows=0, accuracy=0.5, loss=1.0, wall_s=0.0, cpu_s=0.0),
        Point(forward_rows=rows, accuracy=dev, loss=0.9, wall_s=2.0, cpu_s=1.0),
    )
    return Result(
        key=key,
        method=method,
        task="film",
        options={"lr": lr},
        seed=seed,
        steps=6,
        curve=curve,
        test_accuracy=test,
        test_loss=0.9,
        memory_bytes=7_000_000,
    )
