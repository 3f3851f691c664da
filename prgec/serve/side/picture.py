"""The measurements of every epoch of a fit, as lines of JSON and as a picture, beside the network."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from prgec.core.machine.files import write_atomic
from prgec.serve.side.progress import Epoch


def write_measures(output: Path, epochs: Sequence[Epoch]) -> None:
    """Write `<output>.jsonl` and `<output>.png`; nothing without epochs."""
    if not epochs:
        return
    write_lines(output, epochs)
    write_atomic(output.with_name(f"{output.name}.png"), _picture(epochs))


def write_lines(output: Path, epochs: Sequence[Epoch]) -> None:
    """Write `<output>.jsonl` alone."""
    lines = "".join(json.dumps(asdict(each)) + "\n" for each in epochs)
    write_atomic(output.with_name(f"{output.name}.jsonl"), lines.encode())


def _picture(epochs: Sequence[Epoch]) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    numbers = [each.number for each in epochs]
    axes.plot(numbers, [each.loss for each in epochs], label="learnt from")
    held_out = [each.held_out for each in epochs if each.held_out is not None]
    if len(held_out) == len(epochs):
        axes.plot(numbers, held_out, marker="o", linestyle="--", label="held out")
    axes.set(xlabel="epoch", ylabel="mean squared error")
    axes.legend()
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()
