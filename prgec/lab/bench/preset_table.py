"""A table of the paper as Markdown, with the commands that fill what is empty, and as a chart."""

from __future__ import annotations

import io
import shlex
from collections.abc import Iterator
from pathlib import Path

from prgec.core.machine.files import write_atomic
from prgec.lab.bench.preset_run import Filled
from prgec.lab.bench.presets import GIGABYTES, SPEEDUP, Line, Preset

_GIGABYTE = 1e9
_GROUP_WIDTH = 0.8
Column = tuple[int, int, int]


def to_markdown(preset: Preset, filled: Filled, command: str) -> str:
    """Return the table, ending in a newline.

    Args:
        preset: Rows and columns.
        filled: The known part.
        command: The command that measures all of it, without sizes.
    """
    lines = [f"# {preset.title}", ""]
    if filled.machine:
        m = filled.machine
        lines += [
            f"{m['model']}, {m['num_layers']} layers; {m['cpu']}, {m['cores']} cores, "
            f"{m['memory_bytes'] / 1e9:.0f} GB. Medians of {m['repeats']} interleaved rounds; memory is anonymous, of "
            "a process that runs the row alone, Python included.",
            "",
        ]
    lines += [*_table(preset, filled)]
    empty = list(_empty(preset, filled))
    if empty:
        lines += ["", "Empty cells, and what fills them:", ""]
        lines += [f"- {text}" for text in dict.fromkeys(_fills(column, reason, command) for column, reason in empty)]
    return "\n".join(lines) + "\n"


def value_of(preset: Preset, line: Line, column: Column, filled: Filled) -> float | None:
    """Return the number of a cell of the table, None where it is empty."""
    cell = preset.cell(line, column)
    found = [filled.rows.get((cell, name)) for name in line.variants]
    rows = [row for row in found if row is not None]
    if len(rows) < len(found):
        return None
    if line.unit == SPEEDUP:
        return rows[0].step_s / rows[1].step_s
    return rows[0].peak_anon_bytes / _GIGABYTE if line.unit == GIGABYTES else rows[0].step_s


def plot(path: Path, preset: Preset, filled: Filled) -> None:
    """Draw the rows of the first row's unit as bars over the columns that have one, as PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    lines = [line for line in preset.lines if line.unit == preset.lines[0].unit]
    values = {column: [value_of(preset, line, column, filled) for line in lines] for column in preset.columns()}
    columns = [column for column, found in values.items() if any(each is not None for each in found)]
    if not columns:
        return
    figure = Figure(figsize=(max(6.0, 1.5 + 0.5 * len(columns) * len(lines)), 4.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    width = _GROUP_WIDTH / len(lines)
    for number, line in enumerate(lines):
        offset = (number - (len(lines) - 1) / 2) * width
        heights = [values[column][number] or 0.0 for column in columns]
        bar = axes.bar([place + offset for place in range(len(columns))], heights, width, label=line.label)
        axes.bar_label(bar, fmt="%.3g", fontsize="x-small", padding=1)
    axes.set_xticks(range(len(columns)), [_column_name(column).replace(" ", "\n", 1) for column in columns])
    axes.set(ylabel=lines[0].unit, title=f"{preset.title.partition(';')[0]}: {filled.machine.get('model', '')}")
    figure.legend(loc="outside lower center", ncols=len(lines), fontsize="small")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    write_atomic(path, buffer.getvalue())


def _table(preset: Preset, filled: Filled) -> Iterator[str]:
    columns = preset.columns()
    yield f"| | {' | '.join(map(_column_name, columns))} |"
    yield "|---" + "|---:" * len(columns) + "|"
    for line in preset.lines:
        found = (value_of(preset, line, column, filled) for column in columns)
        yield f"| {line.label} ({line.unit}) | {' | '.join('' if v is None else f'{v:.3g}' for v in found)} |"


def _empty(preset: Preset, filled: Filled) -> Iterator[tuple[Column, str]]:
    """Yield the columns with an empty cell, and why it is, where it was tried."""
    for column in preset.columns():
        for line in preset.lines:
            if value_of(preset, line, column, filled) is None:
                yield column, filled.reasons.get(preset.cell(line, column), "")


def _fills(column: Column, reason: str, command: str) -> str:
    seq_len, q, batch_size = column
    sizes = f"--seq-len {seq_len} --q {q} --batch-size {batch_size}"
    return f"`{command} {sizes}`" + (f" (tried: {reason})" if reason else "")


def _column_name(column: Column) -> str:
    seq_len, q, batch_size = column
    return f"T={seq_len} q={q} B={batch_size}"


def command_of(model: str, name: str, out: Path | None) -> str:
    """Return the command that fills a table, without sizes."""
    return shlex.join(["prgec", "bench", model, "--preset", name, *(["--out", str(out)] if out else [])])
