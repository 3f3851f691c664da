"""Run folders that no run has written."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any


def write_run(folder: Path, num_steps: int = 40, *, is_done: bool = True, **summary: Any) -> Path:
    """Write the files of a run."""
    folder.mkdir(parents=True)
    lines: list[dict[str, Any]] = [{"step": 0, "eval_loss": 0.7, "eval_accuracy": 0.5, "seconds": 0.1}]
    lines += [
        {"step": n, "loss": 0.2 + math.exp(-3 * n / num_steps), "lr": 0.1, "g": [0.5, -0.25], "seconds": 0.01 * n}
        for n in range(1, num_steps + 1)
    ]
    lines.append({"step": num_steps, "eval_loss": 0.2, "eval_accuracy": 0.9, "seconds": 0.01 * num_steps})
    name = "metrics.jsonl" if is_done else "metrics.partial.jsonl"
    (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    if is_done:
        said = {
            "status": "complete",
            "contract": 1,
            "steps": num_steps,
            "accuracy": 0.9,
            "eval_loss": 0.2,
            "seconds": 1.0,
        }
        options = {"lr": 0.1, "seed": 0, "steps": num_steps, "program": str(folder / "gone.pte")}
        (folder / "run.json").write_text(json.dumps({**said, "seconds": 1.0, "options": options, **summary}))
    return folder
