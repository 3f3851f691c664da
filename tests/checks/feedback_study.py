"""Learning from rewards beside TRL, on the same prompts, rewards and machine: `python tools/feedback_study.py MODEL`.

Every run is a process of its own. Its reward is the mean of its most likely answers to held-out prompts.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prgec.core.machine.describe import describe_machine
from tests.checks.measured_process import run_measured
from tests.checks.trl_ways import TrlJob, to_json

_STEPS, _BATCH, _TOKENS = 60, 8, 24
_TEMPERATURE, _TOP_P, _BETA, _LR = 0.7, 0.95, 0.02, 1e-4
_COMPILE = (
    *("--method", "exact", "--label-weights", "--generate", "--context", "128", "--rollouts", "8", "--seq-len", "112"),
    *("--label-tokens", str(_TOKENS), "--batch-size", str(_BATCH), "--quantize", "8da4w"),
)
_RUN = (
    *("--steps", str(_STEPS), "--lr", str(_LR), "--temperature", str(_TEMPERATURE), "--top-p", str(_TOP_P)),
    *("--beta", str(_BETA)),
)
_THINGS = "apple,lemon,stone,river,horse,table,cloud,candle,violin,carpet,garden,bridge,feather,ladder,pencil,mirror"


@dataclass(frozen=True)
class RewardTask:
    """A task with a reward that can be checked.

    Attributes:
        name: Its name.
        rows: Makes prompts with what their rewards need.
        reward: File of its rewards.
    """

    name: str
    rows: Callable[[], list[dict[str, Any]]]
    reward: str


@dataclass(frozen=True)
class Outcome:
    """A run.

    Attributes:
        before: Mean held-out reward before it.
        after: The same after it.
        cpu: CPU seconds of the process.
        anon: Anonymous memory at its peak, bytes.
    """

    before: float
    after: float
    cpu: float
    anon: int


def _questions() -> list[dict[str, Any]]:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
    import make_chat

    return [
        {"prompt": _asked(asked[0].format(pair.split(" ", 1)[0])), "answer": pair.split(" ", 1)[1]}
        for pairs, asked, _ in make_chat.KINDS
        for pair in pairs.split(";")
    ]


def _objects() -> list[dict[str, Any]]:
    example = 'A leaf is {{"name": "leaf", "colour": "green"}}. '
    shapes = (f"{example}Describe a {{}} in the same way.", f"{example}Write the same about a {{}}, as JSON.")
    return [
        {"prompt": _asked(shape.format(thing)), "answer": thing} for thing in _THINGS.split(",") for shape in shapes
    ]


def _sums() -> list[dict[str, Any]]:
    draw = random.Random(1)
    pairs = [(draw.randint(10, 49), draw.randint(10, 49)) for _ in range(60)]
    return [{"prompt": _asked(f"What is {a} + {b}?"), "answer": str(a + b)} for a, b in pairs]


def _asked(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


_SHORT = '[[reward]]\nname = "contains"\n\n[[reward]]\nname = "max_words"\nargument = 3\nweight = 0.5\n'
TASKS = (
    RewardTask("short right answers", _questions, _SHORT),
    RewardTask("JSON with two keys", _objects, '[[reward]]\nname = "json"\nargument = "name,colour"\n'),
    RewardTask("sums of two digits", _sums, _SHORT),
)


def run_prgec(program: Path, task: Path, seed: int) -> Outcome:
    """Train by `prgec run --reward`."""
    out = task / f"run-{seed}"
    data = ("--data", task / "train.jsonl", "--eval-data", task / "held-out.jsonl", "--reward", task / "reward.toml")
    command = ["-m", "prgec", "run", program, *data, *_RUN, "--seed", seed, "--out", out, "--force"]
    _, cpu, anon = _process(command)
    found = json.loads((out / "run.json").read_text())
    # The loss of an evaluation by rewards is minus their mean.
    return Outcome(-found["eval_loss_before"], -found["eval_loss"], cpu, anon)


def run_trl(model: str, task: Path, seed: int) -> Outcome:
    """Train by TRL's GRPOTrainer over PEFT's LoRA."""
    files = (str(task / name) for name in ("train.jsonl", "held-out.jsonl", "reward.toml"))
    job = TrlJob(model, *files, _STEPS, _BATCH, _BATCH, _TOKENS, _LR, _TEMPERATURE, _TOP_P, _BETA, seed)
    said, cpu, anon = _process(["-m", "tests.checks.trl_ways", to_json(job)])
    found = json.loads(said.splitlines()[-1])
    return Outcome(found["before"], found["after"], cpu, anon)


def _process(arguments: Sequence[object]) -> tuple[str, float, int]:
    """Run Python; return what it prints, and its CPU seconds and peak of anonymous memory."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    said, peak = run_measured(arguments)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return said, cpu, peak.anon_bytes


