"""The files of a finished run: adapter, plot, metrics and journal by their names, run.toml, run.json."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from prgec.core.contract.names import CONTRACT_VERSION
from prgec.core.formats.adapter import save_adapter
from prgec.core.formats.run_folder import ADAPTER_NAME, CONFIG_NAME, PLOT_NAME, RunFolder
from prgec.core.machine.files import write_atomic
from prgec.core.machine.memory import process_memory
from prgec.core.machine.versions import version_of
from prgec.errors import NumericsError
from prgec.runtime.report.plot import plot_run
from prgec.runtime.runs.log import RunLog
from prgec.runtime.runs.open import Opened
from prgec.runtime.runs.options import plain_values, repeating_text
from prgec.runtime.runs.result import RunResult
from prgec.runtime.runs.samples import samples
from prgec.runtime.training.evaluate import Evaluation


def write_run(
    folder: RunFolder,
    opened: Opened,
    log: RunLog,
    result: RunResult,
    losses: Sequence[float],
    evaluations: Sequence[tuple[int, Evaluation]],
    failure: NumericsError | None,
) -> None:
    """Write everything that a run did not write as it went, the summary last; only then are states removed.

    Args:
        folder: The run folder.
        opened: The program in the state to keep, and its data.
        log: Log with the files written already.
        result: Result of the run.
        losses: Training loss of each step.
        evaluations: Its scores, by steps done.
        failure: Why it stopped early, if it failed.
    """
    manifest = opened.program.manifest
    save_adapter(folder.file(ADAPTER_NAME), opened.program)
    points = [(step, evaluation.loss, evaluation.accuracy) for step, evaluation in evaluations]
    plot_run(folder.file(PLOT_NAME), losses, points, manifest.model)
    log.commit()
    write_atomic(folder.file(CONFIG_NAME), repeating_text(opened.options, folder.path).encode())
    prompts = (opened.rewards.test or ()) if opened.rewards else ()
    folder.write_summary(
        {
            **result.to_json(),
            "status": _status(result, failure),
            "task": opened.task,
            "options": plain_values(opened.options),
            "privacy": asdict(opened.budget) if opened.budget else None,
            "prgec": version_of("prgec"),
            "contract": CONTRACT_VERSION,
            "base_sha256": manifest.base_sha256,
            "manifest": json.loads(manifest.to_json()),
            "samples": samples(opened.eval_set, result.before, result.after, prompts),
            "peak_rss_bytes": process_memory().peak_rss_bytes,
        }
    )
    log.remove_states(keeps_snapshot=manifest.has_gradients and result.interrupted)


def _status(result: RunResult, failure: NumericsError | None) -> str:
    if failure is not None:
        return "stopped: " + failure.what
    return "interrupted" if result.interrupted else "complete"
