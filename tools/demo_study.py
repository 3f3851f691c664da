"""Measure P-RGE on the bundled demo over several seeds, in eager PyTorch, and print a Markdown table.

Without options it runs every row of docs/reports/demo-learning.md; `--only std-0.003` runs one.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from demo.prge_eager import Settings, Trainer

from prgec.demo import checkpoint_dir, data_file

_PLAIN = Settings(estimator="plain", lr=0.003)
_STD = Settings(estimator="std", lr=0.006)

RUNS: dict[str, Settings] = {
    "plain-0.003": _PLAIN,
    "std-0.006": _STD,
    "plain-0.0015": replace(_PLAIN, lr=0.0015),
    "plain-0.006": replace(_PLAIN, lr=0.006),
    "std-0.003": replace(_STD, lr=0.003),
}
COLUMNS = "| run | estimator | lr | schedule | q x B | targets | before | after: mean | min | max | CPU s |"


@dataclass(frozen=True)
class Outcome:
    """Test accuracy before and after one run, and the CPU seconds its steps took."""

    before: float
    after: float
    cpu_s: float


def run_once(checkpoint: Path, settings: Settings, seed: int) -> Outcome:
    """Train once on the train split and measure on the test split."""
    trainer = Trainer(checkpoint, settings, seed)
    train, test = trainer.read(data_file("train")), trainer.read(data_file("test"))
    before, _ = trainer.accuracy(test)
    start = time.process_time()
    trainer.train(train, lambda step, loss: None)
    cpu_s = time.process_time() - start
    after, loss = trainer.accuracy(test)
    logging.info("  seed %d: %.3f -> %.3f, test loss %.2f, %.1f CPU s", seed, before, after, loss, cpu_s)
    return Outcome(before, after, cpu_s)


def table_row(name: str, settings: Settings, outcomes: Sequence[Outcome]) -> str:
    """One line of the table."""
    after = [outcome.after for outcome in outcomes]
    targets = "all" if len(settings.targets) > 2 else ", ".join(settings.targets)
    cells = (
        name,
        settings.estimator,
        str(settings.lr),
        settings.schedule,
        f"{settings.q} x {settings.batch_size}",
        targets,
        f"{outcomes[0].before:.3f}",
        f"{sum(after) / len(after):.3f}",
        f"{min(after):.3f}",
        f"{max(after):.3f}",
        f"{sum(outcome.cpu_s for outcome in outcomes) / len(outcomes):.0f}",
    )
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Parse the command line, run, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=RUNS, action="append", help="run this row (repeatable); all without it")
    parser.add_argument("--seeds", type=int, default=5, help="seeds 0 .. n-1 for each row")
    parser.add_argument("--steps", type=int, default=Settings.steps)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--checkpoint", type=Path, default=checkpoint_dir())
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(options.threads)
    rows = []
    for name in options.only or RUNS:
        settings = replace(RUNS[name], steps=options.steps)
        logging.info("%s", name)
        outcomes = [run_once(options.checkpoint, settings, seed) for seed in range(options.seeds)]
        rows.append(table_row(name, settings, outcomes))
    print(COLUMNS, "|" + "---|" * (COLUMNS.count("|") - 1), *rows, sep="\n")


if __name__ == "__main__":
    main()