def table(found: dict[tuple[str, str], list[Outcome]]) -> str:
    """Return held-out reward, CPU seconds and memory by task and way."""
    lines = ["| task | way | before | after | by seed | CPU s | MB |", "|---|---|---:|---:|---|---:|---:|"]
    for (task, way), runs in found.items():
        if not runs:
            continue
        after = [each.after for each in runs]
        cells = [
            *(task, way, f"{statistics.mean(each.before for each in runs):.3f}", f"{statistics.mean(after):.3f}"),
            " ".join(f"{each:.3f}" for each in after),
            f"{statistics.mean(each.cpu for each in runs):.0f}",
            f"{statistics.mean(each.anon for each in runs) / 1e6:.0f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def report(model: str, seeds: Sequence[int], sizes: dict[str, tuple[int, int]], text: str) -> str:
    """Return the page, with the command that writes it."""
    machine = describe_machine()
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    counted = "; ".join(f"{name}: {train} prompts and {held} held out" for name, (train, held) in sizes.items())
    return f"""# Rewards, beside TRL

    python tools/feedback_study.py {Path(model).name} --seeds {",".join(map(str, seeds))}

{machine["cpu"]}, {machine["cores"]} cores. {versions}.

{counted}.

{_STEPS} steps of {_BATCH} answers to one prompt, at most {_TOKENS} tokens, temperature {_TEMPERATURE}, top-p {_TOP_P},
beta {_BETA}, learning rate {_LR} falling to 0. Nothing was tuned. Reward is the mean of the most likely answers to
held-out prompts. CPU seconds and anonymous memory at its peak are those of the whole process, evaluations included.

- prgec: `prgec compile {" ".join(_COMPILE)}` and `prgec run --objective grpo`. Weights have 4 bits; B of
  all linear layers is trained.
- TRL: GRPOTrainer over PEFT's LoRA, rank 16, A and B of all linear layers; weights in f32.

{text}
"""


def main() -> None:
    """Train each way with each seed, and write the report as it grows."""
    parser = argparse.ArgumentParser(prog="feedback_study.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", help="folder of an instruction model")
    parser.add_argument("--seeds", default="0,1,2", help="seeds of each way [0,1,2]")
    parser.add_argument("--work", type=Path, help="folder for programs and runs [a temporary one]")
    parser.add_argument("--out", type=Path, help="also write the page to this file")
    options = parser.parse_args()
    seeds = [int(each) for each in options.seeds.split(",")]
    with tempfile.TemporaryDirectory() as temporary:
        work = options.work or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        program = work / "model.pte"
        if not program.exists():
            subprocess.run(
                [sys.executable, "-m", "prgec", "compile", options.model, *_COMPILE, "-o", program], check=True
            )
        found: dict[tuple[str, str], list[Outcome]] = {(t.name, way): [] for t in TASKS for way in ("prgec", "TRL")}
        sizes = {task.name: _write(task, work) for task in TASKS}
        for seed in seeds:
            for task in TASKS:
                folder = work / task.name.replace(" ", "-")
                found[task.name, "prgec"].append(run_prgec(program, folder, seed))
                found[task.name, "TRL"].append(run_trl(options.model, folder, seed))
                page = report(options.model, seeds, sizes, table(found))
                if options.out is not None:
                    options.out.write_text(page, encoding="utf-8")
    print(page, end="")


def _write(task: RewardTask, work: Path) -> tuple[int, int]:
    """Write the prompts and the reward of a task; return how many there are to learn from, and held out."""
    folder = work / task.name.replace(" ", "-")
    folder.mkdir(exist_ok=True)
    rows = task.rows()
    random.Random(3).shuffle(rows)
    parts = {"train": [row for n, row in enumerate(rows) if n % 5], "held-out": rows[::5]}
    for name, part in parts.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    (folder / "reward.toml").write_text(task.reward)
    return len(parts["train"]), len(parts["held-out"])


if __name__ == "__main__":
    main()
