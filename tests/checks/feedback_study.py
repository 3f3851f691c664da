"""Learning from feedback beside TRL, on the same prompts, rewards and machine: `python tools/feedback_study.py MODEL`.

Every run is a process of its own, and is kept in the work folder: a study that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.checks.feedback_report import Finding, plot, report
from tests.checks.feedback_tasks import TASKS, RewardTask, write_task
from tests.checks.measured_process import run_measured
from tests.checks.trl_ways import TrlJob, to_json

_BATCH, _TOKENS = 8, 24
_TEMPERATURE, _TOP_P, _DPO_BETA, _LR = 0.7, 0.95, 0.1, 1e-4
# Steps whose distance to the start is averaged.
_LAST_STEPS = 10
_SHAPE = (
    *("--generate", "--context", "112", "--rollouts", "8", "--seq-len", "88", "--label-tokens", str(_TOKENS)),
    *("--quantize", "8da4w"),
)
# An ES step has as many answers as one of GRPO: 4 directions, both signs, one prompt.
PROGRAMS = {
    "exact": ("--method", "exact", "--label-weights", "--recompute", "layers", "--batch-size", str(_BATCH), *_SHAPE),
    "prge": ("--method", "prge", "--q", "4", "--batch-size", "1", *_SHAPE),
}
_SAMPLING = ("--temperature", str(_TEMPERATURE), "--top-p", str(_TOP_P))
RUNS = {
    "grpo": ("--objective", "grpo", "--lr", str(_LR), *_SAMPLING),
    "dpo": ("--objective", "dpo", "--lr", str(_LR), "--beta", str(_DPO_BETA)),
    "es": ("--objective", "es", "--lr", "0.01", "--eps", "0.02", "--estimator", "std", *_SAMPLING),
}


@dataclass(frozen=True)
class Way:
    """A way to learn from feedback.

    Attributes:
        objective: `grpo`, `dpo` or `es`.
        trl: Whether TRL runs it.
        times: Factor of the study's steps.
    """

    objective: str
    trl: bool
    times: float = 1.0

    @property
    def tasks(self) -> Sequence[RewardTask]:
        """Tasks that are learnt this way: all from rewards by gradients, else the first.

        More steps go to the tasks that the study's steps leave below TRL's reward.
        """
        if self.objective != "grpo":
            return TASKS[:1]
        return TASKS if self.times == 1 else (TASKS[0], TASKS[2])

    def __str__(self) -> str:
        """Return the name that a reader sees."""
        more = "" if self.times == 1 else f", {self.times:g} times the steps"
        return f"{self.objective.upper()}, {'TRL' if self.trl else 'prgec'}{more}"


WAYS = (
    Way("grpo", False),
    Way("grpo", True),
    Way("dpo", False),
    Way("dpo", True),
    Way("es", False),
    # About as much CPU time as TRL takes.
    Way("grpo", False, times=2.5),
)


@dataclass(frozen=True)
class Study:
    """Settings of all runs.

    Attributes:
        model: Checkpoint folder.
        work: Folder of programs, tasks, runs and findings.
        steps: Training steps of a run.
    """

    model: str
    work: Path
    steps: int

    def program(self, method: str) -> Path:
        """Return the compiled program of a method."""
        path = self.work / f"{method}.pte"
        if not path.exists():
            command = [sys.executable, "-m", "prgec", "compile", self.model, *PROGRAMS[method], "-o", str(path)]
            subprocess.run(command, check=True)
        return path

    def take(self, findings: Path) -> None:
        """Take runs that were measured before and are not in the work folder; each is a line with its name."""
        (self.work / "found").mkdir(parents=True, exist_ok=True)
        for line in findings.read_text(encoding="utf-8").splitlines():
            finding = json.loads(line)
            name = finding.pop("run")
            file = self.work / "found" / f"{name}.json"
            if not file.exists():
                file.write_text(json.dumps(finding), encoding="utf-8")

    def find(self, task: RewardTask, way: Way | None, trl: bool, seed: int) -> Finding:
        """Return the outcome of a run, or, without a way, the rewards of the model before it learns."""
        file = self.file_of(task, way, trl, seed)
        if not file.exists():
            found = self._trl(task, way, seed) if trl else self._prgec(task, way, seed)
            file.parent.mkdir(exist_ok=True)
            file.write_text(json.dumps(asdict(found)), encoding="utf-8")
        return Finding(**json.loads(file.read_text(encoding="utf-8")))

    def file_of(self, task: RewardTask, way: Way | None, trl: bool, seed: int) -> Path:
        """Return the file of a finding."""
        name = "start" if way is None else f"{task.folder}-{way.objective}{'' if way.times == 1 else f'-{way.times:g}'}"
        return self.work / "found" / f"{name}-{'trl' if trl else 'prgec'}-{seed}.json"

    def _prgec(self, task: RewardTask, way: Way | None, seed: int) -> Finding:
        if way is None:
            return Finding(self._rewards("exact", ()), 0, 0, 0, None)
        method, folder = ("prge" if way.objective == "es" else "exact"), self.work / task.folder
        out = folder / f"{way.objective}-{way.times:g}-{seed}"
        data = ("--data", folder / ("pairs.jsonl" if way.objective == "dpo" else "train.jsonl"))
        judge = () if way.objective == "dpo" else ("--reward", folder / "reward.toml")
        command = ["-m", "prgec", "run", self.program(method), *data, *judge, *RUNS[way.objective]]
        _, cpu, peak = _process(
            [*command, "--steps", round(self.steps * way.times), "--seed", seed, "--out", out, "--force"]
        )
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        last = [line for line in lines[-_LAST_STEPS:] if line.get("length")]
        divergence = sum(line["kl"] for line in last) / sum(line["length"] for line in last) if last else None
        rewards = self._rewards(method, ("--adapter", str(out / "adapter.safetensors")))
        return Finding(rewards, cpu, peak.anon_bytes, peak.rss_bytes, divergence)

    def _rewards(self, method: str, adapter: Sequence[str]) -> dict[str, float]:
        """Return the mean reward of greedy answers to the held-out prompts of each task."""
        rewards = {}
        for task in TASKS:
            folder = self.work / task.folder
            judged = ("--data", folder / "held-out.jsonl", "--reward", folder / "reward.toml")
            command = [sys.executable, "-m", "prgec", "eval", self.program(method), *judged, *adapter]
            measured = subprocess.run(
                [*map(str, command), "--max-new-tokens", str(_TOKENS), "--json"],
                check=True,
                stdout=subprocess.PIPE,
                text=True,
            )
            rewards[task.name] = json.loads(measured.stdout)["reward"]
        return rewards

    def _trl(self, task: RewardTask, way: Way | None, seed: int) -> Finding:
        folders = {str(self.work / each.folder): each.name for each in TASKS}
        job = TrlJob(
            model=self.model,
            objective=way.objective if way else "",
            task=str(self.work / task.folder),
            tasks=list(folders),
            steps=self.steps,
            batch=_BATCH,
            tokens=_TOKENS,
            lr=_LR,
            temperature=_TEMPERATURE,
            top_p=_TOP_P,
            beta=_DPO_BETA if way and way.objective == "dpo" else 0.0,
            seed=seed,
        )
        printed, _, peak = _process(["-m", "tests.checks.trl_ways", to_json(job)])
        found = json.loads(printed.splitlines()[-1])
        rewards = {folders[folder]: reward for folder, reward in found["rewards"].items()}
        return Finding(rewards, found["cpu"], peak.anon_bytes, peak.rss_bytes, found["kl"])


def _process(arguments: Sequence[object]) -> tuple[str, float, Any]:
    """Run Python; return what it prints, its CPU seconds and its memory at its peak."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    printed, peak = run_measured(arguments)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return printed, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, peak


