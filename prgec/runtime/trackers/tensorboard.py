"""TensorBoard's event files, in a folder of the run folder, written by PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from prgec.core.formats.run_folder import TENSORBOARD_NAME
from prgec.runtime.trackers.sink import TrackedRun, finite, scalars

# A curve is looked at while it grows.
_FLUSH_S = 2


class TensorBoardSink:
    """Writes event files to `RUN/tensorboard`."""

    def begin(self, run: TrackedRun) -> None:
        """Begin a file; it repeats the lines of files from an earlier part of the run."""
        from torch.utils.tensorboard import SummaryWriter

        folder = run.folder / TENSORBOARD_NAME
        self._writer = SummaryWriter(str(folder), purge_step=0, flush_secs=_FLUSH_S)
        rows = "".join(f"\n| {name} | {value} |" for name, value in run.options.items())
        self._writer.add_text("options", f"| option | value |\n|---|---|{rows}", 0)

    def log(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Write each curve's points."""
        for line in lines:
            for name, value in scalars(line).items():
                self._writer.add_scalar(name, value, line["step"])

    def end(self, summary: Mapping[str, Any]) -> None:
        """Write the results as curves of one point."""
        for name, value in finite(summary).items():
            self._writer.add_scalar(f"result/{name}", value, summary["steps"])
        self._writer.close()
