"""Compile a tiny random model of every architecture and compare it with transformers.

    python tools/architectures.py [NAME ...] [--backend xnnpack] [--method exact ...] [--json | --markdown]

Each row compiles one model with a dynamic T and all linear layers as sites. With prge it is evaluated at several T
against the untouched model, and trained for a few steps beside textbook MeZO on that model. With exact and shortcut the
program computes its own gradient, which is compared with autograd's on the untouched model. `--markdown` prints
docs/architectures.md, of all methods; with `--backend qnn`, whose T is fixed, the rows alone. The exit code is 1 if one
is not a single delegate where it should be, or out of bounds.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from prgec.core.contract.names import TRAINING_METHODS
from prgec.core.machine.quiet import quiet_libraries

if TYPE_CHECKING:
    from tests.architectures import Architecture, Measured
    from tests.gradient_architectures import MeasuredGradient

# Their losses change by a fifth where B changes by eps.
CHAOTIC = ("Qwen3.5", "Qwen3-Next")
# The HTP computes in fp16.
MAX_REL_LOSS_DIFF = {"xnnpack": 1e-4, "qnn": 2e-2}
_INTRODUCTION = """# Architectures

Tiny random models of these architectures compile for XNNPACK with a dynamic T and every linear layer but the head as a
site. {counted} Made by:

    python tools/architectures.py --markdown > docs/architectures.md

prge: the largest relative difference of a loss from textbook MeZO's on the untouched transformers model over four
steps; the losses alone, with eps = 0 and g = 0 at T = 2 to 16, are within {loss:.0e}. exact and shortcut: the
difference of the whole gradient from that of PyTorch's autograd on the untouched model, relative to its norm. A
shortcut has an oracle where the layers that write to the residual stream are known. Delegates: one where none are
given. CPU ops: calls outside the delegates in a step of prge, one `prge.perturbation` a site among them.
"""
_EXPERTS = """
A router chooses experts outside the delegate, and each such layer splits it. Every expert computes every token, and its
result is weighed, with zero where it was not chosen: the result is the same, and a step costs as many times more as
there are experts to each one chosen. Routers and experts get no branch of their own, as in PEFT.

Recurrences and convolutions over time (Mamba 2, the gated delta rule, LFM2) are computed as products over T times T, as
attention is ([decision 034](decisions/034-recurrences-as-products.md)). They write answers without a cache:
`--generate`, without `--context`.
"""
_OUTSIDE = """
Other architectures compile as long as `torch.export` traces them. Where XNNPACK refuses an op, the forward is split
into more delegates, and `prgec compile` and `prgec inspect` list the op with the reason. Where lowering in place has no
rule for an op, ExecuTorch's own takes over, which takes longer. Code that differs by the number of tokens (Llama 4)
compiles with `--static`. Refused today: RecurrentGemma and JetMoE (XNNPACK's lowering fails) and gpt-oss (attention
with sinks).

## Outside the delegate
"""
_GRADIENT_TABLE = ("Architecture", "Method", "Sites", "Delegates", "CPU ops", "Loss", "Gradient", "Cosine")
_TABLE = ("Architecture", "Beside a Llama", "Sites", "Delegates", "CPU ops", "Loss", "Training loss")
_PAGE_TABLE = ("Architecture", "Beside a Llama", "Sites", "CPU ops", "prge", "exact", "shortcut")


@dataclass
class _Rows:
    """Rows of both kinds, in the order they were measured."""

    losses: list[Measured] = field(default_factory=list)
    gradients: list[MeasuredGradient] = field(default_factory=list)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the chosen architectures; return the exit code."""
    options = _parse(argv)
    quiet_libraries()
    import torch

    from tests.architectures import ARCHITECTURES
    from tests.families import FAMILIES, MEASURED

    # Tensors this small lose more to threads than they gain.
    torch.set_num_threads(1)
    known = {each.name: each for each in (*ARCHITECTURES, *FAMILIES, *MEASURED)}
    unknown = set(options.names) - known.keys()
    if unknown:
        print(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(known)}", file=sys.stderr)
        return 2
    is_page = options.backend == "xnnpack" and not (options.method or options.json)
    methods = TRAINING_METHODS if is_page else options.method or TRAINING_METHODS[:1]
    rows = _measured([known[name] for name in options.names or known], methods, options.backend)
    bound = MAX_REL_LOSS_DIFF[options.backend]
    passed = all(_is_good(row, bound) for row in rows.losses) and all(_is_right(each, bound) for each in rows.gradients)
    if options.json:
        document = {"passed": passed, "bound": bound, "rows": [asdict(row) for row in (*rows.losses, *rows.gradients)]}
        print(json.dumps(document, indent=2))
    elif is_page:
        print(_page(rows))
    else:
        print("\n".join(_rows(rows.losses) if rows.losses else _gradient_rows(rows.gradients)))
    return 0 if passed else 1


