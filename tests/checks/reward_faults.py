"""Kill runs that learn from rewards, and check that nothing is lost: `python tools/faults.py --rewards`.

A run is killed (SIGKILL) at random times until it is over, again and again: while it writes answers, while they are
judged, and while it takes the step. In the end answers, rewards, journal and adapter equal those of a run that nothing
happened to, byte for byte.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from prgec.core.formats.run_folder import ANSWERS_NAME
from prgec.demo import data_file
from tests.checks.fault_cases import steps_in
from tests.checks.fault_drivers import Process, PythonDriver, acknowledged
from tests.checks.kills import HEAD, KilledWork
from tests.tiny_inputs import rewarded_options

_STEPS, _QUERIES = 24, 2
_WAYS = (("exact", "grpo"), ("exact", "rloo"), ("prge", "es"))
_FILES = ("journal.bin", "adapter.safetensors", ANSWERS_NAME)
_ROLLOUT, _REWARD, _STEP = "in a rollout", "in a reward", "in a step"
# The file is there while an answer is judged; a reward that takes a while is met by more kills.
_REWARD_FILE = """
import pathlib, time

MARK = pathlib.Path({mark!r})

def reward(prompt, answer, record):
    MARK.touch()
    time.sleep(0.004)
    MARK.unlink(missing_ok=True)
    return answer.count("r") - len(answer) / 10
"""


@dataclass
class RewardKills(KilledWork):
    """The outcome of the kills of one way to learn.

    Attributes:
        way: Method and objective.
        where: Kills that met a living run, by what it did.
        lost: Steps that were reported and then missing from answers.
        differ: Finished runs that are not the whole one.
    """

    way: str
    where: dict[str, int] = field(default_factory=lambda: dict.fromkeys((_ROLLOUT, _REWARD, _STEP), 0))

    @property
    def count(self) -> int:
        """All kills."""
        return sum(self.where.values())

    def __str__(self) -> str:
        places = "".join(f"{count:>14}" for count in self.where.values())
        return f"{self.way:14}{places}{super().__str__()}"


class RewardedRun:
    """A program and prompts, and the result of a run that nothing happened to.

    Args:
        work: Folder for all of it.
        python: Starts runs.
        method: Method of the program.
        objective: Objective of the run.
    """

    def __init__(self, work: Path, python: PythonDriver, method: str, objective: str) -> None:
        self.out, self.mark = work / "out", work / "mark"
        self._python, self._errors = python, work / "errors"
        # Each copy of the program has answers of its own.
        self._calls = 2 * _QUERIES if objective == "es" else 1
        rows, reward = work / "rows.jsonl", work / "reward.py"
        prompts = [json.loads(line)["sentence"] for line in data_file("train").read_text().splitlines()[:12]]
        rows.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts), encoding="utf-8")
        reward.write_text(_REWARD_FILE.format(mark=str(self.mark)), encoding="utf-8")
        flags = ("--objective", objective, "--steps", _STEPS, "--lr", 0.01, "--snapshot-every", 7, "--eps", 0.1)
        given = (_program(work, method), "--data", rows, "--reward", reward, *flags, "--out", self.out)
        self._arguments = [str(each) for each in given]
        started = time.monotonic()
        process = self.start()
        if process.wait():
            raise SystemExit(f"faults: the run fails undisturbed: {process.said()}")
        self.seconds = time.monotonic() - started
        self._expected = self._files()

    def start(self) -> Process:
        """Begin the run, or go on with it."""
        resume = ["--resume"] if self.out.exists() else []
        return self._python.start([*self._arguments, *resume], self._errors)

    def clear(self) -> None:
        """Forget the run."""
        shutil.rmtree(self.out, ignore_errors=True)

    def place(self) -> str:
        """Return what the run did when it was killed, but for rewards."""
        return _STEP if self.answered() > steps_in(self.out) else _ROLLOUT

    def answered(self) -> int:
        """Return the last step all of whose answers and rewards are kept."""
        file = self.out / ANSWERS_NAME
        lines = file.read_bytes().split(b"\n")[:-1] if file.exists() else []
        return len({(line["step"], line["call"]) for line in map(json.loads, lines)}) // self._calls

    def differs(self) -> bool:
        """Whether a finished run has other files than the whole one."""
        return self._files() != self._expected

    def _files(self) -> dict[str, bytes]:
        return {name: (self.out / name).read_bytes() for name in _FILES}


def _program(work: Path, method: str) -> Path:
    """Compile the bundled model; answers are written four at once."""
    from prgec.core.machine.quiet import quiet_libraries

    quiet_libraries()
    from prgec.compiler.compile import compile_model

    options = rewarded_options(method, work / "program.pte")
    batch_size = options.batch_size if method == "exact" else 2
    compile_model(replace(options, rollouts=4, q=_QUERIES, batch_size=batch_size))
    return options.output


def kill_run(run: RewardedRun, tally: RewardKills, kills: int, chance: random.Random) -> None:
    """Kill until there were enough, and let the last run end."""
    while tally.count < kills or not tally.finished:
        run.clear()
        code = -signal.SIGKILL
        while code == -signal.SIGKILL:
            process = run.start()
            time.sleep(chance.uniform(0.1, 0.7) * run.seconds)
            is_judged = run.mark.exists()
            process.kill(signal.SIGKILL)
            code = process.wait()
            if code == -signal.SIGKILL:
                tally.where[_REWARD if is_judged else run.place()] += 1
                tally.lost += run.answered() < acknowledged(run.out, process)
        if code:
            raise SystemExit(f"faults: a resumed run fails: {process.said()}")
        tally.differ += run.differs()
        tally.finished += 1


def reward_faults(kills: int, seed: int) -> int:
    """Break runs of every way, print the table, and return the exit code."""
    heads = "".join(f"{place:>14}" for place in (_ROLLOUT, _REWARD, _STEP))
    print(f"{'way':14}{heads}{HEAD}", flush=True)
    tallies = []
    with PythonDriver() as python:
        for method, objective in _WAYS:
            with tempfile.TemporaryDirectory(prefix="reward-faults-") as name:
                tally = RewardKills(f"{method} {objective}")
                run = RewardedRun(Path(name), python, method, objective)
                kill_run(run, tally, -(-kills // len(_WAYS)), random.Random(seed))
                tallies.append(tally)
                print(tally, flush=True)
    is_met = all(any(each.where[place] for each in tallies) for place in tallies[0].where)
    return 0 if is_met and all(each.is_good for each in tallies) else 1
