"""The bundled default, end to end: compile the demo model, train it on the demo task, measure the test split."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prgec.compiler.cached import compile_cached
from prgec.compiler.options import CompileOptions
from prgec.compiler.progress import Listener as CompileListener
from prgec.core.contract.names import DEFAULT_OPTIMIZERS
from prgec.core.formats.run_folder import PROGRAM_NAME, RunFolder
from prgec.demo import BATCH_SIZES, SEQ_LEN, STEPS, data_file
from prgec.runtime.runs.log import check_nothing_is_lost
from prgec.runtime.runs.option_checks import check_run
from prgec.runtime.runs.options import RunOptions
from prgec.runtime.runs.result import Listener, RunResult
from prgec.runtime.runs.run import run
from prgec.runtime.training.estimators import DEFAULT_ESTIMATOR


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """The options of the demo.

    Attributes:
        method: How the program trains.
        steps: Training steps; None for what the method needs here.
        lr: Learning rate; None for the program's own.
        estimator: Row of the estimator table.
        seed: Key of the noise and of the order of examples.
        backend: Backend to compile for.
        out: Run folder; None for the first free `runs/demo-<n>`.
    """

    method: str = CompileOptions.method
    steps: int | None = None
    lr: float | None = None
    estimator: str = DEFAULT_ESTIMATOR
    seed: int = 0
    backend: str = CompileOptions.backend
    out: Path | None = None

    @property
    def num_steps(self) -> int:
        """Training steps of the run."""
        return STEPS[self.method] if self.steps is None else self.steps

    def to_run(self, folder: Path) -> RunOptions:
        """The options of the run of a folder's program."""
        return RunOptions(
            program=folder / PROGRAM_NAME,
            data=data_file("train"),
            eval_data=data_file("test"),
            steps=self.num_steps,
            lr=self.lr,
            estimator=self.estimator,
            seed=self.seed,
            out=folder,
        )

    def to_compile(self, program: Path) -> CompileOptions:
        """The options of the program's compilation."""
        return CompileOptions(
            model="demo",
            output=program,
            backend=self.backend,
            seq_len=SEQ_LEN,
            method=self.method,
            optimizer=DEFAULT_OPTIMIZERS[self.method],
            batch_size=BATCH_SIZES[self.method],
        )


@dataclass(frozen=True)
class DemoResult:
    """The result of the demo.

    Attributes:
        run: The training run.
        compile_seconds: Wall time of the compilation.
        seconds: Wall time of everything.
    """

    run: RunResult
    compile_seconds: float
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Return the document `--json` prints: that of the run, with the demo's own times."""
        document = self.run.to_json()
        return {
            **document,
            "accuracy_after": document["accuracy"],
            "compile_seconds": round(self.compile_seconds, 3),
            "seconds": round(self.seconds, 3),
        }


def run_demo(
    options: DemoOptions,
    on_compile: CompileListener,
    listener: Listener | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> DemoResult:
    """Compile and train the bundled default.

    Args:
        options: Options of the demo.
        on_compile: Called with the progress of the compilation.
        listener: Observes the run's progress.
        should_stop: True ends the run early.

    Raises:
        PrgecError: A fitting subclass if an option or the environment is bad.
    """
    start = time.monotonic()
    folder = RunFolder.choose(options.out, "demo", force=False)
    run_options = options.to_run(folder.path)
    check_run(run_options)
    check_nothing_is_lost(folder)
    compile_cached(options.to_compile(folder.file(PROGRAM_NAME)), on_compile)
    compile_seconds = time.monotonic() - start
    result = run(run_options, listener, should_stop)
    return DemoResult(result, compile_seconds, time.monotonic() - start)
