"""The P-RGE paper's tables of accuracy as studies: tasks by methods, with its grids of rates.

Table 1 of "Enabling Efficient On-Device Fine-Tuning of LLMs Using Only Inference Engines" (Table 2 of a later version)
and Table 7 of both: zeroth-order steps over four kinds of adapters. Grids are those of the table of hyper-parameters
(9 in the later version). Imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from prgec.errors import UsageError
from prgec.lab.study.results import Result, of_method
from prgec.lab.study.spec import SPLITS, Options, Study, make_study

# 20,000 steps of 2 x 16 rows.
_PAPERS_ROWS = 640_000
_SCORES = 10
_MEZO_RATES = [5e-5, 1e-4, 5e-4, 1e-3]
_FO_ADAM: Options = {"kind": "fo", "optimizer": "adam", "batch_size": 8, "schedule": "constant"}
_MEZO_FULL: Options = {
    "kind": "mezo",
    "space": "full",
    "batch_size": 16,
    "eps": 1e-3,
    "lr": [1e-7, 5e-7, 1e-6],
    "schedule": "constant",
}
_PRGE: Options = {
    "kind": "prge",
    "estimator": "plain",
    "eps": 1e-2,
    "num_labels": 5,
    "lr": _MEZO_RATES,
    "schedule": "constant",
}
_ADAPTERS: Options = {
    "kind": "mezo",
    "batch_size": 16,
    "eps": [1e-3, 1e-2],
    "lr": [5e-6, 5e-5, 5e-4, 5e-3],
    "schedule": "constant",
}


@dataclass(frozen=True)
class StudyPreset:
    """One table.

    Attributes:
        title: The paper's name of it.
        tasks: Columns: folders of data, and rows of the task table.
        methods: Rows: label and options.
        forward_rows: The paper's budget of a run.
    """

    title: str
    tasks: tuple[str, ...]
    methods: dict[str, Options]
    forward_rows: int = _PAPERS_ROWS


STUDY_PRESETS: dict[str, StudyPreset] = {
    "prge-table-1": StudyPreset(
        "Table 1: fine-tuning on different tasks with different optimizers",
        ("sst2", "rte", "mrpc", "qqp", "qnli", "wnli"),
        {
            "FO-Adam, full": {**_FO_ADAM, "space": "full", "lr": [1e-5, 5e-5, 8e-5]},
            "FO-Adam, LoRA-FA": {**_FO_ADAM, "space": "lora-fa", "lr": [1e-4, 3e-4, 5e-4]},
            "MeZO (full)": _MEZO_FULL,
            "MeZO (LoRA-FA)": {**_PRGE, "q": 1, "batch_size": 16},
            "P-RGE (q = 4)": {**_PRGE, "q": 4, "batch_size": 4},
            "P-RGE (q = 16)": {**_PRGE, "q": 16, "batch_size": 1},
        },
    ),
    "prge-table-7": StudyPreset(
        "Table 7: zeroth-order accuracy with different PEFT methods",
        ("sst2",),
        {
            "LoRA": {**_ADAPTERS, "space": "lora"},
            "LoRA-FA": {**_ADAPTERS, "space": "lora-fa"},
            "DoRA": {**_ADAPTERS, "space": "dora"},
            "VeRA": {**_ADAPTERS, "space": "vera", "vera_rank": 1024},
        },
        forward_rows=320_000,
    ),
}


def study_of(
    name: str, model: str, data: Path, *, forward_rows: int | None, seeds: Sequence[int], rates: Sequence[float] = ()
) -> Study:
    """Return the study of a table, over the tasks whose files are there.

    Args:
        name: Key of `STUDY_PRESETS`.
        model: Checkpoint folder, alias or hub id.
        data: Folder with a folder for each task: train.jsonl, dev.jsonl and test.jsonl.
        forward_rows: Budget of a run; None for the paper's.
        seeds: Seeds to report; as many as two of them choose.
        rates: Rates to try in place of the paper's.

    Raises:
        UsageError: If there is no task's folder.
    """
    preset = STUDY_PRESETS[name]
    there = [task for task in preset.tasks if not missing_files(data, task)]
    if not there:
        raise UsageError(
            "there are no data of any task of the table",
            where=data,
            hint=f"expected {preset.tasks[0]}/train.jsonl, dev.jsonl and test.jsonl, and so on",
        )
    rows = forward_rows or preset.forward_rows
    raw: dict[str, Any] = {
        "title": preset.title,
        "model": str(Path(model).resolve()) if Path(model).exists() else model,
        "forward_rows": rows,
        "eval_every": max(1, rows // _SCORES),
        "seeds": list(seeds),
        "tasks": {task: {"folder": task, "task": task} for task in there},
        "methods": {
            label: {**options, **({"lr": list(rates)} if rates else {})} for label, options in preset.methods.items()
        },
    }
    return make_study(raw, data / f"{name}.toml")


def missing_files(data: Path, task: str) -> list[str]:
    """Return the files of a task that are not there."""
    paths = [data / task / f"{split}.jsonl" for split in SPLITS]
    return [str(path) for path in paths if not path.is_file()]


def table_of(name: str, study: Study, results: Iterable[Result], data: Path, command: str) -> list[str]:
    """Return the lines of the paper's table: test accuracy in percent, the mean of the seeds; empty where not run."""
    preset, found = STUDY_PRESETS[name], list(results)
    lines = [f"| Methods | {' | '.join(preset.tasks)} |", "|---" * (len(preset.tasks) + 1) + "|"]
    zero_shot = [_mean([run.curve[0].accuracy for run in found if run.task == task]) for task in preset.tasks]
    lines.append(f"| Zero-shot (dev) | {' | '.join(zero_shot)} |")
    for method in preset.methods:
        runs = ([run.test_accuracy for run in of_method(found, method, task)] for task in preset.tasks)
        lines.append(f"| {method} | {' | '.join(map(_mean, runs))} |")
    empty = [f"- {task}: {missing[0]}" for task in preset.tasks if (missing := missing_files(data, task))]
    if empty:
        lines += ["", f"Empty columns want files; then `{command}` fills them:", "", *empty]
    unfinished = [each.name for each in study.methods if not any(run.method == each.name for run in found)]
    if unfinished:
        lines += ["", f"Not run yet: {', '.join(unfinished)}; `{command}` goes on."]
    return lines


def _mean(scores: Sequence[float]) -> str:
    return f"{100 * fmean(scores):.1f}" if scores else ""
