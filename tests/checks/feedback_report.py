"""The page of `tools/feedback_study.py`, and its plot."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from prgec.core.machine.describe import describe_machine

_COLOURS = {
    "GRPO, prgec": "tab:blue",
    "GRPO, prgec, 2.5 times the steps": "navy",
    "GRPO, TRL": "tab:red",
    "DPO, prgec": "tab:cyan",
    "DPO, TRL": "tab:orange",
}


@dataclass(frozen=True)
class Finding:
    """A run.

    Attributes:
        rewards: Mean held-out reward of the most likely answers, by task.
        cpu: CPU seconds of loading and training; evaluations are left out.
        anon: Anonymous memory at its peak, bytes.
        rss: Resident memory at its peak, bytes.
        kl: Nats a token from the start, of sampled answers; None where it is not measured.
    """

    rewards: dict[str, float]
    cpu: float
    anon: int
    rss: int
    kl: float | None


Found = Mapping[tuple[str, str], Sequence[Finding]]


def table(start: Mapping[bool, Finding], found: Found) -> str:
    """Return held-out rewards, their cost and what they did to the other tasks, by task and way."""
    lines = [
        "| task | way | before | after | by seed | other tasks | KL | CPU s | anon MB | RSS MB |",
        "|---|---|---:|---:|---|---|---:|---:|---:|---:|",
    ]
    for (task, way), runs in sorted(found.items(), key=lambda item: list(start[True].rewards).index(item[0][0])):
        first = start["TRL" in way].rewards
        after = [run.rewards[task] for run in runs]
        others = [name for name in first if name != task]
        kept = statistics.mean(run.rewards[name] for run in runs for name in others)
        distance = [run.kl for run in runs if run.kl is not None]
        cells = [
            *(task, way, f"{first[task]:.3f}", f"{statistics.mean(after):.3f}", " ".join(f"{x:.3f}" for x in after)),
            f"{statistics.mean(first[name] for name in others):.3f} -> {kept:.3f}",
            f"{statistics.mean(distance):.2f}" if distance else "",
            f"{statistics.mean(run.cpu for run in runs):.0f}",
            f"{statistics.mean(run.anon for run in runs) / 1e6:.0f}",
            f"{statistics.mean(run.rss for run in runs) / 1e6:.0f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def plot(path: Path, start: Mapping[bool, Finding], found: Found) -> None:
    """Draw held-out reward against CPU seconds and against memory, a column a task."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    tasks = list(dict.fromkeys(task for task, _ in found))
    figure = Figure(figsize=(4.0 * len(tasks), 6.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(2, len(tasks), sharey="col", squeeze=False)
    for column, task in enumerate(tasks):
        for axes, label in zip(grid[:, column], ("CPU seconds", "anonymous memory, MB"), strict=True):
            for way in (way for name, way in found if name == task):
                runs = found[task, way]
                x = [run.cpu if label.startswith("CPU") else run.anon / 1e6 for run in runs]
                y = [run.rewards[task] for run in runs]
                axes.scatter(x, y, label=way, color=_COLOURS.get(way, "tab:green"))
            for is_trl, style in ((False, ":"), (True, "--")):
                axes.axhline(start[is_trl].rewards[task], color="grey", linestyle=style, linewidth=0.8)
            axes.set(xlabel=label, xlim=(0, None))
        grid[0, column].set_title(task)
    grid[0, 0].set_ylabel("held-out reward")
    grid[1, 0].set_ylabel("held-out reward")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    figure.savefig(path)


def report(
    options: argparse.Namespace,
    settings: Mapping[str, str],
    sizes: Mapping[str, tuple[int, int]],
    start: Mapping[bool, Finding],
    found: Found,
) -> str:
    """Return the page, with the command that writes it.

    Args:
        options: Flags of the command.
        settings: Command lines by name: `exact` and `prge` of programs, `grpo`, `dpo` and `es` of runs.
        sizes: Prompts to learn from, and held out, by task.
        start: Rewards of the model before it learns, in 4 bits and, under True, in f32.
        found: Runs by task and way.
    """
    machine = describe_machine()
    flags = f"--seeds {options.seeds} --objectives {options.objectives} --steps {options.steps}"
    command = f"python tools/feedback_study.py {Path(options.model).name} {flags}"
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    counted = "; ".join(f"{name}: {train} prompts and {held} held out" for name, (train, held) in sizes.items())
    seeds = len(next(iter(found.values())))
    return f"""# Learning from feedback, beside TRL

    {command}

{machine["cpu"]}, {machine["cores"]} cores. {versions}.

{counted}.

![Held-out reward against CPU seconds and memory](feedback.png)

{table(start, found)}

- **Before, after**: mean reward of the most likely answers to held-out prompts; {seeds} seeds. Right and short answers
  and sums have 1.5 at best, objects too. The same model starts elsewhere in 4 bits (prgec) and in f32 (TRL). Rows with
  fewer numbers were not run with every seed.
- **Other tasks**: mean held-out reward of the two tasks that the run did not see, before and after.
- **KL**: nats a token from the start, of sampled answers to training prompts; prgec: in the last steps of the run.
- **CPU s, MB**: of the process that loads and trains; evaluations are not counted. Programs are mapped files, whose
  pages are in RSS and not in anonymous memory.

{options.steps} steps of 8 answers to one prompt, or of 4 pairs. Learning rates fall to 0. Nothing was tuned, but that
the settings of ES were chosen by a few runs of its first seed.

- prgec: `prgec compile {settings["exact"]}`; for ES
  `prgec compile {settings["prge"]}`. Weights have 4 bits; B of all linear layers is trained.
  Runs: `{settings["grpo"]}`; `{settings["dpo"]}`; `{settings["es"]}`.
- TRL: GRPOTrainer and DPOTrainer over PEFT's LoRA, rank 16, alpha 32, A and B of all linear layers; weights in
  f32; the same learning rate, sampling and beta.
"""
