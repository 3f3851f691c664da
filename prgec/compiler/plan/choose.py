"""Takes one row of a plan, says why, and writes the commands to paste."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from prgec.compiler.plan.options import PlanOptions
from prgec.compiler.plan.rows import EMBEDDING_BITS, PlanRow
from prgec.compiler.plan.shape import ModelShape
from prgec.compiler.plan.units import bytes_text, seconds_text
from prgec.compiler.plan.workload import Workload
from prgec.core.contract.names import CHEAP
from prgec.errors import UsageError

_WHY_METHOD = {
    "exact": "exact: it learnt most of as many rows (docs/reports/gradients.md)",
    "shortcut": "shortcut: after exact, what learnt most of as many rows (docs/reports/gradients.md)",
    "prge": "prge: it keeps nothing for a backward pass",
    "side": "side: forwards alone, once over the rows; a network beside the model learns elsewhere (docs/side.md)",
}
# docs/reports/plan.md
_MARGIN = 0.05
_WORDS = {
    "layers": "{} blocks",
    "quantize": "quantize {}",
    "batch_size": "B = {}",
    "recompute": "what is {} alone computed again",
}


@dataclass(frozen=True)
class Choice:
    """The row to take.

    Attributes:
        row: The way to train.
        reasons: Why, a sentence each.
        commands: Lines to paste.
    """

    row: PlanRow
    reasons: tuple[str, ...]
    commands: tuple[str, ...]


def choose(rows: Sequence[PlanRow], shape: ModelShape, options: PlanOptions, model: str) -> Choice:
    """Take the first row that fits: rows come in the order of what learns most.

    Raises:
        UsageError: If none fits, naming the one that misses by least.
    """
    fitting = [row for row in rows if row.fits]
    if not fitting:
        raise UsageError(_nothing_fits(rows, shape, options))
    row = fitting[0]
    return Choice(row, tuple(_reasons(row, rows, options)), commands_of(row, options, model))


def commands_of(row: PlanRow, options: PlanOptions, model: str) -> tuple[str, ...]:
    """Return the lines that compile, find a rate and train."""
    work = row.work
    if work.is_frozen:
        return _side_commands(work, model)
    parts = ["prgec", "compile", model, "--method", work.method]
    parts += ["--q", str(work.q)] if work.method == "prge" else []
    parts += ["--batch-size", str(work.batch_size), "--seq-len", str(work.seq_len)]
    parts += ["--label-tokens", str(work.num_labels)]
    if work.layers != "all":
        parts += ["--layers", work.layers, "--prefix", work.prefix]
    parts += ["--recompute", work.recompute] if work.recompute != CHEAP else []
    parts += _scheme_flags(work)
    parts += ["--generate", "--context", str(work.context)] if work.context else []
    parts += ["--rollouts", str(work.rollouts)] if work.rollouts else []
    # Many answers at once are for rewards, whose objectives weigh labels.
    parts += ["--label-weights"] if work.rollouts and work.has_gradients else []
    run = ["prgec", "run", "model.pte", "--data", "train.jsonl", "--steps", str(options.steps)]
    run += ["--prefix-cache", "prefixes"] if work.prefix == "method" else []
    probe = ["prgec", "probe", "model.pte", "--data", "train.jsonl"]
    return tuple(shlex.join(each) for each in ([*parts, "-o", "model.pte"], probe, run))


def _side_commands(work: Workload, model: str) -> tuple[str, ...]:
    """Lines that compile, say what the blocks do, and learn from that."""
    parts = ["prgec", "compile", model, "--method", "side", "--batch-size", str(work.batch_size)]
    parts += ["--seq-len", str(work.seq_len), *_scheme_flags(work), "-o", "backbone.pte"]
    return (
        shlex.join(parts),
        "prgec side emit backbone.pte --data train.jsonl -o acts",
        "prgec side fit acts -o side.safetensors",
        "prgec side build side.safetensors -o side.pte",
    )


def _scheme_flags(work: Workload) -> list[str]:
    if work.quantize == "none":
        return []
    return ["--quantize", work.quantize, "--quantize-embedding", str(EMBEDDING_BITS[work.quantize])]


def _reasons(row: PlanRow, rows: Sequence[PlanRow], options: PlanOptions) -> list[str]:
    work, room = row.work, options.memory - row.memory.total
    texts = [_WHY_METHOD[work.method]]
    narrow = f", less than the {_MARGIN:.0%} a plan may be off" if room < _MARGIN * options.memory else ""
    texts.append(f"{bytes_text(row.memory.total)} of {bytes_text(options.memory)}: {bytes_text(room)} are left{narrow}")
    passed_over = rows[: rows.index(row)]
    for method in dict.fromkeys(each.work.method for each in passed_over if each.work.method != work.method):
        texts.append(_least([each for each in passed_over if each.work.method == method], method))
    for name in _WORDS:
        best = getattr(next(each for each in rows if each.work.method == work.method).work, name)
        if best != getattr(work, name):
            others = [each for each in passed_over if each.work.method == work.method]
            texts.append(
                _least([each for each in others if getattr(each.work, name) == best], _WORDS[name].format(best))
            )
    if options.seconds is not None and row.run_s is not None:
        texts.append(f"{options.steps} steps take {seconds_text(row.run_s)} of {seconds_text(options.seconds)}")
    return texts


def _least(rows: Sequence[PlanRow], name: str) -> str:
    """Memory and time of the smallest of some rows that do not fit."""
    row = min(rows, key=lambda each: each.memory.total)
    time = "" if row.run_s is None else f" and {seconds_text(row.run_s)}"
    return f"not {name}: even {way_text(row)} takes {bytes_text(row.memory.total)}{time}"


def _nothing_fits(rows: Sequence[PlanRow], shape: ModelShape, options: PlanOptions) -> str:
    smallest = min(rows, key=lambda row: row.memory.total)
    over = smallest.memory.total - options.memory
    if over > 0:
        return (
            f"no way to train {shape.name} fits {bytes_text(options.memory)}: the least, {way_text(smallest)}, takes "
            f"{bytes_text(smallest.memory.total)}, {bytes_text(over)} more"
        )
    in_memory = [row for row in rows if row.memory.total <= options.memory and row.run_s is not None]
    assert options.seconds is not None and in_memory
    quickest = min(in_memory, key=lambda row: row.run_s or 0.0)
    assert quickest.run_s is not None
    return (
        f"nothing that fits {bytes_text(options.memory)} takes {options.steps} steps in "
        f"{seconds_text(options.seconds)}: the quickest, {way_text(quickest)}, takes {seconds_text(quickest.run_s)}, "
        f"{seconds_text(quickest.run_s - options.seconds)} more"
    )


def way_text(row: PlanRow) -> str:
    """A way to train in a few words."""
    work = row.work
    step = f"q={work.q} B={work.batch_size}" if work.method == "prge" else f"B={work.batch_size}"
    prefix = "" if work.prefix == "none" else f", prefix {work.prefix}"
    layers = "" if work.is_frozen else f" {work.layers}"
    again = "" if work.recompute == CHEAP else f", {work.recompute} again"
    return f"{work.method} {work.quantize}{layers}{prefix}{again} {step}"