def _measured(chosen: Sequence[Architecture], methods: Sequence[str], backend: str) -> _Rows:
    """Compile every model by every method that it is compared by."""
    from tests.architectures import measure
    from tests.autograd import STREAMS
    from tests.families import MEASURED
    from tests.gradient_architectures import measure_gradient

    rows = _Rows()
    with tempfile.TemporaryDirectory() as folder:
        for each in chosen:
            print(f"{each.name} ...", file=sys.stderr, flush=True)
            if "prge" in methods:
                rows.losses.append(measure(each, Path(folder), backend=backend))
            for method in methods:
                has_oracle = method == "exact" or (method == "shortcut" and each.model_type in STREAMS)
                if has_oracle and each not in MEASURED:
                    rows.gradients.append(measure_gradient(each, Path(folder), method, backend=backend))
    return rows


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="architectures as the table spells them (default: all)"
    )
    parser.add_argument("--backend", choices=MAX_REL_LOSS_DIFF, default="xnnpack", help="what to compile for")
    parser.add_argument(
        "--method", action="append", choices=TRAINING_METHODS[1:], help="compare its gradient; repeatable"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON document")
    form.add_argument("--markdown", action="store_true", help="print Markdown (default)")
    return parser.parse_args(argv)


def _is_good(row: Measured, bound: float) -> bool:
    is_whole = len(row.delegates) == 1 or row.architecture in _split()
    # Rounding is carried along where a perturbation moves the losses of a tiny random model by a fifth.
    trained = row.max_rel_train_diff / (100 if row.architecture in CHAOTIC else 1)
    return is_whole and max(row.max_rel_loss_diff, trained) <= bound


def _is_right(row: MeasuredGradient, bound: float) -> bool:
    is_whole = len(row.delegates) == 1 or row.architecture in _split()
    return is_whole and max(row.max_rel_loss_diff, row.max_rel_gradient_diff) <= bound


def _split() -> set[str]:
    """Names of architectures that no single delegate can hold."""
    from tests.families import EXPERTS, MEASURED

    return {each.name for each in (*EXPERTS, *MEASURED)}


def _gradient_rows(rows: Sequence[MeasuredGradient]) -> list[str]:
    lines = [_line(_GRADIENT_TABLE), _line("-" * len(name) for name in _GRADIENT_TABLE)]
    for row in rows:
        delegates = f"{len(row.delegates)} ({' + '.join(map(str, row.delegates))} ops)"
        found = (f"{row.max_rel_loss_diff:.0e}", f"{row.max_rel_gradient_diff:.0e}", f"{row.min_cosine:.9f}")
        lines.append(_line((row.architecture, row.method, str(row.sites), delegates, str(row.cpu_ops), *found)))
    return lines


def _page(rows: _Rows) -> str:
    """The page: one line an architecture, then why each op that stays outside does."""
    exact = [row for row in rows.gradients if row.method == "exact"]
    alone = sum(len(row.delegates) == 1 for row in exact)
    counted = f"All {len(rows.losses)} train by prge, {len(exact)} by exact, and {alone} of these in one delegate."
    loss = max(row.max_rel_loss_diff for row in rows.losses)
    lines = [_INTRODUCTION.format(counted=counted, loss=loss), *_page_rows(rows), _EXPERTS.rstrip(), _OUTSIDE]
    one = [row for row in rows.losses if len(row.delegates) == 1]
    for reason in sorted({reason for row in one for _, _, reason in row.cpu_ops}):
        ops = sorted({op for row in one for op, _, why in row.cpu_ops if why == reason})
        text = f"- {reason}: " + ", ".join(f"`{op}`" for op in ops)
        lines += textwrap.wrap(text, 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines)


def _page_rows(rows: _Rows) -> list[str]:
    found = {(row.architecture, row.method): row for row in rows.gradients}
    lines = [_line(_PAGE_TABLE), _line("-" * len(name) for name in _PAGE_TABLE)]
    for row in rows.losses:
        cells = [row.architecture, row.features, str(row.sites), str(sum(count for _, count, _ in row.cpu_ops))]
        cells.append(_cell(row.max_rel_train_diff, row.delegates))
        for method in TRAINING_METHODS[1:]:
            gradient = found.get((row.architecture, method))
            cells.append(_cell(gradient.max_rel_gradient_diff, gradient.delegates) if gradient else "")
        lines.append(_line(cells))
    return lines


def _cell(difference: float, delegates: Sequence[int]) -> str:
    return f"{difference:.0e}" + (f", {len(delegates)} delegates" if len(delegates) > 1 else "")


def _rows(rows: Sequence[Measured]) -> list[str]:
    lines = [_line(_TABLE), _line("-" * len(name) for name in _TABLE)]
    for row in rows:
        outside = sum(count for _, count, _ in row.cpu_ops)
        delegates = f"{len(row.delegates)} ({' + '.join(map(str, row.delegates))} ops)"
        lines.append(
            _line(
                (
                    row.architecture,
                    row.features,
                    str(row.sites),
                    delegates,
                    str(outside),
                    f"{row.max_rel_loss_diff:.0e}",
                    f"{row.max_rel_train_diff:.0e}",
                )
            )
        )
    return lines


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    sys.exit(main())
