"""Let a model learn to answer right and short from rewards alone, and write the report.

    python tools/reward_report.py smollm2-135m                   # docs/reports/rewards.md

Nobody shows it an answer: questions are those of `make_chat.py`, and a reward says how good each answer is that the
model writes. Held-out questions are of the same kinds, about other things.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import make_chat

from prgec.core.machine.describe import describe_machine
from prgec.runtime.runs.open import open_with_adapter
from prgec.runtime.runs.options import RunOptions
from prgec.runtime.runs.rewards import open_rewards

ROOT = Path(__file__).resolve().parent.parent
SEED, DEV_SHARE, SEEDS = 3, 5, (0, 1, 2)
REWARD = '[[reward]]\nname = "contains"\n\n[[reward]]\nname = "max_words"\nargument = 3\nweight = 0.5\n'
COMPILE = (
    *("--method", "exact", "--label-weights", "--generate", "--context", "96", "--seq-len", "80"),
    *("--label-tokens", "16", "--batch-size", "8", "--quantize", "8da4w"),
)
RUN = ("--steps", "60", "--lr", "0.0001", "--temperature", "0.7", "--top-p", "0.95", "--beta", "0.02")
NUM_SHOWN = 8


@dataclass(frozen=True)
class Score:
    """Answers to the held-out questions.

    Attributes:
        right: Share that has the right word.
        words: Mean number of words.
        answers: The answers.
    """

    right: float
    words: float
    answers: tuple[str, ...]


def main() -> None:
    """Parse the command line, train once for each seed, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder or alias of an instruction model")
    parser.add_argument("--work", type=Path, default=ROOT / "studies" / "build" / "rewards", help="folder for the runs")
    parser.add_argument("-o", "--out", type=Path, default=ROOT / "docs" / "reports" / "rewards.md")
    arguments = parser.parse_args()
    work: Path = arguments.work
    work.mkdir(parents=True, exist_ok=True)
    train, held_out = questions()
    for name, rows in (("train", train), ("held-out", held_out)):
        (work / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (work / "reward.toml").write_text(REWARD)
    program = work / "model.pte"
    call("compile", arguments.model, *COMPILE, "-o", program, "--force")
    data = ("--data", work / "train.jsonl", "--eval-data", work / "held-out.jsonl", "--reward", work / "reward.toml")
    runs = []
    for seed in SEEDS:
        out = work / f"run-{seed}"
        call("run", program, *data, *RUN, "--seed", seed, "--out", out, "--force")
        runs.append(json.loads((out / "run.json").read_text()))
    scores = [score(program, work, None), *(score(program, work, work / f"run-{seed}") for seed in SEEDS)]
    arguments.out.write_text(report(arguments.model, runs, scores, len(train), held_out), encoding="utf-8")


def questions() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return prompts with their right answers, to learn from and held out."""
    rows = []
    for pairs, asked, _ in make_chat.KINDS:
        for pair in pairs.split(";"):
            thing, answer = pair.split(" ", 1)
            rows.append({"prompt": [{"role": "user", "content": asked[0].format(thing)}], "answer": answer})
    random.Random(SEED).shuffle(rows)
    return [row for n, row in enumerate(rows) if n % DEV_SHARE], rows[::DEV_SHARE]


def score(program: Path, work: Path, run: Path | None) -> Score:
    """Return the most likely answers to the held-out questions, with the adapter of a run."""
    options = RunOptions(
        program=program, data=work / "train.jsonl", eval_data=work / "held-out.jsonl", reward=("contains",)
    )
    adapter = None if run is None else run / "adapter.safetensors"
    engine = open_with_adapter(program, adapter)
    found = open_rewards(options, engine, None).evaluate(engine, lambda done, total: None, lambda: False)
    assert found is not None and found.reward is not None, "nobody stops it"
    words = sum(len(text.split()) for text in found.answers) / len(found.answers)
    return Score(found.reward, words, found.answers)


def report(model: str, runs: list[dict[str, Any]], scores: list[Score], num_train: int, held_out: list[Any]) -> str:
    """Return the page."""
    before, *after = scores
    lines = [
        "# Learning from rewards",
        "",
        f"`python tools/reward_report.py {Path(model).name}` on {_machine()}.",
        "",
        f"{num_train} questions to learn from and {len(held_out)} held out, no answers. The reward of an answer is 1 "
        "if it has the right",
        "word, and up to 0.5 for being short (3 words).",
        "",
        f"- `prgec compile {' '.join(COMPILE)}`",
        f"- `prgec run {' '.join(RUN)}`",
        "",
        "Right answers and words are of the most likely answers to held-out questions.",
        "",
        "| seed | right before | right after | words before | words after | seconds | peak MB |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for seed, run, each in zip(SEEDS, runs, after, strict=True):
        lines.append(
            f"| {seed} | {before.right:.0%} | {each.right:.0%} | {before.words:.1f} | {each.words:.1f} "
            f"| {run['seconds']:.0f} | {run['peak_rss_bytes'] / 1e6:.0f} |"
        )
    lines += [
        "",
        "Seconds are those of the whole run: 480 sampled answers, 60 steps and two evaluations. Peak memory is the",
        "resident maximum of the process, with the mapped program.",
        "",
        "| held-out question | before | after (seed 0) |",
        "|---|---|---|",
    ]
    for row, old, new in list(zip(held_out, before.answers, after[0].answers, strict=True))[:NUM_SHOWN]:
        lines.append(f"| {row['prompt'][0]['content']} | {_cell(old)} | {_cell(new)} |")
    return "\n".join(lines) + "\n"


def call(command: str, *arguments: object) -> None:
    """Run a command of prgec."""
    subprocess.run([sys.executable, "-m", "prgec", command, *map(str, arguments)], check=True)


def _machine() -> str:
    found = describe_machine()
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    return f"{found['cpu']}, {found['cores']} cores, {found['memory_bytes'] / 1e9:.0f} GB; {versions}"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "/")


if __name__ == "__main__":
    main()
