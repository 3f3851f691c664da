"""Kill the page and the runs that it starts: `python tools/faults.py --page`.

A run is started by a form of a real `prgec ui`. Then the page or the run is killed (SIGKILL) at random times, again and
again, until the run is over. A page that starts again must show the run with every step that it had shown before; a run
that was killed goes on by the page's button. In the end journal and adapter equal those of a run that nothing happened
to, byte for byte.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from prgec.core.machine.folder_lock import holder
from prgec.serve.ui.run_list import UNDER_WAY
from tests.checks.kills import HEAD, KilledWork
from tests.processes import wait_until
from tests.tiny_inputs import make_inputs
from tests.tiny_program import write_reviews
from tests.ui.running import RunningUi

_OPTIONS = {"steps": 4000, "lr": 0.01, "snapshot_every": 100}
_FILES = ("journal.bin", "adapter.safetensors")
_OVER = "complete"


@dataclass
class PageKills(KilledWork):
    """The outcome of the kills.

    Attributes:
        pages: Kills of the page.
        runs: Kills of a run.
        lost: Runs or steps that a page had shown and a later one did not.
        differ: Finished runs that are not the whole one.
    """

    pages: int = 0
    runs: int = 0

    def __str__(self) -> str:
        return f"{self.pages:>6}{self.runs:>6}{super().__str__()}"


class Page:
    """A page over a folder of runs, which starts again after each kill.

    Args:
        root: The folder.
        program: Program of the runs.
        data: Their rows.
    """

    def __init__(self, root: Path, program: Path, data: Path) -> None:
        self._root, self._program, self._data = root, program, data
        self.ui = RunningUi(root)

    def kill(self) -> None:
        """Kill the page, and start another one."""
        self.ui.end(signal.SIGKILL)
        self.ui = RunningUi(self._root)

    def start(self, name: str) -> str:
        """Start a run by the form, and return its id."""
        return self.ui.start_run(program=self._program, data=self._data, name=name, **_OPTIONS)


def _break(page: Page, folder: Path, run: str, tally: PageKills, chance: random.Random, kills: int) -> None:
    """Kill the page or the run until the run is over."""
    shown = 0
    while True:
        time.sleep(chance.uniform(0.0, 1.5))
        status, steps = page.ui.live(run)
        tally.lost += shown > 0 and (status is None or (steps or 0) < shown)
        shown = max(shown, steps or 0)
        if status == _OVER:
            return
        if tally.pages + tally.runs >= kills:
            if status == UNDER_WAY:
                continue
        elif chance.random() < 0.5:
            page.kill()
            tally.pages += 1
            continue
        elif (process := holder(folder)) is not None:
            os.kill(process, signal.SIGKILL)
            tally.runs += 1
        wait_until(lambda: page.ui.live(run)[0] != UNDER_WAY)
        # A run that was killed before its first step is not there to go on with.
        if page.ui.live(run)[0] != _OVER and page.ui.post(f"/runs/{run}/resume")[0] != 303:
            tally.lost += shown > 0
            page.start(folder.name)


def page_faults(kills: int, seed: int) -> int:
    """Break the page and its runs, print the table, and return the exit code."""
    with tempfile.TemporaryDirectory(prefix="page-faults-") as name:
        work, chance, tally = Path(name), random.Random(seed), PageKills()
        program, *_ = make_inputs(work, seq_len=24, num_labels=8)
        data = write_reviews(work / "train.jsonl", 64, seed=1)
        flags = [f"--{key.replace('_', '-')}={value}" for key, value in _OPTIONS.items()]
        whole = work / "whole"
        command = [sys.executable, "-m", "prgec", "run", program, "--data", data, *flags, "--out", whole]
        subprocess.run([*map(str, command)], check=True, capture_output=True)
        page = Page(work / "runs", program, data)
        try:
            while tally.pages + tally.runs < kills:
                folder = work / "runs" / f"run-{tally.finished}"
                _break(page, folder, page.start(folder.name), tally, chance, kills)
                tally.differ += any((folder / each).read_bytes() != (whole / each).read_bytes() for each in _FILES)
                tally.finished += 1
        finally:
            page.ui.end(signal.SIGTERM)
        print(f"{'pages':>6}{'runs':>6}{HEAD}\n{tally}", flush=True)
    return 0 if tally.is_good else 1