def main() -> None:
    """Train each way with each seed, and write the report as it grows."""
    parser = argparse.ArgumentParser(prog="feedback_study.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", help="folder of an instruction model")
    parser.add_argument("--seeds", default="0,1,2", help="seeds of each way [0,1,2]")
    parser.add_argument("--objectives", default="grpo,dpo,es", help="what is learnt by [grpo,dpo,es]")
    parser.add_argument("--steps", type=int, default=40, help="training steps of a run [40]")
    parser.add_argument("--findings", type=Path, help="runs measured before, such as studies/results/feedback.jsonl")
    parser.add_argument("--report", action="store_true", help="run nothing more: write the page of what was found")
    parser.add_argument(
        "--work", type=Path, default=Path("studies/build/feedback"), help="folder for programs and runs"
    )
    parser.add_argument("--out", type=Path, help="also write the page to this file, and its plot beside it")
    options = parser.parse_args()
    seeds = [int(each) for each in options.seeds.split(",")]
    study = Study(options.model, options.work, options.steps)
    if options.findings is not None:
        study.take(options.findings)
    sizes = {task.name: write_task(task, options.work) for task in TASKS}
    start = {trl: study.find(TASKS[0], None, trl, 0) for trl in (False, True)}
    settings = {name: " ".join(flags) for name, flags in {**PROGRAMS, **RUNS}.items()}
    found: dict[tuple[str, str], list[Finding]] = {}

    def write() -> str:
        page = report(options, settings, sizes, start, found)
        if options.out is not None:
            options.out.write_text(page, encoding="utf-8")
            plot(options.out.with_suffix(".png"), start, found)
        return page

    for way in (way for way in WAYS if way.objective in options.objectives.split(",")):
        for seed in seeds:
            for task in way.tasks:
                is_new = not study.file_of(task, way, way.trl, seed).exists()
                if is_new and options.report:
                    continue
                found.setdefault((task.name, str(way)), []).append(study.find(task, way, way.trl, seed))
                if is_new:
                    write()
    if not found:
        raise SystemExit("nothing was found: run without --report, or with --findings")
    print(write(), end="")


if __name__ == "__main__":
    main()
